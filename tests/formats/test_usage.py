"""Lines of usage recordings: what is written is read back, and everything else is refused in three parts."""

from __future__ import annotations

import contextlib
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kgpu.formats.usage import (
    MAX_LINE,
    VERSION,
    RecordedGpu,
    RecordedPartition,
    RecordingError,
    RecordingHeader,
    UsageState,
    check_header,
    decode,
    encode,
)
from tests.budget import tries
from tests.usage.recordings import BEGIN, holder, node

DEVICE = RecordedGpu(
    node="n1", device="GPU-1", at=BEGIN, boot="b", uptime_us=5, product="A100", memory_mib=40960, energy_uj=7,
    states_us={UsageState.BUSY: 4, UsageState.DOWN: 1}, partitions=(RecordedPartition(id="3", profile="3g.20gb"),),
    holders=(holder("a", partition="3", held_us=4, busy_us=0, labels={"team": "x"}), holder("b", held_us=1)),
)  # fmt: skip


def changed(**fields: Any) -> bytes:
    return json.dumps({**json.loads(encode(DEVICE)), **fields}).encode()


def with_holder(**fields: Any) -> bytes:
    return changed(holders=[{"namespace": "n", "pod": "p", "uid": "u", "held_us": 1, **fields}])


@pytest.mark.parametrize(
    "line", [RecordingHeader(version=VERSION, labels=("team",)), node(gpus=8, cpus=96, memory_mib=1024), DEVICE]
)
def test_a_line_is_read_as_it_was_written(line: Any) -> None:
    assert encode(line).count(b"\n") == 1
    assert decode(encode(line), place="f") == line


REFUSED = {
    b"": ("no JSON", "one JSON object"),
    b"{": ("no JSON", "one JSON object"),
    b"\xff": ("no JSON", "one JSON object"),
    b"[" * 100_000: ("the line is", "object"),
    b"[]": ("the line is `array`", "object"),
    b"{}": ("line without kind", "kgpu-usage, node, device"),
    b'{"kind": 3}': ('there is no "3"', "kgpu-usage, node, device"),
    b'{"kind": "devise"}': ('there is no "devise"', 'did you mean "device"?'),
    changed(upt=1): ('there is no "upt"', "uptime_us"),
    changed(uptime_us=-1): ("uptime_us", ">= 0"),
    changed(uptime_us=2**64): ("uptime_us", ""),
    changed(uptime_us=1.5): ("uptime_us", "int"),
    changed(uptime_us=True): ("uptime_us", "int"),
    changed(node=""): ("node", "length >= 1"),
    changed(at="2026-07-20T00:00:00"): ("at", "timezone"),
    changed(at="soon"): ("at", ""),
    changed(states_us={"busyy": 1}): ("states_us: busyy", 'did you mean "busy"?'),
    with_holder(held_s=1): ('there is no "held_s"', 'did you mean "held_us"?'),
    with_holder(sharing="mpss"): ("mpss", 'did you mean "mps"?'),
    with_holder(portions={"memory": 1_000_001}): ("portions", "1000000"),
    with_holder(partition="9"): ("holds partition 9 that is not there", "one of: 3"),
    with_holder(units=3, replicas=2): ("holds 3 of 2 shares", "no more units than replicas"),
    changed(partitions=[{"id": "3"}, {"id": "3"}]): ("the partition 3 is there twice", "each partition once"),
    changed(holders=[{"namespace": "n", "pod": "p", "uid": "u", "held_us": 1}] * 2): (
        "the holder u",
        "each holder once",
    ),
    b'{"kind":"node","node":"\\u001b[2J"}': ("", "at"),
    b" " * (MAX_LINE + 1): (f"{MAX_LINE + 1} bytes", f"at most {MAX_LINE}"),
}


@pytest.mark.parametrize("text", REFUSED, ids=lambda text: repr(text[:40]))
def test_what_is_no_line_is_refused_in_three_parts(text: bytes) -> None:
    with pytest.raises(RecordingError) as caught:
        decode(text, place="u.jsonl, line 7")
    error = caught.value
    said, other = REFUSED[text]
    assert error.what.startswith("u.jsonl, line 7: ")
    assert said in error.what
    assert other in f"{error.expected}\n{error.remedy}"
    assert error.remedy
    assert "\x1b" not in str(error)


@tries(200)
@given(st.binary(max_size=200) | st.text(max_size=200).map(str.encode))
def test_no_text_is_a_crash(text: bytes) -> None:
    with contextlib.suppress(RecordingError):
        decode(text, place="f")


@tries(200)
@given(st.data())
def test_no_damage_to_a_line_is_a_crash(data: st.DataObject) -> None:
    text = bytearray(encode(DEVICE))
    for _ in range(data.draw(st.integers(1, 3))):
        text[data.draw(st.integers(0, len(text) - 1))] = data.draw(st.integers(0, 255))
    with contextlib.suppress(RecordingError):
        decode(bytes(text), place="f")


def test_another_version_is_refused() -> None:
    with pytest.raises(RecordingError, match="version 2"):
        check_header(RecordingHeader(version=2), place="f")
