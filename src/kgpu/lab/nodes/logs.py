"""Reads container logs in the CRI form (``TIME STREAM TAG TEXT``) as ``kubectl logs`` asks for them.

Selection is pure; ``follow`` waits for more until the container has ended. Input is whatever lies in the file: a line
that is not of the form is passed on as it is.
"""

from __future__ import annotations

import asyncio
import datetime as dt
import errno
import os
import stat
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Final

POLL_S: Final = 0.1
BLOCK: Final = 1 << 16


@dataclass(frozen=True, slots=True, kw_only=True)
class LogOptions:
    """What is asked for. ``since`` is an RFC 3339 time, "" for all; ``tail`` None for all, ``limit`` in bytes."""

    follow: bool = False
    previous: bool = False
    timestamps: bool = False
    tail: int | None = None
    since: str = ""
    limit: int | None = None


def parse_options(query: dict[str, str], now: float) -> LogOptions:
    """From the query of a request. Raises ValueError for what is no number."""
    since = query.get("sinceTime", "")
    if "sinceSeconds" in query:
        try:
            when = dt.datetime.fromtimestamp(now - int(query["sinceSeconds"]), dt.UTC)
        except (OverflowError, OSError) as error:
            raise ValueError("sinceSeconds is too large") from error
        since = when.strftime("%Y-%m-%dT%H:%M:%S.%fZ")

    def number(name: str) -> int | None:
        amount = int(query[name]) if query.get(name) else None
        if amount is not None and amount < 0:
            raise ValueError(f"{name} is negative")
        return amount

    def flag(name: str) -> bool:
        return query.get(name, "").lower() in {"true", "1"}

    return LogOptions(
        follow=flag("follow"),
        previous=flag("previous"),
        timestamps=flag("timestamps"),
        tail=number("tailLines"),
        since=since,
        limit=number("limitBytes"),
    )


def render(line: bytes, options: LogOptions) -> bytes:
    """One stored line as it is shown; empty when ``since`` leaves it out."""
    parts = line.rstrip(b"\n").split(b" ", 3)
    if len(parts) < 3 or parts[1] not in {b"stdout", b"stderr"}:
        return line
    text = parts[3] if len(parts) == 4 else b""
    if options.since and parts[0].decode(errors="replace").rstrip("Z") < options.since.rstrip("Z"):
        return b""
    end = b"" if parts[2] == b"P" else b"\n"
    return (parts[0] + b" " if options.timestamps else b"") + text + end


def tail_of(file: BinaryIO, size: int, lines: int) -> int:
    """Where the last ``lines`` lines of the first ``size`` bytes begin."""
    if lines <= 0:
        return size
    newlines, end = 0, size
    while end > 0:
        begin = max(0, end - BLOCK)
        file.seek(begin)
        block = file.read(end - begin)
        at = len(block)
        while (at := block.rfind(b"\n", 0, at)) >= 0:
            if begin + at == size - 1:
                continue
            newlines += 1
            if newlines == lines:
                return begin + at + 1
        end = begin
    return 0


def open_log(path: Path) -> BinaryIO:
    """The log, if it is a plain file: a link or a pipe that a container put in its place is not. Raises OSError."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(errno.EINVAL, "not a plain file", str(path))
    return os.fdopen(descriptor, "rb", buffering=0)


async def read(path: Path, options: LogOptions, ended: Callable[[], bool]) -> AsyncIterator[bytes]:
    """The pieces of a log; with ``follow`` until ``ended()`` is true and everything is read. Raises OSError.

    A log that grew too large and was begun anew meanwhile is followed into the new file.
    """
    left = options.limit
    file = open_log(path)
    try:
        file.seek(tail_of(file, os.fstat(file.fileno()).st_size, options.tail) if options.tail is not None else 0)
        rest = b""
        while True:
            over = ended()
            block = file.read(BLOCK)
            if not block:
                successor = _successor(path, file) if options.follow else None
                if successor is not None:
                    file.close()
                    file = successor
                    continue
                if not options.follow or over:
                    break
                await asyncio.sleep(POLL_S)
                continue
            lines = (rest + block).split(b"\n")
            rest = lines.pop()
            out = b"".join(render(line + b"\n", options) for line in lines)
            if left is not None:
                out, left = out[:left], left - len(out)
            if out:
                yield out
            if left is not None and left <= 0:
                return
            await asyncio.sleep(0)  # others have their turn while a long log is read
        if out := render(rest, options)[:left] if rest else b"":
            yield out
    finally:
        file.close()


def _successor(path: Path, file: BinaryIO) -> BinaryIO | None:
    """The file that is under the log's name by now, if it is another one."""
    try:
        if os.stat(path, follow_symlinks=False).st_ino == os.fstat(file.fileno()).st_ino:
            return None
        return open_log(path)
    except OSError:
        return None


def size(path: Path) -> int:
    """Bytes of a log, 0 when there is none."""
    try:
        return os.stat(path).st_size
    except OSError:
        return 0
