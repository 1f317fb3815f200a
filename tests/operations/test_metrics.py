"""The engine's metrics: what alerts ask is there, few operations are named, and no record can forge a line."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from prometheus_client.parser import text_string_to_metric_families

from kgpu.base.times import stamp_of
from kgpu.formats.crd.nodeoperation import NodeOperationSpec, NodeOperationStatus
from kgpu.operations.metrics import DAY, HEADS, MOST_NAMED, figures
from kgpu.operations.model import Operation, TargetNode, UnreadableOperation

NOW = 1_700_000_000.0
HELD = "kgpu_node_operation_held_seconds"
OVERDUE = "kgpu_node_operation_overdue_seconds"
UNAPPROVED = "kgpu_node_operation_unapproved_seconds"
FAILED = "kgpu_node_operation_failed_timestamp_seconds"


def operation(name: str = "m", *, node: str = "n1", kind: Any = "Maintenance", ago: float = 600.0, **told: Any) -> Any:
    """One that was made ``ago`` seconds ago; ``told`` is its status, ``spec`` more of its spec."""
    spec = NodeOperationSpec(node_name=node, type=kind, **told.pop("spec", {}))
    status = NodeOperationStatus(**told)
    return Operation(name=name, uid=name, version="1", created=NOW - ago, spec=spec, status=status)


def begun(name: str = "m", *, phase: str = "Acting", limit: float | None = None, **more: Any) -> Any:
    """One that was admitted 500 s ago; ``limit`` is the time left in its phase."""
    deadline = None if limit is None else stamp_of(NOW + limit)
    return operation(name, phase=phase, started_at=stamp_of(NOW - 500), phase_deadline=deadline, **more)


def ended(name: str, *, ago: float, node: str = "n1", result: str = "TransientFailure", why: str = "NotWell") -> Any:
    phase = "Failed" if "Failure" in result else "Complete"
    told = {"phase": phase, "result": result, "reason": why, "completed_at": stamp_of(NOW - ago)}
    return operation(name, node=node, kind="Reboot", ago=ago + 100, **told)


def samples(
    metric: str, operations: Sequence[Operation] = (), *, unreadable: Sequence[UnreadableOperation] = (),
    nodes: Sequence[TargetNode] = (), breaker: bool = False,
) -> list[tuple[dict[str, str], float]]:  # fmt: skip
    text = figures(operations, unreadable, {}, nodes=nodes, now=NOW, served=True, breaker=breaker)
    found = {family.name: family for family in text_string_to_metric_families(text)}
    assert set(found) == {name.removesuffix("_total") for name in HEADS}
    return [(sample.labels, sample.value) for sample in found[metric].samples]


def names(metric: str, *operations: Operation) -> list[str]:
    return [labels["operation"] for labels, _ in samples(metric, operations)]


def test_an_operation_that_has_begun_says_how_long_it_holds_its_node() -> None:
    labels = {"node": "n1", "operation": "m", "type": "Maintenance"}
    assert samples(HELD, [begun(), operation("waits"), ended("over", ago=5)]) == [(labels, 500)]


def test_how_far_a_phase_is_beyond_its_limit() -> None:
    late, in_time, without = begun(limit=-40.0, phase="Restoring"), begun("b", limit=40.0), begun("c")
    labels = {"node": "n1", "operation": "m", "type": "Maintenance", "phase": "Restoring"}
    assert samples(OVERDUE, [without, in_time, late])[0] == (labels, 40)
    assert names(OVERDUE, without, in_time, late) == ["m", "b"]


def test_what_waits_for_approval_and_since_when() -> None:
    waits = operation("s", kind="Reboot", spec={"approved": False}, ago=7200)
    assert samples(UNAPPROVED, [waits, operation("queued"), begun("at work", spec={"approved": False})]) == [
        ({"node": "n1", "operation": "s", "type": "Reboot"}, 7200)
    ]


def test_a_failure_counts_for_a_day_or_until_one_succeeds_on_the_node() -> None:
    assert names(FAILED, ended("f", ago=DAY - 1), ended("old", ago=DAY + 1)) == ["f"]
    assert names(FAILED, ended("f", ago=100), ended("well", ago=50, result="Succeeded")) == []
    assert names(FAILED, ended("f", ago=50), ended("well", ago=100, result="Succeeded")) == ["f"]
    assert names(FAILED, ended("f", ago=100), ended("elsewhere", ago=50, node="n2", result="Succeeded")) == ["f"]
    assert names(FAILED, ended("c", ago=100, result="Cancelled")) == []
    ((labels, when),) = samples(FAILED, [ended("f", ago=100)])
    assert labels == {"node": "n1", "operation": "f", "type": "Reboot", "reason": "NotWell"}
    assert when == NOW - 100


def test_outcomes_are_counted_by_result_and_reason() -> None:
    over = [ended("a", ago=9), ended("b", ago=8), ended("c", ago=7, result="Succeeded", why="Rebooted"), begun()]
    assert samples("kgpu_node_operations_ended", over) == [
        ({"type": "Reboot", "result": "Succeeded", "reason": "Rebooted"}, 1),
        ({"type": "Reboot", "result": "TransientFailure", "reason": "NotWell"}, 2),
    ]


def test_held_nodes_and_the_breaker() -> None:
    nodes = [TargetNode(name="n1", uid="u1", held=True), TargetNode(name="n2", uid="u2", unschedulable=True)]
    assert samples("kgpu_nodes_held", nodes=nodes) == [({}, 1)]
    assert samples("kgpu_remediation_stopped", breaker=True) == [({}, 1)]
    assert samples("kgpu_remediation_stopped") == [({}, 0)]


def test_of_many_that_wait_the_oldest_are_named() -> None:
    """A suggestion for each of a thousand nodes must not be a thousand series."""
    many = [operation(f"s{age}", spec={"approved": False}, ago=age) for age in range(1, 1001)]
    assert names(UNAPPROVED, *many) == [f"s{age}" for age in range(1000, 1000 - MOST_NAMED, -1)]
    reasons = [ended(f"r{number}", ago=10, why=f"R{number}") for number in range(1000)]
    assert len(samples("kgpu_node_operations_ended", reasons)) == MOST_NAMED


def test_no_text_of_a_record_forges_a_sample() -> None:
    hostile = 'n1"} 1\nkgpu_remediation_stopped{x="\\'
    ((labels, _),) = samples(HELD, [begun(node=hostile)])
    assert labels["node"] == hostile.replace("\n", " ")
    ((labels, _),) = samples(FAILED, [ended("f", ago=5, why='a\\"\nb')])
    assert labels["reason"] == 'a\\" b'


def test_only_what_waits_for_a_machine_needs_a_replacement() -> None:
    since = stamp_of(NOW - 600)
    rows = [
        operation("held", kind="Replace", phase="Acting", phase_since=since),
        operation("on-its-way", kind="Replace", phase="Draining", phase_since=since),
        operation("maintenance", kind="Maintenance", phase="Acting", phase_since=since),
    ]
    assert samples("kgpu_node_operation_needs_replacement_seconds", rows) == [
        ({"node": "n1", "operation": "held", "type": "Replace"}, 600)
    ]
