"""On which nodes a DaemonSet's pods belong, which to create and delete now, and the status. Pure."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from kgpu.fit import read
from kgpu.fit.selectors import tolerated
from kgpu.kube.port import Object, Resource, name_of
from kgpu.lab.embedded.controllers.deployment_plan import resolve
from kgpu.lab.embedded.controllers.meta import (
    annotations_of,
    copy_of,
    created_at,
    generation_of,
    labels_of,
    owner_reference,
    spec_of,
    status_of,
    uid_of,
)
from kgpu.lab.embedded.controllers.pods import is_available, is_ready, node_of, phase_of, pod_from_template
from kgpu.lab.embedded.controllers.revisions import HASH
from kgpu.lab.embedded.controllers.taints import (
    DISK_PRESSURE,
    MEMORY_PRESSURE,
    NETWORK_UNAVAILABLE,
    NOT_READY,
    PID_PRESSURE,
    UNREACHABLE,
    UNSCHEDULABLE,
    taint,
    taints_of,
    toleration,
)

GENERATION: Final = "pod-template-generation"
_GENERATION_ANNOTATION: Final = "deprecated.daemonset.template.generation"
_NAME: Final = "metadata.name"
_TOLERATIONS: Final = (
    (NOT_READY, "NoExecute"),
    (UNREACHABLE, "NoExecute"),
    (DISK_PRESSURE, "NoSchedule"),
    (MEMORY_PRESSURE, "NoSchedule"),
    (PID_PRESSURE, "NoSchedule"),
    (UNSCHEDULABLE, "NoSchedule"),
)


def daemon_tolerations(spec: Object) -> list[Object]:
    """The pod's tolerations with those that every daemon pod has."""
    found = list(spec.get("tolerations") or ())
    rows = [*_TOLERATIONS, *([(NETWORK_UNAVAILABLE, "NoSchedule")] if spec.get("hostNetwork") else [])]
    for key, effect in rows:
        one = {"key": key, "operator": "Exists", "effect": effect}
        same = [
            position
            for position, old in enumerate(found)
            if all((old.get(part) or "") == one.get(part, "") for part in ("key", "effect", "operator", "value"))
        ]
        if same:
            found[same[0]] = one
        else:
            found.append(one)
    return found


def _required(affinity: Object | None) -> Any:
    nodes = (affinity or {}).get("nodeAffinity") or {}
    return nodes.get("requiredDuringSchedulingIgnoredDuringExecution")


def for_node(affinity: Object | None, node: str) -> Object:
    """The affinity that lets the scheduler take this one node only."""
    fields = [{"key": _NAME, "operator": "In", "values": [node]}]
    terms = (_required(affinity) or {}).get("nodeSelectorTerms") or [{}]
    required = {"nodeSelectorTerms": [{**term, "matchFields": fields} for term in terms]}
    affinity = affinity or {}
    nodes = {**(affinity.get("nodeAffinity") or {}), "requiredDuringSchedulingIgnoredDuringExecution": required}
    return {**affinity, "nodeAffinity": nodes}


def target_node(pod: Object) -> str:
    """The node that a daemon pod is on, or is meant for."""
    if node_of(pod):
        return node_of(pod)
    for term in (_required(spec_of(pod).get("affinity")) or {}).get("nodeSelectorTerms") or ():
        for one in term.get("matchFields") or ():
            if one.get("key") == _NAME and one.get("operator") == "In" and len(one.get("values") or ()) == 1:
                return str(one["values"][0])
    return ""


def new_pod(kind: Resource, ds: Object, node: str, found: str) -> Object:
    """The daemon pod of a node; ``found`` is the hash of the present revision."""
    pod = pod_from_template(spec_of(ds).get("template") or {}, ds, owner_reference(kind, ds))
    spec = pod["spec"]
    spec["tolerations"] = daemon_tolerations(spec)
    spec["affinity"] = for_node(copy_of(spec.get("affinity")), node)
    labels = pod["metadata"].setdefault("labels", {})
    generation = annotations_of(ds).get(_GENERATION_ANNOTATION)
    if generation:
        labels[GENERATION] = generation
    labels[HASH] = found
    return pod


class Placement:
    """Where a DaemonSet's pods belong: its template's selector, affinity and tolerations, read once."""

    def __init__(self, ds: Object) -> None:
        spec = (spec_of(ds).get("template") or {}).get("spec") or {}
        self._node = spec.get("nodeName") or ""
        self._selector = (spec.get("nodeSelector") or {}).items()
        self._terms = read.node_terms(_required(spec.get("affinity")))
        self._tolerations = tuple(toleration(one) for one in daemon_tolerations(spec))

    def of(self, node: Object) -> tuple[bool, bool]:
        """Whether a pod shall run there, and whether one that is there may stay."""
        name, labels = name_of(node), labels_of(node)
        if self._node and self._node != name:
            return False, False
        if not self._selector <= labels.items():
            return False, False
        if self._terms is not None and not any(term.matches(labels, name) for term in self._terms):
            return False, False
        bad = [
            one
            for one in map(taint, taints_of(node))
            if one.effect in ("NoSchedule", "NoExecute") and not tolerated(one, self._tolerations)
        ]
        return not bad, all(one.effect != "NoExecute" for one in bad)


@dataclass(slots=True)
class DaemonSetStep:
    """Nodes that need a pod, and pods to delete with what to say about it (type, reason, message), if anything."""

    create: list[str] = field(default_factory=list)
    delete: list[Object] = field(default_factory=list)
    said: list[tuple[str, str, str]] = field(default_factory=list)
    failed: list[str] = field(default_factory=list)
    """Nodes whose pod has failed and is deleted."""


@dataclass(slots=True)
class ObservedDaemonSet:
    """One look at a DaemonSet. ``pods`` by node, without the ended ones that are being deleted."""

    ds: Object
    nodes: Sequence[Object]
    pods: Mapping[str, Sequence[Object]]
    gone: frozenset[str]
    """Uids of pods that are being deleted."""
    hash: str
    now: dt.datetime
    placement: Placement = field(init=False)
    places: dict[str, tuple[bool, bool]] = field(init=False)

    def __post_init__(self) -> None:
        self.placement = Placement(self.ds)
        self.places = {name_of(node): self.placement.of(node) for node in self.nodes}

    @property
    def min_ready(self) -> int:
        return int(spec_of(self.ds).get("minReadySeconds") or 0)

    def available(self, pod: Object) -> bool:
        return is_available(pod, self.min_ready, self.now)

    def updated(self, pod: Object) -> bool:
        """It has the present template."""
        generation = annotations_of(self.ds).get(_GENERATION_ANNOTATION)
        labels = labels_of(pod)
        return bool(generation and labels.get(GENERATION) == generation) or labels.get(HASH) == self.hash

    def live(self, node: str) -> list[Object]:
        """The node's pods that are not being deleted, oldest first, scheduled ones before others."""
        found = [pod for pod in self.pods.get(node, ()) if uid_of(pod) not in self.gone]
        return sorted(found, key=lambda pod: (not node_of(pod), created_at(pod), name_of(pod)))


def surge_and_unavailable(ds: Object, desired: int) -> tuple[int, int]:
    """In pods; both 0 makes the latter 1."""
    rolling = (spec_of(ds).get("updateStrategy") or {}).get("rollingUpdate") or {}
    surge = resolve(rolling.get("maxSurge", 0), desired, up=True)
    unavailable = resolve(rolling.get("maxUnavailable", 1), desired, up=True)
    return surge, unavailable if unavailable or surge else 1


def plan(seen: ObservedDaemonSet, waiting: Iterable[str] = ()) -> DaemonSetStep:
    """Bring each node to one pod. ``waiting``: nodes whose failed pod is not replaced yet."""
    step = DaemonSetStep()
    surges = surge_and_unavailable(seen.ds, 1)[0] > 0
    patient = frozenset(waiting)
    for name, (run, stay) in seen.places.items():
        pods = seen.pods.get(name, ())
        if run and not pods:
            step.create.append(name)
        elif stay and pods:
            _tidy(seen, name, step, surges=surges, patient=name in patient, run=run)
        elif pods:
            step.delete += seen.live(name)
    for name, pods in seen.pods.items():
        if name not in seen.places:
            step.delete += [pod for pod in pods if not node_of(pod) and uid_of(pod) not in seen.gone]
    return step


def _tidy(seen: ObservedDaemonSet, name: str, step: DaemonSetStep, *, surges: bool, patient: bool, run: bool) -> None:
    """A node that has pods: remove ended ones and those too many."""
    running = []
    for pod in seen.live(name):
        where = f"{pod['metadata'].get('namespace')}/{name_of(pod)} on node {name}"
        if phase_of(pod) == "Failed":
            if not patient:
                text = f"Found failed daemon pod {where}, will try to kill it"
                step.said.append(("Warning", "FailedDaemonPod", text))
                step.delete.append(pod)
                step.failed.append(name)
        elif phase_of(pod) == "Succeeded":
            step.said.append(
                ("Normal", "SucceededDaemonPod", f"Found succeeded daemon pod {where}, will try to delete it")
            )
            step.delete.append(pod)
        else:
            running.append(pod)
    if not surges:
        step.delete += running[1:]
        return
    if not running and run and not any(pod in step.delete for pod in seen.pods.get(name, ())):
        step.create.append(name)
    if len(running) <= 1:
        return
    new = next((pod for pod in running if seen.updated(pod)), None)
    old = next((pod for pod in running if not seen.updated(pod)), None)
    step.delete += [pod for pod in running if pod is not new and pod is not old]
    if new is not None and old is not None and (not is_ready(old) or seen.available(new)):
        step.delete.append(old)


def plan_update(seen: ObservedDaemonSet) -> DaemonSetStep:
    """Replace pods of old templates, as many at once as the strategy allows."""
    step = DaemonSetStep()
    desired = sum(run for run, _ in seen.places.values())
    surge, max_unavailable = surge_and_unavailable(seen.ds, desired)
    if surge:
        return _plan_surge(seen, surge)
    unavailable = 0
    candidates: list[Object] = []
    for name in seen.pods:
        live = seen.live(name)
        new = [pod for pod in live if seen.updated(pod)]
        old = [pod for pod in live if not seen.updated(pod)]
        if len(live) != 1:
            unavailable += 1
        elif new:
            unavailable += not seen.available(new[0])
        elif not seen.available(old[0]):
            step.delete.append(old[0])
            unavailable += 1
        else:
            candidates.append(old[0])
    step.delete += candidates[: max(0, max_unavailable - unavailable)]
    return step


def _plan_surge(seen: ObservedDaemonSet, surge: int) -> DaemonSetStep:
    """New pods beside the old ones; an old one goes when its successor is available."""
    step = DaemonSetStep()
    busy = 0
    candidates: list[str] = []
    for name in seen.pods:
        live = seen.live(name)
        new = [pod for pod in live if seen.updated(pod)]
        old = [pod for pod in live if not seen.updated(pod)]
        if len(new) > 1 or len(old) > 1:
            busy += 1
        elif old and new:
            if seen.available(new[0]):
                step.delete.append(old[0])
            else:
                busy += 1
        elif old:
            run = seen.places.get(name, (False, False))[0]
            if not run:
                step.delete += [] if seen.available(old[0]) else old
            elif not seen.available(old[0]):
                step.create.append(name)
            else:
                candidates.append(name)
    step.create += candidates[: max(0, surge - busy)]
    return step


def plan_status(seen: ObservedDaemonSet) -> Object:
    """Counts by node."""
    desired = current = misscheduled = ready = updated = available = 0
    for name, (run, _) in seen.places.items():
        pods = sorted(seen.pods.get(name, ()), key=lambda pod: (not node_of(pod), created_at(pod), name_of(pod)))
        desired += run
        if not pods:
            continue
        if not run:
            misscheduled += 1
            continue
        current += 1
        ready += is_ready(pods[0])
        available += seen.available(pods[0])
        updated += seen.updated(pods[0])
    optional = {
        "updatedNumberScheduled": updated,
        "numberAvailable": available,
        "numberUnavailable": desired - available,
    }
    status: Object = {
        "currentNumberScheduled": current,
        "numberMisscheduled": misscheduled,
        "desiredNumberScheduled": desired,
        "numberReady": ready,
        "observedGeneration": generation_of(seen.ds),
        **{key: value for key, value in optional.items() if value},
    }
    kept: Object = {
        key: status_of(seen.ds)[key] for key in ("collisionCount", "conditions") if key in status_of(seen.ds)
    }
    return {**status, **kept}
