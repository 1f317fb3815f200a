"""What is done about an order as the world around it changes: kubelet, API server, driver, other writers, time."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from kgpu.agent.driver_users import DriverUser
from kgpu.agent.node_orders import LONGEST, ONCE, TOO_LONG
from kgpu.agent.options import AgentOptions
from kgpu.agent.order_follower import CUTTING, OrderContext, OrderFollower
from kgpu.agent.order_peers import OrderPeers
from kgpu.agent.ordered import OrderedGpus
from kgpu.agent.shared_reader import SharedReader
from kgpu.agent.slot import SharedReaders
from kgpu.base.change_notifier import ChangeNotifier
from kgpu.base.clock import VirtualClock
from kgpu.base.errors import HostError, HwError, KubeError, KubeletError
from kgpu.base.supervise import RoleHandle
from kgpu.formats import names
from kgpu.formats.mig_request import MigLayout
from kgpu.formats.node_order import (
    ChangeResult,
    NodeOrder,
    OrderAnswer,
    OrderStep,
    change_order,
    encode,
    exchange_order,
    order,
    read_answer,
)
from kgpu.hw.fake_reader import FakeReader, sample_inventory, sample_partitions
from kgpu.hw.port import DriverReleasedError
from kgpu.hw.verdicts import GpuVerdict, Verdicts
from kgpu.kube.fake import FakeApi
from kgpu.kube.port import NODES
from kgpu.kubelet.pod_resources import FakeHoldings, Holding

INVENTORY = sample_inventory(2)
ILL, WELL = INVENTORY.accelerators
NODE = "node-1"
KEY = names.OPERATION_REPORT_ANNOTATION
OF_A_RESET = (OrderStep.WITHDRAW, OrderStep.RELEASE, OrderStep.RESUME)


class OwnNode:
    """The Node as the agent's watch knows it."""

    def __init__(self, api: FakeApi) -> None:
        self.api = api
        self.news = ChangeNotifier()
        self.reports: dict[str, str] = {}
        self.uid = ""

    def look(self) -> None:
        metadata = self.api._objects[(NODES, "", NODE)].shown()["metadata"]
        seen = (dict(metadata.get("annotations") or {}), metadata["uid"])
        if seen != (self.reports, self.uid):
            self.reports, self.uid = seen
            self.news.notify()

    @property
    def revision(self) -> int:
        return self.news.revision

    async def changed(self, after: int) -> int:
        return await self.news.changed(after)


class World:
    """One agent's follower, with everything around it in the hands of a test."""

    def __init__(self, **given: Any) -> None:
        self.api = FakeApi()
        self.api.put(NODES, {"metadata": {"name": NODE}})
        self.own = OwnNode(self.api)
        self.own.look()
        self.clock = VirtualClock()
        self.ordered = OrderedGpus()
        self.made: list[FakeReader] = []
        self.inventory = INVENTORY
        self.readers = SharedReaders(lambda _options: SharedReader(self.open, clock=self.clock))
        self.holdings = FakeHoldings()
        self.users: tuple[DriverUser, ...] = ()
        self.uptime = 100.0
        self.verdicts: Verdicts | None = None
        self.resets: list[tuple[str, ...]] = []
        self.reset_problem: HostError | None = None
        self.away: KubeError | None = None
        self.unloaded: HwError | None = None
        self.given = given
        self.follower = self.make()
        self.handle = RoleHandle("operation", self.clock)

    async def open(self) -> FakeReader:
        if self.unloaded is not None:
            raise self.unloaded
        self.made.append(FakeReader(self.inventory))
        return self.made[-1]

    def make(self) -> OrderFollower:
        def was_reset(gpus: tuple[str, ...]) -> None:
            if self.reset_problem is not None:
                raise self.reset_problem
            self.resets.append(gpus)

        @contextlib.asynccontextmanager
        async def reader() -> AsyncIterator[SharedReader]:
            async with self.readers.reader(AgentOptions()) as lent:
                yield lent

        return OrderFollower(
            OrderContext(
                api=lambda: self, own=self.own, node=NODE, ordered=self.ordered, readers=self.readers, reader=reader,
                holdings=self.holdings, verdicts=lambda: self.verdicts, was_reset=was_reset, users=lambda: self.users,
                boot="boot", uptime=lambda: self.uptime, clock=self.clock, **self.given,
            )
        )  # fmt: skip

    # The API server, which can be away.

    async def apply(self, *args: Any, **kwargs: Any) -> Any:
        if self.away is not None:
            raise self.away
        return await self.api.apply(*args, **kwargs)

    async def patch(self, *args: Any, **kwargs: Any) -> Any:
        if self.away is not None:
            raise self.away
        return await self.api.patch(*args, **kwargs)

    # The operator, and time

    def annotate(self, key: str, text: str | None) -> None:
        annotations = {**self.own.reports, key: text}
        kept = {name: value for name, value in annotations.items() if value is not None}
        self.api.put(NODES, {"metadata": {"name": NODE, "annotations": kept}})
        self.own.look()

    def order(self, step: OrderStep, act: str = "act-1", *, reset: bool = False, gpu: str = ILL.uuid) -> NodeOrder:
        given = order(act=act, boot="boot", step=step, gpus=(gpu,), reset=reset)
        self.annotate(names.OPERATION_ANNOTATION, encode(given))
        return given

    @property
    def answer(self) -> OrderAnswer | None:
        self.own.look()
        return read_answer(self.own.reports)

    async def until(self, condition: Any) -> Any:
        async with asyncio.timeout(60):
            while not (found := condition()):
                await self.clock.advance(0.25)
                self.own.look()
                await asyncio.sleep(0.002)  # threads answer in real time
            return found

    async def fulfilled(self, step: OrderStep, act: str = "act-1") -> OrderAnswer:
        answer = await self.until(lambda: (found := self.answer) and found.fulfils(act, step) and found)
        assert isinstance(answer, OrderAnswer)
        return answer

    async def waits(self, words: str) -> OrderAnswer:
        answer = await self.until(lambda: (found := self.answer) and words in found.waits and found)
        assert isinstance(answer, OrderAnswer)
        return answer

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        task = asyncio.create_task(self.follower.run(self.handle))
        try:
            async with self.readers.reader(AgentOptions()):  # a role's
                yield
            assert not task.done(), task
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)


@pytest.fixture
async def world() -> AsyncIterator[World]:
    made = World()
    async with made.running():
        yield made


def held(pod: str, *devices: str) -> Holding:
    return Holding(namespace="team", pod=pod, container="c", resource=names.GPU_RESOURCE, devices=devices)


async def test_holders_are_followed_and_a_silent_kubelet_is_told(world: World) -> None:
    world.holdings.problem = KubeletError("no socket", "a kubelet", "start it")
    world.order(OrderStep.WITHDRAW)
    await world.waits("the kubelet does not say who holds the GPUs: no socket")
    assert set(world.ordered.withdrawn) == {ILL.uuid}
    world.holdings.problem = None
    world.holdings.now = (held("b", ILL.uuid), held("a", f"{ILL.uuid}::4"), held("c", WELL.uuid))
    answer = await world.fulfilled(OrderStep.WITHDRAW)
    assert [pod.name for pod in answer.holders] == ["a", "b"]
    assert [pod.name for pod in answer.elsewhere or ()] == ["c"]
    world.holdings.now = (held("c", WELL.uuid),)
    await world.until(lambda: world.answer and not world.answer.holders)
    asked = world.holdings.asked
    world.annotate(names.OPERATION_ANNOTATION, None)
    await world.until(lambda: world.answer is None)
    await world.clock.advance(60.0)
    assert world.holdings.asked - asked <= 1
    assert world.ordered.withdrawn == {}


async def test_a_driver_that_can_not_be_read_is_waited_for(world: World) -> None:
    async with world.readers.reader(AgentOptions()) as reader:
        await reader.inventory()
        world.made[-1].set_down(HwError("nvml init failed", "a driver", "load it"))
        await world.clock.advance(5.0)
        world.order(OrderStep.WITHDRAW)
        await world.waits("the driver can't be read: nvml init failed")
        assert world.ordered.withdrawn == {}
        world.made[-1].set_down(None)
        await world.fulfilled(OrderStep.WITHDRAW)


async def test_a_refused_order_changes_nothing_and_stays_refused(world: World) -> None:
    sliced = dataclasses.replace(ILL, mig_enabled=True, partitions=sample_partitions(ILL))
    world.inventory = dataclasses.replace(INVENTORY, accelerators=(sliced, WELL))
    for step in OF_A_RESET:
        world.order(step)
        answer = await world.until(lambda: (found := world.answer) and found.step is step and found)  # noqa: B023
        assert "has MIG instances" in answer.refused
        assert (world.ordered.withdrawn, world.ordered.released) == ({}, "")


async def test_nothing_opens_the_driver_until_it_is_over(world: World) -> None:
    world.order(OrderStep.WITHDRAW)
    await world.fulfilled(OrderStep.WITHDRAW)
    opened = len(world.made)
    world.order(OrderStep.RELEASE)
    await world.fulfilled(OrderStep.RELEASE)
    assert all(reader._closed for reader in world.made)
    async with world.readers.own(AgentOptions()) as reader:  # a role that starts now
        with pytest.raises(DriverReleasedError, match="act-1"):
            await reader.inventory()
    world.annotate(names.OPERATION_ANNOTATION, None)
    await world.until(lambda: not world.ordered.released)
    async with world.readers.own(AgentOptions()) as reader:
        await reader.inventory()
    assert len(world.made) == opened + 1


def exchange(world: World, step: OrderStep, act: str = "act-1") -> None:
    given = exchange_order(act=act, boot="boot", step=step)
    world.annotate(names.OPERATION_ANNOTATION, encode(given))


async def test_an_exchange_lets_go_before_it_answers_and_reads_the_driver_after_it(world: World) -> None:
    """The order of a release: readers are held at once, then closed, then this process has to be free of the driver, and
    only then the answer says so. After it the driver is read anew, never from before.
    """
    async with world.readers.own(AgentOptions()) as reader:
        await reader.inventory()
    world.users = (DriverUser(pid=7, name="python3"),)
    exchange(world, OrderStep.RELEASE)
    world.follower.heed()
    assert world.ordered.released, "held before anything is awaited"
    waiting = await world.waits("python3")
    assert not waiting.fulfils("act-1", OrderStep.RELEASE)
    assert all(made._closed for made in world.made), "it is closed before users are looked for"
    opened = len(world.made)
    world.users = ()
    await world.fulfilled(OrderStep.RELEASE)
    assert len(world.made) == opened, "nothing has opened it meanwhile"
    world.inventory = dataclasses.replace(INVENTORY, driver_version="570.86.15")
    exchange(world, OrderStep.RESUME)
    found = await world.fulfilled(OrderStep.RESUME)
    assert found.driver == "570.86.15"
    assert len(world.made) > opened


async def test_an_exchange_whose_driver_can_not_be_read_is_waited_for(world: World) -> None:
    exchange(world, OrderStep.RELEASE)
    await world.fulfilled(OrderStep.RELEASE)
    world.unloaded = HwError("no driver is loaded", "a driver", "load one")
    exchange(world, OrderStep.RESUME)
    found = await world.waits("the driver can't be read: no driver is loaded")
    assert not found.driver
    world.unloaded = None
    assert (await world.fulfilled(OrderStep.RESUME)).driver == INVENTORY.driver_version


async def test_children_that_are_held_in_the_kernel_are_named(world: World) -> None:
    world.users = (DriverUser(pid=77, name="python3", hangs=True),)
    world.order(OrderStep.WITHDRAW)
    await world.fulfilled(OrderStep.WITHDRAW)
    world.order(OrderStep.RELEASE)
    await world.waits("process 77 (python3) is held in the kernel by the driver")
    world.users = ()
    await world.fulfilled(OrderStep.RELEASE)


async def test_without_the_api_server_a_release_ends_in_time_and_is_answered_later(world: World) -> None:
    world.order(OrderStep.WITHDRAW)
    await world.fulfilled(OrderStep.WITHDRAW)
    world.order(OrderStep.RELEASE)
    await world.fulfilled(OrderStep.RELEASE)
    world.away = KubeError("no route", "an API server", "start it")
    await world.clock.advance(LONGEST - 5.0)
    assert world.ordered.released
    await world.until(lambda: not world.ordered.released)
    assert set(world.ordered.withdrawn) == {ILL.uuid}
    await world.clock.advance(60.0)
    assert "no route" in world.handle.status.reason
    world.away = None
    answer = await world.waits(TOO_LONG)
    assert answer.step is OrderStep.RELEASE
    # An agent that is started anew keeps to it, by its answer.
    world.follower = world.make()
    world.follower.heed()
    assert not world.ordered.released
    world.order(OrderStep.RELEASE, "act-2")
    await world.fulfilled(OrderStep.RELEASE, "act-2")


async def test_an_act_has_the_driver_once(world: World) -> None:
    for step in OF_A_RESET:
        world.order(step)
        await world.fulfilled(step)
    world.order(OrderStep.RELEASE)
    await world.waits(ONCE)
    assert not world.ordered.released


async def test_each_look_after_the_release_is_a_reading(world: World) -> None:
    world.uptime = 200.0
    world.order(OrderStep.RESUME, reset=True)
    answer = await world.fulfilled(OrderStep.RESUME)
    assert [(gpu.uuid, gpu.pci, gpu.problem) for gpu in answer.gpus] == [(ILL.uuid, ILL.pci_bus_id, "")]
    assert world.resets == [(ILL.uuid,)]

    def told(words: str) -> Any:
        return lambda: (found := world.answer) and found.gpus and words in found.gpus[0].problem

    world.made[-1].change(ILL.uuid, recovery_action="reset")
    await world.until(told("the driver asks for: reset"))
    world.made[-1].heal(ILL.uuid)
    world.verdicts = Verdicts(boot="boot", uptime=199.0)
    await world.until(told("kgpu's health has not looked at it since"))
    ill = GpuVerdict(uuid=ILL.uuid, withdraws=True, what="Xid 48", action="reset-gpu")
    world.verdicts = Verdicts(boot="boot", uptime=201.0, gpus=(ill,))
    await world.until(told("kgpu's health: Xid 48"))
    world.verdicts = Verdicts(boot="boot", uptime=203.0)
    await world.until(lambda: (found := world.answer) and found.gpus and not found.gpus[0].problem)
    world.made[-1].set_down(HwError("gone", "a driver", "load it"))
    await world.until(told("the driver can't be read: gone"))
    assert set(world.ordered.withdrawn) == {ILL.uuid}
    assert len(world.resets) == 1


async def test_health_hears_of_a_reset_once_it_can(world: World) -> None:
    world.reset_problem = HostError("disk full", "room", "make some")
    world.order(OrderStep.RESUME, reset=True)
    await world.fulfilled(OrderStep.RESUME)
    world.reset_problem = None
    await world.until(lambda: world.resets)
    await world.clock.advance(20.0)
    assert world.resets == [(ILL.uuid,)]
    world.order(OrderStep.RESUME, "act-2")
    await world.fulfilled(OrderStep.RESUME, "act-2")
    assert world.resets == [(ILL.uuid,)]


async def test_what_others_write_into_the_answer_is_put_right(world: World) -> None:
    world.order(OrderStep.WITHDRAW)
    answer = await world.fulfilled(OrderStep.WITHDRAW)
    world.annotate(KEY, "nonsense")
    await world.until(lambda: world.answer == answer)
    world.annotate(names.OPERATION_ANNOTATION, None)
    await world.until(lambda: KEY not in world.own.reports)
    world.annotate(KEY, encode(answer))  # of an agent of long ago
    await world.until(lambda: KEY not in world.own.reports)


async def test_an_order_of_another_boot_is_none(world: World) -> None:
    other = order(act="a", boot="earlier", step=OrderStep.WITHDRAW, gpus=(ILL.uuid,))
    world.annotate(names.OPERATION_ANNOTATION, encode(other))
    await world.clock.advance(30.0)
    assert world.answer is None
    assert world.ordered.withdrawn == {}


# A process for each role


async def test_one_process_speaks_for_all_and_waits_for_them(tmp_path: Path) -> None:
    roles = ("deviceplugin", "exporter")
    speaker = World(peers=OrderPeers(tmp_path, {"deviceplugin"}, lambda: roles))
    other = World(peers=OrderPeers(tmp_path, {"exporter"}, lambda: roles))
    other.users = (DriverUser(pid=5, name="python3"),)
    other.holdings.problem = KubeletError("no socket", "a kubelet", "start it")
    speaker.holdings.now = (held("a", ILL.uuid),)
    async with speaker.running(), other.running():
        speaker.order(OrderStep.WITHDRAW)
        await speaker.waits("the process of exporter: it has not followed the order yet")
        other.order(OrderStep.WITHDRAW)
        await other.until(lambda: "act-1" in _text(tmp_path / "operation/exporter"))
        told = await speaker.fulfilled(OrderStep.WITHDRAW)
        assert [pod.name for pod in told.holders] == ["a"]
        other.order(OrderStep.RELEASE)
        await other.until(lambda: "process 5" in _text(tmp_path / "operation/exporter"))
        speaker.order(OrderStep.RELEASE)
        await speaker.waits("the process of exporter: process 5 (python3) still has the driver open")
        other.users = ()
        await other.until(lambda: "process 5" not in _text(tmp_path / "operation/exporter"))
        await speaker.fulfilled(OrderStep.RELEASE)
        assert other.answer is None
        for one in (speaker, other):
            one.annotate(names.OPERATION_ANNOTATION, None)
            await one.until(lambda: not one.ordered.withdrawn and one.answer is None)  # noqa: B023
        await other.until(lambda: list((tmp_path / "operation").iterdir()) == [])


def _text(path: Path) -> str:
    return path.read_text() if path.exists() else ""


def test_files_that_are_no_answers_count_for_nothing(tmp_path: Path) -> None:
    peers = OrderPeers(tmp_path, {"a"}, lambda: ("a", "b"))
    given = order(act="act", boot="boot", step=OrderStep.WITHDRAW, gpus=(ILL.uuid,))
    peers.write("{}")
    for text in (b"\xff", b"x" * 100_000, b"{}"):
        (tmp_path / "operation/b").write_bytes(text)
        assert "the process of b: it has not followed" in peers.waits(given)
    (tmp_path / "operation/b").unlink()
    (tmp_path / "operation/b").mkdir()
    assert "the process of b: it has not followed" in peers.waits(given)
    assert peers.speaks
    assert not OrderPeers(tmp_path, {"b"}, lambda: ("a", "b")).speaks
    assert not OrderPeers(tmp_path, {"b"}, tuple).speaks
    with pytest.raises(HostError, match="can't be written"):
        OrderPeers(tmp_path, {"b"}, tuple).write("")


# A change of slices

CUT = (MigLayout(gpu=ILL.uuid, enabled=True, devices={"1g.10gb": 7}),)


def change(world: World, step: OrderStep, act: str = "act-1", *, released: bool = False) -> NodeOrder:
    given = change_order(act=act, boot="boot", step=step, layouts=CUT, released=released)
    world.annotate(names.OPERATION_ANNOTATION, encode(given))
    return given


async def test_a_change_is_ordered_of_the_role_and_its_result_answered() -> None:
    world = World(cuts=lambda _vendor: True)
    sliced = dataclasses.replace(ILL, mig_enabled=True, partitions=sample_partitions(ILL))
    world.inventory = dataclasses.replace(INVENTORY, accelerators=(sliced, WELL))
    async with world.running():
        change(world, OrderStep.WITHDRAW)
        await world.fulfilled(OrderStep.WITHDRAW)  # its slices are no reason against it
        assert world.ordered.change is None
        assert "parts GPUs otherwise" in world.ordered.held
        given = change(world, OrderStep.CHANGE)
        await world.waits(CUTTING)
        assert world.ordered.change == given
        assert world.readers._quiet
        assert (set(world.ordered.withdrawn), world.ordered.released) == ({ILL.uuid}, "")
        world.ordered.answer("act-0", ChangeResult(done=False))  # of another act
        world.ordered.answer("act-1", ChangeResult(done=True))
        answer = await world.fulfilled(OrderStep.CHANGE)
        assert answer.result == ChangeResult(done=True)
        assert (world.ordered.change, world.ordered.held, world.readers._quiet) == (None, "", False)
        assert set(world.ordered.withdrawn) == {ILL.uuid}
        assert not world.ordered.verifies
        change(world, OrderStep.RESUME)
        assert (await world.fulfilled(OrderStep.RESUME)).gpus[0].problem == ""
        assert world.ordered.verifies


async def test_the_driver_stays_released_while_a_gpu_is_cut_that_needs_a_reset() -> None:
    world = World(cuts=lambda _vendor: True)
    async with world.running():
        change(world, OrderStep.RELEASE)
        await world.fulfilled(OrderStep.RELEASE)
        change(world, OrderStep.CHANGE, released=True)
        await world.waits(CUTTING)
        assert "parts GPUs otherwise" in world.ordered.released
        opened = len(world.made)
        world.ordered.answer("act-1", ChangeResult(done=False, text="in use", lost=True))
        answer = await world.fulfilled(OrderStep.CHANGE)
        assert answer.result == ChangeResult(done=False, text="in use", lost=True)
        assert world.ordered.released
        assert len(world.made) == opened
        change(world, OrderStep.RESUME)
        await world.fulfilled(OrderStep.RESUME)
        assert not world.ordered.released


async def test_an_agent_that_starts_in_the_middle_says_the_result_again() -> None:
    world = World(cuts=lambda _vendor: True)
    async with world.running():
        change(world, OrderStep.CHANGE)
        world.ordered.answer("act-1", ChangeResult(done=True))
        await world.fulfilled(OrderStep.CHANGE)
    world.ordered, world.follower = OrderedGpus(), world.follower
    world.follower = world.make()
    async with world.running():
        await world.clock.advance(5.0)
        assert world.ordered.change is None
        assert (await world.fulfilled(OrderStep.CHANGE)).result == ChangeResult(done=True)


async def test_a_node_without_a_mig_manager_says_so_instead_of_waiting() -> None:
    world = World(uncut=lambda _vendor: "it is switched off in the ClusterPolicy")
    async with world.running():
        change(world, OrderStep.CHANGE)
        answer = await world.fulfilled(OrderStep.CHANGE)
    assert answer.result is not None
    assert (answer.result.done, answer.result.lost) == (False, False)
    assert answer.result.text == "nothing on this node parts GPUs of nvidia: it is switched off in the ClusterPolicy"


async def test_the_process_that_speaks_has_the_result_of_the_one_that_cuts(tmp_path: Path) -> None:
    wanted = ("deviceplugin", "mig-manager")
    plugin = World(peers=OrderPeers(tmp_path, {"deviceplugin"}, lambda: wanted))
    manager = World(peers=OrderPeers(tmp_path, {"mig-manager"}, lambda: wanted), cuts=lambda _vendor: True)
    async with plugin.running(), manager.running():
        for world in (plugin, manager):
            change(world, OrderStep.CHANGE)
        async with asyncio.timeout(60):
            while not (plugin.answer and "the process of mig-manager: " + CUTTING in plugin.answer.waits):
                await plugin.clock.advance(0.25)
                await manager.clock.advance(0.25)
                await asyncio.sleep(0.002)
            assert plugin.answer.result is None
            assert plugin.ordered.change is not None
            manager.ordered.answer("act-1", ChangeResult(done=False, text="it does not fit"))
            while not (plugin.answer and plugin.answer.fulfils("act-1", OrderStep.CHANGE)):
                await plugin.clock.advance(0.25)
                await manager.clock.advance(0.25)
                await asyncio.sleep(0.002)
        assert plugin.answer.result == ChangeResult(done=False, text="it does not fit")
        assert manager.answer is None  # it does not speak on the Node
