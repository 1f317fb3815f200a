"""Nodes to add: copies of one that is there, or of a type that another node or the table of instance types has.

A copy has the labels and taints that its kind of node always has, and what DaemonSets run on it; not those of the one
machine. What is assumed about it is said.
"""

from __future__ import annotations

import csv
import functools
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from kgpu.base.errors import ConfigError
from kgpu.base.plain import mapping, text
from kgpu.base.printable import one_line
from kgpu.base.suggest import did_you_mean
from kgpu.fit.model import CPU, MEMORY, PODS, NodeView
from kgpu.formats import names
from kgpu.placement.model import NodeTemplate
from kgpu.placement.state import PlacementState

INSTANCE_TYPES: Final = Path(__file__).with_name("instance_types.csv")
_GIB: Final = 1 << 30
_OVERHEAD: Final = 0.075
"""Of a machine's memory: what Karpenter sets aside for the hypervisor before it knows better."""
_PODS: Final = 110
_OF_KIND: Final = (
    names.KGPU_LABEL_MODEL_PREFIX, names.KGPU_LABEL_RDMA_LINK, names.KGPU_LABEL_RDMA_RATE, names.KGPU_LABEL_RDMA_PORTS,
    names.LABEL_VENDOR, names.LABEL_DEVICE_CONFIG, names.ALLOCATION_LABEL,
)  # fmt: skip
"""kgpu's labels that another machine of the kind has, too, as names or beginnings; the others are about one machine."""


@dataclass(frozen=True, slots=True, kw_only=True)
class InstanceType:
    """A cloud's machine. ``product`` is the label ``nvidia.com/gpu.product`` that its GPUs get. ``source`` is who says
    how large it is, and ``date`` when that was read.
    """

    provider: str
    name: str
    product: str
    gpus: int
    cpus: int
    memory_gib: int
    date: str
    source: str


@functools.cache
def instance_types() -> Mapping[str, InstanceType]:
    """By name."""
    with INSTANCE_TYPES.open(encoding="utf-8", newline="") as file:
        return {
            row["instanceType"]: InstanceType(
                provider=row["provider"], name=row["instanceType"], product=row["product"], gpus=int(row["gpus"]),
                cpus=int(row["cpus"]), memory_gib=int(row["memoryGiB"]),
                date=row["date"], source=row["source"],
            )
            for row in csv.DictReader(file)
        }  # fmt: skip


def template(state: PlacementState, wanted: str) -> NodeTemplate:
    """A node's name, else the type of a node that is there, else one of the table. Raises ConfigError."""
    states = state.snapshot.nodes
    if wanted in states:
        return of_node(state, states[wanted].view, f"node {wanted}")
    alike = [node.view for node in states.values() if instance_type(node.view) == wanted]
    if alike:
        model = min(alike, key=lambda node: (node.unschedulable, node.ready is False, node.name))
        return of_node(state, model, f"type {wanted}, as node {model.name}")
    known = instance_types().get(wanted)
    if known is not None:
        return _of_type(known)
    near = did_you_mean(wanted, [*states, *instance_types()])
    raise ConfigError(
        f"{one_line(wanted, 80)} is no node and no instance type that is known" + (f"; {near}" if near else ""),
        "the name of a node to copy, the instance type of one, or a type of kgpu's table",
        "correct --add-nodes: kubectl get nodes -L node.kubernetes.io/instance-type",
    )


def instance_type(node: NodeView) -> str:
    labels = node.labels
    return labels.get(names.LABEL_INSTANCE_TYPE) or labels.get(names.LABEL_INSTANCE_TYPE_BETA) or ""


def of_node(state: PlacementState, node: NodeView, what: str) -> NodeTemplate:
    """Copies of a node that is there."""
    daemons = tuple(
        pod for pod in state.snapshot.nodes[node.name].pods.values() if pod.owner.startswith("DaemonSet/")
    )  # fmt: skip
    view = replace(
        node, unschedulable=False, ready=True, deleting=False,
        labels={key: value for key, value in node.labels.items() if _is_of_kind(key)},
        taints=tuple(taint for taint in node.taints if not taint.key.startswith(names.PASSING_TAINTS)),
        allocatable={**node.allocatable, **_whole(node)},
    )  # fmt: skip
    spec = mapping(mapping(state.get("Node", node.name)).get("spec"))
    return NodeTemplate(what=what, view=view, daemons=daemons, provider_id=text(spec.get("providerID")))


def _is_of_kind(label: str) -> bool:
    if label == names.LABEL_HOSTNAME:
        return False
    return not label.startswith(f"{names.KGPU_DOMAIN}/") or label.startswith(_OF_KIND)


def _whole(node: NodeView) -> dict[str, int]:
    """A new node has no broken devices: of extended resources all that the other one has capacity for."""
    return {name: amount for name, amount in node.capacity.items() if "/" in name}


def _of_type(kind: InstanceType) -> NodeTemplate:
    memory = int(kind.memory_gib * _GIB * (1 - _OVERHEAD))
    amounts = {CPU: kind.cpus * 1000, MEMORY: memory, PODS: _PODS, names.GPU_RESOURCE: kind.gpus}
    labels = {
        names.LABEL_INSTANCE_TYPE: kind.name, names.LABEL_GPU_PRODUCT: kind.product,
        names.LABEL_GPU_COUNT: str(kind.gpus), names.LABEL_GPU_PRESENT: "true",
    }  # fmt: skip
    assumed = (
        f"{kind.name} is taken from kgpu's table: {kind.cpus} processors and {_OVERHEAD:.1%} less than "
        f"{kind.memory_gib} GiB ({kind.source}, {kind.date}), no taints, no zone and no DaemonSets' pods"
    )
    return NodeTemplate(
        what=f"type {kind.name}", view=NodeView(name="", labels=labels, allocatable=amounts, capacity=amounts,
                                                ready=True),
        provider_id=f"{kind.provider}://",
        assumed=(assumed,),
    )  # fmt: skip
