"""``spec.drain.onTimeout: Force``: what is deleted past disruption budgets, when, how, and what never is."""

from __future__ import annotations

import dataclasses
from typing import Any

import msgspec
import pytest

from kgpu.base.times import stamp_of
from kgpu.formats.crd.nodeoperation import DrainProgress, NodeOperationSpec, NodeOperationStatus
from kgpu.formats.crd.status import StatusCondition
from kgpu.kube.port import KubeRefusedError
from kgpu.operations.config import OperationBudget, Share
from kgpu.operations.drain import AT_ONCE, Evicted
from kgpu.operations.forcing import FORCED_SECONDS, LONGEST_GRACE, UNREAD_SECONDS
from kgpu.operations.model import (
    Answer,
    Delete,
    Evict,
    NodePod,
    Operation,
    Record,
    TargetNode,
    Write,
    moment_of,
    read_pod,
)
from kgpu.operations.notices import details, notice
from kgpu.operations.plan import step
from kgpu.operations.world import AdmissionVerdict, World
from tests.operations.world import Cluster, Engine

NOW = 1_700_000_000.0
NODE = TargetNode(
    name="n1", uid="u1", has_gpus=True, unschedulable=True, owners=("op1",), held=True, cordoned_by_us=True
)
HELD = Answer(why="the budget web needs 3", again_at=NOW + 60, by_budget=True)
SEVERAL = Answer(why="more than one budget", again_at=NOW, by_budget=True, fatal=True)
FORBIDDEN = Answer(why="a webhook says no", again_at=NOW, fatal=True)
BUSY = Answer(why="the server is busy", again_at=NOW)
FORCED = StatusCondition(type="Forced", status="True", reason="Forcing", message="", last_transition_time=stamp_of(NOW))
OPEN = OperationBudget(max_parallel=9, max_unavailable=Share(percent=100), allow_force=True)


def pod(name: str, **fields: Any) -> NodePod:
    return NodePod(
        **{"namespace": "ns", "name": name, "uid": name, "node": "n1", "owner": ("ReplicaSet", "web"), **fields}
    )


def operation(*, forced: bool = False, phase: str = "Draining", left: float = 0.0, **drain: object) -> Operation:
    """One whose drain has ``left`` seconds left."""
    spec = {"nodeName": "n1", "type": "Maintenance", "drain": {"timeoutSeconds": 300, "onTimeout": "Force", **drain}}
    status = NodeOperationStatus(
        phase=phase, phase_since=stamp_of(NOW - 300), phase_deadline=stamp_of(NOW + left), node_uid="u1",
        reason="Forcing" if forced else "Draining", conditions=(FORCED,) if forced else (),
        drain=DrainProgress(total=9, gone=0),
    )  # fmt: skip
    return Operation(
        name="m", uid="op1", version="7", created=NOW, spec=msgspec.convert(spec, NodeOperationSpec), status=status
    )


def writes(
    record: Operation, *pods: NodePod, answers: dict[str, Answer] | None = None, **world: Any
) -> tuple[Write, ...]:
    known = {
        "now": NOW, "node": NODE, "pods": pods, "allow_force": True, "tell_progress": False, "monotonic": NOW,
        "live": frozenset({"op1"}), "evicted": Evicted(answers=answers or {}), **world,
    }  # fmt: skip
    return step(record, World(**known)).writes


def status(record: Operation, *pods: NodePod, **more: Any) -> NodeOperationStatus:
    (write,) = writes(record, *pods, **more)
    assert isinstance(write, Record)
    return write.status


def test_that_budgets_no_longer_hold_is_on_record_before_anything_is_deleted() -> None:
    told = status(operation(), pod("a", grace=45), pod("b", grace=10), answers={"a": HELD, "b": HELD})
    assert (told.phase, told.reason, told.result) == ("Draining", "Forcing", "")
    assert told.message == (
        "the drain's 300 s are over: what disruption budgets hold is deleted now, with its grace period: ns/a, ns/b"
    )
    (condition,) = told.conditions
    assert (condition.type, condition.status, condition.message) == ("Forced", "True", told.message)
    assert moment_of(told.phase_since) == NOW
    assert moment_of(told.phase_deadline) == NOW + 45 + FORCED_SECONDS
    assert told.drain is not None
    assert [row.name for row in told.drain.waiting] == ["a", "b"]


def test_a_few_pods_are_named_and_the_others_counted() -> None:
    pods = [pod(f"p{number}") for number in range(7)]
    message = status(operation(), *pods, answers={one.uid: HELD for one in pods}).message
    assert message.endswith(": ns/p0, ns/p1, ns/p2, ns/p3, ns/p4 and 2 more")
    assert status(operation(), *pods[:5], answers={}).message.endswith("ns/p4")


@pytest.mark.parametrize(
    ("wanted", "own", "asked", "waits"),
    [
        (None, 45, None, 45), (None, 0, 1, 1), (0, 45, 1, 1), (20, 45, 20, 20), (20, 5, 20, 20),
        (None, 10**12, None, LONGEST_GRACE), (10**9, 5, 10**9, LONGEST_GRACE),
    ],
)  # fmt: skip
def test_no_pod_goes_without_time_to_end(wanted: int | None, own: int, asked: int | None, waits: float) -> None:
    drain = {} if wanted is None else {"gracePeriodSeconds": wanted}
    one = pod("a", grace=own)
    (write,) = writes(operation(forced=True, left=60, **drain), one, answers={"a": HELD})
    assert write == Delete(pod=one, grace=asked)
    told = status(operation(**drain), one, answers={"a": HELD})
    assert moment_of(told.phase_deadline) == NOW + waits + FORCED_SECONDS


def test_nothing_is_deleted_before_the_time_is_over_or_before_it_is_on_record() -> None:
    assert writes(operation(left=1), pod("a"), answers={"a": HELD}) == ()
    (write,) = writes(operation(left=1), pod("a"), answers={"a": dataclasses.replace(HELD, again_at=NOW)})
    assert isinstance(write, Evict)


def test_a_pod_that_is_due_again_is_deleted_and_not_evicted_too() -> None:
    due = dataclasses.replace(HELD, again_at=NOW)
    assert writes(operation(forced=True, left=60), pod("a"), answers={"a": due}) == (Delete(pod=pod("a"), grace=None),)


def test_a_condition_that_says_no_is_none() -> None:
    record = operation(forced=True, left=60)
    taken_back = (msgspec.structs.replace(FORCED, status="False"),)
    record = dataclasses.replace(record, status=msgspec.structs.replace(record.status, conditions=taken_back))
    assert writes(record, pod("a"), answers={"a": HELD}) == ()


def test_what_no_budget_holds_is_evicted_also_then() -> None:
    """A new leader knows no answers: it asks first."""
    record = operation(forced=True, left=60, gracePeriodSeconds=0)
    asked = writes(record, pod("a"), pod("b"), pod("c"), answers={"b": HELD, "c": BUSY})
    assert asked == (Delete(pod=pod("b"), grace=1), Evict(pod=pod("a"), grace=0), Evict(pod=pod("c"), grace=0))


def test_several_budgets_that_make_evictions_impossible_are_overridden_too() -> None:
    answers = {"a": SEVERAL}
    assert writes(operation(left=10), pod("a"), answers=answers) == ()  # it waits for its time
    assert status(operation(), pod("a"), answers=answers).reason == "Forcing"
    assert writes(operation(forced=True, left=60), pod("a"), answers=answers) == (Delete(pod=pod("a"), grace=None),)
    plain = status(operation(left=10, onTimeout="Fail"), pod("a"), answers=answers)
    assert (plain.result, plain.reason) == ("PermanentFailure", "EvictionRefused")


def test_a_refusal_of_anything_but_a_budget_holds() -> None:
    ended = status(operation(left=10), pod("a"), answers={"a": FORBIDDEN})
    assert (ended.phase, ended.reason) == ("Restoring", "EvictionRefused")
    assert writes(operation(forced=True, left=60), pod("a"), pod("b"), answers={"a": FORBIDDEN, "b": HELD}) == (
        Delete(pod=pod("b"), grace=None),
    )
    both = status(operation(), pod("a"), pod("b"), answers={"a": FORBIDDEN, "b": HELD})
    assert both.message.endswith("with its grace period: ns/b")
    gone = status(operation(forced=True, left=60), pod("a"), answers={"a": FORBIDDEN})
    assert (gone.phase, gone.reason) == ("Restoring", "EvictionRefused")


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ({"owner": ("", "")}, "no controller would recreate it (force)"),
        ({"empty_dirs": True}, "it would lose what is in its emptyDir (deleteEmptyDirData)"),
        ({"deleted_at": NOW - 5, "finalizers": ("a/b",)}, "it is kept by its finalizer a/b"),
        ({"deleted_at": NOW - 5}, "it should have ended by now"),
    ],
)
def test_what_force_does_not_override(fields: dict[str, Any], why: str) -> None:
    """The rules of `kubectl drain`, and pods that are ending: they are never removed without a word of their kubelet."""
    one = pod("a", **fields)
    ended = status(operation(), one, answers={"a": HELD})
    assert (ended.phase, ended.result, ended.reason) == ("Restoring", "TransientFailure", "DrainTimeout")
    assert ended.message == f"pods were left on the node after 300 s: ns/a: {why}"
    assert writes(operation(forced=True, left=60), one, answers={"a": HELD}) == ()
    late = status(operation(forced=True), one, answers={"a": HELD})
    assert (late.result, late.reason) == ("TransientFailure", "DrainTimeout")
    assert (
        late.message
        == f"pods were left on the node after 300 s, also after disruption budgets no longer held: ns/a: {why}"
    )


def test_it_is_forced_once() -> None:
    ended = status(operation(forced=True), pod("a"), answers={"a": HELD})
    assert (ended.phase, ended.reason) == ("Restoring", "DrainTimeout")


def test_pods_are_deleted_a_few_at_a_time() -> None:
    pods = [pod(f"p{number:02}") for number in range(AT_ONCE + 5)]
    asked = writes(operation(forced=True, left=60), *pods, answers={one.uid: HELD for one in pods[3:]})
    assert len(asked) == AT_ONCE
    assert {type(write) for write in asked} == {Delete}


@pytest.mark.parametrize("allowed", [True, False])
def test_with_fail_the_operation_fails_as_ever(allowed: bool) -> None:
    ended = status(operation(onTimeout="Fail"), pod("a"), answers={"a": HELD}, allow_force=allowed)
    assert (ended.phase, ended.reason) == ("Restoring", "DrainTimeout")
    assert ended.message == "pods were left on the node after 300 s: ns/a: the budget web needs 3"


def test_an_admin_who_takes_it_back_is_obeyed() -> None:
    ended = status(operation(), pod("a"), answers={"a": HELD}, allow_force=False)
    assert ended.reason == "DrainTimeout"
    assert "and were not deleted, as operations.allowForce is off now: ns/a" in ended.message
    assert writes(operation(forced=True, left=60), pod("a"), answers={"a": HELD}, allow_force=False) == ()


def test_a_cluster_that_does_not_allow_it_refuses_it_before_anything_is_done() -> None:
    waits = operation(phase="Pending")
    ended = status(waits, allow_force=False, admission=AdmissionVerdict(admitted=True))
    assert (ended.phase, ended.result, ended.reason) == ("Failed", "PermanentFailure", "Refused")
    assert "operations.allowForce=true" in ended.message
    assert "expected: " in ended.message
    assert "to do: " in ended.message
    admitted = AdmissionVerdict(admitted=True)
    assert status(waits, admission=admitted).phase == "Cordoning"
    assert (
        status(operation(phase="Pending", onTimeout="Fail"), allow_force=False, admission=admitted).phase == "Cordoning"
    )


def test_a_new_leader_at_the_end_of_the_drain_reads_the_pods_first() -> None:
    assert writes(operation(), pods=None) == ()
    assert writes(operation(left=1 - UNREAD_SECONDS), pods=None) == ()
    for record in (operation(left=-UNREAD_SECONDS), operation(forced=True), operation(onTimeout="Fail")):
        ended = status(record, pods=None)
        assert (ended.reason, ended.message) == ("DrainTimeout", "its pods could not be read")
    assert writes(operation(left=1), pods=None) == ()


def test_people_are_told_once() -> None:
    before = operation()
    after = status(before, pod("a"), answers={"a": HELD})
    advice = notice(before, after)
    assert advice is not None
    assert (advice.reason, str(advice.severity)) == ("OperationForced", "warning")
    assert advice.what == f"Maintenance m: {after.message}"
    assert details(before, after).kind == "operation.forcing"
    assert notice(dataclasses.replace(before, status=after), msgspec.structs.replace(after, message="x")) is None
    assert notice(before, msgspec.structs.replace(after, reason="Other")) is None


@pytest.mark.parametrize(
    ("spec", "grace"), [({}, 30), ({"terminationGracePeriodSeconds": 7}, 7), ({"terminationGracePeriodSeconds": -4}, 0),
                        ({"terminationGracePeriodSeconds": "x"}, 30), ({"terminationGracePeriodSeconds": True}, 30)]
)  # fmt: skip
def test_the_grace_period_of_a_pod(spec: dict[str, Any], grace: int) -> None:
    assert read_pod({"metadata": {}, "spec": spec}).grace == grace


BUDGET_HOLDS = (429, "Cannot evict pod", (("DisruptionBudget", "needs 3"),))


async def play(
    cluster: Cluster, budget: OperationBudget = OPEN, *, until: float = 20, **drain: object
) -> dict[str, Any]:
    cluster.node("n1")
    cluster.operation("m", "n1", drain={"timeoutSeconds": 5, "onTimeout": "Force", **drain})
    engine = Engine(cluster, budget)
    await engine.start()
    await engine.run_for(until)
    await engine.stop()
    return dict(cluster.status("m"))


async def test_the_engine_deletes_what_a_budget_holds_and_evicts_the_rest() -> None:
    cluster = Cluster()
    for name in ("web-0", "web-1", "web-2"):
        cluster.pod(name, "n1")
    cluster.budgets["default", "web-1"] = BUDGET_HOLDS
    cluster.budgets["default", "web-2"] = (500, "This pod has more than one PodDisruptionBudget, ...", ())
    told = await play(cluster)
    assert (told["phase"], told["reason"]) == ("Acting", "InMaintenance")
    assert sorted(cluster.deletions) == [("default/web-1", None), ("default/web-2", None)]
    assert cluster.pods_on("n1") == set()


async def test_the_grace_period_that_was_asked_for_is_the_deletions() -> None:
    cluster = Cluster()
    cluster.pod("web-0", "n1")
    cluster.budgets["default", "web-0"] = BUDGET_HOLDS
    await play(cluster, gracePeriodSeconds=7)
    assert cluster.deletions == [("default/web-0", 7)]


async def test_a_server_that_is_merely_busy_is_no_budget() -> None:
    cluster = Cluster()
    cluster.pod("web-0", "n1")
    cluster.budgets["default", "web-0"] = (429, "too many requests", ())
    told = await play(cluster, until=80)
    assert (told["phase"], told["reason"]) == ("Failed", "DrainTimeout")
    assert cluster.deletions == []
    assert cluster.pods_on("n1") == {"web-0"}


async def test_a_pod_that_does_not_end_is_named_and_not_removed() -> None:
    cluster = Cluster()
    cluster.pod("web-0", "n1", metadata={"finalizers": ["a/b"]})
    cluster.budgets["default", "web-0"] = BUDGET_HOLDS
    told = await play(cluster, until=80)
    assert (told["phase"], told["reason"]) == ("Failed", "DrainTimeout")
    assert "also after disruption budgets no longer held: default/web-0" in told["message"]
    assert cluster.deletions == [("default/web-0", None)]
    assert cluster.pods_on("n1") == {"web-0"}
    assert not cluster.unschedulable("n1")


async def test_another_pod_of_the_same_name_is_not_deleted() -> None:
    cluster = Cluster()
    cluster.pod("web-0", "n1")
    cluster.budgets["default", "web-0"] = BUDGET_HOLDS
    real = cluster.delete

    async def exchanged(resource: Any, name: str, **more: Any) -> bool:
        return await real(resource, name, **{**more, "uid": "former"})

    cluster.delete = exchanged  # type: ignore[method-assign]
    await play(cluster, until=10)
    assert cluster.pods_on("n1") == {"web-0"}


async def test_a_deletion_that_is_refused_ends_it() -> None:
    cluster = Cluster()
    cluster.pod("web-0", "n1")
    cluster.budgets["default", "web-0"] = BUDGET_HOLDS
    cluster.refuses_deletions = KubeRefusedError("a policy says no", "", "", code=403)
    told = await play(cluster, until=20)
    assert (told["phase"], told["result"], told["reason"]) == ("Failed", "PermanentFailure", "EvictionRefused")
    assert told["message"] == "the operator may not delete it, or it can't be deleted: a policy says no"


async def test_a_deletion_that_is_put_off_is_tried_again_later_each_time() -> None:
    """Whatever word a webhook uses for it."""
    cluster = Cluster()
    cluster.pod("web-0", "n1")
    cluster.budgets["default", "web-0"] = BUDGET_HOLDS
    code, message, causes = BUDGET_HOLDS
    cluster.refuses_deletions = KubeRefusedError(message, "", "", code=code, causes=causes)
    told = await play(cluster, until=30)
    assert (told["phase"], told["reason"]) == ("Draining", "Forcing")
    assert 2 <= len(cluster.deletions) <= 5
