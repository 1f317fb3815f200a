"""Logs as engines keep them on a node: the CRI's lines (containerd, CRI-O) and Docker's JSON, taken back to what the
container wrote.

Bytes in, bytes out. A line that an engine has cut comes back whole; what has neither form comes back as it is. Linear
in the input; of what is larger than a kubelet lets a log grow only the end is looked at.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Final

import msgspec

from kgpu.base.typed import decode

MAX_LOG: Final = 16 * 1024 * 1024
"""Bytes of a log's end that are taken back. The kubelet rotates at 10 MiB unless told otherwise."""
_TIME: Final = rb"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(?:\.\d{1,9})?(?:Z|[+-]\d\d:\d\d)"
_CRI: Final = re.compile(rb"%b (?P<stream>stdout|stderr) (?P<part>[FP])(?::[^ ]{0,64})? ?(?P<text>[^\n]*)" % _TIME)
_DOCKER: Final = b'{"log":"'
_HEAD: Final = 4096


class _Docker(msgspec.Struct):
    log: str
    stream: str = ""


def unwrapped(data: bytes) -> bytes:
    """What the container wrote, where the log is one that an engine keeps."""
    first = data[:_HEAD].lstrip()
    reader = _cri if _CRI.match(first) else _docker if first.startswith(_DOCKER) else None
    return data if reader is None else b"\n".join(_joined(_end(data), reader)) + b"\n"


def _end(data: bytes) -> bytes:
    return data if len(data) <= MAX_LOG else data[-MAX_LOG:].partition(b"\n")[2]


def _joined(data: bytes, reader: Callable[[bytes], tuple[str, bytes, bool] | None]) -> Iterator[bytes]:
    """Lines with their parts put together; the two streams may be mixed."""
    begun: dict[str, list[bytes]] = {}
    for line in data.split(b"\n"):
        row = reader(line)
        if row is None:
            if line.strip():
                yield line  # somebody's own words between the engine's
            continue
        stream, text, whole = row
        begun.setdefault(stream, []).append(text)
        if whole:
            yield b"".join(begun.pop(stream))
    yield from (b"".join(parts) for parts in begun.values())


def _cri(line: bytes) -> tuple[str, bytes, bool] | None:
    hit = _CRI.match(line)
    return None if hit is None else (hit["stream"].decode(), hit["text"].rstrip(b"\r"), hit["part"] == b"F")


def _docker(line: bytes) -> tuple[str, bytes, bool] | None:
    try:
        row = decode(line, _Docker)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return None
    return row.stream, row.log.removesuffix("\n").encode("utf-8", "replace"), row.log.endswith("\n")
