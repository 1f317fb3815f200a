"""Pods for controllers: whether one is ended, ready or available, which to delete first, a new one from a template.

The order of deletion and the meaning of available are kube-controller-manager's (controller_utils). Pure.
"""

from __future__ import annotations

import datetime as dt
import math
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Final

from kgpu.base.times import moment_of
from kgpu.kube.port import Object, annotations_of, name_of
from kgpu.lab.embedded.controllers.meta import condition, created_at, spec_of, status_of, uid_of

TERMINAL: Final = frozenset({"Succeeded", "Failed"})
DELETION_COST: Final = "controller.kubernetes.io/pod-deletion-cost"
_PHASES: Final = {"Pending": 0, "Unknown": 1, "Running": 2}
_MAX_PREFIX: Final = 253 - 5  # characters; the API adds five to a generateName


def phase_of(pod: Object) -> str:
    return str(status_of(pod).get("phase") or "")


def node_of(pod: Object) -> str:
    return str(spec_of(pod).get("nodeName") or "")


def is_terminal(pod: Object) -> bool:
    return phase_of(pod) in TERMINAL


def is_ready(pod: Object) -> bool:
    ready = condition(pod, "Ready")
    return ready is not None and ready.get("status") == "True"


def ready_since(pod: Object) -> dt.datetime | None:
    ready = condition(pod, "Ready")
    return moment_of(ready.get("lastTransitionTime")) if ready is not None and ready.get("status") == "True" else None


def available_in(pod: Object, min_ready: int, now: dt.datetime) -> float | None:
    """Seconds until a ready pod counts as available, 0 when it does, None when it isn't ready."""
    if not is_ready(pod):
        return None
    if min_ready <= 0:
        return 0.0
    since = ready_since(pod)
    return None if since is None else max(0.0, min_ready - (now - since).total_seconds())


def is_available(pod: Object, min_ready: int, now: dt.datetime) -> bool:
    return available_in(pod, min_ready, now) == 0


def next_available(pods: Iterable[Object], min_ready: int, now: dt.datetime) -> float | None:
    """Seconds until the next ready pod becomes available."""
    waits = [wait for pod in pods if (wait := available_in(pod, min_ready, now))]
    return min(waits, default=None)


# Which one goes first


def _restarts(pod: Object) -> tuple[int, int]:
    """The most restarts of a container, and of a sidecar."""
    status = status_of(pod)
    sidecars = {
        container.get("name")
        for container in spec_of(pod).get("initContainers") or ()
        if container.get("restartPolicy") == "Always"
    }
    regular = max(
        (int(container.get("restartCount") or 0) for container in status.get("containerStatuses") or ()), default=0
    )
    sidecar = max(
        (int(container.get("restartCount") or 0) for container in status.get("initContainerStatuses") or ()
         if container.get("name") in sidecars),
        default=0,
    )  # fmt: skip
    return regular, sidecar


def _cost(pod: Object) -> int:
    try:
        return int(annotations_of(pod).get(DELETION_COST, "0"))
    except ValueError:
        return 0


def _age_step(at: dt.datetime | None, now: dt.datetime) -> int:
    """log2 of the age in nanoseconds, -1 for none: ages of one order count as the same."""
    age = (now - at).total_seconds() * 1e9 if at else 0
    return int(math.log2(age)) if age > 0 else -1


def deletion_order(pods: Sequence[Object], related: Iterable[Object], now: dt.datetime) -> list[Object]:
    """The pods, first to go first: unassigned, pending, not ready, cheap, doubled up on a node, lately ready, often
    restarted, young. ``related`` are all pods of the same owner's sets, for the doubling up.
    """
    on_node = Counter(
        node_of(pod) for pod in related if not is_terminal(pod) and not pod["metadata"].get("deletionTimestamp")
    )

    def key(pod: Object) -> tuple[object, ...]:
        regular, sidecar = _restarts(pod)
        return (
            bool(node_of(pod)),
            _PHASES.get(phase_of(pod), 0),
            is_ready(pod),
            _cost(pod),
            -on_node[node_of(pod)],
            _age_step(ready_since(pod), now) if is_ready(pod) else 0,
            -regular,
            -sidecar,
            _age_step(moment_of(created_at(pod)), now),
            uid_of(pod),
        )

    return sorted(pods, key=key)


# New ones


def pod_prefix(owner: str) -> str:
    """The generateName of an owner's pods; a long owner's name is used without the dash, as the real one does."""
    prefix = f"{owner}-"
    return prefix if len(prefix) <= _MAX_PREFIX else owner


def pod_from_template(template: Object, owner: Object, reference: Object) -> Object:
    """A pod to create; shares the template's parts, so it is only for sending."""
    metadata = template.get("metadata") or {}
    pod_metadata: Object = {
        "generateName": pod_prefix(name_of(owner)),
        "namespace": owner["metadata"].get("namespace", ""),
        "labels": dict(metadata.get("labels") or {}),
        "annotations": dict(metadata.get("annotations") or {}),
        "finalizers": list(metadata.get("finalizers") or ()),
        "ownerReferences": [reference],
    }
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {key: value for key, value in pod_metadata.items() if value},
        "spec": dict(template.get("spec") or {}),
    }
