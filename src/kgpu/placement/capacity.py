"""How much room is left, and how much of it is of no use: cap_k, frag_k, what usual pods can't use, full nodes. Pure.

cap_k is the sum over nodes of floor(free / k), frag_k is 1 - k * cap_k / free. What usual pods can't use is the
fragmentation measure of FGD (ATC'23) for whole devices: for each kind of pod, weighted by how many there are, the free
devices of nodes that can't hold one. Nodes that take no pods have no room.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Final

from kgpu.fit.model import CPU, MEMORY, PODS, STORAGE, PodView
from kgpu.fit.resources import say
from kgpu.fit.snapshot import ClusterSnapshot, NodeState
from kgpu.placement.model import ResourceRoom, StrandedNode

USUAL: Final = (1, 2, 4, 8)
MOST_SHAPES: Final = 16
"""How many sizes of pods are counted; more would be noise."""
_OTHERS: Final = (CPU, MEMORY, PODS, STORAGE)
_HOLDERS: Final = 3


@dataclass(frozen=True, slots=True)
class PodShape:
    """What one kind of pod asks for, as sorted amounts."""

    requests: tuple[tuple[str, int], ...]

    @classmethod
    def of(cls, pod: PodView) -> PodShape:
        return cls(tuple(sorted((name, amount) for name, amount in pod.requests.items() if amount)))

    def missing(self, node: NodeState, without: str = "") -> tuple[str, ...]:
        """The resources that the node has too little of, but for ``without``; a pod counts as one of its pods."""
        asks = {**dict(self.requests), PODS: 1}
        return tuple(name for name, amount in asks.items() if name != without and node.free(name) < amount)


def takes_pods(node: NodeState) -> bool:
    """Whether new pods may come at all, whatever they tolerate."""
    return not (node.view.unschedulable or node.view.deleting or node.view.ready is False)


def free_of(node: NodeState, resource: str) -> int:
    return max(0, node.free(resource)) if takes_pods(node) else 0


def fits_at_once(free: Iterable[int], size: int) -> int:
    """cap_k: how many pods of so many devices have room at once."""
    return sum(many // size for many in free)


def fragmentation(free: Iterable[int], size: int) -> Fraction:
    """frag_k: which part of the free devices such pods can't use; 0 where nothing is free."""
    amounts = list(free)
    total = sum(amounts)
    return 1 - Fraction(size * fits_at_once(amounts, size), total) if total else Fraction(0)


def room(snapshot: ClusterSnapshot, resource: str) -> ResourceRoom:
    """One resource over all nodes."""
    nodes = [node for node in snapshot.nodes.values() if node.view.allocatable.get(resource)]
    free = [free_of(node, resource) for node in nodes]
    shapes = shapes_of(snapshot, resource)
    sizes = sorted({*USUAL, *(dict(shape.requests)[resource] for shape in shapes)})
    return ResourceRoom(
        resource=resource,
        total=sum(node.view.allocatable[resource] for node in nodes),
        free=sum(free),
        largest=max(free, default=0),
        fits={size: fits_at_once(free, size) for size in sizes},
        fragmentation={size: fragmentation(free, size) for size in sizes},
        stranded=unusable(nodes, resource, shapes),
    )


def shapes_of(snapshot: ClusterSnapshot, resource: str) -> Mapping[PodShape, int]:
    """The kinds of pods that run or wait and ask for the resource, with how many there are; the most usual ones."""
    counts = Counter(PodShape.of(pod) for pod in snapshot.pods.values() if pod.requests.get(resource))
    ordered = sorted(counts.items(), key=lambda row: (-row[1], row[0].requests))
    return dict(ordered[:MOST_SHAPES])


def unusable(nodes: Iterable[NodeState], resource: str, shapes: Mapping[PodShape, int]) -> Fraction:
    """FGD's F: the expected number of free devices that a pod of the cluster's mix can't use."""
    total = sum(shapes.values())
    if not total:
        return Fraction(0)
    lost = sum(
        count * free_of(node, resource)
        for node in nodes
        for shape, count in shapes.items()
        if free_of(node, resource) and shape.missing(node)
    )
    return Fraction(lost, total)


def stranded(snapshot: ClusterSnapshot, resource: str) -> Iterator[StrandedNode]:
    """Nodes with free devices where no kind of pod has room for something else than devices."""
    shapes = shapes_of(snapshot, resource)
    for node in snapshot.nodes.values():
        free = free_of(node, resource)
        lacks = [shape.missing(node, without=resource) for shape in shapes]
        if not free or not lacks or not all(lacks):
            continue
        name = Counter(name for missing in lacks for name in missing).most_common(1)[0][0]
        left, whole = max(0, node.free(name)), node.view.allocatable.get(name, 0)
        yield StrandedNode(
            node=node.name, resource=resource, free=free,
            full_of=f"{name}: {say(name, left)} of {say(name, whole)} left",
            holders=tuple(_holders(node, name)),
        )  # fmt: skip


def _holders(node: NodeState, name: str) -> Iterator[str]:
    """Who has most of it there, first those that use no devices."""
    holders = sorted(node.pods.values(), key=lambda pod: (-pod.used.get(name, 0), pod.key))
    for pod in holders[:_HOLDERS]:
        yield str(pod) if name == PODS else f"{pod} ({say(name, pod.used.get(name, 0))})"
