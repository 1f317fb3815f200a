"""What ``kgpu status`` says of operations on nodes: those that are not over, those that failed, and the breaker.

It costs one or two lists. A cluster without the kind is nothing to tell of unless its operator has operations on.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from kgpu.base.printable import counted

if TYPE_CHECKING:
    from kgpu.operations.model import Operation, UnreadableOperation
    from kgpu.operator.watching import WatchedCluster

    Operations = tuple[Operation | UnreadableOperation, ...]

MOST_ROWS: Final = 15


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeOperations:
    """``stopped`` is why remediation has stopped, and ``unknown`` why nothing is known of operations; "" otherwise."""

    unended: Operations = ()
    failed: tuple[Operation, ...] = ()
    """Those of the last day, while no later one on the same node has succeeded."""
    stopped: str = ""
    unknown: str = ""
    remedy: str = ""
    """What to do about ``stopped`` or ``unknown``."""

    def as_data(self) -> dict[str, Any]:
        """For JSON."""
        from kgpu.cli._operations import as_data

        return {
            "operations": [as_data(row) for row in self.unended],
            "failed_operations": [as_data(row) for row in self.failed],
            "remediation_stopped": self.stopped,
            "operations_unknown": self.unknown,
            "operations_remedy": self.remedy,
        }

    def lines(self, now: float) -> list[str]:
        """As the screen shows them; empty if there is nothing to tell."""
        waiting = sum(_waits_for_approval(row) for row in self.unended)
        some = "which" if len(self.unended) == 1 else f"{waiting} of which"
        wait = f", {some} {'waits' if waiting == 1 else 'wait'} for approval" if waiting else ""
        many = counted(len(self.unended), "operation on a node", "operations on nodes")
        lines = _section(f"{many}{wait}:", self.unended, now)
        failed = counted(len(self.failed), "operation has", "operations have")
        lines += _section(f"{failed} failed within a day:", self.failed, now)
        lines += self._machines()
        if self.stopped:
            lines.append(f"✘ kgpu begins no operation on its own: {self.stopped}")
        if self.unknown:
            lines.append(f"not known: operations on nodes: {self.unknown}")
        return [*lines, *([f"    to do: {self.remedy}"] if self.remedy else [])]

    def _machines(self) -> list[str]:
        """The nodes whose machines have to be replaced."""
        from kgpu.operations.model import Operation

        waiting = [row for row in self.unended if isinstance(row, Operation) and row.waits_for_machine]
        if not waiting:
            return []
        what = "the machine of this node has" if len(waiting) == 1 else f"the machines of {len(waiting)} nodes have"
        shown = ", ".join(row.node for row in waiting[:MOST_ROWS])
        more = f" and {len(waiting) - MOST_ROWS} more" if len(waiting) > MOST_ROWS else ""
        return [
            f"✘ {what} to be replaced: {shown}{more}",
            f"    to do: kgpu operations show {waiting[0].name}",
        ]


async def read_operations(api: WatchedCluster, namespace: str) -> NodeOperations:
    """How operations are doing; ``namespace`` is the operator's. What can't be read is told, and no error."""
    from kgpu.base.errors import KubeError
    from kgpu.kube.port import KubeRefusedError
    from kgpu.operations.metrics import failed_lately
    from kgpu.operations.model import Operation
    from kgpu.operations.requests import known_operations
    from kgpu.operator.cluster_reading import operations_on

    try:
        rows = await known_operations(api)
    except KubeError as error:
        if not await operations_on(api, namespace):
            return NodeOperations()
        # Refused, where the kind is there.
        return NodeOperations(unknown=error.what, remedy="" if isinstance(error, KubeRefusedError) else error.remedy)
    readable = [row for row in rows if isinstance(row, Operation)]
    stopped = await _stopped(api, namespace)
    return NodeOperations(
        unended=tuple(row for row in rows if not isinstance(row, Operation) or not row.ended),
        failed=tuple(failed_lately(readable, time.time())),
        stopped=stopped,
        remedy=_go_on(namespace) if stopped else "",
    )


async def _stopped(api: WatchedCluster, namespace: str) -> str:
    """Why remediation has stopped, "" while it has not or this can't be read."""
    from kgpu.base.plain import mapping, text
    from kgpu.base.printable import one_line
    from kgpu.formats import names
    from kgpu.formats.crd.nodeoperation import MAX_TEXT
    from kgpu.kube.port import CONFIG_MAPS, KubeRefusedError, Selector

    named = Selector.named(names.REMEDIATION_CONFIG_MAP)
    try:
        listing = await api.list(CONFIG_MAPS, namespace=namespace, selector=named)
    except KubeRefusedError:  # the overview says that these can't be read
        return ""
    for obj in listing.items:
        return one_line(text(mapping(obj.get("data")).get("open")), MAX_TEXT) or "it was stopped by hand"
    return ""


def _go_on(namespace: str) -> str:
    from kgpu.formats import names

    how = f"kubectl --namespace {namespace} delete configmap {names.REMEDIATION_CONFIG_MAP}"
    return f"see what these nodes have in common; then {how}"


def _section(head: str, rows: Operations, now: float) -> list[str]:
    from kgpu.cli._operations import table

    if not rows:
        return []
    shown, more = rows[:MOST_ROWS], len(rows) - MOST_ROWS
    rest = [f"  and {more} more; kgpu operations list --all has them all"] if more > 0 else []
    return [head, *(f"  {line}" for line in table(shown, now)[1:]), *rest]


def _waits_for_approval(row: Operation | UnreadableOperation) -> bool:
    from kgpu.operations.model import Operation

    return isinstance(row, Operation) and not row.begun and not row.ended and not row.spec.approved
