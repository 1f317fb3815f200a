"""Choosing from a log: the last lines, a time, a number of bytes; for any text that a container may have said."""

from __future__ import annotations

import asyncio
import io
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kgpu.lab.nodes import logs, shim
from kgpu.lab.nodes.logs import LogOptions, parse_options, render
from tests.budget import tries

TEXT = st.binary(max_size=40).map(lambda data: data.replace(b"\n", b""))


def write(path: Path, lines: list[bytes]) -> None:
    log = shim.ContainerLogWriter(str(path))
    for line in lines:
        log.take("stdout", line + b"\n")
    log.end()


def read(path: Path, options: LogOptions) -> bytes:
    async def collect() -> bytes:
        return b"".join([piece async for piece in logs.read(path, options, lambda: True)])

    return asyncio.run(collect())


@tries(60)
@given(lines=st.lists(TEXT, max_size=12), tail=st.integers(0, 14), limit=st.integers(0, 200))
def test_what_was_said_is_shown(
    tmp_path_factory: pytest.TempPathFactory, lines: list[bytes], tail: int, limit: int
) -> None:
    path = tmp_path_factory.mktemp("log") / "0.log"
    write(path, lines)
    said = [line + b"\n" for line in lines]
    assert read(path, LogOptions()) == b"".join(said)
    assert read(path, LogOptions(tail=tail)) == b"".join(said[-tail:] if tail else [])
    assert read(path, LogOptions(limit=limit)) == b"".join(said)[:limit]
    stamped = read(path, LogOptions(timestamps=True))
    if all(line.isalnum() for line in lines):
        assert [row.split(b" ", 1)[1] for row in stamped.splitlines()] == lines


@given(st.binary(max_size=200))
def test_any_line_can_be_rendered(line: bytes) -> None:
    for options in (LogOptions(), LogOptions(timestamps=True), LogOptions(since="2024-01-01T00:00:00Z")):
        assert isinstance(render(line, options), bytes)


def test_since_leaves_out_what_is_older() -> None:
    options = LogOptions(since="2026-01-02T00:00:00Z")
    assert render(b"2026-01-01T23:59:59.9Z stdout F old\n", options) == b""
    assert render(b"2026-01-02T00:00:00.1Z stdout F new\n", options) == b"new\n"


@given(
    st.dictionaries(
        st.sampled_from(["tailLines", "limitBytes", "sinceSeconds", "sinceTime", "follow"]), st.text(max_size=30)
    )
)
def test_queries_are_options_or_a_value_error(query: dict[str, str]) -> None:
    try:
        options = parse_options(query, 1e9)
    except ValueError:
        return
    assert options.tail is None or options.tail >= 0
    assert options.limit is None or options.limit >= 0


@given(st.lists(st.binary(max_size=9).map(lambda data: data.replace(b"\n", b"")), max_size=9), st.integers(0, 12))
def test_the_tail_begins_at_a_line(lines: list[bytes], wanted: int) -> None:
    data = b"".join(line + b"\n" for line in lines)

    offset = len(data) - len(b"".join(line + b"\n" for line in lines[-wanted:])) if wanted else len(data)
    assert logs.tail_of(io.BytesIO(data), len(data), wanted) == offset
