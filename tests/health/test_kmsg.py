"""Following the kernel log: every record once, in order, over restarts, gaps and files that change."""

from __future__ import annotations

import asyncio
import errno
import os
import time
from collections.abc import AsyncIterator
from contextlib import aclosing
from pathlib import Path

import pytest

from kgpu.base.errors import HostError
from kgpu.health import kmsg
from kgpu.health.klog import KernelRecord
from kgpu.health.kmsg import Batch, DeviceLog, FileLog, KernelLog, MemoryLog, age, open_log


def record(sequence: int, message: str = "x") -> bytes:
    return f"4,{sequence},{time.monotonic_ns() // 1000},-;{message}\n".encode()


async def take(log: KernelLog, after: int, count: int) -> list[Batch]:
    """Batches until ``count`` records have come."""
    found: list[Batch] = []
    async with asyncio.timeout(60), aclosing(log.follow(after)) as batches:  # type: ignore[type-var]
        async for batch in batches:
            found.append(batch)
            if sum(len(one.records) for one in found) >= count:
                return found
    return found


def numbers(batches: list[Batch]) -> list[int]:
    return [one.sequence for batch in batches for one in batch.records]


class Kept:
    """A log that a test writes to, whichever it is."""

    def __init__(self, kind: str, folder: Path) -> None:
        self.path = folder / "kmsg"
        self.memory = MemoryLog()
        self.log: KernelLog = self.memory
        self.next = 0
        if kind == "file":
            self.path.write_bytes(b"")
            self.log = FileLog(self.path, look_seconds=0.05)

    def add(self, *messages: str, skip: int = 0) -> None:
        for message in messages:
            self.next += skip
            self.memory.add(message, skip=skip)
            if self.path.exists():
                with open(self.path, "ab") as file:
                    file.write(record(self.next, message))
            self.next += 1
            skip = 0


@pytest.fixture(params=["memory", "file"])
def kept(request: pytest.FixtureRequest, tmp_path: Path) -> Kept:
    return Kept(request.param, tmp_path)


async def test_every_record_comes_once_and_in_order(kept: Kept) -> None:
    kept.add("a", "b")
    assert numbers(await take(kept.log, -1, 2)) == [0, 1]
    kept.add("c")
    assert numbers(await take(kept.log, 1, 1)) == [2]


async def test_what_comes_later_is_waited_for(kept: Kept) -> None:
    kept.add("a")
    waiting = asyncio.create_task(take(kept.log, 0, 2))
    await asyncio.sleep(0)
    kept.add("b")
    kept.add("c")
    found = await waiting
    assert [one.message for batch in found for one in batch.records] == ["b", "c"]


async def test_what_was_overwritten_is_counted(kept: Kept) -> None:
    kept.add("a")
    kept.add("b", skip=7)
    assert sum(batch.missed for batch in await take(kept.log, -1, 2)) == 7
    assert sum(batch.missed for batch in await take(kept.log, 3, 1)) == 4


async def test_a_log_that_begins_later_has_missed_nothing(kept: Kept) -> None:
    kept.add("a", skip=500)
    assert sum(batch.missed for batch in await take(kept.log, -1, 1)) == 0


async def test_a_file_may_be_emptied_and_replaced(tmp_path: Path) -> None:
    path = tmp_path / "kmsg"
    path.write_bytes(record(0) + record(1))
    found: list[int] = []

    async def follow() -> None:
        async for batch in FileLog(path, look_seconds=0.05).follow(-1):
            found.extend(one.sequence for one in batch.records)

    task = asyncio.create_task(follow())

    async def until(wanted: list[int]) -> None:
        async with asyncio.timeout(60):
            while found != wanted:
                assert not task.done(), task
                await asyncio.sleep(0.005)

    await until([0, 1])
    path.write_bytes(record(2))  # shorter than it was
    await until([0, 1, 2])
    other = tmp_path / "new"
    other.write_bytes(record(2) + record(3) + b"garbage\n\xff\xfe;\n" + record(4)[:-1])
    os.replace(other, path)
    await until([0, 1, 2, 3])  # the last line has no end yet
    path.write_bytes(path.read_bytes() + b"\n")
    await until([0, 1, 2, 3, 4])
    path.unlink()
    with pytest.raises(HostError, match="can't be read"):
        await asyncio.wait_for(task, 60)


def script(monkeypatch: pytest.MonkeyPatch, *answers: bytes | int) -> None:
    """What reads of the device give; a number is an error, and at the end there is nothing more."""
    rest = list(answers)

    def read(fd: int, size: int) -> bytes:
        del fd, size
        answer = rest.pop(0) if rest else errno.EAGAIN
        if isinstance(answer, int):
            raise OSError(answer, os.strerror(answer))
        return answer

    monkeypatch.setattr(kmsg.os, "read", read)


async def first(batches: AsyncIterator[Batch]) -> Batch:
    async with asyncio.timeout(60):
        return await anext(batches)


async def test_the_device_goes_on_after_an_overrun(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "kmsg")
    script(monkeypatch, record(5), errno.EPIPE, record(90), errno.EINVAL, record(91))
    batch = await first(DeviceLog(tmp_path / "kmsg").follow(4))
    assert ([one.sequence for one in batch.records], batch.missed) == ([5, 90, 91], 84)


async def test_the_device_is_waited_for(tmp_path: Path) -> None:
    path = tmp_path / "kmsg"
    os.mkfifo(path)
    log = open_log(path)
    assert isinstance(log, DeviceLog)
    fd = os.open(path, os.O_RDWR)  # keeps the pipe from ending
    try:
        async with aclosing(log.follow(-1)) as batches:  # type: ignore[type-var]
            waiting = asyncio.create_task(first(batches))
            await asyncio.sleep(0.01)
            os.write(fd, record(3, "NVRM: hello"))
            batch = await waiting
    finally:
        os.close(fd)
    assert [one.message for one in batch.records] == ["NVRM: hello"]


async def test_an_error_of_the_device_is_told(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "kmsg")
    script(monkeypatch, errno.EIO)
    with pytest.raises(HostError, match="can't be read"):
        await first(DeviceLog(tmp_path / "kmsg").follow(-1))


def test_a_log_that_is_not_there_or_not_ours_is_told(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    with pytest.raises(HostError, match="No such file"):
        open_log(tmp_path / "kmsg")


@pytest.mark.skipif(not os.access("/dev/kmsg", os.R_OK), reason="the kernel log can't be read here")
async def test_the_real_kernel_log() -> None:
    try:
        batch = await first(DeviceLog(Path("/dev/kmsg")).follow(-1))
    except HostError as error:
        pytest.skip(error.what)
    sequences = [one.sequence for one in batch.records]
    assert sequences == sorted(set(sequences))
    again = await first(DeviceLog(Path("/dev/kmsg")).follow(sequences[0]))
    assert again.records[0].sequence > sequences[0]


def test_a_record_is_never_of_the_future() -> None:
    future = KernelRecord(level=4, facility=0, sequence=1, microseconds=time.monotonic_ns(), message="x")
    assert age(future) == 0.0
    past = KernelRecord(
        level=4, facility=0, sequence=1, microseconds=max(0, time.monotonic_ns() // 1000 - 2_000_000), message="x"
    )
    assert 2.0 <= age(past) < 60.0
