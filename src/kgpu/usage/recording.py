"""Reads a usage recording: lines in, what they say of nodes and devices out, with advice on what was wrong but
bearable.

Promises: memory grows with the lines, not with their length; a file that ends in half a line, as one that is still
being written, is read up to it; anything else that is no line of a recording is a RecordingError, never a crash.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import BinaryIO, Final

from kgpu.base.advice import Advice, Severity
from kgpu.formats.usage import (
    MAX_LINE,
    RecordedGpu,
    RecordedNode,
    RecordingError,
    RecordingHeader,
    check_header,
    decode,
)

STDIN: Final = "-"
MAX_LINES: Final = 5_000_000
_NO_HEADER: Final = 'a first line such as {"kind": "kgpu-usage", "version": 1}'


@dataclass(slots=True, kw_only=True)
class UsageRecording:
    """The lines of a recording, in the file's order."""

    cluster: str = ""
    labels: tuple[str, ...] = ()
    nodes: list[RecordedNode] = field(default_factory=list)
    devices: list[RecordedGpu] = field(default_factory=list)
    advice: list[Advice] = field(default_factory=list)


def read(path: str) -> UsageRecording:
    """The recording at ``path``; ``-`` is standard input. Raises RecordingError, and OSError as the system gives it."""
    if path == STDIN:
        return parse(_lines(sys.stdin.buffer), source="standard input")
    with open(path, "rb") as file:
        return parse(_lines(file), source=path)


def _lines(file: BinaryIO) -> Iterator[bytes]:
    """Its lines; one that is too long comes in pieces, the first of which is refused."""
    return iter(lambda: file.readline(MAX_LINE + 1), b"")


def parse(lines: Iterable[bytes], *, source: str) -> UsageRecording:
    """The recording of these lines, each with its end. Several recordings of one cluster may follow one another."""
    found = UsageRecording()
    header: RecordingHeader | None = None
    for number, text in enumerate(lines, start=1):
        place = f"{source}, line {number}"
        if number > MAX_LINES:
            raise RecordingError(place, "too many lines", f"at most {MAX_LINES}", "split the recording by time")
        if not text.strip():
            continue
        if header is not None and not text.endswith(b"\n") and len(text) <= MAX_LINE:
            try:
                line = decode(text, place=place)
            except RecordingError as error:
                found.advice.append(_cut_off(place, error))
                break
        else:
            line = decode(text.rstrip(b"\r\n"), place=place)
        if isinstance(line, RecordingHeader):
            _take_header(found, header, line, place)
            header = line
        elif header is None:
            raise RecordingError(place, "a recording begins with its header", _NO_HEADER, "give a usage recording")
        elif isinstance(line, RecordedNode):
            found.nodes.append(line)
        else:
            found.devices.append(line)
    if header is None:
        raise RecordingError(source, "there is no line in it", _NO_HEADER, "give a usage recording")
    return found


def _take_header(found: UsageRecording, before: RecordingHeader | None, line: RecordingHeader, place: str) -> None:
    check_header(line, place=place)
    if before is not None and before.cluster != line.cluster:
        raise RecordingError(
            place, f'a recording of cluster "{line.cluster}" after one of "{before.cluster}"', "one cluster in a file",
            "give each cluster's recording by itself",
        )  # fmt: skip
    found.cluster = line.cluster
    found.labels = tuple(dict.fromkeys((*found.labels, *line.labels)))


def _cut_off(place: str, error: RecordingError) -> Advice:
    return Advice(
        subject=place, what=f"{place} is cut off and was left out", why=error.said, severity=Severity.WARNING,
        reason="RecordingCutOff", remedy="nothing, if it is still being written: the next line says the same and more",
    ).printable()  # fmt: skip
