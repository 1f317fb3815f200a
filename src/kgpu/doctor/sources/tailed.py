"""Logs of several containers in one text: ``kubectl logs --prefix``, ``stern``, and ``kubectl cluster-info dump``.

A container may print anything, a line that looks like another's too: in the first two each line says whose it is in
front of what the container wrote, and nothing can stand before that. In a dump a container's part ends with the last
mark of its own name, also where that is on no line of its own, so that a forged end puts no objects into the dump;
marks of others within it are told, and what it says may then come from another container.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final, TypeAlias

import msgspec

from kgpu.base.typed import decode

Row: TypeAlias = tuple[str, str, str, bytes]
"""Namespace ("": not said), pod and container of a line, and what the container wrote."""
Reader: TypeAlias = Callable[[bytes], Row | None]

_COLOR: Final = re.compile(rb"\x1b\[[0-9;]{0,16}m")
_NAME: Final = rb"[a-z0-9](?:[a-z0-9.-]{0,251}[a-z0-9])?"
_PREFIX: Final = re.compile(rb"\[pod/(%b)/(%b)\] ?(.*)" % (_NAME, _NAME), re.DOTALL)
_STERN: Final = re.compile(rb"(%b) (%b)(?: (.*)|$)" % (_NAME, _NAME), re.DOTALL)
_EVERYWHERE: Final = re.compile(rb"(%b) (%b) (%b)(?: (.*)|$)" % (_NAME, _NAME, _NAME), re.DOTALL)
_GENERATED: Final = re.compile(rb".*-(?:[a-z0-9]{5}|\d{1,5})")
"""How the names of pods end that a controller has made: of two words of other texts the first is no such name."""
_NOTICE: Final = re.compile(rb"[+-] (?:%b )?%b \xe2\x80\xba %b\s*" % (_NAME, _NAME, _NAME))
"""What stern itself says of a container that it follows or has left."""
_MARK: Final = re.compile(
    rb"(?:^==== (?P<mark>START)|==== (?P<end>END)) logs for container "
    rb"(?P<whose>(?P<container>%b) of pod (?P<namespace>%b)/(?P<pod>%b)) ====[ \r]*\n?" % (_NAME, _NAME, _NAME),
    re.MULTILINE,
)
_START: Final = b"==== START logs for container "
_SHARE: Final = 0.9
"""The share of lines that must have a form before the text has it: some programs print over several lines."""
_SAMPLE: Final = 8192
"""Bytes by which a text is known."""


@dataclass(frozen=True, slots=True)
class TailedLog:
    """The log of one container; ``namespace`` is "" where the text does not say it."""

    namespace: str
    pod: str
    container: str
    data: bytes
    forged: bool = False
    """It has marks of other containers' logs, which somebody may have written."""


class _Json(msgspec.Struct):
    message: str
    pod: str = msgspec.field(name="podName")
    container: str = msgspec.field(name="containerName")
    namespace: str = ""


def parts(data: bytes) -> tuple[TailedLog, ...]:
    """The logs of a text in which each line says whose it is; none for any other text."""
    lines = data[:_SAMPLE].split(b"\n")
    sample = [line for raw in (lines[:-1] if len(data) > _SAMPLE else lines) if (line := _plain(raw)).strip()]
    sample = [line for line in sample if not _NOTICE.fullmatch(line)]
    for reader in _READERS if sample else ():
        if sum(reader(line) is not None for line in sample) >= len(sample) * _SHARE:
            return tuple(_gathered(data, reader))
    return ()


def _gathered(data: bytes, reader: Reader) -> Iterator[TailedLog]:
    lines_by_container: dict[tuple[str, str, str], list[bytes]] = {}
    last: list[bytes] = []
    for raw in data.split(b"\n"):
        line = _plain(raw)
        row = reader(line)
        if row is not None:
            last = lines_by_container.setdefault(row[:3], [])
            last.append(row[3])
        elif line.strip() and not _NOTICE.fullmatch(line):
            last.append(line)  # the rest of what was printed last
    for whose, lines in lines_by_container.items():
        yield TailedLog(*whose, b"\n".join(lines) + b"\n")


def _plain(line: bytes) -> bytes:
    return _COLOR.sub(b"", line.rstrip(b"\r"))


def _prefixed(line: bytes) -> Row | None:
    hit = _PREFIX.fullmatch(line)
    return None if hit is None else ("", hit[1].decode(), hit[2].decode(), hit[3])


def _stern(line: bytes) -> Row | None:
    hit = _STERN.fullmatch(line)
    if hit is None or not _GENERATED.fullmatch(hit[1]):
        return None
    return "", hit[1].decode(), hit[2].decode(), hit[3] or b""


def _stern_everywhere(line: bytes) -> Row | None:
    hit = _EVERYWHERE.fullmatch(line)
    if hit is None or not _GENERATED.fullmatch(hit[2]):
        return None
    return hit[1].decode(), hit[2].decode(), hit[3].decode(), hit[4] or b""


def _stern_json(line: bytes) -> Row | None:
    try:
        found = decode(line, _Json)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return None
    return found.namespace, found.pod, found.container, found.message.rstrip("\n").encode("utf-8", "replace")


_READERS: Final[tuple[Reader, ...]] = (_prefixed, _stern_json, _stern_everywhere, _stern)


def sections(data: bytes) -> tuple[bytes, list[TailedLog]]:
    """What a dump has beside logs, and the logs that stand in it between marks."""
    if _START not in data:
        return data, []
    marks = list(_MARK.finditer(data))
    ends = {hit["whose"]: hit for hit in marks if hit["end"]}
    between: list[bytes] = []
    logs: list[TailedLog] = []
    at = 0
    for hit in marks:
        if hit.start() < at or not hit["mark"]:
            continue
        end = ends.get(hit["whose"])
        last, after = (end.start(), end.end()) if end and end.start() >= hit.end() else (len(data), len(data))
        body = data[hit.end() : last]
        namespace, pod, container = (hit[key].decode() for key in ("namespace", "pod", "container"))
        logs.append(TailedLog(namespace, pod, container, body, forged=_MARK.search(body) is not None))
        between.append(data[at : hit.start()])
        at = after
    return b"".join((*between, data[at:])), logs
