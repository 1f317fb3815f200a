"""GPUs of a node that are emptied or reset: what is ordered, who goes, and how each way ends."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from kgpu.formats import names
from kgpu.formats.node_order import OrderStep, read_order
from kgpu.kube.kinds import NODE_OPERATIONS
from kgpu.kube.port import NODES, PODS
from tests.operations.world import Cluster, Engine


@contextlib.asynccontextmanager
async def reset(prepare: Callable[[Cluster], object], **spec: Any) -> AsyncIterator[tuple[Cluster, Engine]]:
    """A reset of GPU-1 on a node with two pods that hold it, and one that does not."""
    cluster = Cluster()
    cluster.node("n1")
    for name in ("train-0", "train-1", "infer"):
        cluster.pod(name, "n1")
    machine = cluster.machines["n1"]
    machine.ill["GPU-1"] = "the driver asks for a reset"
    machine.agent.holders = ["train-0", "train-1"]
    prepare(cluster)
    whole: dict[str, Any] = {"type": "GpuReset", "gpus": ["GPU-1"], "drain": {"timeoutSeconds": 15}, **spec}
    cluster.operation("m", "n1", **whole)
    engine = Engine(cluster)
    await engine.start()
    try:
        yield cluster, engine
    finally:
        await engine.stop()


def nothing(_: Cluster) -> None:
    """Everything as usual."""


def outcome(cluster: Cluster) -> tuple[str, str]:
    status = cluster.status("m")
    assert not cluster.owners("n1")
    assert not cluster.order("n1")
    return status["result"], status["reason"]


async def test_only_the_pods_that_hold_it_go() -> None:
    async with reset(nothing) as (cluster, engine):
        await engine.run_for(20)
        assert outcome(cluster) == ("Succeeded", "Reset")
        assert cluster.evictions == ["default/train-0", "default/train-1"]
        assert cluster.pods_on("n1") == {"infer"}
        assert cluster.machines["n1"].reset_gpus == [("GPU-1",)]
        assert cluster.machines["n1"].agent.told_of_reset == [True]


async def test_the_node_is_never_cordoned_and_the_steps_come_in_order() -> None:
    steps: list[OrderStep] = []
    async with reset(nothing) as (cluster, engine):
        for _ in range(80):
            await engine.run_for(0.25, step=0.25)
            given = read_order({names.OPERATION_ANNOTATION: cluster.order("n1")})
            if given is not None and given.step not in steps[-1:]:
                steps.append(given.step)
            assert not cluster.unschedulable("n1")
        assert steps == [OrderStep.WITHDRAW, OrderStep.RELEASE, OrderStep.RESUME]
        assert outcome(cluster) == ("Succeeded", "Reset")


def _machine(**fields: Any) -> Callable[[Cluster], None]:
    def prepare(cluster: Cluster) -> None:
        for name, value in fields.items():
            setattr(cluster.machines["n1"], name, value)

    return prepare


def _agent(**fields: Any) -> Callable[[Cluster], None]:
    def prepare(cluster: Cluster) -> None:
        for name, value in fields.items():
            setattr(cluster.machines["n1"].agent, name, value)

    return prepare


def _budget(cluster: Cluster) -> None:
    cluster.budgets["default", "train-1"] = (429, "Cannot evict pod", (("DisruptionBudget", "needs 2, has 2"),))


def _daemon_set(cluster: Cluster) -> None:
    cluster.daemon_set("monitor")
    cluster.pod("monitor-x", "n1", owner=("DaemonSet", "monitor"))
    cluster.machines["n1"].agent.holders.append("monitor-x")


def _bare(cluster: Cluster) -> None:
    cluster.pod("notebook", "n1", owner=None)
    cluster.machines["n1"].agent.holders.append("notebook")


@pytest.mark.parametrize(
    ("prepare", "result", "reason", "resets", "says"),
    [
        (_machine(reset_ends=1), "TransientFailure", "ResetFailed", 1, "nvidia-smi has failed"),
        (_machine(reset_ends=15), "TransientFailure", "ResetHangs", 1, "reboot the node"),
        (_machine(reset_ends=13), "PermanentFailure", "ResetRefused", 1, "nvidia-smi has failed"),
        (_machine(reset_ends=14), "TransientFailure", "ResetDidNotHelp", 1, "GPU GPU-1: the driver asks for a reset"),
        (_machine(cures=False), "TransientFailure", "ResetDidNotHelp", 1, "GPU GPU-1: the driver asks for a reset"),
        (_agent(lists=("GPU-9",)), "TransientFailure", "ResetDidNotHelp", 1, "GPU GPU-1 has not been read yet"),
        (_agent(silent=True), "TransientFailure", "AgentSilent", 0, "the agent of n1 has not answered within 60 s"),
        (_agent(refuses="it has MIG instances"), "PermanentFailure", "AgentRefused", 0, "it has MIG instances"),
        (_budget, "TransientFailure", "DrainTimeout", 0, "default/train-1: needs 2, has 2"),
        (_daemon_set, "PermanentFailure", "DrainRefused", 0, "default/monitor-x: it holds a GPU, and stays"),
        (_bare, "PermanentFailure", "DrainRefused", 0, "default/notebook: no controller would recreate it"),
    ],
)
async def test_each_failure_is_told_and_gives_back(
    prepare: Callable[[Cluster], None], result: str, reason: str, resets: int, says: str
) -> None:
    async with reset(prepare) as (cluster, engine):
        await engine.run_for(400, step=1)
        assert outcome(cluster) == (result, reason)
        assert len(cluster.machines["n1"].reset_gpus) == resets
        assert says in cluster.status("m")["message"]
        assert "infer" in cluster.pods_on("n1")


async def test_a_lost_result_is_judged_by_the_reading() -> None:
    def prepare(cluster: Cluster) -> None:
        machine = cluster.machines["n1"]
        machine.reset_ends = 14
        machine.ill.clear()

    async with reset(prepare) as (cluster, engine):
        await engine.run_for(20)
        assert outcome(cluster) == ("Succeeded", "Reset")
        assert cluster.machines["n1"].agent.told_of_reset == [False]
        (row,) = [row for row in cluster.status("m")["conditions"] if row["type"] == "ActDone"]
        assert (row["status"], row["reason"]) == ("Unknown", "ResultLost")


async def test_a_reboot_meanwhile_ends_it() -> None:
    async with reset(_budget) as (cluster, engine):
        await engine.run_for(5)
        cluster.machines["n1"].boot_anew()
        cluster._booted("n1", cluster.machines["n1"].boot)
        await engine.run_for(5)
        assert outcome(cluster) == ("Cancelled", "Rebooted")
        assert cluster.machines["n1"].reset_gpus == []


async def test_an_order_that_a_person_removes_is_given_again() -> None:
    async with reset(_budget) as (cluster, engine):
        await engine.run_for(5)
        known = cluster.object(NODES, "n1")
        cluster.put(NODES, {**known, "metadata": {**known["metadata"], "annotations": {}}})
        await engine.run_for(2)
        assert cluster.order("n1")
        cluster.say("m", cancel=True)
        await engine.run_for(2)
        assert outcome(cluster) == ("Cancelled", "Cancelled")


@pytest.mark.parametrize(
    ("spec", "why"),
    [
        ({"gpus": []}, "it names no GPUs of n1"),
        ({"gpus": ["GPU-1", "GPU-1"]}, "is named twice"),
        ({"gpus": ["; reboot"]}, "is no UUID"),
    ],
)
async def test_what_names_no_gpus_is_refused(spec: dict[str, Any], why: str) -> None:
    async with reset(nothing, **spec) as (cluster, engine):
        await engine.run_for(2)
        assert outcome(cluster) == ("PermanentFailure", "Refused")
        assert why in cluster.status("m")["message"]


async def test_gpus_are_kept_empty_until_a_person_resumes() -> None:
    async with reset(nothing, type="Maintenance") as (cluster, engine):
        await engine.run_for(60)
        status = cluster.status("m")
        assert (status["phase"], status["reason"]) == ("Acting", "InMaintenance")
        assert status["message"].startswith("its GPUs are empty and held for maintenance")
        assert cluster.pods_on("n1") == {"infer"}
        cluster.say("m", resume=True)
        await engine.run_for(5)
        assert outcome(cluster) == ("Succeeded", "Resumed")
        assert cluster.machines["n1"].reset_gpus == []


async def test_a_deleted_record_gives_the_gpus_back() -> None:
    async with reset(_budget) as (cluster, engine):
        await engine.run_for(5)
        assert cluster.order("n1")
        await cluster.delete(NODE_OPERATIONS, "m")
        await engine.run_for(5)
        assert not cluster.order("n1")
        assert not cluster.owners("n1")


async def test_the_acts_pod_is_told_what_it_is_about() -> None:
    async with reset(_machine(reset_ends=14, cures=False)) as (cluster, engine):
        seen: set[tuple[str, ...]] = set()
        for _ in range(40):
            await engine.run_for(0.5)
            for name in cluster.pods_on("n1"):
                if name.startswith(names.ACT_APP):
                    seen.add(tuple(cluster.object(PODS, name, "gpu-operator")["spec"]["containers"][0]["args"]))
        (args,) = seen
        assert args[:2] == ("act", "reset-gpu")
        assert "--gpu=GPU-1" in args


async def test_a_cordon_of_a_person_in_the_middle_stays() -> None:
    """The node is not the engine's to cordon or uncordon: it has some of its GPUs."""
    async with reset(nothing) as (cluster, engine):
        await engine.run_for(1)
        assert cluster.status("m")["phase"] not in {"Pending", "Complete"}
        known = cluster.object(NODES, "n1")
        cluster.put(NODES, {**known, "spec": {**known["spec"], "unschedulable": True}})
        await engine.run_for(20)
        assert outcome(cluster) == ("Succeeded", "Reset")
        assert cluster.unschedulable("n1")
