"""The cluster as one pod after another is judged against it: kept up to date object by object, indexed for the filters.

``ClusterView`` is a frozen set of views,
for one question; ``ClusterSnapshot`` is what a scheduler keeps. A pod counts on its
node from the moment that a view with ``node`` is put, bound or only assumed, until it is terminal or dropped. Nothing
here remembers history, and the clock is read only where a claim waits for its devices.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Protocol, TypeAlias

from kgpu.fit import read
from kgpu.fit.model import (
    NONE,
    BudgetView,
    ClaimView,
    DeviceClassView,
    DeviceRefusal,
    Key,
    NamespaceView,
    NodeView,
    PodView,
    QuotaView,
    StorageClassView,
    VolumeClaimView,
    VolumeView,
)
from kgpu.fit.selectors import Labels, Taint

Pods: TypeAlias = dict[str, PodView]
"""By uid."""


def _now() -> dt.datetime:
    return dt.datetime.now(dt.UTC)


class DeviceFitter(Protocol):
    """Simulates the allocation of claims, CEL included, for the devices as they are at one moment."""

    def refusal(self, claims: tuple[ClaimView, ...], node: NodeState) -> DeviceRefusal | None:
        """Why the scheduler does not allocate the claims on the node; None when all can be allocated there together."""
        ...

    def preference(self, claims: tuple[ClaimView, ...], node: NodeState) -> int:
        """How good the choices are that the claims get on the node, where they can choose: more is better."""
        ...

    def missing(self, claims: tuple[ClaimView, ...], node: NodeState) -> tuple[str, ...]:
        """Sentences about what the node lacks for the claims; empty when all can be allocated there together."""
        ...


class NodeState:
    """A node with the pods on it. Read it; only ``ClusterSnapshot`` and trial placements on a ``copy`` change it."""

    __slots__ = ("_lowest", "hard_taints", "labels", "name", "nonzero", "pods", "ports", "used", "view")

    def __init__(self, name: str) -> None:
        self.name = name
        self.view = NodeView(name=name)
        self.labels: Labels = NONE
        self.hard_taints: tuple[Taint, ...] = ()
        self.pods: Pods = {}
        self.used: dict[str, int] = {}
        self.nonzero: dict[str, int] = {}
        self.ports: list[PodView] = []
        """The pods that hold host ports."""
        self._lowest: int | None = None

    def copy(self) -> NodeState:
        """For a trial."""
        other = NodeState.__new__(NodeState)
        other.name, other.view, other.labels, other.hard_taints = self.name, self.view, self.labels, self.hard_taints
        other.pods, other.used, other.nonzero = dict(self.pods), dict(self.used), dict(self.nonzero)
        other.ports, other._lowest = list(self.ports), None
        return other

    def add(self, pod: PodView) -> None:
        self.pods[pod.id] = pod
        self._count(pod, 1)
        if pod.ports:
            self.ports.append(pod)

    def remove(self, pod: PodView) -> None:
        del self.pods[pod.id]
        self._count(pod, -1)
        if pod.ports:
            self.ports = [other for other in self.ports if other.id != pod.id]

    def _count(self, pod: PodView, sign: int) -> None:
        for name, amount in pod.used.items():
            self.used[name] = self.used.get(name, 0) + sign * amount
        for name, amount in pod.nonzero.items():
            self.nonzero[name] = self.nonzero.get(name, 0) + sign * amount
        self._lowest = None

    @property
    def lowest_priority(self) -> int:
        """The lowest priority of the pods here; a large number when there are none."""
        if self._lowest is None:
            self._lowest = min((pod.priority for pod in self.pods.values()), default=2**31)
        return self._lowest

    def free(self, resource: str) -> int:
        return self.view.allocatable.get(resource, 0) - self.used.get(resource, 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterView:
    """What is known of a cluster at one moment. ``others`` are the views of every other kind.

    ``schedulers`` are the names of the schedulers that run; None where nobody knows.
    """

    nodes: tuple[NodeView, ...] = ()
    pods: tuple[PodView, ...] = ()
    others: tuple[Any, ...] = ()
    schedulers: frozenset[str] | None = None

    @classmethod
    def of(cls, objects: Iterable[Mapping[str, Any]], *, schedulers: Iterable[str] | None = None) -> ClusterView:
        """From API objects of any kinds, such as the items of ``kubectl get -o json``."""
        views = read.views(objects)
        return cls(
            nodes=tuple(view for view in views if isinstance(view, NodeView)),
            pods=tuple(view for view in views if isinstance(view, PodView)),
            others=tuple(view for view in views if not isinstance(view, (NodeView, PodView))),
            schedulers=None if schedulers is None else frozenset(schedulers),
        )


@dataclass(slots=True)
class Shelf:
    """The objects that change seldom, by kind."""

    volume_claims: dict[Key, VolumeClaimView] = field(default_factory=dict)
    volumes: dict[str, VolumeView] = field(default_factory=dict)
    storage_classes: dict[str, StorageClassView] = field(default_factory=dict)
    quotas: dict[Key, QuotaView] = field(default_factory=dict)
    budgets: dict[Key, BudgetView] = field(default_factory=dict)
    namespaces: dict[str, NamespaceView] = field(default_factory=dict)
    claims: dict[Key, ClaimView] = field(default_factory=dict)
    device_classes: dict[str, DeviceClassView] = field(default_factory=dict)


_SHELVES: Final[Mapping[type, Callable[[Shelf], dict[Any, Any]]]] = {
    VolumeClaimView: lambda shelf: shelf.volume_claims,
    VolumeView: lambda shelf: shelf.volumes,
    StorageClassView: lambda shelf: shelf.storage_classes,
    QuotaView: lambda shelf: shelf.quotas,
    BudgetView: lambda shelf: shelf.budgets,
    NamespaceView: lambda shelf: shelf.namespaces,
    ClaimView: lambda shelf: shelf.claims,
    DeviceClassView: lambda shelf: shelf.device_classes,
}


class ClusterSnapshot:
    """The cluster, indexed. Not for two threads at once."""

    def __init__(self) -> None:
        self.nodes: dict[str, NodeState] = {}
        """The nodes that exist."""
        self.pods: Pods = {}
        """Every pod that is not terminal, placed or not."""
        self.placed: dict[str, Pods] = {}
        """The pods on nodes that exist, by namespace."""
        self.repelling: Pods = {}
        """The placed pods with required anti-affinity, which holds against newcomers too."""
        self.inclined: Pods = {}
        """The placed pods with affinity terms that weigh in scores."""
        self.nominated: dict[str, Pods] = {}
        """Pods that preemption has made room for, by node."""
        self.shelf = Shelf()
        self.schedulers: frozenset[str] | None = None
        self.fitter: DeviceFitter | None = None
        """Who judges devices for claims; without one no claim can be allocated."""
        self.classes_offer = False
        """Whether device classes offer extended resources (DRAExtendedResource)."""
        self.in_flight: set[str] = set()
        """The uids of claims whose allocation is decided and not yet written."""
        self.now: Callable[[], dt.datetime] = _now
        """For claims that may wait for their devices until a time."""
        self._strays: dict[str, Pods] = {}
        self._taints: dict[tuple[Taint, ...], tuple[Taint, ...]] = {}

    @classmethod
    def of(cls, cluster: ClusterView | ClusterSnapshot) -> ClusterSnapshot:
        """The snapshot itself, or a new one of the view: a step for every object."""
        if isinstance(cluster, ClusterSnapshot):
            return cluster
        snapshot = cls()
        for view in (*cluster.nodes, *cluster.others, *cluster.pods):
            snapshot.put(view)
        snapshot.schedulers = cluster.schedulers
        return snapshot

    def put(self, view: Any) -> None:
        """Add an object or replace it."""
        if isinstance(view, PodView):
            self._put_pod(view)
        elif isinstance(view, NodeView):
            self._put_node(view)
        else:
            _SHELVES[type(view)](self.shelf)[_key(view)] = view

    def drop(self, view: Any) -> None:
        """Forget an object; its key or uid counts. What is not there is not missed."""
        if isinstance(view, PodView):
            self._forget_pod(view.id)
        elif isinstance(view, NodeView):
            self._drop_node(view.name)
        else:
            _SHELVES[type(view)](self.shelf).pop(_key(view), None)

    def _put_pod(self, pod: PodView) -> None:
        self._forget_pod(pod.id)
        if pod.terminal:
            return
        self.pods[pod.id] = pod
        if pod.node:
            self._place(pod)
        elif pod.nominated:
            self.nominated.setdefault(pod.nominated, {})[pod.id] = pod

    def _forget_pod(self, uid: str) -> None:
        pod = self.pods.pop(uid, None)
        if pod is None:
            return
        if not pod.node:
            _discard(self.nominated, pod.nominated, uid)
        elif pod.node in self.nodes:
            self.nodes[pod.node].remove(pod)
            self._unindex(pod)
        else:
            _discard(self._strays, pod.node, uid)

    def _place(self, pod: PodView) -> None:
        state = self.nodes.get(pod.node)
        if state is None:
            self._strays.setdefault(pod.node, {})[pod.id] = pod
            return
        state.add(pod)
        self.placed.setdefault(pod.namespace, {})[pod.id] = pod
        if pod.anti_affinity:
            self.repelling[pod.id] = pod
        if pod.preferred_pods or pod.affinity:
            self.inclined[pod.id] = pod

    def _unindex(self, pod: PodView) -> None:
        _discard(self.placed, pod.namespace, pod.id)
        self.repelling.pop(pod.id, None)
        self.inclined.pop(pod.id, None)

    def _put_node(self, view: NodeView) -> None:
        state = self.nodes.get(view.name)
        if state is None:
            state = self.nodes[view.name] = NodeState(view.name)
            for pod in self._strays.pop(view.name, {}).values():
                self._place(pod)
        hard = tuple(taint for taint in view.taints if taint.hard)
        state.view, state.labels = view, view.labels
        # One object for equal taints, so that a filter can remember its answer by identity.
        state.hard_taints = self._taints.setdefault(hard, hard)

    def _drop_node(self, name: str) -> None:
        state = self.nodes.pop(name, None)
        if state is None:
            return
        for pod in state.pods.values():
            self._unindex(pod)
        if state.pods:
            self._strays[name] = state.pods

    def namespace_labels(self, name: str) -> Labels:
        namespace = self.shelf.namespaces.get(name)
        return namespace.labels if namespace else NONE

    def nominated_at(self, node: str, pod: PodView) -> list[PodView]:
        """Other pods that room was made for on the node, and that ``pod`` must yield to."""
        waiting = self.nominated.get(node)
        if not waiting:
            return []
        return [other for other in waiting.values() if other.priority >= pod.priority and other.id != pod.id]

    def placed_in(self, namespaces: Iterable[str]) -> Iterator[PodView]:
        """The placed pods of some namespaces."""
        for name in namespaces:
            yield from self.placed.get(name, NONE).values()

    def all_placed(self) -> Iterator[PodView]:
        return self.placed_in(self.placed)


def _key(view: Any) -> Any:
    return view.key if hasattr(view, "key") else view.name


def _discard(index: dict[str, Pods], key: str, uid: str) -> None:
    entries = index.get(key)
    if entries is not None:
        entries.pop(uid, None)
        if not entries:
            del index[key]
