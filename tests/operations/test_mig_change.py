"""GPUs that are cut anew by an operation: what is ordered, who goes, what the node is told, and how each way ends."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from kgpu.formats import names
from kgpu.formats.crd.nodeoperation import MigDrain, OperationDrain
from kgpu.formats.node_order import NodeOrder, OrderStep, read_order
from kgpu.kube.kinds import NODE_OPERATIONS
from kgpu.kube.port import EVENTS, NODES, KubeRefusedError, Object
from kgpu.operations.config import MigPolicy
from tests.operations.sim_mig import LARGE, SMALL, Ends, SimMig, annotate, ask, layout, told
from tests.operations.world import Cluster, Engine

POLICY = MigPolicy(eviction=OperationDrain(timeout_seconds=15))


@contextlib.asynccontextmanager
async def change(
    prepare: Callable[[Cluster], object], policy: MigPolicy = POLICY, **given: Any
) -> AsyncIterator[tuple[Cluster, Engine]]:
    """A node with two pods that hold GPU-1 and one that does not; it asks for GPU-1 to be cut."""
    cluster = Cluster()
    cluster.node("n1")
    for name in ("train-0", "train-1", "infer"):
        cluster.pod(name, "n1")
    cluster.machines["n1"].agent.holders = ["train-0", "train-1"]
    prepare(cluster)
    ask(cluster, "n1", "r1", **given)
    engine = Engine(cluster, mig=policy)
    await engine.start()
    try:
        yield cluster, engine
    finally:
        await engine.stop()


def nothing(_: Cluster) -> None:
    """Everything as usual."""


def made(cluster: Cluster) -> list[Object]:
    rows = [stored.obj for (kind, _, _), stored in cluster._objects.items() if kind == NODE_OPERATIONS]
    return sorted(rows, key=lambda row: str(row["metadata"]["name"]))


def outcome(cluster: Cluster) -> tuple[str, str]:
    (operation,) = made(cluster)
    assert not cluster.owners("n1")
    assert not cluster.order("n1")
    assert not cluster.unschedulable("n1")
    return operation["status"]["result"], operation["status"]["reason"]


def mig_of(cluster: Cluster) -> SimMig:
    return cluster.machines["n1"].agent.mig


async def orders(cluster: Cluster, engine: Engine, looks: int = 80) -> list[NodeOrder]:
    """The orders that the node gets, each once."""
    seen: list[NodeOrder] = []
    for _ in range(looks):
        await engine.run_for(0.25, step=0.25)
        given = read_order({names.OPERATION_ANNOTATION: cluster.order("n1")})
        if given is not None and given not in seen[-1:]:
            seen.append(given)
    return seen


async def test_only_the_pods_that_hold_it_go_and_the_node_is_told() -> None:
    async with change(nothing) as (cluster, engine):
        await engine.run_for(20)
        assert outcome(cluster) == ("Succeeded", "MigChanged")
        assert cluster.evictions == ["default/train-0", "default/train-1"]
        assert cluster.pods_on("n1") == {"infer"}
        assert mig_of(cluster).layouts == {"GPU-1": SMALL, "GPU-2": {}}
        last = told(cluster)
        assert last is not None
        assert (last.id, last.phase, last.reason) == ("r1", "Complete", "MigChanged")
        assert last.operation == made(cluster)[0]["metadata"]["name"]
        assert last.message == "the GPUs are cut as all-1g.10gb asks, and well"


async def test_a_pod_that_the_kubelet_does_not_name_yet_is_waited_for() -> None:
    """A kubelet that has just started lists no pod for a moment: that is not to say that nobody has these GPUs."""

    def restarted(cluster: Cluster) -> None:
        asks = {"containers": [{"name": "c", "resources": {"limits": {"nvidia.com/gpu": 1}}}]}
        cluster.pod("train-2", "n1", spec=asks)
        agent = cluster.machines["n1"].agent
        agent.holders, agent.unnamed = [], {"train-2"}

    async with change(restarted) as (cluster, engine):
        await engine.run_for(10)
        (operation,) = made(cluster)
        assert operation["status"]["phase"] == "Draining"
        (waiting,) = operation["status"]["drain"]["waiting"]
        assert (waiting["name"], waiting["why"]) == ("train-2", "the kubelet does not say yet which devices it has")
        agent = cluster.machines["n1"].agent
        agent.holders, agent.unnamed = ["train-2"], set()
        await engine.run_for(15)
        assert outcome(cluster) == ("Succeeded", "MigChanged")
        assert cluster.evictions == ["default/train-2"]


async def test_the_node_is_never_cordoned_and_the_steps_come_in_order() -> None:
    async with change(nothing) as (cluster, engine):
        seen = await orders(cluster, engine)
        assert [row.step for row in seen] == [OrderStep.WITHDRAW, OrderStep.CHANGE, OrderStep.RESUME]
        assert [row.layouts for row in seen] == [(layout(),)] * 3, "or GPUs with instances would be refused"
        assert not seen[1].released
        assert not seen[2].reset
        assert outcome(cluster) == ("Succeeded", "MigChanged")


async def test_a_gpu_that_needs_a_reset_is_released_first_and_stays_so() -> None:
    async with change(nothing, release=True) as (cluster, engine):
        seen = await orders(cluster, engine)
        steps = [OrderStep.WITHDRAW, OrderStep.RELEASE, OrderStep.CHANGE, OrderStep.RESUME]
        assert [row.step for row in seen] == steps
        assert seen[2].released
        assert seen[3].reset, "what a reset cures is over"
        assert outcome(cluster) == ("Succeeded", "MigChanged")


async def test_it_is_quick() -> None:
    """From the request to the GPUs cut: what the engine adds is a fraction of a second beside the pods' own time."""

    def quick(cluster: Cluster) -> None:
        cluster.machines["n1"].agent.holders = []

    async with change(quick) as (cluster, engine):
        begin = engine.clock.monotonic()
        while not mig_of(cluster).cut:
            await engine.run_for(0.1, step=0.1)
        print(f"\nfrom the request to the first cut: {engine.clock.monotonic() - begin:.1f} s")
        assert engine.clock.monotonic() - begin <= 1.0


def _agent(**fields: Any) -> Callable[[Cluster], None]:
    def prepare(cluster: Cluster) -> None:
        for name, value in fields.items():
            setattr(cluster.machines["n1"].agent, name, value)

    return prepare


def _mig(ends: Ends) -> Callable[[Cluster], None]:
    def prepare(cluster: Cluster) -> None:
        mig_of(cluster).ends = ends

    return prepare


def _budget(cluster: Cluster) -> None:
    cluster.budgets["default", "train-1"] = (429, "Cannot evict pod", (("DisruptionBudget", "web-pdb needs 2"),))


def _bare(cluster: Cluster) -> None:
    cluster.pod("notebook", "n1", owner=None)
    cluster.machines["n1"].agent.holders.append("notebook")


def _ill(cluster: Cluster) -> None:
    cluster.machines["n1"].ill["GPU-1"] = "the driver asks for a reset"


@pytest.mark.parametrize(
    ("prepare", "result", "reason", "cut", "says"),
    [
        (_mig(Ends.FAILED), "TransientFailure", "ChangeFailed", 1, "former layout: GPU-1 refuses a GPU instance 1g"),
        (_mig(Ends.LOST), "PermanentFailure", "LayoutLost", 1, "neither the wanted layout nor the former one: GPU-1"),
        (_mig(Ends.NEVER), "TransientFailure", "ChangeTimeout", 1, "the GPUs were not cut within 600 s"),
        (_ill, "TransientFailure", "NotWell", 1, "GPU GPU-1: the driver asks for a reset"),
        (_agent(lists=("GPU-9",)), "TransientFailure", "NotWell", 1, "GPU GPU-1 has not been read yet"),
        (_agent(silent=True), "TransientFailure", "AgentSilent", 0, "the agent of n1 has not answered within 60 s"),
        (_agent(refuses="lists no GPU GPU-1"), "PermanentFailure", "AgentRefused", 0, "lists no GPU GPU-1"),
        (_budget, "TransientFailure", "DrainTimeout", 0, "default/train-1: web-pdb needs 2"),
        (_bare, "PermanentFailure", "DrainRefused", 0, "default/notebook: no controller would recreate it"),
    ],
)
async def test_each_failure_is_told_and_gives_back(
    prepare: Callable[[Cluster], None], result: str, reason: str, cut: int, says: str
) -> None:
    async with change(prepare) as (cluster, engine):
        await engine.run_for(1000, step=2)
        assert outcome(cluster) == (result, reason)
        assert len(mig_of(cluster).cut) == cut
        last = told(cluster)
        assert last is not None
        assert (last.phase, last.reason) == ("Failed", reason)
        assert says in last.message
        assert "infer" in cluster.pods_on("n1")


async def test_a_timeout_leaves_the_former_layout() -> None:
    async with change(_mig(Ends.NEVER)) as (cluster, engine):
        await engine.run_for(1000, step=2)
        assert mig_of(cluster).layouts == {"GPU-1": {}, "GPU-2": {}}


async def test_a_budget_that_never_allows_is_pending_and_named() -> None:
    """For as long as the drain may take, which is an hour unless something else is said."""
    async with change(_budget, MigPolicy()) as (cluster, engine):
        await engine.run_for(3000, step=10)
        last = told(cluster)
        assert last is not None
        assert (last.phase, last.reason) == ("Draining", "Draining")
        assert "default/train-1: web-pdb needs 2" in last.message
        del cluster.budgets["default", "train-1"]
        await engine.run_for(100)
        assert outcome(cluster) == ("Succeeded", "MigChanged")


@pytest.mark.parametrize("key", ["", "r2"])
async def test_a_request_that_changes_while_pods_are_waited_for_ends_it(key: str) -> None:
    async with change(_budget, MigPolicy()) as (cluster, engine):
        await engine.run_for(30)
        ask(cluster, "n1", key)
        await engine.run_for(30)
        ended = next(one for one in made(cluster) if one["spec"]["mig"]["request"] == "r1")
        assert (ended["status"]["result"], ended["status"]["reason"]) == ("Superseded", "RequestChanged")
        assert not mig_of(cluster).cut
        last = told(cluster)
        assert (last.id if last is not None else "") == key


async def test_once_it_is_ordered_nobody_can_call_it_back() -> None:
    async with change(nothing) as (cluster, engine):
        mig_of(cluster).looks = 20
        while not mig_of(cluster).cut:
            await engine.run_for(0.5)
        name = made(cluster)[0]["metadata"]["name"]
        cluster.say(name, cancel=True)
        ask(cluster, "n1", "")
        await engine.run_for(5)
        assert mig_of(cluster).between
        await engine.run_for(20)
        assert mig_of(cluster).layouts["GPU-1"] == SMALL
        assert cluster.status(name)["phase"] == "Complete"
        assert not cluster.order("n1")


async def test_a_cancel_before_that_leaves_the_gpus_as_they_are() -> None:
    async with change(_budget, MigPolicy()) as (cluster, engine):
        await engine.run_for(10)
        cluster.say(made(cluster)[0]["metadata"]["name"], cancel=True)
        await engine.run_for(60)
        assert outcome(cluster) == ("Cancelled", "Cancelled")
        assert not mig_of(cluster).cut
        last = told(cluster)
        assert last is not None
        assert (last.phase, last.reason) == ("Complete", "Cancelled")


async def test_a_reboot_meanwhile_ends_it_and_the_node_may_ask_again() -> None:
    async with change(nothing) as (cluster, engine):
        mig_of(cluster).ends = Ends.NEVER
        await engine.run_for(5)
        mig_of(cluster).ends = Ends.DONE
        cluster.machines["n1"].boot_anew()
        cluster._booted("n1", cluster.machines["n1"].boot)
        await engine.run_for(20)
        assert [one["status"]["reason"] for one in made(cluster) if one["status"]["result"] == "Superseded"] == [
            "Rebooted"
        ]
        assert len(made(cluster)) == 2
        assert mig_of(cluster).layouts["GPU-1"] == SMALL


def _daemon_set(cluster: Cluster) -> None:
    cluster.daemon_set("monitor")
    cluster.pod("monitor-x", "n1", owner=("DaemonSet", "monitor"))


async def test_with_drain_node_all_pods_go_and_the_node_is_cordoned_meanwhile() -> None:
    policy = dataclasses.replace(POLICY, drain=MigDrain.NODE)
    async with change(_daemon_set, policy) as (cluster, engine):
        cordoned = False
        for _ in range(40):
            await engine.run_for(0.5)
            cordoned = cordoned or cluster.unschedulable("n1")
        assert cordoned
        assert outcome(cluster) == ("Succeeded", "MigChanged")
        assert cluster.pods_on("n1") == {"monitor-x"}


async def test_with_drain_node_who_stays_may_not_hold_a_gpu() -> None:
    def holding(cluster: Cluster) -> None:
        _daemon_set(cluster)
        cluster.machines["n1"].agent.holders = ["monitor-x"]

    async with change(holding, dataclasses.replace(POLICY, drain=MigDrain.NODE)) as (cluster, engine):
        await engine.run_for(40)
        assert outcome(cluster) == ("TransientFailure", "DrainTimeout")
        assert "default/monitor-x: it holds a GPU, and stays" in made(cluster)[0]["status"]["message"]
        assert not mig_of(cluster).cut


async def test_with_drain_node_an_uncordon_ends_it() -> None:
    async with change(_budget, MigPolicy(drain=MigDrain.NODE)) as (cluster, engine):
        await engine.run_for(10)
        cluster.uncordon("n1")
        await engine.run_for(10)
        assert outcome(cluster) == ("Cancelled", "Uncordoned")


async def test_with_drain_none_nobody_is_asked_to_go() -> None:
    async with change(_daemon_set, MigPolicy(drain=MigDrain.NONE)) as (cluster, engine):
        await engine.run_for(30)
        last = told(cluster)
        assert last is not None
        assert "default/train-0: nobody asks it to go (drain: none)" in last.message
        assert not cluster.evictions
        cluster.machines["n1"].agent.holders = []
        await engine.run_for(20)
        assert outcome(cluster) == ("Succeeded", "MigChanged")
        assert cluster.pods_on("n1") == {"train-0", "train-1", "infer", "monitor-x"}


async def test_what_becomes_of_it_is_told_as_events() -> None:
    async with change(nothing) as (cluster, engine):
        await engine.run_for(20)
        rows = [stored.obj for (kind, _, _), stored in cluster._objects.items() if kind == EVENTS]
        reasons = {row["reason"] for row in rows}
        assert {"OperationStarted", "Changing", "Verifying", "MigChanged", "OperationSucceeded"} <= reasons
        assert any("for kgpu mig: its node asks for the MIG config all-1g.10gb" in row["message"] for row in rows)


@pytest.mark.parametrize("ends", [Ends.DONE, Ends.FAILED])
async def test_the_operators_word_stays_when_the_request_goes(ends: Ends) -> None:
    """By it the node knows that the request was carried out: without it, the two would ask and answer for ever."""
    async with change(_mig(ends)) as (cluster, engine):
        await engine.run_for(20)
        word = told(cluster)
        ask(cluster, "n1", "")
        await engine.run_for(2)
        assert told(cluster) == word
        ask(cluster, "n1", "r1")
        await engine.run_for(2)
        assert told(cluster) == word
        assert len(made(cluster)) == 1
        writes = cluster.writes
        await engine.run_for(60)
        assert cluster.writes == writes, "nothing more is written"


async def test_a_forged_word_is_corrected_or_removed() -> None:
    async with change(nothing) as (cluster, engine):
        await engine.run_for(20)
        true = told(cluster)
        annotate(
            cluster, "n1", names.MIG_OPERATION_ANNOTATION, '{"version":1,"id":"r1","operation":"x","phase":"Acting"}'
        )
        await engine.run_for(2)
        assert told(cluster) == true
        ask(cluster, "n1", "")
        await engine.run_for(2)
        annotate(cluster, "n1", names.MIG_OPERATION_ANNOTATION, "{")
        await engine.run_for(2)
        known = cluster.object(NODES, "n1")["metadata"].get("annotations") or {}
        assert names.MIG_OPERATION_ANNOTATION not in known


async def test_an_operation_that_the_api_server_refuses_is_told_and_tried_again() -> None:
    class Refusing(Cluster):
        tries = 0

        async def create(self, resource: Any, obj: Object, *, subresource: str = "") -> Object:
            if resource == NODE_OPERATIONS and self.tries < 2:
                self.tries += 1
                raise KubeRefusedError("spec.mig is unknown", "", "", code=422)
            return await super().create(resource, obj, subresource=subresource)

    cluster = Refusing()
    cluster.node("n1")
    ask(cluster, "n1", "r1")
    engine = Engine(cluster)
    await engine.start()
    try:
        await engine.run_for(20)
        last = told(cluster)
        assert last is not None
        assert (last.phase, last.reason) == ("Pending", "NotMade")
        assert "spec.mig is unknown" in last.message
        assert cluster.tries == 1, "not again and again"
        await engine.run_for(80)
        assert outcome(cluster) == ("Succeeded", "MigChanged")
    finally:
        await engine.stop()


async def test_another_layout_is_asked_for_after_the_first() -> None:
    async with change(nothing) as (cluster, engine):
        await engine.run_for(20)
        ask(cluster, "n1", "r2", layout("GPU-1", LARGE), layout("GPU-2", LARGE))
        await engine.run_for(20)
        assert mig_of(cluster).layouts == {"GPU-1": LARGE, "GPU-2": LARGE}
        assert len(made(cluster)) == 2
