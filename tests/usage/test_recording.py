"""Recordings are read as far as they go; what is wrong and bearable is told, what is not is refused with its line."""

from __future__ import annotations

from pathlib import Path

import pytest

from kgpu.formats.usage import RecordingError, RecordingHeader, encode
from kgpu.usage.recording import parse, read
from tests.usage.recordings import Device, holder, lines, write

LINES = [encode(line) for line in lines(Device().spend(60, holder()).spend(60))]


def test_a_file_is_read_in_its_order(tmp_path: Path) -> None:
    found = read(str(write(tmp_path / "u.jsonl", Device().spend(60, holder()), labels=("team",))))
    assert [line.uptime_us for line in found.devices] == [1_000_000_000, 1_060_000_000]
    assert (found.cluster, found.labels, found.advice) == ("test", ("team",), [])


def test_a_line_that_is_cut_off_at_the_end_is_left_out_and_told() -> None:
    found = parse([*LINES[:-1], LINES[-1][:40]], source="u.jsonl")
    assert len(found.devices) == 2
    (told,) = found.advice
    assert told.reason == "RecordingCutOff"
    assert "u.jsonl, line 4 is cut off" in told.what


def test_a_last_line_without_its_end_counts() -> None:
    assert len(parse([*LINES[:-1], LINES[-1].rstrip()], source="f").devices) == 3


def test_a_bad_line_before_others_is_refused_with_its_number() -> None:
    with pytest.raises(RecordingError, match=r"u\.jsonl, line 3: no JSON"):
        parse([*LINES[:2], LINES[2][:40] + b"\n", LINES[3]], source="u.jsonl")


@pytest.mark.parametrize("texts", [[], [b"\n", b"  \n"], LINES[1:], [b'{"kind":"kgpu-usage","version":9}\n']])
def test_what_does_not_begin_with_a_header_that_is_known_is_refused(texts: list[bytes]) -> None:
    with pytest.raises(RecordingError) as caught:
        parse(texts, source="f")
    assert caught.value.remedy


def test_recordings_of_one_cluster_may_follow_one_another() -> None:
    again = encode(RecordingHeader(version=1, cluster="test", labels=("app",)))
    found = parse([*LINES, again, *LINES[1:]], source="f")
    assert len(found.devices) == 6
    assert found.labels == ("app",)
    with pytest.raises(RecordingError, match='cluster "other" after one of "test"'):
        parse([*LINES, encode(RecordingHeader(version=1, cluster="other"))], source="f")


def test_a_line_without_end_is_not_read_whole(tmp_path: Path) -> None:
    path = tmp_path / "u.jsonl"
    path.write_bytes(LINES[0] + b"x" * (3 << 20))
    with pytest.raises(RecordingError, match="line 2: 1048577 bytes"):
        read(str(path))
