"""The agent's watcher on simulated drivers: load profiles while the node's clock is moved, and every vendor's reader."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from kgpu.agent.shared_reader import SharedReader
from kgpu.agent.usage_holders import MeasuredReader
from kgpu.formats.usage import RecordingHeader, UsageState, encode
from kgpu.formats.usage_now import UsageSource
from kgpu.hw.open import open_reader
from kgpu.hw.simulator import mig, operate, processes
from kgpu.hw.simulator.amd import operate as amd
from kgpu.usage.live import HeardAgent, judged
from kgpu.usage.looks import LookedHolder
from kgpu.usage.reading import AVERAGES, KEYS, UsageAnswer, devices
from kgpu.usage.recording import parse
from kgpu.usage.segments import timeline
from kgpu.usage.shares import PayerKind, split
from kgpu.usage.states import IdleRules
from tests.usage.watched import WatchedNode

S = UsageState
STEP = 50
HOUR_AND_WARM_UP = int((3600 + 900) / STEP) + 2
SimRoot = Callable[..., Path]


class MovedNode(WatchedNode):
    """A node whose simulated driver goes by the clock that looks move."""

    root: Path

    async def looks(self, count: int, step: int = STEP) -> None:
        for _ in range(count):
            self.now += step
            operate.set_values(self.root, {"clock-ahead": step})
            await self.watcher.look()

    def watched_us(self) -> tuple[int, int]:
        """Of all holders: how long busy, how long held."""
        gathering = self.watcher._gathering
        assert gathering is not None
        holders = [one for gpu in gathering.gathered.devices.values() for one in gpu.holders.values()]
        return sum(one.busy_us or 0 for one in holders), sum(one.held_us for one in holders)

    async def sources(self) -> set[UsageSource]:
        return {one.source for one in (await self.said()).devices}

    async def judged_states(self, rules: IdleRules | None = None) -> dict[int, UsageState]:
        found = judged([HeardAgent(await self.said(), 0.0)], rules or IdleRules(), 0.0)
        order = [gpu.uuid for gpu in (await self.reader.inventory()).accelerators]
        return {order.index(one.device): one.verdict.state for one in found}


@asynccontextmanager
async def moved(root: Path, folder: Path) -> AsyncIterator[MovedNode]:
    reader = open_reader(driver_root=root)
    node = MovedNode(folder, reader=reader, patience=100.0)
    node.root = root
    operate.set_values(root, {"clock-rate": 0})
    try:
        order = [gpu.uuid for gpu in (await reader.inventory()).accelerators]
        node.holders.now = {
            uuid: (
                LookedHolder(namespace="team", pod=f"p{at}", uid=f"u{at}", container="main", owner=f"Deployment/p{at}"),
            )
            for at, uuid in enumerate(order[:4])
        }
        await node.start()
        yield node
        await node.watcher.end()
    finally:
        await reader.close()


async def test_profiles_of_load_become_states_and_sums(sim_root: SimRoot, tmp_path: Path) -> None:
    root = sim_root("l4", gpus=6)
    for gpu, profile in ((0, "train"), (1, "inference")):
        processes.add(root, gpu, pid=5000 + gpu, load=profile)
    processes.add(root, 2, pid=5002, memory_mib=4000)
    async with moved(root, tmp_path) as node:
        await node.looks(10)
        processes.add(root, 4, pid=5004, memory_mib=4000)
        await node.looks(HOUR_AND_WARM_UP - 10)
        # busy, busy, a process that does nothing, nothing on it; nobody holds the last two, and on one is something
        assert await node.judged_states() == {
            0: S.BUSY, 1: S.BUSY, 2: S.HELD_IDLE, 3: S.HELD_EMPTY, 4: S.DOWN, 5: S.FREE,
        }  # fmt: skip
        await node.start()  # as after a kill
        await node.looks(20)
        _, lines = await node.lines()
        recording = parse([encode(RecordingHeader(version=1)), *map(encode, lines)], source="test")
        for (_, device), segments in timeline(recording).devices.items():
            own = [line for line in lines if line.device == device]
            shares = [share for segment in segments for share in split(segment)]
            assert sum(share.gpu_us for share in shares) == own[-1].uptime_us - own[0].uptime_us
            held = sum(share.gpu_us for share in shares if share.kind is PayerKind.HELD)
            unseen = sum(share.gpu_us for share in shares if share.kind is PayerKind.UNKNOWN)
            assert held + unseen == sum(holder.held_us for holder in own[-1].holders)
        busy = {holder.pod: (holder.busy_us or 0) / holder.held_us for line in lines for holder in line.holders}
        assert busy["p0"] > 0.5
        assert busy["p2"] == busy["p3"] == 0


async def test_a_notebook_is_idle_between_its_bursts_and_busy_after_one(sim_root: SimRoot, tmp_path: Path) -> None:
    root = sim_root("l4", gpus=1)
    processes.add(root, 0, pid=5000, load="notebook")
    short = IdleRules(window=120.0, warm_up=0.0)
    seen: set[UsageState] = set()
    async with moved(root, tmp_path) as node:
        for _ in range(80):
            await node.looks(1)
            seen |= set((await node.judged_states(short)).values())
        assert {S.BUSY, S.HELD_IDLE} <= seen
        assert S.HELD_IDLE not in (await node.judged_states(IdleRules(window=3600.0, warm_up=0.0))).values()


async def test_what_lies_between_two_looks_is_counted(sim_root: SimRoot, tmp_path: Path) -> None:
    """A notebook works for 9 of 180 seconds, at 60 percent on average."""
    root = sim_root("l4", gpus=1)
    processes.add(root, 0, pid=5000, load="notebook")
    async with moved(root, tmp_path) as node:
        await node.looks(2, 10)
        assert await node.sources() == {UsageSource.SAMPLES}
        before = node.watched_us()
        await node.looks(36, 10)
        busy, held = (now - was for now, was in zip(node.watched_us(), before, strict=True))
        assert busy / held == pytest.approx((6 * 55 + 3 * 71) / 180 / 100, rel=0.1)


async def test_tenants_of_a_gpu_have_what_their_processes_did_and_no_more_than_the_gpu(
    sim_root: SimRoot, tmp_path: Path
) -> None:
    root = sim_root("l4", gpus=1)
    processes.add(root, 0, pid=5000, load="notebook")
    processes.add(root, 0, pid=5001, load="idle")
    reader = open_reader(driver_root=root)
    operate.set_values(root, {"clock-rate": 0})
    shared = MeasuredReader(SharedReader(lambda: asyncio.sleep(0, reader), max_age=-1.0))
    try:
        await shared.activity(())
        seen = []
        for _ in range(18):
            operate.set_values(root, {"clock-ahead": 10})
            (done,) = await shared.activity(())
            own = {one.pid: one.sm_percent for one in await shared.processes()}
            assert own[5001] == 0
            seen.append((done.values["utilization_percent"] > 0, (own[5000] or 0) > 0))
    finally:
        await reader.close()
    assert {both for both in seen if both[0] != both[1]} <= {(False, True)}, "who has done something is seen"
    assert (True, True) in seen
    assert (False, False) in seen


async def test_mig_before_hopper_is_known_to_be_empty_or_not_known(sim_root: SimRoot, tmp_path: Path) -> None:
    root = sim_root("dgx-a100-40g", gpus=1)
    mig.partition(root, 0, ["1g.5gb"] * 2)
    async with moved(root, tmp_path) as node:
        first, second = (await node.reader.inventory()).accelerators[0].partitions
        processes.add(root, 0, pid=5000, memory_mib=900, sm_percent=50, gi=first.gpu_instance, ci=0)
        node.holders.now = {
            first.parent_uuid: tuple(
                LookedHolder(namespace="team", pod=f"p{at}", uid=f"u{at}", container="main", partition=part.uuid)
                for at, part in enumerate((first, second))
            )
        }
        await node.looks(HOUR_AND_WARM_UP)
        found = {one.partition: one.source for one in (await node.said()).devices}
        assert found == {first.uuid: UsageSource.NOTHING, second.uuid: UsageSource.PROCESSES}
        states = [one.verdict.state for one in judged([HeardAgent(await node.said(), 0.0)], IdleRules(), 0.0)]
        assert sorted(states) == [S.HELD_EMPTY, S.UNKNOWN]


async def test_slices_of_hopper_have_their_own_counters(sim_root: SimRoot) -> None:
    root = sim_root("hgx-h100", gpus=1)
    mig.partition(root, 0, ["1g.10gb"] * 2)
    reader = open_reader(driver_root=root)
    try:
        inventory = await reader.inventory()
        first, second = inventory.accelerators[0].partitions
        processes.add(root, 0, pid=5000, sm_percent=50, gi=first.gpu_instance, ci=0)
        await reader.activity(AVERAGES)
        async with asyncio.timeout(300):
            while True:
                answer = UsageAnswer(inventory, await reader.readings(KEYS), await reader.activity(AVERAGES))
                (device,) = devices(answer, 1.0)
                if all(part.source is UsageSource.COUNTERS for part in device.parts):
                    break
                await asyncio.sleep(0.05)
        engines = {part.id: part.reading.gr_engine for part in device.parts if part.reading}
        assert engines == {first.uuid: pytest.approx(0.5, abs=0.02), second.uuid: 0.0}
    finally:
        await reader.close()


@pytest.mark.parametrize(
    ("profile", "source", "parts"),
    [
        ("l4", UsageSource.SAMPLES, 0), ("hgx-h100", UsageSource.COUNTERS, 0), ("mi300x", UsageSource.UTILIZATION, 0),
        ("gaudi3", UsageSource.UTILIZATION, 0),
    ],
)  # fmt: skip
async def test_every_vendors_reader_says_by_what_it_measures(
    sim_root: SimRoot, profile: str, source: UsageSource, parts: int
) -> None:
    reader = open_reader(driver_root=sim_root(profile))
    try:
        inventory = await reader.inventory()
        await reader.activity(AVERAGES)
        async with asyncio.timeout(300):
            while True:
                activity = await reader.activity(AVERAGES)
                seen = devices(UsageAnswer(inventory, await reader.readings(KEYS), activity), 1.0)
                if {one.source for one in seen} == {source}:
                    break
                assert source in {UsageSource.COUNTERS, UsageSource.SAMPLES}, "it takes some time to have them"
                await asyncio.sleep(0.05)
        assert all(len(one.parts) == parts and one.usable and one.memory_mib > 0 for one in seen)
    finally:
        await reader.close()


async def test_amd_partitions_are_measured_by_the_card(sim_root: SimRoot) -> None:
    root = sim_root("mi300x")
    amd.set_partition(root, range(8), "CPX", "")
    reader = open_reader(driver_root=root)
    try:
        inventory = await reader.inventory()
        seen = devices(UsageAnswer(inventory, await reader.readings(KEYS)), 1.0)
        assert {part.source for one in seen for part in one.parts} == {UsageSource.CARD}
        assert {len(one.parts) for one in seen} == {8}
    finally:
        await reader.close()
