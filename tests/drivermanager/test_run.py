"""The driver manager at work on a fake cluster: what is done in which order, and what is left in each end."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from kgpu.base.errors import ConfigError, HostError, KubeError
from kgpu.drivermanager import plan
from kgpu.drivermanager.model import MachineState
from kgpu.formats.names import DRIVER_MANAGER_ANNOTATION, DRIVER_UPGRADE_ENABLED, LABEL_DEPLOY_PREFIX
from kgpu.host.device_holders import DeviceHolder
from kgpu.kube.port import NODES, PODS
from tests.drivermanager.made import LOADED, NODE, PAUSED, PLUGIN, SETTINGS, FakeMachine, Run, node, pod

DRIVER = f"{LABEL_DEPLOY_PREFIX}driver"
HOLDER = DeviceHolder(pid=4242, program="python3", nodes=frozenset({"nvidia0"}), pod="uid-train")


async def test_a_fresh_node_is_only_cleaned() -> None:
    run = Run(FakeMachine(MachineState(nouveau=True)), {PLUGIN: "true"})
    await run.uninstall()
    assert run.machine.done == ["unmount", "nouveau"]
    assert await run.labels() == {PLUGIN: "true"}
    assert ("patch", "nodes", NODE) not in run.api.calls


async def test_pods_with_gpus_go_before_the_modules_and_the_node_is_given_back() -> None:
    run = Run(
        FakeMachine(LOADED), {PLUGIN: "true"},
        pods=[pod("train", gpus=1), pod("web"), pod("monitor", gpus=1, owner="DaemonSet")],
    )  # fmt: skip
    await run.uninstall()
    assert run.machine.done == ["unload", "unmount"]
    assert await run.pods() == ["monitor", "web"]
    assert await run.labels() == {PLUGIN: "true"}
    assert not await run.cordoned()
    assert DRIVER_MANAGER_ANNOTATION not in (await run.node())["metadata"]["annotations"]


async def test_while_it_works_the_node_is_held_and_the_record_says_so() -> None:
    machine = FakeMachine(LOADED, [HOLDER])
    run = Run(machine, {PLUGIN: "true"})

    def look() -> None:
        obj = run.api._objects[NODES, "", NODE].obj
        held.append((obj["metadata"]["labels"][PLUGIN], obj["spec"].get("unschedulable")))
        records.append(obj["metadata"]["annotations"][DRIVER_MANAGER_ANNOTATION])
        machine.busy = ()

    held: list[tuple[str, object]] = []
    records: list[str] = []
    run.clock.on_sleep = look
    await run.uninstall()
    assert held == [(PAUSED, True)]
    assert records == [plan.encode(plan.Hold(cordoned=True, paused=(PLUGIN,)))]
    assert machine.done == ["unload", "unmount"]


async def test_a_driver_on_the_host_is_left_alone_and_told() -> None:
    run = Run(FakeMachine(MachineState(host_driver="550.54.15", loaded=True)), {DRIVER: "true", PLUGIN: "true"})
    with pytest.raises(HostError, match="the host has a driver of its own"):
        await run.uninstall()
    assert run.machine.done == []
    assert await run.labels() == {DRIVER: "pre-installed", PLUGIN: "true"}
    assert run.clock.monotonic() == 0


async def test_the_wanted_driver_stays_loaded_and_pods_stay() -> None:
    run = Run(FakeMachine(LOADED), settings=replace(SETTINGS, digest="1"), pods=[pod("train", gpus=1)])
    await run.uninstall()
    assert run.machine.done == ["unmount"]
    assert await run.pods() == ["train"]


async def test_who_holds_the_driver_is_named_by_pid_program_and_pod() -> None:
    run = Run(
        FakeMachine(LOADED, [HOLDER, DeviceHolder(pid=7, program="Xorg", nodes=frozenset({"nvidia0"}))]),
        {PLUGIN: "true"}, settings=replace(SETTINGS, evict_gpu_pods=False), pods=[pod("train", gpus=1)],
    )  # fmt: skip
    with pytest.raises(HostError) as failed:
        await run.uninstall()
    assert "python3 (pid 4242) of pod default/train; Xorg (pid 7)" in failed.value.what
    assert len(failed.value.one_line()) <= 300
    assert await run.labels() == {PLUGIN: "true"}


async def test_a_holder_is_found_by_its_container_where_the_pod_is_not_known() -> None:
    obj = pod("train", gpus=1)
    obj["status"]["containerStatuses"] = [{"containerID": "containerd://abc"}]
    holder = DeviceHolder(pid=9, program="train", nodes=frozenset(), container="abc")
    run = Run(FakeMachine(LOADED, [holder]), settings=replace(SETTINGS, evict_gpu_pods=False), pods=[obj])
    with pytest.raises(HostError, match=r"train \(pid 9\) of pod default/train"):
        await run.uninstall()


async def test_an_operator_that_upgrades_evicts_by_itself() -> None:
    operated = node(annotations={DRIVER_UPGRADE_ENABLED: "true"}, cordoned=True)
    run = Run(FakeMachine(LOADED), pods=[pod("train", gpus=1)], node_object=operated)
    await run.uninstall()
    assert await run.pods() == ["train"]
    assert run.machine.done == ["unload", "unmount"]


@pytest.mark.parametrize("late", [False, True])
async def test_no_driver_is_exchanged_under_pods_of_a_node_that_the_operator_has_not_emptied(late: bool) -> None:
    operated = node({PLUGIN: "true"}, annotations={DRIVER_UPGRADE_ENABLED: "true"})
    plugin = pod("plugin", owner="DaemonSet", selector={PLUGIN: "true"})
    others = [pod("monitor", gpus=1, owner="DaemonSet"), pod("web"), plugin]
    run = Run(FakeMachine(LOADED), pods=others if late else [*others, pod("train", gpus=1)], node_object=operated)

    def come() -> None:  # while the operands are waited for
        run.api.put(PODS, pod("train", gpus=1))

    run.clock.on_sleep = come
    with pytest.raises(HostError, match=r"pods with GPUs are on this node.*: default/train") as failed:
        await run.uninstall()
    assert failed.value.remedy == f"let an upgrade empty it: kgpu node upgrade-driver {NODE}"
    assert run.machine.done == []
    assert "train" in await run.pods()
    assert await run.labels() == {PLUGIN: "true"}


@pytest.mark.parametrize(
    ("change", "setting", "words"),
    [
        ({"owner": ""}, "force", "no controller would make it anew"),
        ({"volumes": [{"name": "scratch", "emptyDir": {}}]}, "delete_empty_dir", "emptyDir"),
    ],
)
async def test_a_pod_that_would_be_lost_is_evicted_only_where_that_is_set(
    change: dict[str, object], setting: str, words: str
) -> None:
    kept = Run(FakeMachine(LOADED), {PLUGIN: "true"}, pods=[pod("train", gpus=1, **change)])  # type: ignore[arg-type]
    with pytest.raises(HostError, match=words):
        await kept.uninstall()
    assert await kept.pods() == ["train"]
    assert not await kept.cordoned()
    settings = replace(SETTINGS, **{setting: True})  # type: ignore[arg-type]
    run = Run(FakeMachine(LOADED), settings=settings, pods=[pod("train", gpus=1, **change)])  # type: ignore[arg-type]
    await run.uninstall()
    assert await run.pods() == []


async def test_evictions_that_take_too_long_end_with_the_pods_and_why() -> None:
    run = Run(FakeMachine(LOADED), settings=replace(SETTINGS, timeout=20), pods=[pod("train", gpus=1)])
    run.api.refuse[("create", "pods")] = 429
    with pytest.raises(HostError, match="left after 20 s: default/train: refused by the test"):
        await run.uninstall()
    assert any("waiting for default/train" in line for line in run.said)
    assert not await run.cordoned()


async def test_a_drain_goes_on_where_pods_with_gpus_alone_were_not_enough() -> None:
    machine = FakeMachine(LOADED, [HOLDER])
    run = Run(
        machine, settings=replace(SETTINGS, auto_drain=True, selector="app=web"),
        pods=[{**pod("web"), "metadata": {**pod("web")["metadata"], "labels": {"app": "web"}}}, pod("other")],
    )  # fmt: skip

    def free() -> None:
        if (PODS, "default", "web") not in run.api._objects:
            machine.busy = ()

    run.clock.on_sleep = free
    await run.uninstall()
    assert await run.pods() == ["other"]
    assert machine.done == ["unload", "unmount"]


async def test_operands_get_their_time_and_are_told_if_they_stay() -> None:
    selector = {PLUGIN: "true"}
    run = Run(FakeMachine(LOADED), {PLUGIN: "true"}, pods=[pod("plugin", owner="DaemonSet", selector=selector)])
    await run.uninstall()
    assert "still there after 10 s: default/plugin" in run.said
    assert run.machine.done == ["unload", "unmount"]


async def test_a_claim_that_is_held_stops_the_unloading() -> None:
    run = Run(
        FakeMachine(LOADED), settings=replace(SETTINGS, evict_gpu_pods=False),
        pods=[pod("claims", resourceClaims=[{"name": "gpu"}])],
    )  # fmt: skip
    with pytest.raises(HostError, match="pods still hold resource claims: default/claims"):
        await run.uninstall()
    assert run.machine.done == []


async def test_mofed_is_waited_for_and_told_and_not_for_ever() -> None:
    machine = FakeMachine(MachineState(mellanox=True))
    machine.mofed = False
    run = Run(machine, settings=replace(SETTINGS, rdma=True))
    with pytest.raises(HostError, match=r"\(MOFED\) has not come within 20 s"):
        await run.uninstall()
    assert run.said.count("waiting for the network cards' driver (MOFED)") == 4


async def test_nouveau_in_use_is_told_with_what_to_do() -> None:
    machine = FakeMachine(MachineState(nouveau=True))
    machine.nouveau_busy = True
    with pytest.raises(HostError, match="nouveau has the GPUs") as failed:
        await Run(machine).uninstall()
    assert "blacklist nouveau" in failed.value.remedy


async def test_cancelled_in_the_middle_it_gives_the_node_back() -> None:
    machine = FakeMachine(LOADED, [HOLDER])
    run = Run(machine, {PLUGIN: "true"})
    work = asyncio.create_task(run.uninstall())

    def cancel() -> None:
        if _labels(run)[PLUGIN] == PAUSED:
            work.cancel()

    run.clock.on_sleep = cancel
    with pytest.raises(asyncio.CancelledError):
        await work
    assert await run.labels() == {PLUGIN: "true"}
    assert not await run.cordoned()


def _labels(run: Run) -> dict[str, str]:
    found: dict[str, str] = run.api._objects[NODES, "", NODE].obj["metadata"]["labels"]
    return found


async def test_an_api_server_that_is_away_for_a_moment_is_waited_for() -> None:
    run = Run(FakeMachine(MachineState()))
    run.api.set_down(True)
    run.clock.on_sleep = lambda: run.api.set_down(False)
    await run.uninstall()
    assert run.machine.done == ["unmount"]
    run.api.set_down(True)
    run.clock.on_sleep = lambda: None
    with pytest.raises(KubeError):
        await run.uninstall()


async def test_a_selector_that_is_not_understood_is_refused_before_anything() -> None:
    run = Run(FakeMachine(LOADED), settings=replace(SETTINGS, selector="app in"))
    with pytest.raises(ConfigError, match="DRAIN_POD_SELECTOR_LABEL can't be read"):
        await run.uninstall()
    assert run.machine.done == []
