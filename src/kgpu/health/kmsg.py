"""Follows the kernel log: every record once, also over a restart of this process.

A record's sequence number says which came after which since the boot; whoever follows is told the last one that counted
and leaves out what is not newer. A log whose oldest records were overwritten before they were read says how many. The
port is ``KernelLog``; ``/dev/kmsg`` and a file of such records (simulated nodes have one) are the two real ones, behind
``open_log``.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import stat
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Protocol

from kgpu.base.errors import HostError
from kgpu.base.inotify import CONTENT, IN_MODIFY, Inotify
from kgpu.health.klog import MAX_LINE, KernelRecord, parse_record

BATCH: Final = 256
"""How many records are read before other tasks get their turn."""
LOOK_SECONDS: Final = 5.0
_CHUNK: Final = 1 << 16


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """Records in order, ``missed`` of which were overwritten unread before them, and the last sequence number."""

    records: tuple[KernelRecord, ...]
    sequence: int
    missed: int = 0


class KernelLog(Protocol):
    """The kernel log of this boot, as a port."""

    def follow(self, after: int) -> AsyncIterator[Batch]:
        """Records with a larger sequence number than ``after``, for as long as the caller iterates; -1 for all.

        Raises HostError when it can't be read (any more).
        """
        ...


class MemoryLog:
    """The fake: ``add`` appends a record's message; ``fail`` makes readers fail."""

    def __init__(self) -> None:
        self.records: list[KernelRecord] = []
        self._wake = asyncio.Event()
        self._error: HostError | None = None

    def add(self, message: str, *, microseconds: int | None = None, skip: int = 0) -> None:
        """Append a message; ``skip`` sequence numbers before it are left out."""
        last = self.records[-1].sequence if self.records else -1
        at = time.monotonic_ns() // 1000 if microseconds is None else microseconds
        new = KernelRecord(level=4, facility=0, sequence=last + 1 + skip, microseconds=at, message=message)
        self.records.append(new)
        self._wake.set()

    def fail(self, error: HostError | None) -> None:
        """Make readers fail with this from now on; None ends that."""
        self._error = error
        self._wake.set()

    async def follow(self, after: int) -> AsyncIterator[Batch]:
        while True:
            self._wake.clear()
            if self._error is not None:
                raise self._error
            batch = _batch([record for record in self.records if record.sequence > after], after)
            if batch.records:
                after = batch.sequence
                yield batch
            else:
                await self._wake.wait()


class DeviceLog:
    """``/dev/kmsg``: each read gives one record; EPIPE says that the next one was overwritten."""

    def __init__(self, path: Path) -> None:
        self._path = path

    async def follow(self, after: int) -> AsyncIterator[Batch]:
        loop = asyncio.get_running_loop()
        wake = asyncio.Event()
        with _opened(self._path) as fd:
            watched = False
            try:
                while True:
                    records, more = self._read(fd)
                    batch = _batch([record for record in records if record.sequence > after], after)
                    if batch.records:
                        after = batch.sequence
                        yield batch
                    if more:
                        await asyncio.sleep(0)
                        continue
                    wake.clear()
                    if not watched:
                        loop.add_reader(fd, wake.set)
                        watched = True
                    await wake.wait()
            finally:
                if watched:
                    loop.remove_reader(fd)

    def _read(self, fd: int) -> tuple[list[KernelRecord], bool]:
        """Read up to ``BATCH`` records; return them and whether there may be more."""
        records: list[KernelRecord] = []
        for _ in range(BATCH):
            try:
                raw = os.read(fd, MAX_LINE)
            except BlockingIOError:
                return records, False
            except OSError as error:
                if error.errno == errno.EPIPE:  # overwritten: the next read gives the oldest there is
                    continue
                if error.errno == errno.EINVAL:  # a record larger than the kernel's own limit; it is passed over
                    continue
                raise _unreadable(self._path, error) from error
            if not raw:
                return records, False
            record = parse_record(raw)
            if record is not None:
                records.append(record)
        return records, True


class FileLog:
    """A file of records, each a line as ``/dev/kmsg`` has it; it may grow, be emptied, or be replaced."""

    def __init__(self, path: Path, *, look_seconds: float = LOOK_SECONDS) -> None:
        self._path = path
        self._look_seconds = look_seconds

    async def follow(self, after: int) -> AsyncIterator[Batch]:
        async with Inotify() as inotify:
            while True:
                inotify.watch({self._path.parent}, CONTENT | IN_MODIFY)
                with _opened(self._path) as fd:
                    async for batch in self._rest(fd, inotify, after):
                        after = batch.sequence
                        yield batch

    async def _rest(self, fd: int, inotify: Inotify, after: int) -> AsyncIterator[Batch]:
        """Yield batches until the file is replaced or truncated."""
        left = b""
        opened = os.fstat(fd)
        while True:
            try:
                raw = os.read(fd, _CHUNK)
            except OSError as error:
                raise _unreadable(self._path, error) from error
            *lines, left = (left + raw).split(b"\n")
            left = left[:MAX_LINE]
            records = (parse_record(line + b"\n") for line in lines)
            batch = _batch([record for record in records if record is not None and record.sequence > after], after)
            if batch.records:
                after = batch.sequence
                yield batch
            if raw:
                await asyncio.sleep(0)
                continue
            now = self._now()
            if (now.st_dev, now.st_ino) != (opened.st_dev, opened.st_ino) or now.st_size < os.lseek(fd, 0, os.SEEK_CUR):
                return
            await inotify.wait(self._look_seconds)

    def _now(self) -> os.stat_result:
        try:
            return os.stat(self._path)
        except OSError as error:
            raise _unreadable(self._path, error) from error


def open_log(path: Path) -> KernelLog:
    """The log at ``path``, by what is there. Raises HostError when there is nothing."""
    try:
        mode = os.stat(path).st_mode
    except OSError as error:
        raise _unreadable(path, error) from error
    return FileLog(path) if stat.S_ISREG(mode) else DeviceLog(path)


def age(record: KernelRecord) -> float:
    """How many seconds ago a record of this boot was written, never negative."""
    return max(0.0, time.monotonic() - record.microseconds / 1e6)


def _batch(records: list[KernelRecord], after: int) -> Batch:
    records.sort(key=lambda one: one.sequence)
    if not records:
        return Batch(records=(), sequence=after)
    # What came before the first record that anybody could read is not missed.
    gaps = records[-1].sequence - (after if after >= 0 else records[0].sequence - 1) - len(records)
    return Batch(records=tuple(records), sequence=records[-1].sequence, missed=max(0, gaps))


@contextlib.contextmanager
def _opened(path: Path):  # type: ignore[no-untyped-def]  # noqa: ANN202
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY)
    except OSError as error:
        raise _unreadable(path, error) from error
    try:
        yield fd
    finally:
        os.close(fd)


def _unreadable(path: Path, error: OSError) -> HostError:
    return HostError(
        f"the kernel log {path} can't be read: {error.strerror or error}",
        "the kernel log: Xids that the driver's events do not tell, and their words, are there",
        "run with CAP_SYSLOG and the host's /dev; Xids that come as driver events are seen meanwhile",
    )
