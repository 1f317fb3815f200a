"""The whole plugin over real sockets: a fake kubelet on one side, a reader in memory on the other."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest
from msgspec import structs

from kgpu.base.change_notifier import ChangeNotifier
from kgpu.base.clock import VirtualClock
from kgpu.base.errors import ConfigError, HwError
from kgpu.base.problems import obstacle_in
from kgpu.deviceplugin import offer
from kgpu.deviceplugin.model import HostDevices
from kgpu.deviceplugin.run import FAILURES_BEFORE_UNHEALTHY
from kgpu.formats.config_choice import problem_text
from kgpu.hw.fake_reader import FakeReader, sample_partitions
from kgpu.hw.port import DriverExchangedError, DriverReleasedError, EventKind, HardwareEvent, Inventory, Problem
from kgpu.hw.verdicts import GpuVerdict, MemoryVerdicts
from kgpu.kubelet import convert
from kgpu.kubelet.fake import AdmissionError
from kgpu.kubelet.methods import LIST_AND_WATCH
from kgpu.kubelet.pb import deviceplugin_v1beta1_pb2 as dp
from kgpu.kubelet.rpc import RpcClient
from tests.deviceplugin.nodes import GPU
from tests.deviceplugin.running import GPUS, INVENTORY, NO_DRIVER, Node

pytestmark = pytest.mark.usefixtures("nothing_flushed_on_the_loop")


async def test_eight_gpus_are_registered_and_allocated(node: Node) -> None:
    node.start()
    await node.offers(gpu=8)
    (registration,) = node.kubelet.registrations
    assert (registration.resource, registration.endpoint) == (GPU, "nvidia-gpu.sock")
    assert registration.preferred_allocation
    assert not registration.pre_start
    assert [device.numa_node for device in node.kubelet.devices(GPU)] == [0, 0, 0, 0, 1, 1, 1, 1]
    answers = await node.kubelet.admit("pod", "main", {GPU: 2})
    assert answers[GPU].envs["NVIDIA_VISIBLE_DEVICES"] == ",".join(gpu.uuid for gpu in GPUS[:2])
    await node.until(lambda: node.states[-1] == (True, ""))


async def test_an_xid_takes_one_gpu_out_and_it_comes_back(node: Node) -> None:
    node.start()
    await node.offers(gpu=8)
    node.reader.report(HardwareEvent(kind=EventKind.XID, uuid=GPUS[3].uuid, code=79))
    await node.offers(gpu=7)
    assert node.kubelet.capacity() == {GPU: 8}
    node.reader.change(GPUS[3].uuid, recovery_action="reset")
    reads = node.reader.inventory_calls
    await node.until(lambda: node.reader.inventory_calls > reads)
    node.reader.heal(GPUS[3].uuid)
    await node.offers(gpu=8)
    assert "DeviceRecovered" in node.reasons()
    assert len(node.kubelet.registrations) == 1


async def test_verdicts_take_a_gpu_out_from_the_start_and_give_it_back(node: Node) -> None:
    bad = GpuVerdict(uuid=GPUS[3].uuid, withdraws=True, causes=("remapped-rows:failed",), action="replace", what="rows")
    verdicts = MemoryVerdicts()
    verdicts.put(bad)
    offered: list[int] = []
    node.start(verdicts=verdicts, on_offer=lambda counts: offered.append(counts.get(GPU, 0)))
    await node.offers(gpu=7)
    assert max(offered) == 7  # not even for a moment
    well = structs.replace(bad, withdraws=False, causes=(), action="ignore")
    verdicts.put(well)
    await node.offers(gpu=8)
    node.reader.report(HardwareEvent(kind=EventKind.XID, uuid=GPUS[3].uuid, code=79))
    node.reader.report(HardwareEvent(kind=EventKind.XID, uuid=GPUS[4].uuid, code=79))
    await node.offers(gpu=7)  # of that one nobody gives a verdict
    verdicts.put(well, GpuVerdict(uuid=GPUS[4].uuid))
    await node.offers(gpu=8)
    verdicts.put(bad)
    await node.offers(gpu=6)
    verdicts.end()
    await node.offers(gpu=7)


@pytest.mark.parametrize("problem", [Problem.LOST, Problem.HUNG, Problem.MISSING])
async def test_a_broken_gpu_blocks_nobody(node: Node, problem: Problem) -> None:
    node.start()
    await node.offers(gpu=8)
    if problem is Problem.MISSING:
        node.reader.set_inventory(replace(INVENTORY, accelerators=GPUS[1:]))
    else:
        node.reader.fail(GPUS[0].uuid, problem)
    await node.offers(gpu=7)
    assert node.kubelet.capacity() == {GPU: 8}
    answers = await node.kubelet.admit("pod", "main", {GPU: 7})
    assert GPUS[0].uuid not in answers[GPU].envs["NVIDIA_VISIBLE_DEVICES"]


async def test_every_open_stream_gets_every_change(node: Node) -> None:
    node.start()
    await node.offers(gpu=8)
    lists: list[list[int]] = [[], []]

    async def follow(seen: list[int]) -> None:
        async with RpcClient(node.folder / "plugins" / "nvidia-gpu.sock") as client:
            replies = client.stream(LIST_AND_WATCH, dp.Empty())
            while True:
                seen.append(sum(device.healthy for device in convert.devices_of(await anext(replies))))

    followers = [asyncio.create_task(follow(seen)) for seen in lists]
    await node.until(lambda: lists == [[8], [8]])
    node.reader.fail(GPUS[0].uuid, Problem.LOST)
    await node.until(lambda: lists == [[8, 7], [8, 7]])
    await node.offers(gpu=7)
    for follower in followers:
        follower.cancel()
    await asyncio.gather(*followers, return_exceptions=True)


async def test_a_kubelet_that_restarts_again_and_again_finds_everything(node: Node) -> None:
    node.config.set("sharing: {timeSlicing: {resources: [{name: gpu, replicas: 10}]}}")
    node.start()
    await node.offers(gpu=80)
    await node.kubelet.admit("pod", "main", {GPU: 3})
    held = {key: dict(value) for key, value in node.kubelet.held().items()}
    for turn in range(20):
        await node.kubelet.stop(leave_socket=turn % 2 == 0)
        await node.kubelet.start()
        await node.offers(gpu=80)
    assert node.kubelet.held() == held
    assert set(node.reasons()) <= {"Registered", "NotRegistered", "NoKubelet"}


async def test_a_removed_socket_is_made_again(node: Node) -> None:
    node.start()
    await node.offers(gpu=8)
    socket = node.folder / "plugins" / "nvidia-gpu.sock"
    socket.unlink()
    await node.until(lambda: socket.exists() and len(node.kubelet.registrations) == 2)
    await node.offers(gpu=8)


async def test_no_device_is_handed_out_twice_while_everything_restarts(node: Node) -> None:
    node.start()
    await node.offers(gpu=8)

    async def pod(number: int) -> None:
        async with asyncio.timeout(60):
            while True:
                try:
                    return await node.kubelet.admit(f"pod{number}", "main", {GPU: 1})
                except AdmissionError:
                    await asyncio.sleep(0.02)

    pods = [asyncio.create_task(pod(number)) for number in range(8)]
    for _ in range(3):
        await node.stop()
        node.start()
        await asyncio.sleep(0)
        await node.kubelet.restart()
    await asyncio.gather(*pods)
    held = [device for resources in node.kubelet.held().values() for ids in resources.values() for device in ids]
    assert sorted(held) == sorted(gpu.uuid for gpu in GPUS)


async def test_the_folder_may_come_late(folder: Path) -> None:
    node = Node(folder)
    node.start()
    await node.until(lambda: "NoKubelet" in node.reasons())
    async with node.kubelet:
        await node.offers(gpu=8)
        await node.stop()
    assert node.reasons().count("NoKubelet") == 1


# --- configuration ---


async def test_a_changed_configuration_needs_no_restart(node: Node) -> None:
    node.start()
    await node.offers(gpu=8)
    node.config.set("sharing: {timeSlicing: {renameByDefault: true, resources: [{name: gpu, replicas: 70}]}}")
    await node.offers(**{"gpu.shared": 560})
    assert node.kubelet.capacity()[GPU] == 0
    node.config.set("")
    await node.offers(gpu=8)
    assert len({registration.resource for registration in node.kubelet.registrations}) == 2


async def test_a_bad_configuration_is_refused_and_the_last_good_one_stays(node: Node) -> None:
    node.config.set("sharing: {timeSlicing: {resources: [{name: gpu, replicas: 4}]}}", name="file a")
    node.start()
    await node.offers(gpu=32)
    node.config.set("flags: {renameByDefault: true}", name="file b")
    await node.until(lambda: "ConfigRefused" in node.reasons())
    (refusal,) = [advice for advice in node.advice if advice.reason == "ConfigRefused"]
    assert refusal.subject == "file b"
    assert "flags.renameByDefault" in refusal.what
    assert "sharing.timeSlicing" in refusal.remedy
    assert refusal.evidence == ("the last good configuration stays in force",)
    await node.kubelet.admit("pod", "main", {GPU: 1})
    missing = ConfigError("specified config x does not exist", "a key", "add it")
    node.config.put(problem_text("label", missing))
    await node.until(lambda: node.reasons().count("ConfigRefused") == 2)
    assert node.kubelet.allocatable() == {GPU: 32}
    # A later run starts with the last good one, too.
    await node.stop()
    node.start()
    await node.until(lambda: node.reasons().count("ConfigRefused") == 3)
    await node.offers(gpu=32)


async def test_a_strategy_that_the_configuration_clashes_with_waits_until_the_next_configuration(node: Node) -> None:
    """After a restart, too, what was offered stays; only MPS and MIG strategy mixed can't be had together."""
    env = {"MPS_ROOT": "/mps", "MIG_STRATEGY": "single"}
    facts = HostDevices(mps_daemons=frozenset({GPU}))
    node.config.set("sharing: {mps: {resources: [{name: gpu, replicas: 4}]}}")
    node.start(env=env, host_facts=lambda _settings: facts)
    await node.offers(gpu=32)
    await node.stop()
    node.start(env={**env, "MIG_STRATEGY": "mixed"}, host_facts=lambda _settings: facts)
    await node.until(lambda: (node.states[-1][0], node.why) == (True, "ConfigRefused"))
    assert "--mig-strategy=mixed is not supported with MPS" in node.states[-1][1]
    await node.offers(gpu=32)
    node.config.set("sharing: {timeSlicing: {resources: [{name: gpu, replicas: 2}]}}")
    await node.offers(gpu=16)
    await node.until(lambda: node.why == "")


async def test_a_refused_configuration_is_complained_of_until_it_is_a_good_one(node: Node) -> None:
    node.start()
    await node.offers(gpu=8)
    await node.until(lambda: (node.states[-1], node.why) == ((True, ""), ""))
    node.config.set("sharingg: {}")
    await node.until(lambda: node.why == "ConfigRefused")
    ready, reason = node.states[-1]
    assert (ready, "sharingg" in reason, "to do:" in reason) == (True, True, True)
    node.config.set("sharing: {timeSlicing: {resources: [{name: gpu, replicas: 4}]}}")
    await node.until(lambda: (node.states[-1], node.why) == ((True, ""), ""))


async def test_without_any_good_configuration_it_waits_and_says_why(node: Node) -> None:
    node.config.set("sharingg: {}")
    node.start()
    await node.until(lambda: bool(node.states))
    assert (node.states[-1][0], node.why) == (False, "ConfigRefused")
    assert "sharingg" in node.states[-1][1]
    assert node.kubelet.registrations == []
    node.config.set("")
    await node.offers(gpu=8)


async def test_at_once_or_not_at_all(node: Node) -> None:
    node.config.set("sharingg: {}")
    node.start(wait=False)
    with pytest.raises(ConfigError):
        await node.task
    node.config.set("")
    node.reader.set_down(NO_DRIVER)
    node.start(wait=False)
    with pytest.raises((HwError, ExceptionGroup)) as raised:
        await node.task
    assert obstacle_in(raised.value) is NO_DRIVER


async def test_a_withdrawn_resource_stays_at_zero_until_the_kubelet_had_time(node: Node) -> None:
    clock = VirtualClock()
    node.start(clock=clock)
    await node.offers(gpu=8)
    first = node.folder / "plugins" / "nvidia-gpu.sock"
    node.config.set("sharing: {timeSlicing: {renameByDefault: true, resources: [{name: gpu, replicas: 2}]}}")
    await node.offers(**{"gpu.shared": 16})
    await node.until(lambda: node.kubelet.capacity()[GPU] == 0)
    assert first.exists()
    with pytest.raises(AdmissionError):
        await node.kubelet.admit("pod", "main", {GPU: 1})
    await node.until(lambda: (node.folder / "state" / "devices.json").exists())
    await clock.advance(offer.WITHDRAW_SECONDS + 1)
    await node.until(lambda: not first.exists())
    assert node.kubelet.allocatable()["nvidia.com/gpu.shared"] == 16


async def test_a_resource_of_an_earlier_run_is_withdrawn(node: Node) -> None:
    node.config.set("flags: {migStrategy: mixed}")
    node.reader.set_partitions(GPUS[0].uuid, sample_partitions(GPUS[0]))
    node.start()
    await node.offers(gpu=7, **{"mig-1g.10gb": 7})
    await node.stop()
    node.reader.change(GPUS[0].uuid, mig_enabled=False, partitions=())
    await node.kubelet.restart()
    node.start()
    await node.offers(gpu=8)
    await node.until(lambda: node.kubelet.connected("nvidia.com/mig-1g.10gb"))
    assert node.kubelet.capacity()["nvidia.com/mig-1g.10gb"] == 0


# --- hardware ---


async def test_mig_changes_need_no_restart(node: Node) -> None:
    node.config.set("flags: {migStrategy: mixed}")
    node.start()
    await node.offers(gpu=8)
    node.reader.set_partitions(GPUS[0].uuid, sample_partitions(GPUS[0]))
    await node.offers(gpu=7, **{"mig-1g.10gb": 7})
    node.reader.set_partitions(GPUS[0].uuid, sample_partitions(GPUS[0], "3g.40gb", 2))
    await node.offers(gpu=7, **{"mig-3g.40gb": 2})
    assert node.kubelet.capacity()["nvidia.com/mig-1g.10gb"] == 0


async def test_a_driver_that_comes_late_is_waited_for_and_told_once(node: Node) -> None:
    node.reader.set_down(NO_DRIVER)
    node.start()
    await node.until(lambda: any("ERROR_LIBRARY_NOT_FOUND" in reason for _, reason in node.states))
    assert node.kubelet.registrations == []
    node.reader.set_down(None)
    await node.offers(gpu=8)
    assert node.reasons().count("DriverUnreadable") == 1
    assert "DriverReadable" in node.reasons()


async def test_a_driver_that_goes_leaves_the_capacity(node: Node) -> None:
    node.start()
    await node.offers(gpu=8)
    node.reader.set_down(NO_DRIVER)
    await node.offers()
    assert node.kubelet.capacity() == {GPU: 8}
    node.reader.set_down(None)
    await node.offers(gpu=8)


async def test_a_gpu_lost_before_the_start_is_still_there_as_unhealthy(node: Node) -> None:
    node.start()
    await node.offers(gpu=8)
    await node.stop()
    node.reader.set_inventory(replace(INVENTORY, accelerators=GPUS[:7]))
    await node.kubelet.restart()
    node.start()
    await node.offers(gpu=7)
    assert node.kubelet.capacity() == {GPU: 8}


async def test_a_critical_xid_survives_a_restart_of_the_plugin(node: Node) -> None:
    node.start()
    await node.offers(gpu=8)
    node.reader.report(HardwareEvent(kind=EventKind.XID, uuid=GPUS[1].uuid, code=48))
    await node.offers(gpu=7)
    await node.stop()
    await node.kubelet.restart()
    node.start()
    await node.offers(gpu=7)


class StuckReader(FakeReader):
    """Answers until told to hang."""

    stuck = False

    async def inventory(self) -> Inventory:
        if self.stuck:
            await asyncio.Event().wait()
        return await super().inventory()


async def test_a_hanging_driver_delays_no_answer(node: Node) -> None:
    node.reader = StuckReader(INVENTORY)
    node.start()
    await node.offers(gpu=8)
    node.reader.stuck = True
    node.reader.report(HardwareEvent(kind=EventKind.INVENTORY))
    await asyncio.sleep(0)
    async with asyncio.timeout(60):
        await node.kubelet.admit("pod", "main", {GPU: 4})
    node.reader.report(HardwareEvent(kind=EventKind.XID, uuid=GPUS[7].uuid, code=79))
    await node.offers(gpu=7)


# --- neighbours ---


async def test_a_resource_that_can_not_be_served_does_not_disturb_the_others(node: Node) -> None:
    blocked = node.folder / "plugins" / "nvidia-mig-1g.10gb.sock"
    blocked.mkdir()
    node.config.set("flags: {migStrategy: mixed}")
    node.reader.set_partitions(GPUS[0].uuid, sample_partitions(GPUS[0]))
    node.start()
    await node.offers(gpu=7)
    await node.until(lambda: "NotRegistered" in node.reasons())
    await node.kubelet.admit("pod", "main", {GPU: 1})
    blocked.rmdir()
    await node.offers(gpu=7, **{"mig-1g.10gb": 7})
    assert [registration.resource for registration in node.kubelet.registrations].count(GPU) == 1


async def test_a_kubelet_that_refuses_is_asked_again_and_told_once(node: Node) -> None:
    node.kubelet.refuse = "requested API version is not supported"
    node.start()
    await node.until(lambda: "NotRegistered" in node.reasons())
    node.kubelet.refuse = ""
    await node.offers(gpu=8)
    assert node.reasons().count("NotRegistered") == 1


async def test_mps_shares_are_offered_when_their_daemon_listens_and_not_before(node: Node) -> None:
    facts = HostDevices()
    node.config.set("flags: {mpsRoot: /run/nvidia/mps}\nsharing: {mps: {resources: [{name: gpu, replicas: 2}]}}")
    node.start(host_facts=lambda _settings: facts)
    await node.until(lambda: any("no MPS control daemon listens" in reason for _, reason in node.states))
    assert node.kubelet.registrations == []
    assert not any(ready for ready, _ in node.states)
    assert "MpsDaemonMissing" in node.reasons()
    facts = HostDevices(mps_daemons=frozenset({"nvidia.com/gpu"}))
    node.reader.report(HardwareEvent(kind=EventKind.INVENTORY))
    await node.offers(gpu=16)


async def test_mps_shares_whose_daemon_dies_are_unhealthy_until_it_is_back(node: Node) -> None:
    serving = HostDevices(mps_daemons=frozenset({GPU}))
    facts = serving
    sharing = "sharing: {mps: {resources: [{name: gpu, replicas: 2, devices: [0]}]}}"
    node.config.set(f"flags: {{mpsRoot: /run/nvidia/mps}}\n{sharing}")
    node.start(host_facts=lambda _settings: facts)
    await node.offers(gpu=9)
    facts = HostDevices()
    node.reader.report(HardwareEvent(kind=EventKind.INVENTORY))
    await node.offers(gpu=7)
    assert node.kubelet.capacity()[GPU] == 9, "they stay in the list"
    await node.until(lambda: "nvidia.com/gpu is unhealthy" in node.states[-1][1] and not node.states[-1][0])
    facts = serving
    node.reader.report(HardwareEvent(kind=EventKind.INVENTORY))
    await node.offers(gpu=9)
    await node.until(lambda: node.states[-1][0])


async def test_what_mps_does_not_share_is_offered_all_the_same_and_the_role_is_not_ready(node: Node) -> None:
    sharing = "sharing: {mps: {resources: [{name: gpu, rename: shared, replicas: 2, devices: [0]}]}}"
    node.config.set(f"flags: {{mpsRoot: /run/nvidia/mps}}\n{sharing}")
    node.start()
    await node.offers(gpu=7)
    await node.until(lambda: bool(node.states) and "nvidia.com/shared is not offered" in node.states[-1][1])
    assert not node.states[-1][0]


async def test_required_imex_channels_hold_everything_back_until_they_are_there(node: Node) -> None:
    facts = HostDevices()
    node.config.set("imex: {channelIDs: [0], required: true}")
    node.start(host_facts=lambda _settings: facts)
    await node.until(lambda: "ImexMissing" in node.reasons())
    assert node.kubelet.registrations == []
    facts = HostDevices(imex_channels=(0,))
    node.reader.report(HardwareEvent(kind=EventKind.INVENTORY))
    await node.offers(gpu=8)
    answers = await node.kubelet.admit("pod", "main", {GPU: 1})
    assert answers[GPU].envs["NVIDIA_IMEX_CHANNELS"] == "0"


RELEASED = DriverReleasedError("a GPU is being reset")
EXCHANGED = DriverExchangedError("the operation up-1 exchanges the driver")


class CountingReader(FakeReader):
    """Counts how often it was asked."""

    asked = 0

    async def inventory(self) -> Inventory:
        self.asked += 1
        return await super().inventory()


async def test_a_driver_that_is_released_changes_no_offer(node: Node) -> None:
    node.reader = CountingReader(INVENTORY)
    node.start(reread_seconds=0.01)
    await node.offers(gpu=8)
    node.reader.set_down(RELEASED)
    calls, asked = len(node.states), node.reader.asked
    await node.until(lambda: node.reader.asked > asked + FAILURES_BEFORE_UNHEALTHY + 1)
    assert node.kubelet.allocatable() == {GPU: 8}
    assert [ready for ready, _ in node.states[calls:]] in ([], [True])
    node.reader.set_down(None)
    node.reader.fail(GPUS[2].uuid, Problem.LOST)
    await node.offers(gpu=7)


async def test_a_plugin_that_starts_while_the_driver_is_released_offers_what_was_known(node: Node) -> None:
    node.start()
    await node.offers(gpu=8)
    node.reader.fail(GPUS[2].uuid, Problem.LOST)
    await node.offers(gpu=7)
    await node.stop()
    node.reader.set_down(RELEASED)
    node.start()
    await node.until(lambda: node.kubelet.connected(GPU))
    await node.offers(gpu=7)
    assert "DriverUnreadable" not in node.reasons()
    node.reader.set_down(None)
    node.reader.heal(GPUS[2].uuid)
    await node.offers(gpu=8)


async def test_while_the_driver_is_exchanged_no_pod_gets_a_gpu_until_the_next_one_was_read(node: Node) -> None:
    node.start()
    await node.offers(gpu=8)
    node.reader.set_down(EXCHANGED)
    node.reader.report(HardwareEvent(kind=EventKind.INVENTORY))
    await node.until(lambda: node.kubelet.allocatable() == {GPU: 0})
    with pytest.raises(AdmissionError):
        await node.kubelet.admit("pod", "main", {GPU: 1})
    # Neither the end of the exchange nor a driver that cannot be read gives them back.
    node.reader.set_down(HwError("no driver", "a driver", "load it"))
    await node.until(lambda: "DriverUnreadable" in node.reasons())
    assert node.kubelet.allocatable() == {GPU: 0}
    node.reader.set_down(None)
    await node.offers(gpu=8)
    await node.kubelet.admit("pod", "main", {GPU: 1})


async def test_a_plugin_that_starts_while_the_driver_is_exchanged_offers_none_of_what_was_known(node: Node) -> None:
    node.start()
    await node.offers(gpu=8)
    await node.stop()
    node.reader.set_down(EXCHANGED)
    node.start()
    await node.until(lambda: node.kubelet.connected(GPU))
    await node.until(lambda: node.kubelet.allocatable() == {GPU: 0})
    node.reader.set_down(None)
    await node.offers(gpu=8)


async def test_without_a_memory_it_waits_for_a_released_driver(node: Node) -> None:
    node.reader.set_down(RELEASED)
    node.start()
    await node.until(lambda: node.states[-1:] == [(False, f"the driver can't be read: {RELEASED.what}")])
    node.reader.set_down(None)
    await node.offers(gpu=8)


class Orders:
    """What is ordered, as a test says it."""

    def __init__(self) -> None:
        self.withdrawn: dict[str, str] = {}
        self.news = ChangeNotifier()

    @property
    def revision(self) -> int:
        return self.news.revision

    async def changed(self, after: int) -> int:
        return await self.news.changed(after)


async def test_gpus_that_are_ordered_back_are_given_to_nobody_with_all_their_replicas(node: Node) -> None:
    orders = Orders()
    node.config.set("sharing: {timeSlicing: {resources: [{name: gpu, replicas: 2}]}}")
    node.start(orders=orders)
    await node.offers(gpu=16)
    orders.withdrawn = {GPUS[3].uuid: "withdrawn: a reset"}
    # Before the kubelet knows, it is told: by a refusal.
    with pytest.raises(AdmissionError, match="withdrawn: a reset"):
        await node.kubelet.admit("pod", "main", {GPU: 16})
    orders.news.notify()
    await node.offers(gpu=14)
    assert {one.id for one in node.kubelet.devices(GPU) if not one.healthy} == {f"{GPUS[3].uuid}::{n}" for n in (0, 1)}
    orders.withdrawn = {}
    orders.news.notify()
    await node.offers(gpu=16)
