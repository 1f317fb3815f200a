"""Whether the node takes a pod that was bound to it: the kubelet's own checks (v1.35), pure, in its words.

Resources, node selector and affinity, host ports; taints are not the kubelet's to check. Extended resources that the
node does not have at all are left to the device manager.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from kgpu.fit import read
from kgpu.fit.model import PodView
from kgpu.fit.resources import amounts, nanos
from kgpu.formats.names import OS_LABEL
from kgpu.kube.port import Object

_FIRST: Final = ("pods", "cpu", "memory", "ephemeral-storage")

UNRECORDED: Final = "The devices of this pod are not known any more: the node's device checkpoint was corrupted"


@dataclass(frozen=True, slots=True)
class PodRejection:
    """Why the pod is rejected: reason and message, as the pod's status shows them."""

    reason: str
    message: str


def check(
    pod: Object, *, node: str, labels: Mapping[str, str], allocatable: Mapping[str, str], others: Iterable[Object]
) -> PodRejection | None:
    """None when the pod may run here beside ``others``, which are admitted and not over."""
    view = read.pod(pod)
    if view is None:
        return PodRejection("UnexpectedAdmissionError", "the pod can't be read")
    spec = pod["spec"]
    if (spec.get("os") or {}).get("name", "linux") != "linux":
        return PodRejection("PodOSNotSupported", "Failed to admit pod as the OS field doesn't match node OS")
    if (pod["metadata"].get("labels") or {}).get(OS_LABEL, "linux") != "linux":
        text = "Failed to admit pod as the `kubernetes.io/os` label doesn't match node label"
        return PodRejection("PodOSSelectorNodeLabelDoesNotMatch", text)
    held = [held_view for held_pod in others if (held_view := read.pod(held_pod)) is not None]
    short = _resources(view, allocatable, held)
    if short is not None:
        return short
    if not _matches(view, labels, node):
        return _predicate("NodeAffinity", "node(s) didn't match Pod's node affinity/selector")
    if view.node != node:
        return _predicate("NodeName", "node(s) didn't match the requested node name")
    if any(mine.clashes(theirs) for mine in view.ports for neighbour in held for theirs in neighbour.ports):
        return _predicate("NodePorts", "node(s) didn't have free ports for the requested pod ports")
    return None


def _predicate(name: str, text: str) -> PodRejection:
    return PodRejection(name, f"Predicate {name} failed: {text}")


def _resources(pod: PodView, allocatable: Mapping[str, str], held: list[PodView]) -> PodRejection | None:
    problems: list[str] = []
    has = amounts(nanos(allocatable, problems))
    names = [*_FIRST, *sorted(name for name in pod.requests if name not in _FIRST)]
    for name in names:
        wanted = 1 if name == "pods" else pod.requests.get(name, 0)
        if not wanted or (name not in has and name not in _FIRST):
            continue
        used = len(held) if name == "pods" else sum(neighbour.used.get(name, 0) for neighbour in held)
        if wanted > has.get(name, 0) - used:
            text = f"Node didn't have enough resource: {name}, requested: {wanted}, used: {used}, capacity: "
            return PodRejection(f"OutOf{name}", f"{text}{has.get(name, 0)}")
    return None


def _matches(pod: PodView, labels: Mapping[str, str], node: str) -> bool:
    if any(labels.get(key) != value for key, value in pod.node_selector):
        return False
    terms = pod.node_terms
    return terms is None or any(term.matches(labels, node) for term in terms)


def device_wants(container: Mapping[str, Any], known: Iterable[str]) -> dict[str, int]:
    """What a container asks of the device plugins that the node has."""
    limits = ((container.get("resources") or {}).get("limits")) or {}
    requests = ((container.get("resources") or {}).get("requests")) or {}
    problems: list[str] = []
    wanted = amounts(nanos({**requests, **limits}, problems))
    return {name: wanted[name] for name in known if wanted.get(name)}
