"""The loop: what comes in is judged, written down, then told; and whatever breaks breaks alone."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from kgpu.agent.ordered import OrderedGpus
from kgpu.base.advice import Advice
from kgpu.base.errors import DriverFault, HostError, HwError, KubeError
from kgpu.health import keeper
from kgpu.health import run as health_run
from kgpu.health.config import HealthConfig
from kgpu.health.history import HealthHistory, Remembered
from kgpu.health.kmsg import MemoryLog
from kgpu.health.node import RESET, HealthOrder
from kgpu.health.publish import MemoryReports
from kgpu.health.run import HealthContext, HealthWatch
from kgpu.hw.fake_reader import FakeReader, sample_inventory
from kgpu.hw.port import DriverReleasedError, EventKind, HardwareEvent, Problem
from kgpu.hw.verdicts import VerdictFile

pytestmark = pytest.mark.usefixtures("nothing_flushed_on_the_loop")
INVENTORY = sample_inventory(2, driver_version="450.1")
A, B = INVENTORY.accelerators
T = 1_800_000_000.0


def line(code: int, gpu: Any = A) -> str:
    return f"NVRM: Xid (PCI:{gpu.pci_bus_id.removesuffix('.0')}): {code}, pid=1, name=train, words"


MANY = 50


class Node:
    """One node over its boots and the role's runs; times are what a test says."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.reader = FakeReader(INVENTORY)
        self.log = MemoryLog()
        self.history = HealthHistory(folder / "state" / "health.db")
        self.condition = MemoryReports()
        self.said: list[Advice] = []
        self.boot = "b1"
        self.wall = T
        self.uptime = 1000.0
        self.task: asyncio.Task[None] | None = None
        self.state: tuple[bool, str] = (False, "")
        self.health: HealthWatch | None = None

    @property
    def file(self) -> VerdictFile:
        return VerdictFile(self.folder / "run" / "verdicts.json", boot=self.boot, uptime=lambda: self.uptime)

    def made(self, **options: Any) -> HealthWatch:
        def on_state(ready: bool, reason: str) -> None:
            self.state = (ready, reason)

        context = {
            "reader": self.reader, "verdicts": self.file, "report": self.said.append, "kernel_log": lambda: self.log,
            "history": self.history, "reports": self.condition, "node": "n1", "wall": lambda: self.wall,
            "uptime": lambda: self.uptime, "boot": self.boot, "on_state": on_state, **options,
        }  # fmt: skip
        self.health = HealthWatch(HealthContext(**context))
        return self.health

    def start(self, **options: Any) -> None:
        self.task = asyncio.create_task(self.made(**options).run())

    async def stop(self) -> None:
        if self.task is not None:
            self.task.cancel()
            await asyncio.gather(self.task, return_exceptions=True)
            self.task = None

    def withdrawn(self) -> list[str] | None:
        found = self.file.read()
        return None if found is None else [one.uuid for one in found.gpus if one.withdraws]

    async def until(self, condition: Callable[[], bool]) -> None:
        try:
            async with asyncio.timeout(60):
                while not condition():
                    if self.task is not None and self.task.done():
                        self.task.result()
                    await asyncio.sleep(0.005)
        except TimeoutError:
            raise AssertionError(self.said, self.state) from None

    def xids(self) -> list[str]:
        return [one.name for one in self.history.notes() if one.kind == "xid"]


@pytest.fixture
async def node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(health_run, "PAUSE_SECONDS", 0.01)
    monkeypatch.setattr(keeper, "DISK_SECONDS", 60.0)  # what is stopped has written, however busy the disk is
    made = Node(tmp_path)
    yield made
    await made.stop()


async def test_an_xid_in_the_log_reaches_everybody(node: Node) -> None:
    node.start()
    await node.until(lambda: bool(node.condition.written))
    assert node.withdrawn() == []
    assert node.condition.written[-1].status == "True"
    node.log.add(line(95))
    await node.until(lambda: node.withdrawn() == [A.uuid])
    await node.until(lambda: node.condition.written[-1].status == "False")
    assert node.condition.written[-1].reason == "GPUNeedsReset"
    assert [one.reason for one in node.said] == ["GPUNeedsReset"]
    assert node.xids() == ["Xid 95"]
    assert node.state == (True, "1 of 2 GPUs unhealthy")


async def test_an_event_of_the_driver_and_its_line_are_one(node: Node) -> None:
    node.start()
    await node.until(lambda: node.withdrawn() == [])
    node.reader.report(HardwareEvent(kind=EventKind.XID, uuid=A.uuid, code=95))
    await node.until(lambda: node.withdrawn() == [A.uuid])
    node.log.add(line(95))
    await node.until(lambda: [one.text for one in node.history.notes() if one.kind == "xid"] == ["words"])
    assert node.xids() == ["Xid 95"]


async def test_a_lost_gpu_that_comes_back_is_well(node: Node) -> None:
    node.start()
    node.reader.fail(A.uuid, Problem.LOST)
    await node.until(lambda: node.withdrawn() == [A.uuid])
    node.reader.heal(A.uuid)
    await node.until(lambda: node.withdrawn() == [])
    await node.until(lambda: node.condition.written[-1].status == "True")
    assert [one.reason for one in node.said] == ["GPUNeedsReboot", "GPUHealthy"]


async def test_what_an_earlier_run_knew_holds_and_no_line_comes_twice(node: Node) -> None:
    node.start()
    node.log.add(line(95))
    await node.until(lambda: node.withdrawn() == [A.uuid])
    await node.stop()
    node.log.add(line(13, B))  # while nobody listens
    node.start()
    await node.until(lambda: node.xids() == ["Xid 95", "Xid 13"])
    assert node.withdrawn() == [A.uuid]
    await node.stop()
    node.start()
    node.log.add(line(13, B))
    await node.until(lambda: node.xids() == ["Xid 95", "Xid 13", "Xid 13"])


class Killed(BaseException):
    """The process is gone at this moment."""


@pytest.mark.parametrize("written", [False, True])
async def test_a_kill_around_the_writing_loses_and_repeats_nothing(node: Node, written: bool) -> None:
    class Deadly(HealthHistory):
        dead = False

        def save(self, remembered: Remembered, notes: Any = (), done: Any = ()) -> None:
            if written and not self.dead:
                super().save(remembered, notes, done)
            self.dead = True
            raise Killed

    node.history.put(HealthOrder(kind="maintenance", gpu="1", at=T))
    node.history.save(Remembered(boot="b1", began=T - 1000.0))
    dead = node.made(history=Deadly(node.history.path))
    node.log.add(line(95))
    with pytest.raises(Killed):
        await dead.run()
    assert node.withdrawn() is None  # nothing was told of what was not written down
    node.start()
    await node.until(lambda: node.withdrawn() == [A.uuid])
    await node.until(lambda: not node.history.orders())
    assert node.xids() == ["Xid 95"]
    assert [one.name for one in node.history.notes() if one.kind == "order"] == ["maintenance"]


async def test_another_boot_begins_anew(node: Node) -> None:
    node.start()
    node.log.add(line(79))
    await node.until(lambda: node.withdrawn() == [A.uuid])
    await node.stop()
    node.boot, node.uptime, node.wall, node.log = "b2", 5.0, T + 600, MemoryLog()
    assert node.withdrawn() is None
    node.log.add(line(13, B))
    node.start()
    await node.until(lambda: node.xids() == ["Xid 79", "Xid 13"] and node.withdrawn() == [])


@pytest.mark.parametrize("jump", [-86400.0 * 365, -3600.0, 3600.0, 86400.0 * 365])
async def test_a_clock_that_is_set_changes_no_verdict(node: Node, jump: float) -> None:
    node.start()
    node.log.add(line(95))
    await node.until(lambda: node.withdrawn() == [A.uuid])
    node.wall += jump
    node.log.add(line(13, B))
    node.log.add(line(119, B))
    await node.until(lambda: node.withdrawn() == [A.uuid, B.uuid])
    await node.stop()
    node.start()
    await node.until(lambda: bool(node.health and node.health.rows))
    assert node.withdrawn() == [A.uuid, B.uuid]
    rows = node.file.read()
    assert rows is not None
    assert abs(rows.gpus[1].since - node.wall) < 60  # shown by the clock as it is now


async def test_a_clock_that_is_not_set_at_a_boot_does_not_keep_what_the_boot_ended(node: Node) -> None:
    node.start()
    node.log.add(line(79))
    await node.until(lambda: node.withdrawn() == [A.uuid])
    await node.stop()
    node.boot, node.uptime, node.wall, node.log = "b2", 5.0, 1000.0, MemoryLog()
    node.start()
    await node.until(lambda: node.withdrawn() == [])
    node.log.add(line(79))
    await node.until(lambda: node.withdrawn() == [A.uuid])


async def test_orders_are_carried_out_once(node: Node) -> None:
    node.start()
    node.log.add(line(95))
    await node.until(lambda: node.withdrawn() == [A.uuid])
    node.history.put(HealthOrder(kind="healthy", gpu="0", at=T))
    await node.until(lambda: node.withdrawn() == [] and not node.history.orders())
    node.uptime += 10
    node.log.add(line(95))
    await node.until(lambda: node.withdrawn() == [A.uuid])
    assert [one.name for one in node.history.notes() if one.kind == "order"] == ["set healthy"]


async def test_an_order_that_is_read_late_does_not_cover_what_came_after_it(node: Node) -> None:
    node.start()
    node.uptime += 10
    node.log.add(line(95))
    await node.until(lambda: node.withdrawn() == [A.uuid])
    node.history.put(HealthOrder(kind="healthy", gpu="0", at=T - 60))
    await node.until(lambda: not node.history.orders())
    assert node.withdrawn() == [A.uuid]


async def test_a_log_that_can_not_be_read_is_told_and_the_rest_goes_on(node: Node) -> None:
    node.log.fail(HostError("the kernel log can't be read: no", "it", "do"))
    node.start()
    await node.until(lambda: node.withdrawn() == [])
    node.reader.report(HardwareEvent(kind=EventKind.XID, uuid=A.uuid, code=95))
    await node.until(lambda: node.withdrawn() == [A.uuid])
    await node.until(lambda: "KernelLogUnreadable" in [one.reason for one in node.said])
    await node.until(lambda: "kernel log" in node.state[1])
    found = node.file.read()
    assert found is not None
    assert found.problems == ("kernel log: the kernel log can't be read: no",)
    node.log.fail(None)
    node.log.add(line(119, B))
    await node.until(lambda: node.withdrawn() == [A.uuid, B.uuid])


async def test_lines_that_were_overwritten_are_told(node: Node) -> None:
    node.start()
    node.log.add("one")
    await node.until(lambda: node.withdrawn() == [])
    node.log.add(line(95), skip=40)
    await node.until(lambda: node.withdrawn() == [A.uuid])
    assert [one.what.split()[0] for one in node.said if one.reason == "KernelLogOverrun"] == ["40"]


async def test_a_broken_history_is_set_aside(node: Node) -> None:
    node.history.path.parent.mkdir()
    node.history.path.write_bytes(b"\0" * 10_000)
    node.start()
    node.log.add(line(95))
    await node.until(lambda: node.withdrawn() == [A.uuid])
    assert "HealthHistoryLost" in [one.reason for one in node.said]
    assert node.xids() == ["Xid 95"]


async def test_a_disk_that_refuses_does_not_hide_a_gpu_and_nothing_is_lost_once_it_takes(node: Node) -> None:
    refuse = True

    class Full(HealthHistory):
        def save(self, remembered: Remembered, notes: Any = (), done: Any = ()) -> None:
            if refuse:
                raise HostError("disk full", "room", "make room")
            super().save(remembered, notes, done)

    node.start(history=Full(node.history.path), look_seconds=0.05)
    node.log.add(line(95))
    await node.until(lambda: node.withdrawn() == [A.uuid])
    assert [one.reason for one in node.said if "disk" in one.what] == ["HealthHistoryUnusable"]
    refuse = False
    await node.until(lambda: node.xids() == ["Xid 95"])
    await node.until(lambda: "history" not in node.state[1])


async def test_a_disk_that_hangs_does_not_hide_a_gpu(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(keeper, "DISK_SECONDS", 0.1)
    monkeypatch.setattr(keeper, "MAX_UNSAVED", MANY)
    free = threading.Event()

    class Hanging(HealthHistory):
        def save(self, remembered: Remembered, notes: Any = (), done: Any = ()) -> None:
            free.wait(30)
            super().save(remembered, notes, done)

    node.start(history=Hanging(node.history.path), look_seconds=0.05)
    node.log.add(line(95))
    try:
        await node.until(lambda: node.withdrawn() == [A.uuid])
        assert node.xids() == []
        assert node.health is not None
        keeping = node.health._keeper
        # Where reading what was saved takes longer than DISK_SECONDS, writing begins later.
        await node.until(lambda: keeping._saving is not None and keeping._saving.notes > 0)
        unsaved = keeping.unsaved
        under_way = len(unsaved)
        for _ in range(3):
            unsaved.extend(unsaved[-1:] * MANY)
            await node.until(lambda: len(unsaved) <= under_way + MANY)
    finally:
        free.set()
    await node.until(lambda: "Xid 95" in node.xids())


async def test_an_api_server_that_is_away_hears_later(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(health_run, "RETRY", health_run.BackoffPolicy(first=0.01, cap=0.02, factor=2.0))
    node.condition.refuse = KubeError("away", "it", "wait")
    node.start()
    node.log.add(line(95))
    await node.until(lambda: node.withdrawn() == [A.uuid])
    await node.until(lambda: "condition" in node.state[1] or not node.condition.written)
    node.condition.refuse = None
    await node.until(lambda: bool(node.condition.written))
    assert node.condition.written[-1].status == "False"


async def test_a_driver_that_can_not_be_read_is_waited_for(node: Node) -> None:
    node.reader.set_down(HwError("no driver", "one", "install it", fault=DriverFault.NOT_LOADED))
    node.start(look_seconds=0.05)
    await node.until(lambda: bool(node.condition.written))
    assert (node.condition.written[-1].status, node.state) == ("Unknown", (False, "driver: no driver"))
    assert node.condition.reports[-1].fault is DriverFault.NOT_LOADED
    node.reader.set_down(None)
    await node.until(lambda: node.condition.written[-1].status == "True")
    assert node.condition.reports[-1].fault is None


async def test_a_driver_that_goes_away_takes_no_verdict_along(node: Node) -> None:
    node.start(look_seconds=0.05)
    node.log.add(line(95))
    await node.until(lambda: node.withdrawn() == [A.uuid])
    await node.until(lambda: bool(node.condition.written) and node.condition.written[-1].status == "False")
    node.reader.set_down(HwError("no driver", "one", "install it"))
    await node.until(lambda: "no driver" in node.state[1])
    assert node.withdrawn() == [A.uuid]
    assert node.condition.written[-1].status == "False"


async def test_a_driver_that_is_released_leaves_the_verdicts_and_the_log_is_followed(node: Node) -> None:
    node.start(look_seconds=0.05)
    node.log.add(line(95))
    await node.until(lambda: node.withdrawn() == [A.uuid])
    await node.until(lambda: bool(node.condition.written) and node.condition.written[-1].status == "False")
    written = len(node.condition.written)
    node.reader.set_down(DriverReleasedError("a GPU is being reset"))
    await node.until(lambda: "a GPU is being reset" in node.state[1])
    assert node.state[0]
    assert node.withdrawn() == [A.uuid]
    assert (file := node.file.read()) is not None
    assert file.problems == ()
    node.log.add(line(95, B))
    await node.until(lambda: node.withdrawn() == [A.uuid, B.uuid])
    await node.until(lambda: [one.status for one in node.condition.written[written:]] == ["False"])
    node.reader.set_down(None)
    await node.until(lambda: "reset" not in node.state[1])


async def test_an_order_that_waits_for_a_verdict_gets_a_look_at_once(node: Node) -> None:
    """A look that began just before the order's last step is none; the next by itself would be seconds away."""
    orders = OrderedGpus()
    node.start(look_seconds=3600.0, orders=orders)
    await node.until(lambda: node.file.read() is not None)
    node.uptime += 1.0
    orders.set(verifies=True)
    await node.until(lambda: (found := node.file.read()) is not None and found.uptime == node.uptime)


async def test_a_reset_by_an_act_is_over_what_it_cures_and_newer_evidence_counts(node: Node) -> None:
    """The driver's figures show nothing of it: no recovery action before, and no ECC error counted."""
    node.start(look_seconds=0.05)
    for gpu in (A, B):
        node.log.add(line(48, gpu))
    await node.until(lambda: node.withdrawn() == [A.uuid, B.uuid])
    node.uptime += 60
    node.history.put(HealthOrder(kind=RESET, gpu=A.uuid, at=T, who="the act"))
    await node.until(lambda: node.withdrawn() == [B.uuid] and not node.history.orders())
    node.uptime += 60
    node.log.add(line(48))
    await node.until(lambda: node.withdrawn() == [A.uuid, B.uuid])
    assert [(one.gpu, one.name) for one in node.history.notes() if one.kind == "order"] == [(A.uuid, "reset")]


async def test_the_configuration_is_looked_at_each_time(node: Node) -> None:
    config = HealthConfig(ignore_xids=frozenset({95}))
    node.start(config=lambda: config)
    node.log.add(line(95))
    node.log.add(line(119, B))
    await node.until(lambda: node.withdrawn() == [B.uuid])
    config = HealthConfig()
    node.log.add(line(95))
    await node.until(lambda: node.withdrawn() == [A.uuid, B.uuid])


async def test_the_file_is_written_often_enough_to_hold(node: Node) -> None:
    node.start(look_seconds=0.02)
    await node.until(lambda: node.withdrawn() == [])
    node.uptime += 3600
    await node.until(lambda: node.withdrawn() == [])


async def test_a_verdict_file_that_can_not_be_written_is_told(node: Node) -> None:
    (node.folder / "run").write_text("")
    node.start()
    await node.until(lambda: "VerdictsNotWritten" in [one.reason for one in node.said])
    await node.until(lambda: bool(node.condition.written))


async def test_thousands_of_lines_at_once(node: Node) -> None:
    for _ in range(3000):
        node.log.add(line(13))
    node.log.add(line(95, B))
    node.start()
    await node.until(lambda: node.withdrawn() == [B.uuid])
    await node.until(lambda: len(node.history.notes(limit=10_000)) > 3000)
