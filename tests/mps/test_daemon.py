"""One control daemon's life on a fake driver: deaths, hangs, strangers, what an earlier agent has left."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from kgpu.base.advice import Advice
from kgpu.base.clock import VirtualClock
from kgpu.base.errors import HostError
from kgpu.formats.mps_folders import read_served
from kgpu.mps.daemon import LOOK_SECONDS, ControlDaemon
from kgpu.mps.driver_fake import FakeMpsDriver
from kgpu.mps.model import DaemonSpec
from kgpu.mps.record import EXCLUSIVE, NodeRecord

SECONDS = 60.0


class Life:
    """A daemon, what it may touch, and what it says."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.driver = FakeMpsDriver()
        self.clock = VirtualClock()
        self.advice: list[Advice] = []
        self.spec = DaemonSpec(
            root=str(folder / "mps"), resource="nvidia.com/gpu", gpus=("GPU-a", "GPU-b"), replicas=(4, 4),
            limits_mib=(100, 100), percentage=25,
        )  # fmt: skip
        self.record = self.new_record()
        self.daemon = self.new_daemon()

    def new_record(self, boot: str = "boot-1") -> NodeRecord:
        return NodeRecord(self.folder / "mps.json", self.driver, boot=boot, report=self.advice.append)

    def new_daemon(self) -> ControlDaemon:
        return ControlDaemon(
            self.spec, driver=self.driver, record=self.record, report=self.advice.append, clock=self.clock
        )

    @property
    def started(self) -> Path:
        return Path(self.spec.started)

    def started_times(self, number: int) -> bool:
        return self.driver.calls.count("start nvidia.com/gpu") == number

    def reasons(self) -> list[str]:
        return [advice.reason for advice in self.advice]

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[ControlDaemon]:
        task = asyncio.create_task(self.daemon.run())
        try:
            yield self.daemon
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    async def until(self, condition: Callable[[], object], *, moving: float = 0.0) -> None:
        """Wait for threads; with ``moving``, time goes on by so many seconds at each look."""
        async with asyncio.timeout(SECONDS):
            while not condition():
                await asyncio.sleep(0.002)
                if moving:
                    await self.clock.advance(moving)


@pytest.fixture
def life(tmp_path: Path) -> Life:
    return Life(tmp_path)


async def test_it_serves_only_with_its_limits_set_and_its_gpus_exclusive(life: Life) -> None:
    async with life.running() as daemon:
        await life.until(lambda: daemon.serves)
        assert life.driver.calls == [f"GPU-a {EXCLUSIVE}", f"GPU-b {EXCLUSIVE}", "start nvidia.com/gpu"]
        assert life.driver.told["nvidia.com/gpu"][-4:-1] == list(life.spec.commands)
        assert read_served(life.started.read_text()) == {"GPU-a": 4, "GPU-b": 4}
    await life.daemon.stop()
    assert life.driver.modes == {"GPU-a": "DEFAULT", "GPU-b": "DEFAULT"}
    assert life.driver.calls[3:] == ["quit nvidia.com/gpu", "GPU-a DEFAULT", "GPU-b DEFAULT"]
    assert [path for path in life.folder.rglob("*") if path.is_file()] == []


async def test_a_former_mode_comes_back_whatever_it_was(life: Life) -> None:
    life.driver.modes = {"GPU-a": "PROHIBITED", "GPU-b": EXCLUSIVE}
    async with life.running() as daemon:
        await life.until(lambda: daemon.serves)
        assert life.driver.modes == {"GPU-a": EXCLUSIVE, "GPU-b": EXCLUSIVE}
    await life.daemon.stop()
    assert life.driver.modes == {"GPU-a": "PROHIBITED", "GPU-b": EXCLUSIVE}


async def test_after_a_death_the_mark_is_gone_its_servers_are_ended_and_it_is_started_again(life: Life) -> None:
    async with life.running() as daemon:
        await life.until(lambda: daemon.serves)
        life.driver.die(life.spec, 7, 8)
        await life.until(lambda: "MpsDaemonLost" in life.reasons())
        assert not daemon.serves
        assert not life.started.exists()
        lost = life.advice[-1]
        assert "the clients of nvidia.com/gpu are lost" in lost.what
        assert [row.split()[1] for row in lost.evidence] == ["7", "8"]
        assert life.driver.calls.count("start nvidia.com/gpu") == 1, "it waits before it is started again"
        await life.until(lambda: daemon.serves, moving=0.5)
        assert life.started.exists()
    assert life.driver.calls.count("start nvidia.com/gpu") == 2


async def test_one_that_does_not_start_is_tried_more_and_more_rarely_and_told_once(life: Life) -> None:
    life.driver.broken.add("start")
    async with life.running() as daemon:
        await life.until(lambda: daemon.problem is not None)
        waits = []
        for number in range(2, 8):
            await life.until(lambda: bool(life.clock.deadlines))
            waits.append(life.clock.deadlines[0] - life.clock.monotonic())
            await life.clock.advance(waits[-1])
            await life.until(partial(life.started_times, number))
        assert (waits[0] < 2, 10 < waits[-1] <= 30) == (True, True)
        assert not life.started.exists()
        life.driver.broken.clear()
        await life.until(lambda: daemon.serves, moving=5.0)
        assert daemon.problem is None
    assert life.reasons().count("MpsDaemonFailed") == 1


async def test_one_that_hangs_is_replaced(life: Life) -> None:
    async with life.running() as daemon:
        await life.until(lambda: daemon.serves)
        life.driver.broken.add("tell")
        await life.until(lambda: "MpsDaemonLost" in life.reasons(), moving=LOOK_SECONDS)
        lost = next(one for one in life.advice if one.reason == "MpsDaemonLost")  # that it can't start may follow
        assert "gives no answer" in lost.why
        assert "kill nvidia.com/gpu" in life.driver.calls
        life.driver.broken.clear()
        await life.until(lambda: daemon.serves, moving=0.5)


async def test_limits_that_are_not_in_force_are_no_readiness(life: Life, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(life.driver, "tell", lambda *_, **__: "100.0\n")
    monkeypatch.setattr(life.daemon, "_refuse_strangers", lambda: None)
    async with life.running() as daemon:
        await life.until(lambda: daemon.problem is not None)
        assert "has '100.0' as its part of the threads" in str(daemon.problem)
        assert not life.started.exists()


async def test_one_that_a_killed_agent_has_left_is_taken_over(life: Life) -> None:
    life.record.start(life.spec)  # the killed agent's
    pid = life.driver.put(life.spec)
    life.record = life.new_record()
    life.daemon = life.new_daemon()
    async with life.running() as daemon:
        await life.until(lambda: daemon.serves)
        assert life.driver.running(life.spec).daemon == pid
        assert "start nvidia.com/gpu" not in life.driver.calls
        assert life.driver.told["nvidia.com/gpu"][:3] == list(life.spec.commands)
        assert "MpsDaemonAdopted" in life.reasons()
    await life.daemon.stop()
    assert life.driver.modes == {"GPU-a": "DEFAULT", "GPU-b": "DEFAULT"}


async def test_one_with_other_gpus_is_replaced(life: Life) -> None:
    life.driver.put(life.spec, visible="GPU-a")
    async with life.running() as daemon:
        await life.until(lambda: daemon.serves)
        assert life.driver.running(life.spec).visible == "GPU-a,GPU-b"
        assert life.driver.calls[0] == "quit nvidia.com/gpu"


async def test_a_stranger_on_its_socket_is_left_alone_and_told(life: Life, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(life.driver, "tell", lambda *_, **__: "100.0\n")
    async with life.running() as daemon:
        await life.until(lambda: daemon.problem is not None)
        assert "another MPS control daemon listens at" in str(daemon.problem)
    assert life.driver.calls == []


async def test_a_gpu_whose_mode_can_not_be_set_does_not_stop_the_others(life: Life) -> None:
    life.driver.broken.add("mode GPU-b")
    async with life.running() as daemon:
        await life.until(lambda: daemon.serves)
        assert life.driver.modes == {"GPU-a": EXCLUSIVE}
        assert "MpsComputeMode" in life.reasons()
    life.driver.broken.add("mode GPU-a")
    life.daemon = life.new_daemon()
    life.driver.processes.clear()
    async with life.running() as daemon:
        await life.until(lambda: daemon.problem is not None)
        assert "mode GPU-a fails" in str(daemon.problem)


async def test_what_can_not_be_given_back_is_noted_for_the_next_start(life: Life) -> None:
    async with life.running() as daemon:
        await life.until(lambda: daemon.serves)
    life.driver.broken.add("set GPU-a")
    with pytest.raises(HostError, match="set GPU-a fails"):
        await life.daemon.stop()
    assert life.driver.modes == {"GPU-a": EXCLUSIVE, "GPU-b": "DEFAULT"}
    later = life.new_record()
    assert (later.modes, later.daemons) == ({"GPU-a": "DEFAULT"}, ())
    life.driver.broken.clear()
    later.restore(["GPU-a"])
    assert life.driver.modes["GPU-a"] == "DEFAULT"
    assert not (life.folder / "mps.json").exists()


async def test_nothing_is_started_after_its_end(life: Life) -> None:
    await life.daemon.stop()
    async with life.running() as daemon:
        await life.until(lambda: daemon.problem is not None)
    assert life.driver.calls == []


def test_a_boot_ends_what_was_noted_of_modes_but_not_of_folders(life: Life) -> None:
    life.record.start(life.spec)
    assert life.new_record().modes == {"GPU-a": "DEFAULT", "GPU-b": "DEFAULT"}
    after = life.new_record("boot-2")
    assert after.modes == {}
    bare = replace(life.spec, replicas=(), limits_mib=(), percentage=100)
    assert after.daemons == (bare,)


@pytest.mark.parametrize("raw", [b"", b"{", b"[]", b'{"modes": 3}', b"\xff\xfe", b'{"daemons": [{}]}'])
def test_a_record_that_is_damaged_is_told_and_replaced(life: Life, raw: bytes) -> None:
    (life.folder / "mps.json").write_bytes(raw)
    record = life.new_record()
    assert (record.modes, record.daemons, life.reasons()) == ({}, (), ["MpsRecordUnreadable"])
    record.start(life.spec)
    assert life.new_record().daemons


def test_without_a_record_nothing_is_changed(life: Life) -> None:
    record = NodeRecord(life.folder / "file/mps.json", life.driver, boot="b", report=life.advice.append)
    (life.folder / "file").write_text("no folder")
    with pytest.raises(HostError, match="can't be written"):
        record.start(life.spec)
    assert life.driver.calls == []
