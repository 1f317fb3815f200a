"""What a breakage touches, read off its steps: two that touch the same thing of the same node or object exclude each
other, and so do two that together ask for more GPUs of a node than it has to spare.

Nothing here knows a breakage by its name. Each step gives things that it changes and things that it stands on: another
breakage may stand on the same, but not change it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias

from kgpu.base.quantity import Quantity
from kgpu.formats import names
from kgpu.kube.port import Object
from tests.doctor.lab.breaking import Break, Change, Conditioned, Gone, HostFile, KernelLine, Make, Until
from tests.doctor.lab.breaks.operated import OPERATOR
from tests.doctor.lab.labs import FIRST, PLAIN, SMALL
from tests.doctor.lab.things import GPU

Thing: TypeAlias = tuple[str, ...]
SPARE: Final = {FIRST: 4, SMALL: 2}
"""GPUs that the healthy work leaves over."""
WHOLE: Final = 100
"""More GPUs than any node has: for what changes how all of a node's GPUs are offered."""
_TEMPLATES: Final = ("Deployment", "StatefulSet", "DaemonSet", "ReplicaSet", "Job")
_OF_CLAIMS: Final = ("ResourceSlice", "ResourceClaim", "DeviceClass")
_SETTINGS: Final = (("ClusterPolicy", ""), ("ConfigMap", OPERATOR))
"""Where an operator's settings stand, by kind and namespace: all of them together are one thing."""
_HOSTNAME: Final = "kubernetes.io/hostname"


@dataclass(slots=True)
class Touched:
    """``gpus``: how many of a node's GPUs it takes, or may take. ``given``: what namespaces give to every container."""

    changed: set[Thing] = field(default_factory=set)
    stood_on: set[Thing] = field(default_factory=set)
    gpus: Counter[str] = field(default_factory=Counter)
    given: dict[str, str | int] = field(default_factory=dict)


def touched(broken: Break) -> Touched:
    """What a breakage touches with all of its steps."""
    found = Touched()
    for step in broken.steps:
        _BY_STEP.get(type(step), _of_hardware)(step, found)
    return found


def exclude(first: Touched, second: Touched) -> bool:
    """Whether two breakages can't be in one lab at once."""
    if first.changed & (second.changed | second.stood_on) or second.changed & first.stood_on:
        return True
    both = first.gpus.keys() & second.gpus.keys()
    return any(first.gpus[node] + second.gpus[node] > SPARE.get(node, 0) for node in both)


def _of_make(step: Make, found: Touched) -> None:
    for obj in step.objects:
        if obj["kind"] == "LimitRange":
            rows = obj["spec"]["limits"]
            found.given[obj["metadata"]["namespace"]] = next(
                (row["default"].get(GPU, 0) for row in rows if "default" in row), 0
            )
    for obj in step.objects:
        _of_object(obj, found)


def _of_object(obj: Object, found: Touched) -> None:
    kind, metadata = obj["kind"], obj["metadata"]
    found.changed.add(_thing(kind, metadata.get("namespace", ""), metadata["name"]))
    if kind in _OF_CLAIMS:
        found.changed.add(("devices for claims",))
    if kind == "DaemonSet":
        # A part of a stack: a second one of its kind is no neighbour, but a fault of its own.
        found.changed.add(("part", obj["spec"]["selector"]["matchLabels"]["app"]))
    spec, times = obj.get("spec") or {}, 1
    if kind in _TEMPLATES:
        times = int(spec.get("replicas", spec.get("parallelism", 1)))
        spec = spec["template"]["spec"]
    elif kind != "Pod":
        return
    _of_pods(spec, times, found, given=found.given.get(metadata["namespace"], 0))


def _of_pods(spec: Object, times: int, found: Touched, given: str | int) -> None:
    """``given``: GPUs that a container of the namespace gets without asking."""
    asked = Counter[str]()
    for container in spec["containers"]:
        amounts = (container.get("resources") or {}).get("limits") or {GPU: given}
        for name, amount in amounts.items():
            asked[name] += Quantity.parse(amount).value * times
    if spec.get("resourceClaims"):
        found.changed.add(("devices for claims",))
    here = spec.get("nodeName") or (spec.get("nodeSelector") or {}).get(_HOSTNAME)
    nodes = (here,) if here else (FIRST, SMALL, PLAIN)
    for node in nodes:
        found.stood_on |= {("open", node), ("Node", "", node)}
        found.stood_on |= {("offer", node, name) for name in asked}
        found.stood_on |= {("label", node, key) for key in _labels(spec)}
        if asked[GPU] and node in SPARE:
            found.gpus[node] += asked[GPU]


def _labels(spec: Object) -> Iterator[str]:
    """The labels of nodes that a pod asks for."""
    yield from spec.get("nodeSelector") or ()
    for term in (
        _at(spec, "affinity", "nodeAffinity", "requiredDuringSchedulingIgnoredDuringExecution", "nodeSelectorTerms")
        or ()
    ):
        yield from (row["key"] for row in term.get("matchExpressions") or ())


def _of_change(step: Change, found: Touched) -> None:
    if step.kind != "Node":
        found.changed.add(_of_path(step.kind, step.path))
        return
    node = step.path
    labels = _at(step.change, "metadata", "labels") or {}
    found.changed |= {("label", node, key) for key in labels}
    if names.DEVICE_PLUGIN_CONFIG_LABEL in labels:
        found.stood_on.add(("settings",))
    if node in SPARE and any(key.startswith("nvidia.com/") for key in labels):
        found.gpus[node] += WHOLE  # such a label is an order to the node's agent
    if step.change.get("spec"):
        found.changed.add(("open", node))
    for part, values in (step.change.get("status") or {}).items():
        if part in ("capacity", "allocatable"):
            found.changed |= {("offer", node, name) for name, amount in values.items() if amount is not None}
        else:
            found.changed.add((part, node))


def _of_until(step: Until, found: Touched) -> None:
    if step.kind == "Node" and step.path in SPARE:
        found.gpus[step.path] += WHOLE  # it waits for the node to offer something else
    else:
        found.stood_on.add(_of_path(step.kind, step.path))


def _of_condition(step: Conditioned, found: Touched) -> None:
    found.changed.add(("condition", step.node, step.type))


def _of_gone(step: Gone, found: Touched) -> None:
    found.changed.add(_of_path(step.kind, step.path))


def _of_file(step: HostFile, found: Touched) -> None:
    found.changed.add(("file", step.node, step.path))


def _of_line(step: KernelLine, found: Touched) -> None:
    """Lines stand beside each other."""


def _of_hardware(step: Any, found: Touched) -> None:
    """A fault takes a GPU away; what is about no single one may take them all."""
    number = step.gpu if hasattr(step, "gpu") else getattr(step, "about", {}).get("gpu")
    found.gpus[step.node] += WHOLE if number is None else 1
    if number is not None:
        found.changed.add(("gpu", step.node, str(number)))


def _thing(kind: str, namespace: str, name: str) -> Thing:
    return ("settings",) if (kind, namespace) in _SETTINGS else (kind, namespace, name)


def _of_path(kind: str, path: str) -> Thing:
    namespace, _, name = path.rpartition("/")
    return _thing(kind, namespace, name)


def _at(value: Any, *keys: str) -> Any:
    for key in keys:
        value = (value or {}).get(key)
    return value


_BY_STEP: Final[dict[type, Callable[[Any, Touched], None]]] = {
    Make: _of_make, Change: _of_change, Until: _of_until, Conditioned: _of_condition, Gone: _of_gone,
    HostFile: _of_file, KernelLine: _of_line,
}  # fmt: skip
