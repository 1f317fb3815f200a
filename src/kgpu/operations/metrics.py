"""The engine's metrics in Prometheus' text format."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Final

from kgpu.operations.model import Operation, UnreadableOperation

HEADS: Final = {
    "kgpu_node_operations": ("gauge", "NodeOperations by type and phase."),
    "kgpu_node_operations_served": ("gauge", "1 when the cluster has the kind NodeOperation."),
    "kgpu_node_operations_unreadable": ("gauge", "NodeOperations that this version can't read."),
    "kgpu_remediation_stopped": (
        "gauge",
        "1 while the breaker is open: verdicts lead to nothing until a person has looked.",
    ),
    "kgpu_node_operation_writes_total": ("counter", "Writes that the engine has asked the API server for."),
}


def figures(
    operations: Sequence[Operation], unreadable: Sequence[UnreadableOperation], writes: Mapping[str, int], *,
    served: bool, breaker: bool,
) -> str:  # fmt: skip
    """All the engine's metric families as one text."""
    phases = Counter((str(operation.type), str(operation.phase)) for operation in operations)
    rows = {
        "kgpu_node_operations": [
            (f'{{type="{kind}",phase="{phase}"}}', count) for (kind, phase), count in sorted(phases.items())
        ],
        "kgpu_node_operations_served": [("", int(served))],
        "kgpu_node_operations_unreadable": [("", len(unreadable))],
        "kgpu_remediation_stopped": [("", int(breaker))],
        "kgpu_node_operation_writes_total": [(f'{{what="{what}"}}', count) for what, count in sorted(writes.items())],
    }
    return "".join(_family(name, samples) for name, samples in rows.items())


def _family(name: str, samples: Sequence[tuple[str, int]]) -> str:
    kind, text = HEADS[name]
    lines = [
        f"# HELP {name} {text}",
        f"# TYPE {name} {kind}",
        *(f"{name}{labels} {value}" for labels, value in samples),
    ]
    return "\n".join(lines) + "\n"
