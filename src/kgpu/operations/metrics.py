"""The engine's metrics in Prometheus' text format.

Few operations are named, those that a person may have to look at, so that a thousand that wait add no series. Every
replica of the operator says the same: queries take the maximum.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Final, TypeAlias

from kgpu.base.metric_text import head, label_text, page
from kgpu.base.printable import one_line
from kgpu.formats.crd.nodeoperation import OperationPhase
from kgpu.operations.model import Operation, TargetNode, UnreadableOperation, moment_of

HEADS: Final = {
    "kgpu_node_operations": ("gauge", "NodeOperations by type and phase."),
    "kgpu_node_operations_ended": ("gauge", "NodeOperations on record that have ended, by type, result and reason."),
    "kgpu_node_operations_served": ("gauge", "1 when the cluster has the kind NodeOperation."),
    "kgpu_node_operations_unreadable": ("gauge", "NodeOperations that this version can't read."),
    "kgpu_node_operation_held_seconds": ("gauge", "How long each operation that has begun has held its node."),
    "kgpu_node_operation_overdue_seconds": (
        "gauge",
        "How far each operation that has begun is beyond the limit of its phase; 0 within it, none without one.",
    ),
    "kgpu_node_operation_unapproved_seconds": ("gauge", "How long each operation has waited for approval."),
    "kgpu_node_operation_needs_replacement_seconds": (
        "gauge",
        "How long each node has been held empty until its machine is replaced.",
    ),
    "kgpu_node_operation_failed_timestamp_seconds": (
        "gauge",
        "When operations of the last day failed, while no later one on the same node has succeeded.",
    ),
    "kgpu_nodes_held": ("gauge", "Nodes on which the engine has set anything, such as a cordon."),
    "kgpu_remediation_stopped": (
        "gauge",
        "1 while the breaker is open: verdicts lead to nothing until a person has looked.",
    ),
    "kgpu_node_operation_writes_total": ("counter", "Writes that the engine has asked the API server for."),
}
MOST_NAMED: Final = 50
"""The most operations that one metric names."""
DAY: Final = 86400.0
_MAX_LABEL: Final = 253

Sample: TypeAlias = tuple[Mapping[str, str], float]
"""Labels and value."""


def figures(
    operations: Sequence[Operation], unreadable: Sequence[UnreadableOperation], writes: Mapping[str, int], *,
    nodes: Collection[TargetNode], now: float, served: bool, breaker: bool,
) -> str:  # fmt: skip
    """All the engine's metric families as one text. ``now`` is in seconds since 1970."""
    begun = [operation for operation in operations if operation.begun]
    unapproved = [one for one in operations if one.phase is OperationPhase.PENDING and not one.spec.approved]
    rows: dict[str, list[Sample]] = {
        "kgpu_node_operations": _by_phase(operations),
        "kgpu_node_operations_ended": _by_result(operations),
        "kgpu_node_operations_served": [({}, served)],
        "kgpu_node_operations_unreadable": [({}, len(unreadable))],
        "kgpu_node_operation_held_seconds": _named(begun, lambda one: _since(one.status.started_at, now)),
        "kgpu_node_operation_overdue_seconds": _named(
            begun, lambda one: _since(one.status.phase_deadline, now), phase=True
        ),
        "kgpu_node_operation_unapproved_seconds": _named(unapproved, lambda one: max(0.0, now - one.created)),
        "kgpu_node_operation_needs_replacement_seconds": _named(
            [one for one in begun if one.waits_for_machine], lambda one: _since(one.status.phase_since, now)
        ),
        "kgpu_node_operation_failed_timestamp_seconds": _named(
            failed_lately(operations, now), lambda one: moment_of(one.status.completed_at), reason=True
        ),
        "kgpu_nodes_held": [({}, sum(node.held for node in nodes))],
        "kgpu_remediation_stopped": [({}, breaker)],
        "kgpu_node_operation_writes_total": [({"what": what}, count) for what, count in sorted(writes.items())],
    }
    return "".join(_family(name, samples) for name, samples in rows.items())


def _by_phase(operations: Iterable[Operation]) -> list[Sample]:
    counts = Counter((str(operation.type), str(operation.phase)) for operation in operations)
    return [({"type": kind, "phase": phase}, count) for (kind, phase), count in sorted(counts.items())]


def _by_result(operations: Iterable[Operation]) -> list[Sample]:
    ended = (operation for operation in operations if operation.ended)
    counts = Counter((str(one.type), str(one.status.result), one.status.reason) for one in ended)
    return [
        ({"type": kind, "result": result, "reason": reason}, count)
        for (kind, result, reason), count in sorted(counts.most_common(MOST_NAMED))
    ]


def failed_lately(operations: Sequence[Operation], now: float) -> list[Operation]:
    """Those that failed within a day, while none that ended later has succeeded on the same node."""
    ended = sorted(
        (operation for operation in operations if operation.ended),
        key=lambda one: moment_of(one.status.completed_at) or 0.0,
    )
    failed: dict[str, list[Operation]] = {}
    for operation in ended:
        if operation.status.result == "Succeeded":
            failed.pop(operation.node, None)
        elif operation.phase is OperationPhase.FAILED and (_since(operation.status.completed_at, now) or 0.0) < DAY:
            failed.setdefault(operation.node, []).append(operation)
    return [operation for of_node in failed.values() for operation in of_node]


def _since(stamp: str | None, now: float) -> float | None:
    """The seconds since then, 0 if it is to come; None for no time."""
    moment = moment_of(stamp)
    return None if moment is None else max(0.0, now - moment)


def _named(
    operations: Iterable[Operation], value: Callable[[Operation], float | None], *, phase: bool = False,
    reason: bool = False,
) -> list[Sample]:  # fmt: skip
    """A sample for each operation that has a value, for the highest ``MOST_NAMED`` of them."""
    samples: list[Sample] = []
    for operation in operations:
        figure = value(operation)
        if figure is not None:
            labels = {"node": operation.node, "operation": operation.name, "type": str(operation.type)}
            labels |= {"phase": str(operation.phase)} if phase else {}
            samples.append((labels | ({"reason": operation.status.reason} if reason else {}), figure))
    return sorted(samples, key=lambda sample: (-sample[1], sample[0]["operation"]))[:MOST_NAMED]


def _family(name: str, samples: Sequence[Sample]) -> str:
    kind, text = HEADS[name]
    return page((*head(name, kind, text), *(f"{name}{_labels(labels)} {int(value)}" for labels, value in samples)))


def _labels(labels: Mapping[str, str]) -> str:
    """Names of nodes and reasons are whatever somebody wrote into a record."""
    return label_text(**{key: one_line(value, _MAX_LABEL) for key, value in labels.items()})
