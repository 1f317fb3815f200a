"""On which nodes a DaemonSet's pods belong, which to create and delete now, and the status. Pure."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from kgpu.fit import read
from kgpu.fit.selectors import tolerated
from kgpu.kube.port import Object, Resource, annotations_of, labels_of, name_of
from kgpu.lab.embedded.controllers.deployment_plan import resolve
from kgpu.lab.embedded.controllers.meta import (
    copy_of,
    created_at,
    generation_of,
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
    tolerations = list(spec.get("tolerations") or ())
    rows = [*_TOLERATIONS, *([(NETWORK_UNAVAILABLE, "NoSchedule")] if spec.get("hostNetwork") else [])]
    for key, effect in rows:
        wanted = {"key": key, "operator": "Exists", "effect": effect}
        same = [
            position
            for position, old in enumerate(tolerations)
            if all((old.get(part) or "") == wanted.get(part, "") for part in ("key", "effect", "operator", "value"))
        ]
        if same:
            tolerations[same[0]] = wanted
        else:
            tolerations.append(wanted)
    return tolerations


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
        for rule in term.get("matchFields") or ():
            if rule.get("key") == _NAME and rule.get("operator") == "In" and len(rule.get("values") or ()) == 1:
                return str(rule["values"][0])
    return ""


def new_pod(kind: Resource, ds: Object, node: str, revision: str) -> Object:
    """The daemon pod of a node; ``revision`` is the hash of the present revision."""
    pod = pod_from_template(spec_of(ds).get("template") or {}, ds, owner_reference(kind, ds))
    spec = pod["spec"]
    spec["tolerations"] = daemon_tolerations(spec)
    spec["affinity"] = for_node(copy_of(spec.get("affinity")), node)
    labels = pod["metadata"].setdefault("labels", {})
    generation = annotations_of(ds).get(_GENERATION_ANNOTATION)
    if generation:
        labels[GENERATION] = generation
    labels[HASH] = revision
    return pod


class Placement:
    """Where a DaemonSet's pods belong: its template's selector, affinity and tolerations, read once."""

    def __init__(self, ds: Object) -> None:
        spec = (spec_of(ds).get("template") or {}).get("spec") or {}
        self._node = spec.get("nodeName") or ""
        self._selector = (spec.get("nodeSelector") or {}).items()
        self._terms = read.node_terms(_required(spec.get("affinity")))
        self._tolerations = tuple(toleration(entry) for entry in daemon_tolerations(spec))

    def of(self, node: Object) -> tuple[bool, bool]:
        """Return (whether a pod should run on the node, whether a running one may stay)."""
        name, labels = name_of(node), labels_of(node)
        if self._node and self._node != name:
            return False, False
        if not self._selector <= labels.items():
            return False, False
        if self._terms is not None and not any(term.matches(labels, name) for term in self._terms):
            return False, False
        bad = [
            node_taint
            for node_taint in map(taint, taints_of(node))
            if node_taint.effect in ("NoSchedule", "NoExecute") and not tolerated(node_taint, self._tolerations)
        ]
        return not bad, all(node_taint.effect != "NoExecute" for node_taint in bad)


@dataclass(slots=True)
class DaemonSetStep:
    """Nodes that need a pod, and pods to delete with the Events about them (type, reason, message)."""

    create: list[str] = field(default_factory=list)
    delete: list[Object] = field(default_factory=list)
    events: list[tuple[str, str, str]] = field(default_factory=list)
    failed: list[str] = field(default_factory=list)
    """Nodes whose pod has failed and is deleted."""


@dataclass(slots=True)
class ObservedDaemonSet:
    """The observed state of a DaemonSet. ``pods`` by node, without the ended ones that are being deleted."""

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
        """Whether it has the present template."""
        generation = annotations_of(self.ds).get(_GENERATION_ANNOTATION)
        labels = labels_of(pod)
        return bool(generation and labels.get(GENERATION) == generation) or labels.get(HASH) == self.hash

    def live(self, node: str) -> list[Object]:
        """The node's pods that are not being deleted, oldest first, scheduled ones before others."""
        pods = [pod for pod in self.pods.get(node, ()) if uid_of(pod) not in self.gone]
        return sorted(pods, key=lambda pod: (not node_of(pod), created_at(pod), name_of(pod)))


def surge_and_unavailable(ds: Object, desired: int) -> tuple[int, int]:
    """(maxSurge, maxUnavailable) in pods; if both are 0 the latter is 1."""
    rolling = (spec_of(ds).get("updateStrategy") or {}).get("rollingUpdate") or {}
    surge = resolve(rolling.get("maxSurge", 0), desired, up=True)
    unavailable = resolve(rolling.get("maxUnavailable", 1), desired, up=True)
    return surge, unavailable if unavailable or surge else 1


def plan(observed: ObservedDaemonSet, waiting: Iterable[str] = ()) -> DaemonSetStep:
    """Bring each node to one pod. ``waiting``: nodes whose failed pod is not replaced yet."""
    step = DaemonSetStep()
    surges = surge_and_unavailable(observed.ds, 1)[0] > 0
    patient = frozenset(waiting)
    for name, (run, stay) in observed.places.items():
        pods = observed.pods.get(name, ())
        if run and not pods:
            step.create.append(name)
        elif stay and pods:
            _tidy(observed, name, step, surges=surges, patient=name in patient, run=run)
        elif pods:
            step.delete += observed.live(name)
    for name, pods in observed.pods.items():
        if name not in observed.places:
            step.delete += [pod for pod in pods if not node_of(pod) and uid_of(pod) not in observed.gone]
    return step


def _tidy(
    observed: ObservedDaemonSet, name: str, step: DaemonSetStep, *, surges: bool, patient: bool, run: bool
) -> None:
    """On a node with pods, remove ended and surplus ones."""
    running = []
    for pod in observed.live(name):
        where = f"{pod['metadata'].get('namespace')}/{name_of(pod)} on node {name}"
        if phase_of(pod) == "Failed":
            if not patient:
                text = f"Found failed daemon pod {where}, will try to kill it"
                step.events.append(("Warning", "FailedDaemonPod", text))
                step.delete.append(pod)
                step.failed.append(name)
        elif phase_of(pod) == "Succeeded":
            step.events.append(
                ("Normal", "SucceededDaemonPod", f"Found succeeded daemon pod {where}, will try to delete it")
            )
            step.delete.append(pod)
        else:
            running.append(pod)
    if not surges:
        step.delete += running[1:]
        return
    if not running and run and not any(pod in step.delete for pod in observed.pods.get(name, ())):
        step.create.append(name)
    if len(running) <= 1:
        return
    new = next((pod for pod in running if observed.updated(pod)), None)
    old = next((pod for pod in running if not observed.updated(pod)), None)
    step.delete += [pod for pod in running if pod is not new and pod is not old]
    if new is not None and old is not None and (not is_ready(old) or observed.available(new)):
        step.delete.append(old)


def plan_update(observed: ObservedDaemonSet) -> DaemonSetStep:
    """Replace pods of old templates, as many at once as the strategy allows."""
    step = DaemonSetStep()
    desired = sum(run for run, _ in observed.places.values())
    surge, max_unavailable = surge_and_unavailable(observed.ds, desired)
    if surge:
        return _plan_surge(observed, surge)
    unavailable = 0
    candidates: list[Object] = []
    for name in observed.pods:
        live = observed.live(name)
        new = [pod for pod in live if observed.updated(pod)]
        old = [pod for pod in live if not observed.updated(pod)]
        if len(live) != 1:
            unavailable += 1
        elif new:
            unavailable += not observed.available(new[0])
        elif not observed.available(old[0]):
            step.delete.append(old[0])
            unavailable += 1
        else:
            candidates.append(old[0])
    step.delete += candidates[: max(0, max_unavailable - unavailable)]
    return step


def _plan_surge(observed: ObservedDaemonSet, surge: int) -> DaemonSetStep:
    """New pods beside the old ones; an old one goes when its successor is available."""
    step = DaemonSetStep()
    busy = 0
    candidates: list[str] = []
    for name in observed.pods:
        live = observed.live(name)
        new = [pod for pod in live if observed.updated(pod)]
        old = [pod for pod in live if not observed.updated(pod)]
        if len(new) > 1 or len(old) > 1:
            busy += 1
        elif old and new:
            if observed.available(new[0]):
                step.delete.append(old[0])
            else:
                busy += 1
        elif old:
            run = observed.places.get(name, (False, False))[0]
            if not run:
                step.delete += [] if observed.available(old[0]) else old
            elif not observed.available(old[0]):
                step.create.append(name)
            else:
                candidates.append(name)
    step.create += candidates[: max(0, surge - busy)]
    return step


def plan_status(observed: ObservedDaemonSet) -> Object:
    """Counts by node."""
    desired = current = misscheduled = ready = updated = available = 0
    for name, (run, _) in observed.places.items():
        pods = sorted(observed.pods.get(name, ()), key=lambda pod: (not node_of(pod), created_at(pod), name_of(pod)))
        desired += run
        if not pods:
            continue
        if not run:
            misscheduled += 1
            continue
        current += 1
        ready += is_ready(pods[0])
        available += observed.available(pods[0])
        updated += observed.updated(pods[0])
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
        "observedGeneration": generation_of(observed.ds),
        **{key: value for key, value in optional.items() if value},
    }
    kept: Object = {
        key: status_of(observed.ds)[key] for key in ("collisionCount", "conditions") if key in status_of(observed.ds)
    }
    return {**status, **kept}
