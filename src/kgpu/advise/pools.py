"""What autoscalers have to be told of a pool of GPU nodes, from what its nodes really offer. Pure.

An autoscaler that has no node of a pool to look at knows its machine type alone: no MIG slices, no shares, no labels,
no taints (kubernetes/autoscaler#8129, kubernetes-sigs/karpenter#729). The cluster autoscaler takes them from tags or
annotations of the node group, Karpenter from the NodePool and, for counts, a NodeOverlay.
"""

from __future__ import annotations

import enum
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from kgpu.base.plain import mapping, text
from kgpu.fit import NodeView, PodView, read
from kgpu.fit.model import CPU, MEMORY, PODS
from kgpu.fit.resources import say
from kgpu.formats import names
from kgpu.formats.accelerators import is_accelerator

Object = Mapping[str, Any]
NO_SCHEDULE: Final = "NoSchedule"
_ALWAYS: Final = (names.LABEL_GPU_PRODUCT, names.LABEL_MIG_STRATEGY, names.MIG_CONFIG_LABEL)
"""Labels that are told also where no pod of the cluster selects by them."""
_BUILT_IN: Final = ("kubernetes.io/", "beta.kubernetes.io/", "topology.kubernetes.io/", "node.kubernetes.io/")
"""Labels that autoscalers know by themselves, by their beginnings."""


class PoolKind(enum.StrEnum):
    """Who makes the nodes of a pool, and so in which form it is told."""

    KARPENTER = "karpenter"
    AWS = "aws"
    AZURE = "azure"
    GCE = "gce"
    CLUSTER_API = "cluster-api"


_BY_PROVIDER: Final = {"aws": PoolKind.AWS, "azure": PoolKind.AZURE, "gce": PoolKind.GCE}
ACCELERATOR_LABELS: Final[Mapping[PoolKind, str]] = {
    PoolKind.AWS: names.LABEL_AWS_ACCELERATOR,
    PoolKind.AZURE: names.LABEL_AZURE_ACCELERATOR,
    PoolKind.GCE: names.LABEL_GCE_ACCELERATOR,
    PoolKind.CLUSTER_API: names.LABEL_CAPI_ACCELERATOR,
}
"""The label by which the cluster autoscaler takes a young node without GPUs for one that is not ready yet."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolFacts:
    """A pool as its nodes show it. ``resources`` are accelerators by what most of its nodes offer, ``unlike`` the nodes
    that offer others; ``selected`` labels by which pods of the cluster select nodes, with the pool's values.
    """

    name: str
    kind: PoolKind
    nodes: tuple[str, ...]
    resources: Mapping[str, int]
    basic: Mapping[str, str]
    labels: Mapping[str, str]
    taints: tuple[tuple[str, str, str], ...]
    unlike: tuple[str, ...] = ()
    instance_types: tuple[str, ...] = ()
    accelerator: str = ""

    @property
    def tainted(self) -> bool:
        """Whether pods without GPUs are kept off."""
        return any(effect in (NO_SCHEDULE, "NoExecute") for _, _, effect in self.taints)

    @property
    def hidden(self) -> tuple[str, ...]:
        """What the machine type does not show: slices and shares."""
        return tuple(name for name in self.resources if name != names.GPU_RESOURCE)


def pools(objects: Iterable[Object]) -> dict[str, list[Object]]:
    """The Nodes by pool, of those that have a pool's label."""
    found: dict[str, list[Object]] = {}
    for obj in objects:
        labels = mapping(mapping(obj.get("metadata")).get("labels")) if obj.get("kind") == "Node" else {}
        name = next((text(labels[key]) for key in names.NODE_POOL_LABELS if labels.get(key)), "")
        if name:
            found.setdefault(name, []).append(obj)
    return found


def facts(name: str, nodes: Iterable[Object], pods: Iterable[Object]) -> PoolFacts:
    """What there is to tell of a pool; at least one node."""
    rows = sorted(nodes, key=lambda obj: text(mapping(obj.get("metadata")).get("name")))
    views = [view for obj in rows if (view := read.node(obj)) is not None]
    offers = Counter(_offer(view) for view in views)
    offer = max(offers, key=lambda one: (bool(one), offers[one], one))
    alike = [view for view in views if _offer(view) == offer]
    model = alike[0]
    wanted = {*_ALWAYS, *_selected(pods)}
    labels = {
        key: value for key, value in sorted(model.labels.items())
        if key in wanted and not key.startswith(_BUILT_IN) and key not in names.NODE_POOL_LABELS
        and all(other.labels.get(key) == value for other in alike)
    }  # fmt: skip
    kind = _kind(rows[0])
    return PoolFacts(
        name=name, kind=kind, nodes=tuple(view.name for view in views), resources=dict(offer),
        basic={one: say(one, model.allocatable.get(one, 0)) for one in (CPU, MEMORY, PODS)},
        labels=labels, taints=tuple(_taints(alike)),
        unlike=tuple(view.name for view in views if _offer(view) != offer),
        instance_types=tuple(sorted({one for view in views if (one := view.labels.get(names.LABEL_INSTANCE_TYPE))})),
        accelerator=model.labels.get(ACCELERATOR_LABELS.get(kind, ""), ""),
    )  # fmt: skip


def _offer(node: NodeView) -> tuple[tuple[str, int], ...]:
    return tuple(sorted((name, many) for name, many in node.allocatable.items() if many and is_accelerator(name)))


def _kind(node: Object) -> PoolKind:
    labels = mapping(mapping(node.get("metadata")).get("labels"))
    if labels.get(names.LABEL_KARPENTER_NODE_POOL):
        return PoolKind.KARPENTER
    provider = text(mapping(node.get("spec")).get("providerID")).partition(":")[0]
    return _BY_PROVIDER.get(provider, PoolKind.CLUSTER_API)


def _taints(nodes: list[NodeView]) -> Iterator[tuple[str, str, str]]:
    """Those that all of them have, without what comes and goes."""
    for taint in nodes[0].taints:
        if not taint.key.startswith(names.PASSING_TAINTS) and all(taint in node.taints for node in nodes):
            yield taint.key, taint.value, taint.effect


def _selected(pods: Iterable[Object]) -> set[str]:
    """The labels by which pods with accelerators choose nodes."""
    found: set[str] = set()
    for view in map(read.pod, pods):
        if isinstance(view, PodView) and any(map(is_accelerator, view.requests)):
            found |= {key for key, _ in view.node_selector}
            found |= {wanted.key for term in view.node_terms or () for wanted in term.expressions}
    return found
