"""Pods out of manifests and workloads: what a controller would make of an object, and whose pods there are.

Admission's part is done for what scheduling sees: priority classes, a LimitRange's defaults for containers, overhead
of a RuntimeClass. Kinds without a pod template that is known are refused.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Iterator
from typing import Any, Final

from kgpu.base.errors import ConfigError
from kgpu.base.plain import items, mapping, number, text
from kgpu.base.printable import one_line
from kgpu.base.suggest import did_you_mean
from kgpu.fit import PodView, read
from kgpu.placement.pod_sets import HELD_IN, pod_sets
from kgpu.placement.state import Key, Object, PlacementState
from kgpu.placement.volumes import claims_of

MAX_PODS: Final = 20_000
"""The most pods of one question."""
MADE_OF: Final = (
    "Pod", "Deployment", "ReplicaSet", "StatefulSet", "Job", "CronJob", "JobSet", "LeaderWorkerSet", "PyTorchJob",
    "TFJob", "XGBoostJob", "PaddleJob", "MPIJob", "JAXJob",
)  # fmt: skip
"""The kinds that pods are made of, by ``pod_sets``."""
BESIDE: Final = (
    "ResourceClaimTemplate", "ResourceClaim", "PriorityClass", "PersistentVolumeClaim", "ConfigMap", "Secret",
    "Service", "ServiceAccount", "Namespace", "PodGroup", "Workload",
)  # fmt: skip
"""Kinds that may come with pods in a file: some of them matter to scheduling, the others make no pods."""


def own_name(obj: Object) -> str:
    """An object's name, or how the one that it gets begins."""
    metadata = mapping(obj.get("metadata"))
    return text(metadata.get("name")) or text(metadata.get("generateName")).rstrip("-")


def pods_of_manifest(state: PlacementState, obj: Object, namespace: str, run: int) -> list[PodView]:
    """The pods that the object becomes. ``run`` keeps the names of several copies apart. Raises ConfigError."""
    kind, name = text(obj.get("kind")), own_name(obj)
    if kind not in MADE_OF:
        near = did_you_mean(kind, MADE_OF)
        raise ConfigError(
            f"kind {one_line(kind, 60) or '(none)'} makes no pods that are known here" + (f"; {near}" if near else ""),
            f"one of {', '.join(MADE_OF)}; beside them {', '.join(BESIDE)}", "write the pods themselves, with --count",
        )  # fmt: skip
    if not name:
        raise ConfigError(f"a {kind} has no name", "metadata.name", "give it one")
    if (field := HELD_IN.get(kind, "")) and not mapping(obj.get("spec")).get(field):
        raise ConfigError(f"{kind} {name} has no pods in it", f"spec.{field}, which has them", "correct the manifest")
    space = text(mapping(obj.get("metadata")).get("namespace")) or namespace
    sets = pod_sets(obj, f"{name}-{run}" if run else name)
    if (many := sum(one.count for one in sets)) > MAX_PODS or min([0, *(one.count for one in sets)]) < 0:
        raise ConfigError(f"{kind} {name} asks for {many} pods", f"0 to {MAX_PODS}", "correct how many it asks for")
    if len(sets) > MAX_PODS:
        raise ConfigError(f"{kind} {name} is in too many parts", f"at most {MAX_PODS}", "ask for fewer")
    return [
        made_pod(
            state, one.template, (space, one.name if one.alone else f"{one.name}-{at}"), owner=one.owner,
            claims=one.claims,
        )
        for one in sets for at in range(one.count)
    ]  # fmt: skip


def made_pod(
    state: PlacementState, template: Object, key: Key, *, owner: str = "", claims: Iterable[Object] = ()
) -> PodView:
    """A pod of a template, as admission leaves it, with the volume claims that are made for it of these templates.
    Raises ConfigError where it has no containers.
    """
    namespace, name = key
    spec = copy.deepcopy(dict(mapping(template.get("spec"))))
    if not items(spec.get("containers")):
        raise ConfigError(f"{name} has no containers", "spec.containers of a pod", "correct the manifest")
    spec.pop("nodeName", None) if owner else None
    made, spec["volumes"] = claims_of(spec, claims, name)
    for claim in made:
        if state.get("PersistentVolumeClaim", text(mapping(claim.get("metadata")).get("name")), namespace) is None:
            state.bring({**claim, "metadata": {**mapping(claim.get("metadata")), "namespace": namespace}})
    _prioritise(state, spec)
    _default(state, spec, namespace)
    _overhead(state, spec)
    metadata = {**mapping(template.get("metadata")), "name": name, "namespace": namespace}
    if owner:
        kind, _, of = owner.partition("/")
        metadata["ownerReferences"] = [{"kind": kind, "name": of, "controller": True}]
    obj = {"kind": "Pod", "metadata": metadata, "spec": spec}
    view = read.pod(obj)
    assert view is not None
    return state.copy_of(view, name, obj)


def _prioritise(state: PlacementState, spec: dict[str, Any]) -> None:
    classes = state.objects.get("PriorityClass", {})
    name = text(spec.get("priorityClassName"))
    found = classes.get(("", name)) if name else None
    if not name:
        found = next((one for one in classes.values() if one.get("globalDefault") is True), None)
    if found is not None:
        spec["priority"] = number(found.get("value"))
        spec.setdefault("preemptionPolicy", text(found.get("preemptionPolicy")) or "PreemptLowerPriority")
    elif name and not name.startswith("system-"):
        state.unknown_classes.add(name)


def _default(state: PlacementState, spec: dict[str, Any], namespace: str) -> None:
    """What a LimitRange gives to containers that say nothing."""
    for obj in state.objects.get("LimitRange", {}).values():
        if text(mapping(obj.get("metadata")).get("namespace")) != namespace:
            continue
        for row in map(mapping, items(mapping(obj.get("spec")).get("limits"))):
            if row.get("type") == "Container":
                for container in _containers(spec):
                    _fill(container, mapping(row.get("default")), mapping(row.get("defaultRequest")))


def _fill(container: dict[str, Any], limits: Object, requests: Object) -> None:
    had = mapping(container.get("resources"))
    asked, bound = dict(mapping(had.get("requests"))), dict(mapping(had.get("limits")))
    for name, amount in requests.items():
        if name not in asked and name not in bound:
            asked[name] = amount
    for name, amount in limits.items():
        bound.setdefault(name, amount)
    container["resources"] = {**had, "requests": asked, "limits": bound}


def _containers(spec: dict[str, Any]) -> Iterator[dict[str, Any]]:
    for field in ("containers", "initContainers"):
        yield from (row for row in items(spec.get(field)) if isinstance(row, dict))


def _overhead(state: PlacementState, spec: dict[str, Any]) -> None:
    found = state.get("RuntimeClass", text(spec.get("runtimeClassName")))
    fixed = mapping(mapping(mapping(found).get("overhead")).get("podFixed"))
    if fixed and "overhead" not in spec:
        spec["overhead"] = dict(fixed)


def pods_of_workload(state: PlacementState, namespace: str, kind: str, name: str) -> list[PodView]:
    """The pods of a controller, without those that end already; of a Deployment those of its ReplicaSets."""
    owners = {f"{kind}/{name}"}
    if kind == "Deployment":
        for (space, own), obj in state.objects.get("ReplicaSet", {}).items():
            if space == namespace and read.owner_of(mapping(obj.get("metadata"))) == f"Deployment/{name}":
                owners.add(f"ReplicaSet/{own}")
    pods = [pod for pod in state.snapshot.pods.values() if pod.namespace == namespace and pod.owner in owners]
    return sorted((pod for pod in pods if not pod.deleting), key=lambda pod: (pod.created, pod.name))
