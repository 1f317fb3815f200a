"""What the role remembers, at an orderly stop and with a disk that is late at the start."""

from __future__ import annotations

import ast
import asyncio
import threading
from pathlib import Path
from typing import Any

import pytest

from kgpu.base.errors import HostError
from kgpu.health import keeper, readings
from kgpu.health import run as health_run
from kgpu.health.history import HealthHistory, Remembered
from kgpu.health.keys import KEYS
from kgpu.health.kmsg import MemoryLog
from kgpu.health.model import RememberedGpu
from kgpu.health.node import HealthOrder
from kgpu.hw.fake_reader import FakeReader
from kgpu.hw.port import EventKind, HardwareEvent, Inventory
from tests.health.test_run import INVENTORY, A, B, Node, T, line, node

__all__ = ["node"]


class SlowReader(FakeReader):
    """Its inventory waits while ``free`` is not set."""

    def __init__(self) -> None:
        super().__init__(INVENTORY)
        self.free = asyncio.Event()
        self.free.set()
        self.waits = False
        self.asked: list[Any] = []

    async def inventory(self) -> Inventory:
        self.waits = not self.free.is_set()
        await self.free.wait()
        return await super().inventory()

    async def readings(self, keys: Any = None) -> Any:
        self.asked.append(keys)
        return await super().readings(keys)


async def test_a_stop_while_the_driver_is_read_loses_no_line(node: Node) -> None:
    reader = node.reader = SlowReader()
    node.start(look_seconds=0.02)
    await node.until(lambda: node.withdrawn() == [])
    reader.free.clear()
    await node.until(lambda: reader.waits)
    node.log.add(line(95))
    await node.until(lambda: bool(node.health and node.health._sequence == 0))
    await node.stop()
    reader.free.set()
    node.start()
    await node.until(lambda: node.withdrawn() == [A.uuid])
    assert node.xids() == ["Xid 95"]


async def test_the_log_waits_while_too_much_is_unread_and_dropped_events_are_told(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(health_run, "MAX_WAITING", 2)
    reader = node.reader = SlowReader()
    node.start(look_seconds=0.02)
    await node.until(lambda: node.withdrawn() == [])
    reader.free.clear()
    await node.until(lambda: reader.waits)
    node.log.add(line(95))
    await node.until(lambda: bool(node.health and node.health._sequence == 0))
    for _ in range(6):
        reader.report(HardwareEvent(kind=EventKind.XID, uuid=A.uuid, code=95))
    await node.until(lambda: bool(node.health and node.health._dropped == 3))
    node.log.add(line(119, B))
    await node.until(lambda: bool(node.health and not node.health._taken.is_set()))
    assert node.health is not None
    assert node.health._sequence == 0
    reader.free.set()
    await node.until(lambda: node.withdrawn() == [A.uuid, B.uuid])
    assert [one.what.split()[0] for one in node.said if one.reason == "DriverEventsOverrun"] == ["3"]


@pytest.mark.parametrize("hangs", [False, True])
async def test_a_disk_that_is_late_at_the_start_keeps_what_was_remembered(
    node: Node, monkeypatch: pytest.MonkeyPatch, hangs: bool
) -> None:
    monkeypatch.setattr(keeper, "DISK_SECONDS", 0.05)
    free = threading.Event()

    class Late(HealthHistory):
        def load(self) -> Any:
            if hangs:
                free.wait(30)
            elif not free.is_set():
                raise HostError("disk locked", "a disk", "wait")
            return super().load()

    memories = {
        A.uuid: RememberedGpu(gpu=A.uuid, links=4, maintenance_until=T + 9e6, booted_at=T - 1000),
        B.uuid: RememberedGpu(
            gpu=B.uuid, accepted={"pcie:width": 1.0}, episodes=(("xid:79", T - 50),), booted_at=T - 1000
        ),
        "GPU-gone": RememberedGpu(gpu="GPU-gone", read_at=T - 9e5, booted_at=T - 1000),
    }
    node.history.save(Remembered(boot="b1", began=T - 1000, sequence=-1, memories=memories))
    node.start(history=Late(node.history.path), look_seconds=0.02)
    node.log.add(line(95, B))
    try:
        await node.until(lambda: node.withdrawn() == [B.uuid])
        kept = node.history.load()[0].memories
        assert set(kept) == {A.uuid, B.uuid, "GPU-gone"}
        assert kept[A.uuid].links == 4
    finally:
        free.set()
    await node.until(lambda: node.xids() == ["Xid 95"])
    await node.stop()
    kept = node.history.load()[0].memories
    assert (kept[A.uuid].links, kept[A.uuid].maintenance_until) == (4, T + 9e6)
    assert [one.name for one in kept[B.uuid].events] == ["xid:95"]
    assert [name for name, _ in kept[B.uuid].episodes] == ["xid:79", "xid:95"]
    assert "GPU-gone" in kept


async def test_maintenance_that_is_over_is_noted_as_over(node: Node) -> None:
    node.start()
    await node.until(lambda: node.withdrawn() == [])
    node.wall += 3600  # the clock is set
    node.history.put(HealthOrder(kind="maintenance", gpu="0", at=T, until=0.0))
    await node.until(lambda: not node.history.orders())
    assert [one.name for one in node.history.notes() if one.kind == "order"] == ["maintenance ended"]


async def test_an_order_counts_that_comes_while_the_one_before_is_still_being_written_down(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(keeper, "DISK_SECONDS", 0.05)
    free = threading.Event()

    class Slow(HealthHistory):
        def save(self, *args: Any, **kwargs: Any) -> None:
            super().save(*args, **kwargs)
            free.wait(30)

    free.set()
    node.start(history=Slow(node.history.path), look_seconds=0.02)
    await node.until(lambda: node.withdrawn() == [])
    free.clear()
    node.history.put(HealthOrder(kind="healthy", gpu="all", at=node.wall))
    await node.until(lambda: not node.history.orders())  # it is gone from the file, and the writer has not said so
    node.wall, node.uptime = node.wall + 60, node.uptime + 60
    node.log.add(line(95))
    try:
        await node.until(lambda: node.withdrawn() == [A.uuid])
        node.history.put(HealthOrder(kind="healthy", gpu="all", at=node.wall))
        await node.until(lambda: node.withdrawn() == [])
    finally:
        free.set()
    await node.until(lambda: not node.history.orders())


async def test_a_shared_reader_is_asked_for_what_health_needs_alone(node: Node) -> None:
    reader = node.reader = SlowReader()
    node.start()
    await node.until(lambda: node.withdrawn() == [])
    assert set(reader.asked) == {KEYS}


def test_the_keys_are_those_that_are_used() -> None:
    tree = ast.parse(Path(readings.__file__).read_text())
    constants = {one.value for one in ast.walk(tree) if isinstance(one, ast.Constant) and isinstance(one.value, str)}
    assert set(KEYS) <= constants
    tables = {name for names in readings._COUNTS.values() for name in names} | set(readings._FLAGS.values())
    looked_up = {
        one.args[0].value
        for one in ast.walk(tree)
        if isinstance(one, ast.Call) and isinstance(one.func, ast.Attribute) and one.func.attr == "get"
        and isinstance(one.func.value, ast.Name) and one.func.value.id == "numbers"
        and one.args and isinstance(one.args[0], ast.Constant)
    }  # fmt: skip
    margins = {
        arg.value
        for one in ast.walk(tree)
        if isinstance(one, ast.Call) and isinstance(one.func, ast.Name) and one.func.id == "_margin"
        for arg in one.args if isinstance(arg, ast.Constant)
    }  # fmt: skip
    assert set(KEYS) == tables | looked_up | margins


async def test_how_often_an_xid_came_outlives_the_role_and_ends_with_the_boot(node: Node) -> None:
    def counts() -> list[tuple[int, int]]:
        found = node.file.read()
        return [(row.code, row.count) for one in found.gpus for row in one.xids] if found else []

    node.start()
    node.log.add(line(43))
    node.log.add(line(43))
    await node.until(lambda: counts() == [(43, 2)])
    await node.stop()
    node.start()
    node.log.add(line(43))
    await node.until(lambda: counts() == [(43, 3)])
    await node.stop()
    node.boot, node.uptime, node.wall = "b2", 10.0, T + 5000.0
    node.log = MemoryLog()
    node.start()
    await node.until(lambda: node.file.read() is not None)
    assert counts() == []
