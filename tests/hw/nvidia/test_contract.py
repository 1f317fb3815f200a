"""``NvidiaReader`` over the simulated driver's C library keeps the port's contract, and survives what only it can meet."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from kgpu.base.errors import DriverFault, HwError
from kgpu.hw.nvidia import client
from kgpu.hw.nvidia.client import NvidiaReader
from kgpu.hw.nvidia.faults import NvmlInitError
from kgpu.hw.nvidia.process import Stalled
from kgpu.hw.port import EventKind, Problem, TopologyLevel
from kgpu.hw.simulator import mig, operate, processes
from tests.child import child
from tests.hw.contract import (
    H100,
    PATIENCE,
    DriverEventsContract,
    ReaderContract,
    SlicesContract,
    problems,
    usable,
    wait_for,
    wait_for_error,
    wait_for_event,
)


class SimulatedNode:
    shape = H100

    def __init__(self, root, hurried: set[int | str | None]) -> None:
        self.root = root
        self.hurried = hurried
        self.reader = NvidiaReader(driver_root=root, deadline=1.0, attach_deadline=2.0, poll=0.1, retry=0.1)

    async def lose(self, gpu: int) -> None:
        operate.inject(self.root, "lost", gpu=gpu)

    async def hang(self, gpu: int) -> None:
        self.hurried.add(gpu)
        operate.inject(self.root, "hang", gpu=gpu)

    async def xid(self, gpu: int, code: int) -> None:
        operate.inject(self.root, "xid", gpu=gpu, xid=code)

    async def report(self, gpu: int) -> None:
        await self.xid(gpu, H100.code)

    async def slice(self, gpu: int, count: int) -> None:
        await asyncio.to_thread(mig.partition, self.root, gpu, ["1g.10gb"] * count)

    async def run(self, gpu: int, pid: int, memory_mib: int) -> None:
        processes.add(self.root, gpu, pid=pid, memory_mib=memory_mib)

    async def load(self, gpu: int, percent: int) -> None:
        operate.set_values(self.root, {"utilization": percent}, gpu=gpu)

    async def clear(self, gpu: int) -> None:
        operate.clear(self.root, gpu)
        self.hurried.clear()

    async def take_driver(self) -> None:
        operate.inject(self.root, "init-error", code="DRIVER_NOT_LOADED")
        os.kill(self.reader.child_pid, signal.SIGKILL)

    async def return_driver(self) -> None:
        operate.clear(self.root)


@pytest.fixture(autouse=True)
def hurried(monkeypatch: pytest.MonkeyPatch) -> set[int | str | None]:
    """The GPUs (None: the driver) and questions that have no more time than the reader gives them: what hangs.

    A busy machine may need longer than that for what does not.
    """
    found: set[int | str | None] = set()
    wait = client.ChildProcess._next

    async def patient(self, number: int, op: str, gpu: int | None, limit: float):
        return await wait(self, number, op, gpu, limit if {op, gpu} & found else PATIENCE)

    monkeypatch.setattr(client.ChildProcess, "_next", patient)
    return found


@pytest.fixture
async def node(sim_root, hurried):
    root = sim_root("hgx-h100")
    node = SimulatedNode(root, hurried)
    yield node
    operate.clear(root)
    await node.reader.close()


class TestNvidiaReader(ReaderContract, DriverEventsContract, SlicesContract):
    pass


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSEGV])
async def test_child_that_died_is_replaced_without_a_trace(node: SimulatedNode, number: int) -> None:
    before = await node.reader.inventory()
    pid = node.reader.child_pid
    os.kill(pid, number)
    after = await node.reader.inventory()
    assert after == before
    assert node.reader.child_pid != pid


async def test_events_go_on_after_the_child_died(node: SimulatedNode) -> None:
    events = node.reader.events()
    await node.reader.inventory()
    os.kill(node.reader.child_pid, signal.SIGKILL)
    await node.reader.inventory()
    await node.xid(6, 48)
    event = await wait_for_event(events, lambda event: event.kind is EventKind.XID)
    assert event.code == 48


async def test_stopped_child_is_a_hang_and_the_gpus_come_back(node: SimulatedNode) -> None:
    before = await node.reader.inventory()
    node.hurried.add("node")
    os.kill(node.reader.child_pid, signal.SIGSTOP)
    await wait_for_error(node.reader)
    node.hurried.clear()
    after = await wait_for(node.reader, lambda inventory: len(usable(inventory)) == 8)
    assert after.accelerators == before.accelerators


async def test_child_ends_with_its_reader(node: SimulatedNode) -> None:
    await node.reader.inventory()
    pid = node.reader.child_pid
    await node.reader.close()
    runs_no_more(pid)


async def test_init_error_keeps_nvmls_reason(node: SimulatedNode, caplog) -> None:
    operate.inject(node.root, "init-error", code="LIB_RM_VERSION_MISMATCH")
    for _ in range(2):
        with pytest.raises(NvmlInitError) as caught:
            await node.reader.inventory()
    assert caught.value.what == "nvml init failed: Driver/library version mismatch"
    assert (caught.value.code, caught.value.fault) == (18, DriverFault.VERSION_MISMATCH)
    lines = [record.getMessage() for record in caplog.records]
    assert lines.count("Failed to initialize NVML: Driver/library version mismatch.") == 1
    assert not [line for line in lines if "docker" in line]


async def test_missing_library_names_where_it_was_looked_for(tmp_path) -> None:
    reader = NvidiaReader(driver_root=tmp_path)
    with pytest.raises(NvmlInitError) as caught:
        await reader.inventory()
    await reader.close()
    assert caught.value.what == "nvml init failed: ERROR_LIBRARY_NOT_FOUND"
    assert caught.value.fault is DriverFault.LIBRARY_NOT_FOUND
    assert f"{tmp_path}/usr/lib64/libnvidia-ml.so.1" in caught.value.expected


async def test_one_gpu_that_refuses_its_handle_is_named_and_alone(node: SimulatedNode) -> None:
    before = await node.reader.inventory()
    operate.inject(node.root, "init-error", gpu=4, code="UNKNOWN")
    after = await wait_for(node.reader, lambda inventory: bool(inventory.accelerators[4].findings))
    assert problems(after.accelerators[4]) == {Problem.UNREADABLE}
    assert after.accelerators[4].uuid == before.accelerators[4].uuid
    assert [gpu.index for gpu in after.accelerators if gpu.findings] == [4]


async def test_gpu_that_hangs_from_the_start_is_known_from_procfs(node: SimulatedNode) -> None:
    await node.hang(7)
    inventory = await node.reader.inventory()
    assert usable(inventory) == [0, 1, 2, 3, 4, 5, 6]
    (hung,) = [gpu for gpu in inventory.accelerators if not gpu.usable]
    await node.clear(7)
    healed = await wait_for(node.reader, lambda inventory: len(usable(inventory)) == 8)
    assert healed.accelerators[7].uuid == hung.uuid
    assert healed.accelerators[7].minor == hung.minor


async def test_driver_that_hangs_as_a_whole_is_found_and_heals(sim_root, hurried) -> None:
    root = sim_root("hgx-h100", gpus=4)
    reader = NvidiaReader(driver_root=root, deadline=1.0, attach_deadline=2.0, retry=0.1)
    try:
        before = await reader.inventory()
        hurried.update(range(4))
        operate.inject(root, "hang")
        hung = await wait_for(reader, lambda inventory: usable(inventory) == [])
        assert [problems(gpu) for gpu in hung.accelerators] == [{Problem.HUNG}] * 4
        operate.clear(root)
        hurried.clear()
        after = await wait_for(reader, lambda inventory: len(usable(inventory)) == 4)
        assert after.accelerators == before.accelerators
    finally:
        operate.clear(root)
        await reader.close()


async def test_a_driver_that_is_slow_with_each_gpu_is_waited_for(sim_root, hurried) -> None:
    """As when all GPUs of a large node wake up at once: the time is each GPU's own, and half of what all take here."""
    root = sim_root("hgx-h100", gpus=8)
    operate.inject(root, "slow", us=50_000)
    reader = NvidiaReader(driver_root=root, deadline=4.0, attach_deadline=4.0)
    hurried.update(range(8))
    try:
        inventory = await reader.inventory()
        assert [problems(gpu) for gpu in inventory.accelerators] == [set()] * 8
    finally:
        operate.clear(root)
        await reader.close()


async def test_recovery_action_is_a_finding_and_an_event(node: SimulatedNode) -> None:
    events = node.reader.events()
    await node.reader.inventory()
    await node.xid(2, 95)
    await wait_for_event(events, lambda event: event.kind is EventKind.INVENTORY)
    inventory = await wait_for(node.reader, lambda inventory: 2 not in usable(inventory))
    assert Problem.NEEDS_RESET in problems(inventory.accelerators[2])
    assert inventory.accelerators[2].recovery_action != "none"


async def test_mixed_slices_have_the_drivers_names(node: SimulatedNode) -> None:
    names = ["3g.40gb", "1c.2g.20gb", "1g.10gb+me"]
    await asyncio.to_thread(mig.partition, node.root, 1, names)
    gpu = (await node.reader.inventory()).accelerators[1]
    assert sorted(part.profile for part in gpu.partitions) == sorted(names)
    by_profile = {part.profile: part for part in gpu.partitions}
    assert by_profile["3g.40gb"].slices_gi == 3
    assert (by_profile["1c.2g.20gb"].slices_gi, by_profile["1c.2g.20gb"].slices_ci) == (2, 1)
    await asyncio.to_thread(mig.disable, node.root, 1)
    gpu = (await node.reader.inventory()).accelerators[1]
    assert gpu.partitions == ()
    assert not gpu.mig_enabled


async def test_direct_links_have_lanes_and_switched_ones_do_not(sim_root, hurried) -> None:
    node = SimulatedNode(sim_root("dgx-1-v100"), hurried)
    try:
        links = await node.reader.links()
        assert {link.lanes for link in links} == {0, 1, 2}
        assert all(isinstance(link.level, TopologyLevel) for link in links)
    finally:
        await node.reader.close()


async def test_readings_are_in_plausible_units(node: SimulatedNode) -> None:
    for reading in await node.reader.readings():
        assert 10 < reading.values["temperature_c"] < 110
        assert 20 < reading.values["power_w"] < 1500
        assert 0 <= reading.values["utilization_percent"] <= 100
        assert reading.values["memory_used_mib"] + reading.values["memory_free_mib"] < 82_000


async def test_child_is_light(node: SimulatedNode) -> None:
    await node.reader.inventory()
    status = Path(f"/proc/{node.reader.child_pid}/status").read_text()  # noqa: ASYNC240
    resident = next(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmRSS"))
    assert resident < 17 * 1024


PARENT = """
import asyncio, sys
from kgpu.base.errors import DriverFault, HwError
from kgpu.hw.nvidia import client
from kgpu.hw.nvidia.client import NvidiaReader
async def main():
    reader = NvidiaReader(driver_root=sys.argv[1])
    await reader.inventory()
    print(reader.child_pid, flush=True)
    await asyncio.sleep(600)
asyncio.run(main())
"""


def test_child_does_not_outlive_a_killed_parent(sim_root) -> None:
    root = sim_root("t4", gpus=1)
    command = [sys.executable, "-c", PARENT, str(root)]
    with child(command, stdout=subprocess.PIPE, text=True) as parent:
        pid = int(parent.stdout.readline())
        parent.kill()
    runs_no_more(pid)


def runs_no_more(pid: int) -> None:
    """Wait for the end of a process that has been told."""
    deadline = time.monotonic() + PATIENCE
    while process_runs(pid):
        assert time.monotonic() < deadline, "the child outlived its parent"
        time.sleep(0.01)


def process_runs(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


class Unkillable:
    """Makes children survive their killing, as a driver call that never returns from the kernel does."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.all: list[subprocess.Popen[bytes]] = []
        real = subprocess.Popen

        class Popen(real):  # type: ignore[valid-type]
            def __init__(popen, *arguments, **options) -> None:
                super().__init__(*arguments, **options)
                self.all.append(popen)

            def kill(popen) -> None:
                return

        monkeypatch.setattr(subprocess, "Popen", Popen)

    @property
    def running(self) -> int:
        return sum(process.poll() is None for process in self.all)

    def end(self) -> None:
        for process in self.all:
            process.send_signal(signal.SIGKILL)
            process.wait()


async def test_processes_that_a_hung_gpu_holds_do_not_pile_up(sim_root, monkeypatch, hurried) -> None:
    root = sim_root("hgx-h100", gpus=2)
    children = Unkillable(monkeypatch)
    monkeypatch.setattr(client, "MAX_WAIT_S", 0.1)
    reader = NvidiaReader(driver_root=root, deadline=1.0, attach_deadline=1.0, retry=0.05)
    try:
        await reader.inventory()
        hurried.add(1)
        operate.inject(root, "hang", gpu=1)
        await wait_for(reader, lambda inventory: usable(inventory) == [0])
        async with asyncio.timeout(PATIENCE):
            while len(reader._suspects[1].held) < client.MAX_HELD:
                await reader.inventory()
                await asyncio.sleep(0.05)
        for _ in range(30):
            assert usable(await reader.inventory()) == [0]
            await asyncio.sleep(0.05)
        # One that reads the healthy GPU, and two that the hung one holds.
        assert children.running <= 3
        operate.clear(root)
        hurried.clear()
        await wait_for(reader, lambda inventory: usable(inventory) == [0, 1])
    finally:
        operate.clear(root)
        children.end()
        await reader.close()


async def test_processes_that_a_hung_driver_holds_do_not_pile_up(sim_root, monkeypatch) -> None:
    root = sim_root("hgx-h100", gpus=2)
    children = Unkillable(monkeypatch)
    monkeypatch.setattr(client.ChildProcess, "ask", stalled)
    reader = NvidiaReader(driver_root=root)
    try:
        for _ in range(6):
            with pytest.raises(HwError) as caught:
                await reader.inventory()
            # Not even hanging up ends a process that is in the kernel.
            for process in children.all:
                process.send_signal(signal.SIGSTOP)
        assert children.running == 2
        assert "holds processes that were killed" in caught.value.what
        children.end()
        monkeypatch.undo()
        assert usable(await reader.inventory()) == [0, 1]
    finally:
        children.end()
        await reader.close()


async def stalled(child, op, *_) -> None:
    os.kill(child.pid, signal.SIGSTOP)
    raise Stalled(op, None, 0.0)


async def test_a_gpu_whose_events_can_not_be_had_is_named(node: SimulatedNode, monkeypatch, caplog) -> None:
    real = client.ChildProcess.each

    async def each(child, op, gpus, *arguments, **options):
        async for gpu, answer in real(child, op, gpus, *arguments, **options):
            yield gpu, ("register_events", 999, "Unknown Error") if op == "listen" and gpu == 3 else answer

    monkeypatch.setattr(client.ChildProcess, "each", each)
    node.reader.events()
    await node.reader.inventory()
    (line,) = [record.getMessage() for record in caplog.records if "Xids" in record.getMessage()]
    assert line == "GPU 3 delivers no events, so its Xids are not seen: register_events: Unknown Error"


async def test_gpu_that_hangs_while_links_are_read_takes_nobody_along(node: SimulatedNode, monkeypatch) -> None:
    real = client.ChildProcess.each

    def each(child, op, gpus, *arguments, **options):
        if op == "topology":
            node.hurried.update((op, 5))  # whom of a pair that hangs shows when each is asked alone
            operate.inject(node.root, "hang", gpu=5)
        return real(child, op, gpus, *arguments, **options)

    monkeypatch.setattr(client.ChildProcess, "each", each)
    links = await node.reader.links()
    assert {uuid for link in links for uuid in (link.a, link.b)} == {
        gpu.uuid for gpu in (await node.reader.inventory()).accelerators if gpu.usable
    }
    assert usable(await node.reader.inventory()) == [0, 1, 2, 3, 4, 6, 7]
