"""Rollouts: operations of one name that have a budget of their own within that of all, and stop after failures. Pure.

What has failed for the same driver on one node after the other would fail on the next, too. Only operations that have
not begun are held back. One that succeeds, another driver, or a person who lets one begin sets the rollout going again.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Final

from kgpu.base.errors import ConfigError
from kgpu.base.printable import one_line
from kgpu.formats.crd.nodeoperation import ROLLOUT_STOPPED, OperationPhase, OperationRollout, Result
from kgpu.operations.config import MAX_NODES, Share, read_share
from kgpu.operations.drain import NAMED
from kgpu.operations.model import Operation, moment_of
from kgpu.operations.world import AdmissionVerdict

WAITS: Final = "WaitsForRollout"
_MAX_CAUSE: Final = 600
"""Characters of each failure: the names come first in it, and what the driver's container said last."""


def limit_of(rollout: OperationRollout, total: int) -> int:
    """How many of ``total`` nodes may be down; one that can't be read allows none. A number has no upper bound."""
    given = rollout.max_unavailable
    try:
        share = read_share(min(given, MAX_NODES) if isinstance(given, int) else given, "maxUnavailable")
    except ConfigError:
        share = Share()
    return share.of(max(1, total))


class Rollouts:
    """The rollouts during one round of admission: ``total`` nodes count, and those in ``down`` are down."""

    def __init__(self, operations: Iterable[Operation], total: int) -> None:
        self._total = total
        self._held: dict[str, set[str]] = {}
        self._ended: dict[tuple[str, str], list[Operation]] = {}
        self._failed: dict[tuple[str, str], list[Operation]] = {}
        for operation in operations:
            rollout = operation.spec.rollout
            if rollout is not None and operation.begun:
                self._held.setdefault(rollout.name, set()).add(operation.node)
            elif rollout is not None and operation.ended:
                self._ended.setdefault((rollout.name, _digest(operation)), []).append(operation)

    def refused(self, operation: Operation, down: Collection[str]) -> AdmissionVerdict | None:
        """Why the rollout does not let it begin now, None if it does or there is none."""
        rollout = operation.spec.rollout
        if rollout is None:
            return None
        if why := self._stopped(operation, rollout):
            return AdmissionVerdict(reason=ROLLOUT_STOPPED, why=why)
        held = self._held.get(rollout.name, set())
        limit = limit_of(rollout, self._total)
        full = 0 < rollout.max_parallel <= len(held)
        if full or len(held) >= limit or (len(down) >= limit and operation.node not in down):
            why = (
                f"it waits for others of its rollout {rollout.name} to end, or for nodes to be up again: "
                f"maxParallel is {rollout.max_parallel or 'any'}, maxUnavailable {rollout.max_unavailable}"
            )
            return AdmissionVerdict(reason=WAITS, why=why)
        return None

    def take(self, operation: Operation) -> None:
        """Count one that begins now."""
        if operation.spec.rollout is not None:
            self._held.setdefault(operation.spec.rollout.name, set()).add(operation.node)

    def _stopped(self, operation: Operation, rollout: OperationRollout) -> str:
        if not rollout.stop_after_failures or operation.spec.even_if_stopped:
            return ""
        key = rollout.name, _digest(operation)
        if key not in self._failed:  # worked out once for all that wait
            self._failed[key] = failed_in_a_row(self._ended.get(key, ()))
        failed = self._failed[key]
        if len(failed) < rollout.stop_after_failures:
            return ""
        rows = "; ".join(f"{row.node}: {one_line(row.status.message, _MAX_CAUSE)}" for row in failed[:NAMED])
        return (
            f"the rollout {rollout.name} has stopped after {len(failed)} failures in a row ({rows}); once the cause is "
            f"gone, let one begin: kgpu operations approve {operation.name}"
        )


def failed_in_a_row(ended: Iterable[Operation]) -> list[Operation]:
    """Those that failed since one succeeded, the last first. What was cancelled, overtaken, or refused before it began
    says nothing: whoever may only ask for operations could stop a rollout with it.
    """
    found: list[Operation] = []
    for operation in sorted(ended, key=lambda row: (_end(row), row.name), reverse=True):
        if operation.phase is OperationPhase.COMPLETE and Result(operation.status.result) is Result.SUCCEEDED:
            break
        if operation.phase is OperationPhase.FAILED and operation.status.started_at:
            found.append(operation)
    return found


def _end(operation: Operation) -> float:
    return moment_of(operation.status.completed_at) or operation.created


def _digest(operation: Operation) -> str:
    return operation.spec.driver.digest if operation.spec.driver is not None else ""
