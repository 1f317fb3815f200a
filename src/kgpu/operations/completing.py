"""Pods that a drain waits for before it asks any pod to go: ``drain.waitFor``. Pure.

Jobs that would lose hours of work get the time to end by themselves. Their time is not the drain's: that begins once
they have ended, or their time is over.
"""

from __future__ import annotations

from typing import Any

from kgpu.fit.selector_text import parse_selector
from kgpu.formats.crd.nodeoperation import WAITING_FOR_PODS, OperationPhase
from kgpu.operations.drain import NAMED
from kgpu.operations.model import NodePod, Operation, Step
from kgpu.operations.records import COMPLETED, Condition, condition_of, over, record, tell
from kgpu.operations.world import World


def refusal(operation: Operation) -> str:
    """Which of the drain's selectors can't be read and why, "" if all can."""
    drain = operation.spec.drain
    texts = {"podSelector": drain.pod_selector}
    if drain.wait_for is not None:
        texts["waitFor.podSelector"] = drain.wait_for.pod_selector
    for field, text in texts.items():
        if error := parse_selector(text).error:
            return f"spec.drain.{field} can't be read: {error}; expected: labels such as app=training,tier!=web"
    return ""


def draining(operation: Operation, *, waits: bool = False) -> dict[str, Any]:
    """What a record of the phase Draining says as it begins: at first, with ``waits``, of pods that are waited for."""
    drain = operation.spec.drain
    phase = {"phase": OperationPhase.DRAINING}
    if waits and drain.wait_for is not None:
        limit = float(drain.wait_for.timeout_seconds) or None
        why = "pods that have to complete are waited for"
        return {**phase, "limit": limit, "reason": WAITING_FOR_PODS, "message": why}
    limit = float(drain.timeout_seconds)
    return {**phase, "limit": limit, "reason": "Draining", "message": "the node is being emptied"}


def awaited(operation: Operation, world: World, pods: tuple[NodePod, ...]) -> Step | None:
    """The step while pods are waited for, and the one that ends it; None once that is on record."""
    wait = operation.spec.drain.wait_for
    if wait is None or condition_of(operation, COMPLETED) is not None:
        return None
    selector = parse_selector(wait.pod_selector)
    left = [pod for pod in pods if not pod.ended and selector.matches(pod.labels)]
    if left and not over(operation, world):
        return tell(operation, world, f"it waits until pods have completed: {_named(left)}")
    why = f"after {wait.timeout_seconds} s these had not completed: {_named(left)}" if left else ""
    ended: Condition = (COMPLETED, "False", "TimeOver", why) if left else (COMPLETED, "True", "Completed", "")
    return record(operation, world, ended, **draining(operation))


def _named(pods: list[NodePod]) -> str:
    names = sorted(pod.where for pod in pods)
    more = f" and {len(names) - NAMED} more" if len(names) > NAMED else ""
    return ", ".join(names[:NAMED]) + more
