"""Cases from the tests of others and from what their users complain of (``sources.yaml``), replayed as data."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import AsyncIterator
from typing import Any

import msgspec
import pytest

from kgpu.formats import names
from kgpu.formats.crd.nodeoperation import (
    NodeAct,
    NodeOperationSpec,
    NodeOperationStatus,
    OperationDrain,
    OperationPhase,
)
from kgpu.formats.gpu_report import GpuReport, ReportedGpu
from kgpu.formats.node_order import HolderPod, OrderStep, answer, order
from kgpu.formats.xid.action import Action
from kgpu.kube.fake import FakeApi
from kgpu.kube.kinds import NODE_OPERATIONS
from kgpu.kube.port import CONFIG_MAPS, PODS, KubeRefusedError
from kgpu.operations import writing
from kgpu.operations.config import OperationBudget, RemediationPolicy, Share, Strongest
from kgpu.operations.drain import Evicted, Fate, fate
from kgpu.operations.model import REFUSED, ActPod, Evict, HoldNode, NodePod, Operation, Record, StartAct, TargetNode
from kgpu.operations.plan import step
from kgpu.operations.remediation import remediate
from kgpu.operations.world import AdmissionVerdict, World
from tests.operations.world import Cluster, Engine

NOW = 1_700_000_000.0
SINCE = "2023-11-14T22:13:20Z"
LATER = "2023-11-14T23:13:20Z"
REBOOT = RemediationPolicy(strongest=Strongest.REBOOT)


def operation(phase: str, spec: dict[str, Any], **status: Any) -> Operation:
    known = {"phase_since": SINCE, "phase_deadline": LATER, "node_uid": "u1", "started_at": SINCE, **status}
    return Operation(
        name="m", uid="op1", version="7", created=NOW, spec=msgspec.convert({"nodeName": "n1", **spec}, NodeOperationSpec),
        status=msgspec.structs.replace(NodeOperationStatus(phase=phase), **known),  # type: ignore[arg-type]
    )  # fmt: skip


def held(**more: Any) -> TargetNode:
    whole = {"unschedulable": True, "cordoned_by_us": True, "held": True, "owners": ("op1",), "boot_id": "b1", **more}
    return TargetNode(name="n1", uid="u1", has_gpus=True, **whole)


@contextlib.asynccontextmanager
async def running(cluster: Cluster, budget: OperationBudget | None = None, **more: Any) -> AsyncIterator[Engine]:
    engine = Engine(cluster, budget, **more) if budget else Engine(cluster, **more)
    await engine.start()
    try:
        yield engine
    finally:
        await engine.stop()


# Reboots


@pytest.mark.parametrize(
    ("now", "done"),
    [("b1", False), ("", False), ("b2", True)],
    ids=["the same boot", "a Node that has none for a moment", "another boot"],
)
def test_done_is_another_boot_that_has_a_name(now: str, done: bool) -> None:
    act = NodeAct(id="op1-1", boot_id="b1")
    known = operation("Acting", {"type": "Reboot"}, act=act)
    pod = ActPod(name="act", uid="a", act="op1-1")
    writes = step(known, World(now=NOW + 1, node=held(boot_id=now), act=pod)).writes
    moved = [write for write in writes if isinstance(write, Record) and write.status.phase == "Verifying"]
    assert bool(moved) is done


@pytest.mark.parametrize("code", [None, 0, 1, 137, 143, REFUSED])
def test_the_end_of_the_acts_pod_says_nothing_about_a_reboot(code: int | None) -> None:
    """The machine kills it, so only its refusal counts."""
    known = operation("Acting", {"type": "Reboot"}, act=NodeAct(id="op1-1", boot_id="b1"))
    pod = ActPod(name="act", uid="a", act="op1-1", ended=True, exit_code=code, why="it said so")
    phases = [
        write.status.phase
        for write in step(known, World(now=NOW + 1, node=held(), act=pod)).writes
        if isinstance(write, Record)
    ]
    assert phases == (["Restoring"] if code == REFUSED else ["Acting"])


async def test_a_node_cordoned_before_its_reboot_stays_so() -> None:
    cluster = Cluster()
    cluster.node("n1", unschedulable=True)
    async with running(cluster) as engine:
        cluster.operation("m", "n1", type="Reboot")
        await engine.run_for(20)
    assert (cluster.status("m")["result"], cluster.machines["n1"].boots) == ("Succeeded", 1)
    assert cluster.unschedulable("n1")
    assert cluster.owners("n1") == ""


async def test_a_reboot_that_was_asked_for_is_waited_for_although_it_is_cancelled() -> None:
    """Given back at once, the node would take pods and then go down under them."""
    cluster = Cluster()
    cluster.node("n1")
    cluster.machines["n1"].looks = 20
    async with running(cluster) as engine:
        cluster.operation("m", "n1", type="Reboot")
        await engine.run_for(3)
        assert cluster.machines["n1"].asked
        cluster.say("m", cancel=True)
        await engine.run_for(3)
        assert (cluster.status("m")["phase"], cluster.unschedulable("n1")) == ("Acting", True)
        await engine.run_for(20)
    assert (cluster.status("m")["result"], cluster.machines["n1"].boots) == ("Cancelled", 1)
    assert not cluster.unschedulable("n1")


# Resets


async def test_a_resets_pod_that_somebody_deletes_resets_nothing_twice() -> None:
    cluster = Cluster()
    cluster.node("n1")
    machine = cluster.machines["n1"]
    machine.ill["GPU-1"] = "the driver asks for a reset"
    async with running(cluster) as engine:
        cluster.operation("m", "n1", type="GpuReset", gpus=["GPU-1"])
        for _ in range(200):
            await engine.run_for(0.1, step=0.1)
            for name in cluster.pods_on("n1"):
                await FakeApi.delete(cluster, PODS, name, namespace="gpu-operator", grace=0)
        await engine.run_for(30)
    assert cluster.status("m")["phase"] in {"Complete", "Failed"}
    assert len(machine.reset_ids) == len(set(machine.reset_ids)) <= 1
    assert not cluster.order("n1")


def test_a_gpu_that_the_kubelet_has_not_freed_is_waited_for() -> None:
    """Its pod is gone, but the agent still finds it among those that hold the GPU: a claim is unprepared later."""
    known = operation("Draining", {"type": "GpuReset", "gpus": ["GPU-1"]}, act=NodeAct(id="op1-1", boot_id="b1"))
    given = order(act="op1-1", boot="b1", step=OrderStep.WITHDRAW, gpus=("GPU-1",), reset=False)
    said = answer(given, holders=(HolderPod(namespace="ns", name="train"),))
    node = held(unschedulable=False, cordoned_by_us=False, order=given, answer=said)
    (write,) = step(known, World(now=NOW + 1, node=node, pods=())).writes
    assert isinstance(write, Record)
    assert (write.status.phase, write.status.drain and write.status.drain.total) == ("Draining", 1)
    late = dataclasses.replace(known, status=msgspec.structs.replace(write.status, phase_deadline=SINCE))
    (write,) = step(late, World(now=NOW + 1, node=node, pods=())).writes
    assert isinstance(write, Record)
    assert write.status.reason == "DrainTimeout"
    assert "ns/train: the kubelet has not freed its GPUs yet" in write.status.message


# Drains


def pod(**more: Any) -> NodePod:
    return NodePod(**{"namespace": "ns", "name": "p", "uid": "u-p", "owner": ("ReplicaSet", "web"), **more})


@pytest.mark.parametrize("owner", [("", ""), ("ReplicaSet", "web")])
@pytest.mark.parametrize("empty_dirs", [False, True])
@pytest.mark.parametrize("force", [False, True])
@pytest.mark.parametrize("delete", [False, True])
def test_force_and_empty_dirs_in_all_combinations(
    owner: tuple[str, str], empty_dirs: bool, force: bool, delete: bool
) -> None:
    drain = OperationDrain(force=force, delete_empty_dir_data=delete)
    may_go = (bool(owner[0]) or force) and (not empty_dirs or delete)
    expected = Fate.EVICT if may_go else Fate.REFUSE
    assert fate(pod(owner=owner, empty_dirs=empty_dirs), drain, Evicted()).fate is expected


BUDGET = (("DisruptionBudget", "The disruption budget web needs 2 healthy pods and has 1 currently"),)


@pytest.mark.parametrize(
    ("code", "said", "causes", "expected"),
    [
        (404, "not found", (), None),
        (409, "the precondition uid does not match", (), None),
        (429, "Cannot evict pod", BUDGET, ("The disruption budget web needs 2 healthy pods and has 1 currently", False)),
        (429, "The disruption budget web is still being processed by the server.", (), ("still being processed", False)),
        (403, "forbidden", (("NamespaceTerminating", ""),), ("its namespace is being deleted", False)),
        (403, "pods web is forbidden", (), ("pods web is forbidden", True)),
        (500, "This pod has more than one PodDisruptionBudget, which is not supported", (), ("more than one", True)),
        (500, "etcd is away", (), ("etcd is away", False)),
        (504, "timeout", (), ("timeout", False)),
    ],
    ids=str,
)  # fmt: skip
async def test_answers_to_evictions(
    code: int, said: str, causes: tuple[tuple[str, str], ...], expected: tuple[str, bool] | None
) -> None:
    """What each answer of the API server means: gone, ask again, or never."""

    class Refusing(FakeApi):
        async def create(self, *_: Any, **__: Any) -> Any:
            raise KubeRefusedError(said, "", "", code=code, causes=causes)

    given = await writing.send_away(Refusing(), Evict(pod=pod(), grace=None), None, now=0.0, uniform=lambda: 0.5)
    assert (given is None) is (expected is None)
    if given is not None and expected is not None:
        assert (expected[0] in given.why, given.fatal) == (True, expected[1])
        assert given.again_at > 0


async def test_a_pod_of_the_same_name_is_another() -> None:
    """The one that was asked is gone once its uid is; the other is asked for itself."""
    cluster = Cluster()
    cluster.node("n1")
    cluster.pod("web", "n1")
    async with running(cluster) as engine:
        cluster.operation("m", "n1")
        while cluster.pods_on("n1"):
            await engine.run_for(0.5)
        cluster.pod("web", "n1", owner=("StatefulSet", "web"))
        await engine.run_for(5)
    assert cluster.status("m")["phase"] == "Acting"
    assert len(cluster.evictions) in {1, 2}, "a later one is not the drain's, unless it was there in time"


async def test_an_empty_node_is_empty_at_once() -> None:
    cluster = Cluster()
    cluster.node("n1")
    async with running(cluster) as engine:
        cluster.operation("m", "n1")
        await engine.run_for(2)
    assert cluster.status("m")["phase"] == "Acting"
    assert cluster.status("m")["drain"].get("total", 0) == 0


def test_pods_that_can_not_be_read_are_no_empty_node() -> None:
    known = operation("Draining", {"type": "Reboot"})
    assert step(known, World(now=NOW + 1, node=held(), pods=None)).writes == ()
    late = dataclasses.replace(known, status=msgspec.structs.replace(known.status, phase_deadline=SINCE))
    (write,) = step(late, World(now=NOW + 1, node=held(), pods=None)).writes
    assert isinstance(write, Record)
    assert (write.status.phase, write.status.reason) == (OperationPhase.RESTORING, "DrainTimeout")


async def test_a_job_that_does_not_end_ends_the_drain_in_time() -> None:
    """Nothing is killed at the end of the limit: the pods stay, and are named."""
    cluster = Cluster()
    cluster.node("n1")
    cluster.pod("train", "n1", owner=("Job", "train"))
    cluster.budgets["default", "train"] = (429, "Cannot evict pod", BUDGET)
    async with running(cluster) as engine:
        cluster.operation("m", "n1", type="Reboot", drain={"timeoutSeconds": 30})
        await engine.run_for(40)
    assert cluster.status("m")["reason"] == "DrainTimeout"
    assert "default/train" in cluster.status("m")["message"]
    assert (cluster.pods_on("n1"), cluster.machines["n1"].boots) == ({"train"}, 0)


# Budget and remediation


async def test_an_operation_on_a_node_that_is_not_there_takes_no_slot() -> None:
    cluster = Cluster()
    cluster.node("n2")
    async with running(cluster, OperationBudget(max_parallel=1, max_unavailable=Share(1))) as engine:
        cluster.operation("a", "n1")
        cluster.operation("b", "n2")
        await engine.run_for(3)
        assert cluster.status("a")["reason"] == "WaitsForNode"
        assert cluster.status("b")["phase"] == "Acting"


LOST = ReportedGpu(uuid="GPU-3", index=3, action=Action.REBOOT, what="Xid 79")


def ill(name: str = "n1", *, gpu: ReportedGpu = LOST, **more: Any) -> TargetNode:
    report = GpuReport(version=1, boot="b1", count=8, gpus=(gpu,))
    return TargetNode(name=name, uid=f"uid-{name}", boot_id="b1", has_gpus=True, report=report, **more)


def test_another_reason_for_the_same_need_is_the_same_operation() -> None:
    """Which fault comes first in the verdict may change with each reading."""
    names_made = set()
    for what in ("Xid 79", "the GPU has fallen off the bus", "the driver asks for a reboot"):
        gpu = msgspec.structs.replace(LOST, what=what, since=NOW)
        (one,) = remediate({"n1": ill(gpu=gpu)}, (), REBOOT, NOW).create
        names_made.add(one.name)
    assert len(names_made) == 1


def test_one_node_counts_once_for_the_breaker() -> None:
    def made(number: int) -> Operation:
        spec = {"type": "Reboot", "requestedBy": names.REMEDIATION_REQUESTER}
        known = operation("Complete", spec, result="Succeeded", completed_at=SINCE)
        return dataclasses.replace(known, name=f"m{number}", uid=str(number))

    fleet = {f"n{number}": ill(f"n{number}") if number == 1 else held() for number in range(1, 10)}
    assert not remediate(fleet, [made(number) for number in range(9)], REBOOT, NOW + 5).breaker


@pytest.mark.parametrize("word", ["", "false", "true", "Disabled", "enabled"])
def test_only_the_word_disabled_takes_a_node_out(word: str) -> None:
    assert remediate({"n1": ill(labels={names.REMEDIATION_LABEL: word})}, (), REBOOT, NOW).create
    assert not remediate({"n1": ill(labels={names.REMEDIATION_LABEL: "disabled"})}, (), REBOOT, NOW).create


async def test_the_open_breaker_holds_up_nothing_that_has_begun() -> None:
    cluster = Cluster()
    cluster.node("n1")
    async with running(cluster, remediation=REBOOT) as engine:
        cluster.operation("m", "n1")
        await engine.run_for(3)
        body = {"metadata": {"name": names.REMEDIATION_CONFIG_MAP, "namespace": "gpu-operator"}, "data": {}}
        cluster.put(CONFIG_MAPS, body)
        await engine.run_for(2)
        cluster.say("m", resume=True)
        await engine.run_for(3)
        assert cluster.status("m")["result"] == "Succeeded"
        assert not cluster.unschedulable("n1")
        cluster.operation("again", "n1")
        await engine.run_for(3)
        assert cluster.status("again")["phase"] == "Acting", "a person's own is none of its business"
    assert cluster.object(NODE_OPERATIONS, "again")


@pytest.mark.parametrize(
    ("spec", "again_at"),
    [
        ({}, None),
        ({"notBefore": LATER}, NOW + 3600),
        ({"deadline": LATER}, NOW + 3600),
        ({"notBefore": "2023-11-14T22:43:20Z", "deadline": LATER}, NOW + 1800),
        ({"notBefore": "2023-11-14T21:13:20Z"}, None),
    ],
    ids=str,
)
def test_it_looks_again_at_the_nearest_time(spec: dict[str, Any], again_at: float | None) -> None:
    no = AdmissionVerdict(reason="WaitsForBudget", why="it waits")
    known = operation("Pending", {"type": "Maintenance", **spec}, reason="WaitsForBudget", message="it waits")
    found = step(known, World(now=NOW, node=held(owners=()), admission=no))
    assert (found.writes, found.again_at) == ((), again_at)


def test_what_a_step_writes_is_one_of_record_and_node() -> None:
    """What may happen is on record before it happens, so that a kill in between is seen."""
    kinds: list[dict[str, Any]] = [{"type": "Maintenance"}, {"type": "Reboot"}, {"type": "GpuReset", "gpus": ["GPU-1"]}]
    for kind in kinds:
        for phase in ("Pending", "Cordoning", "Draining", "Acting", "Verifying", "Restoring"):
            result = "Succeeded" if phase == "Restoring" else ""
            known = operation(phase, kind, result=result, reason="Rebooted", act=NodeAct(id="op1-1", boot_id="b1"))
            for node in (held(), held(owners=()), held(unschedulable=False)):
                world = World(now=NOW, node=node, pods=(pod(),), admission=AdmissionVerdict(admitted=True))
                written = {type(write) for write in step(known, world).writes}
                assert not (Record in written and written & {HoldNode, Evict, StartAct}), (kind, phase)
