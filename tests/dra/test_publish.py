"""The loop: what changes is published within a second, nothing is lost through failures, nobody is fought."""

from __future__ import annotations

import asyncio
import contextlib
import copy
from collections.abc import AsyncIterator
from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from kgpu.base.advice import Advice
from kgpu.base.clock import VirtualClock
from kgpu.base.errors import HwError, Reason
from kgpu.dra.api import DraApi
from kgpu.dra.model import PublishRules
from kgpu.dra.publish import SlicePublisher, SlicesContext
from kgpu.hw.fake_reader import FakeReader
from kgpu.hw.port import EventKind, HardwareEvent, Inventory, Problem
from kgpu.hw.verdicts import GpuVerdict, MemoryVerdicts, Verdicts
from kgpu.kube.fake import FakeApi
from kgpu.kube.port import NODES, Object, Resource, name_of
from tests.dra.samples import NODE, h100

SLICES = DraApi().resource
SOON = 1.0


class DroppingApi(FakeApi):
    """An API server whose feature gates are off: it drops these fields of devices and slices."""

    def __init__(self, *fields: str) -> None:
        super().__init__()
        self.drops = fields

    async def apply(self, resource: Resource, obj: Object, **options: Any) -> Object:
        obj = copy.deepcopy(obj)
        for one in (obj.get("spec") or {}, *((obj.get("spec") or {}).get("devices") or ())):
            for name in self.drops:
                one.pop(name, None)
        return await super().apply(resource, obj, **options)


@dataclass
class Bench:
    api: FakeApi
    reader: FakeReader
    verdicts: MemoryVerdicts = field(default_factory=MemoryVerdicts)
    clock: VirtualClock = field(default_factory=VirtualClock)
    rules: PublishRules = field(default_factory=PublishRules)
    told: list[Advice] = field(default_factory=list)
    states: list[tuple[bool, str]] = field(default_factory=list)
    server: DraApi = field(default_factory=DraApi)
    publisher: SlicePublisher | None = None

    def state(self, ready: bool, reason: Reason, why: str = "", /) -> None:
        del why
        self.states.append((ready, str(reason)))

    async def rules_now(self, _inventory: Inventory) -> PublishRules:
        return self.rules

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[Bench]:
        ctx = SlicesContext(
            api=self.api, server=self.server, node=NODE, reader=self.reader, rules=self.rules_now, report=self.told.append,
            verdicts=self.verdicts, clock=self.clock, on_state=self.state,
        )  # fmt: skip
        self.publisher = SlicePublisher(ctx)
        task = asyncio.create_task(self.publisher.run())
        try:
            await self.clock.advance(SOON)
            yield self
            assert not task.done()
        finally:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task

    @property
    def slices(self) -> list[Object]:
        stored = [one.obj for (kind, _, _), one in self.api._objects.items() if kind == SLICES]
        return sorted(stored, key=name_of)

    @property
    def devices(self) -> dict[str, list[str]]:
        return {
            device["name"]: [taint["key"] for taint in device.get("taints") or ()]
            for one in self.slices
            for device in one["spec"].get("devices") or ()
        }

    @property
    def writes(self) -> int:
        return sum(verb in {"apply", "delete"} and plural == "resourceslices" for verb, plural, _ in self.api.calls)

    def sicken(self, at: int, *causes: str) -> None:
        uuid = self.reader._inventory.accelerators[at].uuid
        self.verdicts.put(GpuVerdict(uuid=uuid, withdraws=True, causes=causes, facts=causes))


def bench(count: int = 2, api: FakeApi | None = None, **fields: Any) -> Bench:
    made = Bench(api or FakeApi(), FakeReader(h100(count)), **fields)
    made.api.put(NODES, {"metadata": {"name": NODE}})
    return made


async def test_what_is_there_is_published_and_then_left_alone() -> None:
    async with bench().running() as it:
        assert it.devices == {"gpu-0": [], "gpu-1": []}
        assert it.states[-1] == (True, "2 devices in 1 ResourceSlices")
        (one,) = it.slices
        node = await it.api.get(NODES, NODE)
        assert node is not None
        assert one["metadata"]["ownerReferences"][0]["uid"] == node["metadata"]["uid"]
        await it.clock.advance(600)
        assert it.writes == 1


async def test_a_verdict_is_published_within_a_second_and_goes_with_it() -> None:
    async with bench().running() as it:
        it.sicken(1, "xid:79")
        await it.clock.advance(SOON)
        assert it.devices == {"gpu-0": [], "gpu-1": ["gpu.nvidia.com/xid"]}
        it.verdicts.put()
        await it.clock.advance(SOON)
        assert it.devices == {"gpu-0": [], "gpu-1": []}


async def test_the_verdicts_that_stand_count_from_the_first_write_on() -> None:
    it = bench()
    it.sicken(0, "driver:lost")
    async with it.running():
        assert it.devices == {"gpu-0": ["gpu.nvidia.com/gpu-lost"], "gpu-1": []}
        assert it.writes == 1


class LateVerdicts(MemoryVerdicts):
    """As a file is that is followed from another thread."""

    async def follow(self) -> AsyncIterator[Verdicts | None]:
        for _ in range(50):
            await asyncio.sleep(0)
        async for verdicts in super().follow():
            yield verdicts


async def test_and_before_they_are_followed() -> None:
    it = bench(verdicts=LateVerdicts())
    it.sicken(0, "driver:lost")
    async with it.running():
        assert it.devices == {"gpu-0": ["gpu.nvidia.com/gpu-lost"], "gpu-1": []}
        assert it.writes == 1


async def test_a_change_of_hardware_is_published_within_a_second() -> None:
    async with bench().running() as it:
        it.reader.fail(it.reader._inventory.accelerators[0].uuid, Problem.LOST)
        await it.clock.advance(SOON)
        assert it.devices["gpu-0"] == ["gpu.nvidia.com/gpu-lost"]
        it.reader.set_inventory(h100(1))
        await it.clock.advance(SOON)
        assert it.devices == {"gpu-0": []}
        it.reader.report(HardwareEvent(kind=EventKind.XID, code=31))
        await it.clock.advance(SOON)
        it.reader.set_inventory(replace(h100(1), accelerators=()))
        await it.clock.advance(SOON)
        assert it.slices == []


async def test_rules_may_change() -> None:
    async with bench().running() as it:
        it.rules = PublishRules(dynamic=True)
        assert it.publisher is not None
        it.publisher.changed()
        await it.clock.advance(SOON)
        assert len(it.devices) == 2 * 26


async def test_a_reading_that_fails_removes_nothing() -> None:
    async with bench().running() as it:
        it.reader.set_down(HwError("the driver is away", "a driver", "wait"))
        await it.clock.advance(120)
        assert it.devices == {"gpu-0": [], "gpu-1": []}
        assert not it.states[-1][0]
        assert "the driver is away" in it.states[-1][1]
        it.sicken(0, "xid:79")
        await it.clock.advance(SOON)
        assert it.devices["gpu-0"] == ["gpu.nvidia.com/xid"]
        it.reader.set_down(None)
        await it.clock.advance(31)
        assert it.states[-1][0]


async def test_a_driver_that_comes_late() -> None:
    it = bench()
    it.reader.set_down(HwError("no driver yet", "a driver", "wait"))
    async with it.running():
        await it.clock.advance(60)
        assert it.slices == []
        it.reader.set_down(None)
        await it.clock.advance(31)
        assert len(it.devices) == 2


@pytest.mark.parametrize("code", [409, 500, 503, 403, 422, 429])
async def test_what_the_server_refuses_is_tried_again_and_not_lost(code: int) -> None:
    async with bench().running() as it:
        it.api.refuse["apply", "resourceslices"] = code
        it.sicken(0, "xid:79")
        await it.clock.advance(120)
        assert it.devices["gpu-0"] == []
        assert not it.states[-1][0]
        assert it.writes < 20
        it.api.refuse.clear()
        await it.clock.advance(31)
        assert it.devices["gpu-0"] == ["gpu.nvidia.com/xid"]
        assert it.states[-1][0]


async def test_an_outage_in_which_much_happens() -> None:
    async with bench().running() as it:
        it.api.set_down(True)
        it.sicken(0, "xid:79")
        it.reader.set_inventory(h100(3))
        await it.clock.advance(300)
        it.api.set_down(False)
        await it.clock.advance(62)
        assert it.devices == {"gpu-0": ["gpu.nvidia.com/xid"], "gpu-1": [], "gpu-2": []}
        assert it.states[-1][0]


async def test_a_watch_that_has_expired_hides_nothing() -> None:
    async with bench().running() as it:
        await it.api.delete(SLICES, name_of(it.slices[0]))
        it.api.expire()
        await it.clock.advance(5)
        assert len(it.devices) == 2
        it.api.expire()
        it.sicken(1, "xid:79")
        await it.clock.advance(5)
        assert it.devices["gpu-1"] == ["gpu.nvidia.com/xid"]


async def test_a_crash_in_the_middle_is_finished_by_the_next_process() -> None:
    it = bench(rules=PublishRules(dynamic=True))
    async with it.running():
        assert len(it.slices) == 3
    it.reader.set_inventory(h100(4))
    before = it.writes
    put = it.api.apply

    async def dies(resource: Resource, obj: Object, **options: Any) -> Object:
        if it.writes - before >= 2:
            it.api.down = True
        return await put(resource, obj, **options)

    it.api.apply = dies  # type: ignore[method-assign]
    async with it.running():
        assert len({one["spec"]["pool"]["generation"] for one in it.slices}) == 2
    it.api.apply = put  # type: ignore[method-assign]
    it.api.set_down(False)
    async with it.running():
        await it.clock.advance(5)
        assert {one["spec"]["pool"]["generation"] for one in it.slices} == {2}
        assert len(it.slices) == 5
        assert len(it.devices) == 4 * 26


async def test_slices_that_somebody_removes_come_back_at_once() -> None:
    async with bench().running() as it:
        await it.api.delete(SLICES, name_of(it.slices[0]))
        await it.clock.advance(SOON)
        assert len(it.devices) == 2


async def test_who_changes_them_again_and_again_is_not_raced() -> None:
    async with bench().running() as it:
        before = it.writes
        for _ in range(300):
            one = it.slices[0]
            it.api.put(SLICES, {**one, "spec": {**one["spec"], "devices": [{"name": "theirs"}]}})
            await it.clock.advance(0.5)
        assert 1 < it.writes - before < 20
        it.sicken(0, "xid:79")
        await it.clock.advance(SOON)
        assert it.devices.get("gpu-0") == ["gpu.nvidia.com/xid"]


async def test_a_node_that_is_made_anew_owns_new_slices() -> None:
    async with bench().running() as it:
        await it.api.delete(NODES, NODE)
        node = it.api.put(NODES, {"metadata": {"name": NODE}})
        await it.api.delete(SLICES, name_of(it.slices[0]))  # as the garbage collector does
        await it.clock.advance(SOON)
        assert [one["metadata"]["ownerReferences"][0]["uid"] for one in it.slices] == [node["metadata"]["uid"]]


async def test_without_a_node_it_waits_and_says_so() -> None:
    it = bench()
    await it.api.delete(NODES, NODE)
    async with it.running():
        assert it.slices == []
        assert "no node" in it.states[-1][1]
        it.api.put(NODES, {"metadata": {"name": NODE}})
        await it.clock.advance(31)
        assert len(it.devices) == 2


async def test_slices_of_other_drivers_and_nodes_stay() -> None:
    it = bench()
    for name, driver, node in (("a", "nic.example.com", NODE), ("b", "gpu.nvidia.com", "gpu-2")):
        pool = {"name": node, "generation": 1, "resourceSliceCount": 1}
        it.api.put(SLICES, {"metadata": {"name": name}, "spec": {"driver": driver, "nodeName": node, "pool": pool}})
    async with it.running():
        assert len(it.slices) == 3
        it.reader.set_inventory(replace(h100(), accelerators=()))
        await it.clock.advance(SOON)
        assert [name_of(one) for one in it.slices] == ["a", "b"]


async def test_a_server_that_drops_counters_gets_whole_gpus_and_a_word() -> None:
    it = bench(api=DroppingApi("sharedCounters", "consumesCounters"), rules=PublishRules(dynamic=True))
    async with it.running():
        assert sorted(it.devices) == ["gpu-0", "gpu-1"]
        assert [(one.reason, one.severity.notable) for one in it.told] == [("FieldsDropped", True)]
        assert "; DRAPartitionableDevices is off: slices that are not there yet" in str(it.states[-1][1])
        assert "DRAPartitionableDevices" in it.told[0].why
        assert it.states[-1][0]
        before = it.writes
        await it.clock.advance(300)
        assert it.writes == before


async def test_a_server_that_drops_taints_gets_no_withdrawn_device() -> None:
    it = bench(api=DroppingApi("taints"))
    async with it.running():
        it.sicken(0, "xid:79")
        await it.clock.advance(SOON)
        assert it.devices == {"gpu-1": []}
        assert "DRADeviceTaints" in it.told[0].why
        it.verdicts.put()
        await it.clock.advance(SOON)
        assert it.devices == {"gpu-0": [], "gpu-1": []}


async def test_what_can_not_be_published_is_told_once() -> None:
    first, second = h100(2).accelerators
    it = bench()
    it.reader.set_inventory(replace(h100(), accelerators=(first, replace(second, minor=0))))
    async with it.running():
        assert list(it.devices) == ["gpu-0"]
        await it.clock.advance(300)
        assert [one.reason for one in it.told] == ["DeviceNotPublished"]
