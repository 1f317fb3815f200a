"""Workloads with another number of pods: which go first, and which come, as the controllers of Kubernetes do it. Pure.

A StatefulSet's pods have numbers, and the highest go. Of the others' those go first that have no node, have not
started or are not ready; then the cheaper by their annotation, those that share a node with most of their kind, and
the youngest (pkg/controller, ActivePodsWithRanks). Ages count exactly, where the controllers take those of one order
of magnitude for equal.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Final

from kgpu.base.errors import ConfigError
from kgpu.base.plain import items, mapping, number, strings, text
from kgpu.base.printable import one_line
from kgpu.base.suggest import did_you_mean
from kgpu.base.times import moment_of
from kgpu.fit import PodView
from kgpu.placement import workloads
from kgpu.placement.model import Origin, PodToPlace, ScaleWorkload
from kgpu.placement.state import Object, PlacementState

DELETION_COST: Final = "controller.kubernetes.io/pod-deletion-cost"
_PHASES: Final = ("Pending", "Unknown", "Running")
_NUMBERED: Final = "StatefulSet"
_DIGITS: Final = 9
_SHOWN: Final = 5


def apply(state: PlacementState, change: ScaleWorkload) -> str:
    """End pods of the workload, or let new ones wait. Raises ConfigError for a workload that is not there."""
    where = f"{change.namespace}/{change.kind}/{change.name}"
    if not 0 <= change.replicas <= workloads.MAX_PODS:
        raise ConfigError(f"{where}={change.replicas}", f"0 to {workloads.MAX_PODS} pods", "correct --scale")
    obj = state.get(change.kind, change.name, change.namespace)
    pods = workloads.pods_of_workload(state, change.namespace, change.kind, change.name)
    if obj is None and not pods:
        known = [f"{space}/{change.kind}/{name}" for space, name in state.objects.get(change.kind, {})]
        near = did_you_mean(where, known)
        raise ConfigError(
            f"there is no {one_line(where, 120)}" + (f"; {near}" if near else ""), "NAMESPACE/KIND/NAME of a workload",
            "correct --scale",
        )  # fmt: skip
    going = ending(state, pods, change)
    for pod in going:
        state.end(pod)
    ended = {pod.id for pod in going}
    state.waiting = [row for row in state.waiting if row.pod.id not in ended]
    left = [pod for pod in pods if pod.id not in ended]
    for name in _missing(change, left, _first_number(obj)):
        state.waiting.append(PodToPlace(pod=_one_more(state, obj, pods, change, name), origin=Origin.SCALED))
    return f"scale {where} from {len(pods)} to {change.replicas}{_told(going)}"


def _told(going: Sequence[PodView]) -> str:
    if not going:
        return ""
    more = f" and {len(going) - _SHOWN} more" if len(going) > _SHOWN else ""
    return f", which ends {', '.join(pod.name for pod in going[:_SHOWN])}{more}"


def ending(state: PlacementState, pods: Sequence[PodView], change: ScaleWorkload) -> list[PodView]:
    """Those of the workload's pods that go."""
    if change.kind == _NUMBERED:
        first = _first_number(state.get(change.kind, change.name, change.namespace))
        going = (pod for pod in pods if not first <= _number(pod) < first + change.replicas)
        return sorted(going, key=_number, reverse=True)
    return first_to_go(state, pods)[: max(0, len(pods) - change.replicas)]


def first_to_go(state: PlacementState, pods: Sequence[PodView]) -> list[PodView]:
    """The pods, first to go first."""
    beside = Counter(pod.node for pod in pods)

    def key(pod: PodView) -> tuple[object, ...]:
        obj = state.pod_object(pod)
        status = mapping(obj.get("status"))
        phase = text(status.get("phase"))
        since = _ready_since(status)
        return (
            bool(pod.node),
            _PHASES.index(phase) if phase in _PHASES else 0,
            bool(since),
            _cost(obj),
            -beside[pod.node],
            -_seconds(since),
            -_restarts(status),
            -_seconds(pod.created),
            pod.uid,
        )

    return sorted(pods, key=key)


def _ready_since(status: Object) -> str:
    """When the pod became ready, "" for one that is not."""
    for row in map(mapping, items(status.get("conditions"))):
        if row.get("type") == "Ready" and row.get("status") == "True":
            return text(row.get("lastTransitionTime")) or "unknown"
    return ""


def _seconds(when: str) -> float:
    """Since the epoch; 0 for a time that can't be read."""
    try:
        moment = moment_of(when)
        return moment.timestamp() if moment else 0.0
    except OverflowError:
        return 0.0


def _cost(obj: Object) -> int:
    value = strings(mapping(obj.get("metadata")).get("annotations")).get(DELETION_COST, "")
    digits = value.removeprefix("-")
    return int(value) if digits.isascii() and digits.isdecimal() and len(digits) <= _DIGITS + 1 else 0


def _restarts(status: Object) -> int:
    rows = map(mapping, items(status.get("containerStatuses")))
    return max((number(row.get("restartCount")) for row in rows), default=0)


def _first_number(obj: Object | None) -> int:
    return max(0, number(mapping(mapping(mapping(obj).get("spec")).get("ordinals")).get("start")))


def _number(pod: PodView) -> int:
    """A StatefulSet's pod's, -1 where its name has none."""
    digits = pod.name.rpartition("-")[2]
    return int(digits) if digits.isascii() and digits.isdecimal() and len(digits) <= _DIGITS else -1


def _missing(change: ScaleWorkload, left: Sequence[PodView], first: int) -> Iterator[str]:
    """The names of those that come."""
    if change.kind == _NUMBERED:
        there = {pod.name for pod in left}
        names = (f"{change.name}-{at}" for at in range(first, first + change.replicas))
        yield from (name for name in names if name not in there)
    else:
        yield from (f"{change.name}-new-{at}" for at in range(len(left), change.replicas))


def _one_more(
    state: PlacementState, obj: Object | None, pods: Sequence[PodView], change: ScaleWorkload, name: str
) -> PodView:
    spec = mapping(mapping(obj).get("spec"))
    template = mapping(spec.get("template"))
    if template:
        claims = map(mapping, items(spec.get("volumeClaimTemplates")))
        key, owner = (change.namespace, name), f"{change.kind}/{change.name}"
        return workloads.made_pod(state, template, key, owner=owner, claims=claims)
    if pods and change.kind != _NUMBERED:
        return state.copy_of(pods[-1], name, state.pod_object(pods[-1]))
    raise ConfigError(
        f"the pods of {change.namespace}/{change.kind}/{change.name} are not known: it has none, and no template",
        "a workload with spec.template", "give its pods' manifest with -f",
    )  # fmt: skip
