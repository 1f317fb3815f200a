"""Single steps: what is written for one record, one node and one time."""

from __future__ import annotations

import dataclasses

import msgspec
import pytest

from kgpu.base.times import stamp_of
from kgpu.formats.crd.nodeoperation import (
    DrainProgress,
    NodeAct,
    NodeBefore,
    NodeOperationSpec,
    NodeOperationStatus,
    OperationPhase,
)
from kgpu.operations.leftovers import KEPT_SECONDS, leftovers, outdated
from kgpu.operations.model import HoldNode, NodePod, Operation, Record, TargetNode, UnreadableOperation, read_operation
from kgpu.operations.plan import NODE_SECONDS, step
from kgpu.operations.world import AdmissionVerdict, World

NOW = 1_700_000_000.0
NODE = TargetNode(name="n1", uid="u1", has_gpus=True)
SINCE = "2023-11-14T22:13:20Z"
YES = AdmissionVerdict(admitted=True)


def operation(phase: str = "Pending", *, spec: dict[str, object] | None = None, **status: object) -> Operation:
    known = {"phase_since": SINCE, "node_uid": "u1", **status}
    return Operation(
        name="m", uid="op1", version="7", created=NOW,
        spec=msgspec.convert({"nodeName": "n1", "type": "Maintenance", **(spec or {})}, NodeOperationSpec),
        status=msgspec.structs.replace(NodeOperationStatus(phase=phase), **known),  # type: ignore[arg-type]
    )  # fmt: skip


def status_after(record: Operation, **world: object) -> NodeOperationStatus:
    result = step(record, World(**{"now": NOW, "node": NODE, **world}))  # type: ignore[arg-type]
    (write,) = result.writes
    assert isinstance(write, Record)
    return write.status


def test_what_the_engine_has_left_cordoned_is_not_how_the_node_was() -> None:
    mine = TargetNode(name="n1", uid="u1", unschedulable=True, cordoned_by_us=True, held=True, owners=("dead",))
    status = status_after(operation(), node=mine, admission=YES)
    assert (status.phase, status.before and status.before.unschedulable) == (OperationPhase.CORDONING, False)


def test_a_node_that_a_person_had_cordoned_was_cordoned() -> None:
    status = status_after(operation(), node=TargetNode(name="n1", uid="u1", unschedulable=True), admission=YES)
    assert status.before is not None
    assert status.before.unschedulable


def test_a_node_that_is_not_there_is_waited_for_and_then_told() -> None:
    late = NOW + 1000
    status = status_after(operation(), now=late, node=None)
    assert (status.phase, status.reason, status.phase_since) == (OperationPhase.PENDING, "WaitsForNode", stamp_of(late))
    waits = operation(reason="WaitsForNode", phase_since=stamp_of(late))
    assert step(waits, World(now=late + NODE_SECONDS - 1, node=None)).writes == ()
    status = status_after(waits, now=late + NODE_SECONDS, node=None)
    assert (status.phase, status.reason) == (OperationPhase.FAILED, "NoSuchNode")
    assert status_after(waits, admission=YES).phase == OperationPhase.CORDONING


def test_another_node_of_the_same_name_is_not_meant() -> None:
    waits = operation(spec={"nodeUID": "other"}, node_uid="", reason="WaitsForNode")
    status = status_after(waits, now=NOW + NODE_SECONDS)
    assert (status.phase, status.reason) == (OperationPhase.FAILED, "NoSuchNode")
    assert "make a new operation" in status.message


def test_what_it_waits_for_is_written_once() -> None:
    no = AdmissionVerdict(reason="WaitsForSlot", why="it waits for others")
    first = status_after(operation(), admission=no)
    assert (first.reason, first.message) == ("WaitsForSlot", "it waits for others")
    again = operation(reason="WaitsForSlot", message="it waits for others")
    assert (
        step(
            again, World(now=NOW, node=NODE, admission=AdmissionVerdict(reason="WaitsForSlot", why="other words"))
        ).writes
        == ()
    )


def test_a_deadline_that_has_passed_ends_what_has_not_begun() -> None:
    status = status_after(operation(spec={"deadline": SINCE}), admission=YES)
    assert (status.phase, status.result, status.reason) == (OperationPhase.FAILED, "TransientFailure", "DeadlinePassed")


@pytest.mark.parametrize("word", ["cancel", "resume"])
def test_a_word_while_it_drains_gives_the_node_back(word: str) -> None:
    held = TargetNode(name="n1", uid="u1", unschedulable=True, cordoned_by_us=True, held=True, owners=("op1",))
    status = status_after(operation("Draining", spec={word: True}), node=held)
    assert (status.phase, status.result) == (OperationPhase.RESTORING, "Cancelled")


def test_a_cordon_without_its_owner_is_claimed_again() -> None:
    held = TargetNode(name="n1", uid="u1", unschedulable=True, cordoned_by_us=True, held=True)
    result = step(operation("Acting"), World(now=NOW, node=held))
    assert result.writes == (HoldNode(node=held, owners=("op1",), cordon=True),)


def test_a_node_that_can_not_be_given_back_is_tried_on_and_told() -> None:
    held = TargetNode(name="n1", uid="u1", unschedulable=True, cordoned_by_us=True, held=True, owners=("op1",))
    late = operation("Restoring", phase_deadline=SINCE, result="Succeeded", reason="Resumed")
    status = status_after(late, node=held, now=NOW + 1)
    assert (status.phase, status.reason) == (OperationPhase.RESTORING, "NotRestored")
    told = operation("Restoring", phase_deadline=SINCE, result="Succeeded", reason="NotRestored")
    assert step(told, World(now=NOW + 1, node=held)).writes == (HoldNode(node=held, owners=(), cordon=False),)


def test_what_came_of_it_outlives_a_slow_giving_back() -> None:
    """Remediation goes by the reason: a drain that took too long must not look like a reset that did not help."""
    held = TargetNode(name="n1", uid="u1", unschedulable=True, cordoned_by_us=True, held=True, owners=("op1",))
    known = operation("Draining", phase_deadline=SINCE, drain=DrainProgress(total=1))
    pods = (NodePod(namespace="default", name="web", uid="w", owner=("ReplicaSet", "web"), deleted_at=NOW),)
    given = status_after(known, node=held, now=NOW + 1, pods=pods)
    assert (given.phase, given.reason) == (OperationPhase.RESTORING, "DrainTimeout")
    late = dataclasses.replace(known, status=msgspec.structs.replace(given, phase_deadline=SINCE))
    slow = status_after(late, node=held, now=NOW + 500)
    assert (slow.phase, slow.reason) == (OperationPhase.RESTORING, "NotRestored")
    ended = status_after(dataclasses.replace(known, status=slow), now=NOW + 600)
    assert (ended.phase, ended.result) == (OperationPhase.FAILED, "TransientFailure")
    assert (ended.reason, ended.message) == ("DrainTimeout", given.message)
    assert [row.status for row in ended.conditions if row.type == "Complete"] == ["False"]


def test_leftovers_are_what_no_living_operation_holds() -> None:
    dead = TargetNode(name="n1", uid="u1", unschedulable=True, cordoned_by_us=True, held=True, owners=("gone",))
    shared = TargetNode(name="n2", uid="u2", unschedulable=True, cordoned_by_us=True, held=True, owners=("gone", "op1"))
    well = TargetNode(name="n3", uid="u3", unschedulable=True, cordoned_by_us=True, held=True, owners=("op1",))
    foreign = TargetNode(name="n4", uid="u4", unschedulable=True)
    assert leftovers((dead, shared, well, foreign), frozenset({"op1"})) == (
        HoldNode(node=dead, owners=(), cordon=False),
        HoldNode(node=shared, owners=("op1",), cordon=True),
    )


def test_the_last_ten_of_a_node_are_kept_for_thirty_days() -> None:
    def ended(number: int, at: float, node: str = "n1") -> Operation:
        known = operation("Complete", completed_at=stamp_of(at))
        spec = msgspec.structs.replace(known.spec, node_name=node)
        return dataclasses.replace(known, name=f"m{number}", uid=str(number), spec=spec)

    rows = [ended(number, NOW + number) for number in range(13)]
    others = [ended(20, NOW, "n2"), ended(21, NOW - KEPT_SECONDS, "n2"), operation("Acting")]
    forgotten = {write.operation.name for write in outdated((*rows, *others), NOW + 20, {"n1": NODE})}
    assert forgotten == {"m0", "m1", "m2", "m21"}


@pytest.mark.parametrize(
    ("result", "node", "kept"),
    [
        ("PermanentFailure", NODE, True),
        ("Cancelled", NODE, True),
        ("Succeeded", NODE, False),
        ("PermanentFailure", None, False),
        ("PermanentFailure", dataclasses.replace(NODE, uid="another"), False),
    ],
)
def test_a_driver_that_failed_is_remembered_until_another_upgrade_of_the_node(
    result: str, node: TargetNode | None, kept: bool
) -> None:
    driver = {"namespace": "gpu-operator", "daemonSet": "driver", "digest": "7", "image": "example.org/driver:550"}
    asked = operation("Failed", spec={"type": "DriverUpgrade", "driver": driver}, result=result)
    ended = stamp_of(NOW - KEPT_SECONDS)
    old = dataclasses.replace(asked, status=msgspec.structs.replace(asked.status, completed_at=ended))
    older = dataclasses.replace(old, name="older", uid="op0", created=NOW - 1)
    older = dataclasses.replace(
        older, status=msgspec.structs.replace(old.status, completed_at=stamp_of(NOW - 2 * KEPT_SECONDS))
    )
    nodes = {} if node is None else {"n1": node}
    forgotten = {write.operation.name for write in outdated((older, old), NOW + 20, nodes)}
    assert forgotten == ({"older"} if kept else {"older", "m"})


def test_an_uncordon_right_after_the_cordon_counts() -> None:
    node = TargetNode(name="n1", uid="u1", owners=("op1",), held=True)
    status = status_after(operation("Cordoning"), node=node)
    assert (status.phase, status.reason) == (OperationPhase.RESTORING, "Uncordoned")


def test_a_word_before_it_begins_ends_it() -> None:
    status = status_after(operation(spec={"resume": True}), admission=YES)
    assert (status.phase, status.result) == (OperationPhase.COMPLETE, "Cancelled")


def test_an_annotation_that_others_own_too_holds_nothing() -> None:
    node = TargetNode(name="n1", uid="u1", owners=("op1",))
    restoring = operation("Restoring", result="Succeeded", reason="Resumed")
    assert status_after(restoring, node=node).phase == OperationPhase.COMPLETE
    assert leftovers((node, TargetNode(name="n2", uid="u2", owners=("x" * 200_000,))), frozenset()) == ()


@pytest.mark.parametrize(
    "status",
    [
        {"phase": "Restoring", "phaseSince": SINCE, "nodeUID": "u"},
        {"phase": "Complete", "result": "Succeeded", "completedAt": "0000-01-01T00:00:00Z"},
        {"phase": "Acting", "phaseSince": SINCE},
        {"phase": "Draining", "nodeUID": "u"},
        {"phase": "Pending", "phaseSince": "2024-01-01T00:00:00+99:99"},
        {"phase": "Later"},
        {"drain": "all"},
    ],
)
def test_a_status_that_this_engine_would_not_write_is_not_read(status: dict[str, object]) -> None:
    obj = {"metadata": {"name": "m", "uid": "u"}, "spec": {"nodeName": "n1", "type": "Maintenance"}, "status": status}
    assert isinstance(read_operation(obj), UnreadableOperation)


BEGUN = ["Cordoning", "Draining", "Acting", "Verifying", "Restoring"]


@pytest.mark.parametrize("node", [None, TargetNode(name="n1", uid="another", boot_id="b9")], ids=["gone", "made again"])
@pytest.mark.parametrize("phase", BEGUN)
@pytest.mark.parametrize(
    "kind", [{"type": "Maintenance"}, {"type": "Reboot"}, {"type": "GpuReset", "gpus": ["GPU-1"]}], ids=str
)
def test_a_node_that_is_gone_ends_it_in_every_phase(
    kind: dict[str, object], phase: str, node: TargetNode | None
) -> None:
    """There is nothing to give back, and the new node is not touched."""
    known = operation(phase, spec=kind, result="Succeeded" if phase == "Restoring" else "", reason="Resumed")
    status = status_after(known, node=node)
    assert (status.phase, status.result, status.reason) == (OperationPhase.COMPLETE, "Superseded", "NodeGone")
    assert "Restored" not in {row.type for row in status.conditions}


@pytest.mark.parametrize("phase", ["Cordoning", "Draining", "Acting", "Verifying"])
@pytest.mark.parametrize("kind", [{"type": "Reboot"}, {"type": "GpuReset", "gpus": ["GPU-1"]}], ids=str)
def test_every_phase_in_which_the_engine_acts_has_a_limit(kind: dict[str, object], phase: str) -> None:
    """Nothing that happens on the node, or fails to, keeps it longer."""
    uids = ("op1",) if phase != "Cordoning" else ()
    held = TargetNode(
        name="n1", uid="u1", boot_id="b1", has_gpus=True, unschedulable=kind["type"] == "Reboot" and bool(uids),
        owners=uids, held=True, ready=False, gpus={},
    )  # fmt: skip
    act = NodeAct(id="op1-1", boot_id="b0" if (kind["type"], phase) == ("Reboot", "Verifying") else "b1")
    known = operation(phase, spec=kind, phase_deadline=SINCE, act=act, before=NodeBefore(boot_id="b0"))
    late = NOW + 3600
    node: TargetNode = held
    for _ in range(3):  # an order that is missing is written first
        (*_, write) = step(known, World(now=late, node=node)).writes
        if isinstance(write, Record):
            break
        assert isinstance(write, HoldNode)
        node = dataclasses.replace(held, owners=write.owners, order=write.order)
    assert isinstance(write, Record)
    assert (write.status.phase, write.status.result) == (OperationPhase.RESTORING, "TransientFailure")
