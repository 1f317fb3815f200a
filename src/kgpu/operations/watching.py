"""Follows operations and nodes. A cluster without the kind NodeOperation is not an error: it has no operations."""

from __future__ import annotations

import asyncio
import functools
import logging
from collections.abc import Collection, Mapping
from typing import Final

from kgpu.base.clock import Clock
from kgpu.base.plain import mapping, text
from kgpu.base.printable import one_line
from kgpu.formats import names
from kgpu.formats.crd.nodeoperation import MAX_TEXT
from kgpu.kube.informer import Informer, Scope
from kgpu.kube.kinds import NODE_OPERATIONS
from kgpu.kube.port import CONFIG_MAPS, NODES, PODS, KubeApi, KubeRefusedError, Object, Selector
from kgpu.kube.shared_informer import InformerView, SharedInformer
from kgpu.operations.driver_pods import DriverPod, driver_on, read_driver_pod
from kgpu.operations.model import (
    ActPod,
    Operation,
    TargetNode,
    UnreadableOperation,
    read_act_pod,
    read_node,
    read_operation,
)

log = logging.getLogger(__name__)

_NO_KIND: Final = (
    "the cluster has no kind NodeOperation, so no node is operated on; everything else works; run: kgpu crds apply"
)
MAX_SEEN: Final = 2000
"""The most nodes that the open breaker's record names: a ConfigMap has room for a MiB."""
GONE_AFTER: Final = 60.0
"""Seconds until an absent kind counts as removed: an API server that has just started may not serve it yet."""


class OperationsWatching:
    """The engine's view of the cluster. ``run`` must run while it is used."""

    def __init__(
        self, api: KubeApi, *, clock: Clock, namespace: str, groups: Collection[str] = (),
        nodes: SharedInformer | None = None,
    ) -> None:  # fmt: skip
        """``namespace`` is where the pods that act on nodes run; ``groups`` are the labels that the budget groups
        nodes by; ``nodes`` is the watch of all Nodes if others in this process follow them as well.
        """
        self._clock = clock
        self._operations = Informer(api, Scope(NODE_OPERATIONS), clock=clock, project=_operation)
        shared = nodes or SharedInformer(api, Scope(NODES), clock=clock)
        self._nodes = shared.view(functools.partial(_node, groups=tuple(groups)))
        acts = Scope(PODS, namespace, Selector(labels=(("app", names.ACT_APP),)))
        self._acts = Informer(api, acts, clock=clock, project=_act)
        self._namespace = namespace
        drivers = Scope(PODS, namespace, Selector(labels=((names.COMPONENT_LABEL, names.DRIVER_COMPONENT),)))
        self._drivers = Informer(api, drivers, clock=clock, project=_driver)
        self._drivers_by_node: dict[str, list[DriverPod]] = {}
        self._drivers_of = -1
        """The revision that ``_drivers_by_node`` is of."""
        breaker = Scope(CONFIG_MAPS, namespace, Selector.named(names.REMEDIATION_CONFIG_MAP))
        self._breaker = Informer(api, breaker, clock=clock)
        self._nodes_by_name: dict[str, TargetNode] = {}
        self._nodes_of = -1
        """The revision that ``_nodes_by_name`` is of."""
        self._absent_since: float | None = None
        self.news = asyncio.Event()
        """Set when something has changed; clear it before acting on it."""

    async def run(self) -> None:
        """Follow until cancelled. API errors never end it."""
        async with asyncio.TaskGroup() as group:
            for informer in (self._operations, self._nodes, self._acts, self._drivers, self._breaker):
                group.create_task(informer.run())
                group.create_task(self._tell(informer))

    @property
    def kind_is_absent(self) -> bool:
        """True while the API server does not serve the kind."""
        error = self._operations.error
        return isinstance(error, KubeRefusedError) and error.code == 404

    @property
    def kind_is_gone(self) -> bool:
        """True once it has been absent for so long that what was known about operations no longer counts."""
        return self._absent_since is not None and self._clock.monotonic() - self._absent_since >= GONE_AFTER

    def missing(self) -> Collection[str]:
        """What has not been read yet. An absent kind is not waited for."""
        waits = [] if self._nodes.synced.is_set() else ["nodes"]
        if not self._operations.synced.is_set() and not self.kind_is_absent:
            waits.append(NODE_OPERATIONS.plural)
        return waits

    @property
    def ready(self) -> bool:
        """True once it is known which operations exist, including when the kind is gone and there are none."""
        return self._nodes.synced.is_set() and (self._operations.synced.is_set() or self.kind_is_gone)

    def nodes(self) -> Mapping[str, TargetNode]:
        """The nodes by name."""
        if self._nodes.revision != self._nodes_of:
            self._nodes_of = self._nodes.revision
            self._nodes_by_name = {name: obj["value"] for (_, name), obj in self._nodes.objects.items()}
        return self._nodes_by_name

    def node(self, name: str) -> TargetNode | None:
        """A node by name, None if there is none."""
        obj = self._nodes.objects.get(("", name))
        return None if obj is None else obj["value"]

    @property
    def acts_known(self) -> bool:
        """True once the pods that act on nodes have been read."""
        return self._acts.synced.is_set()

    def acts(self) -> tuple[ActPod, ...]:
        """The pods that act on nodes."""
        return tuple(obj["value"] for obj in self._acts.objects.values())

    def act(self, identity: str) -> ActPod | None:
        """The pod of an act by its ID, None if there is none."""
        return next((pod for pod in self.acts() if pod.act == identity), None)

    @property
    def drivers_known(self) -> bool:
        """True once the pods of drivers have been read."""
        return self._drivers.synced.is_set()

    def driver_of(self, operation: Operation) -> DriverPod | None:
        """The driver's pod on the node of a DriverUpgrade, of its DaemonSet or of the one before. None without one, and
        for other types. Only the engine's own namespace is followed.
        """
        wanted = operation.spec.driver
        if wanted is None or wanted.namespace != self._namespace:
            return None
        if self._drivers.revision != self._drivers_of:
            self._drivers_of = self._drivers.revision
            self._drivers_by_node = {}
            for obj in self._drivers.objects.values():
                self._drivers_by_node.setdefault(obj["value"].node, []).append(obj["value"])
        return driver_on(self._drivers_by_node.get(operation.node, ()), operation.node, wanted.daemon_set)

    @property
    def breaker_known(self) -> bool:
        """True once it is known whether the breaker is open."""
        return self._breaker.synced.is_set()

    @property
    def breaker(self) -> str:
        """Why remediation has stopped, "" while it has not."""
        for obj in self._breaker.objects.values():
            return one_line(text(mapping(obj.get("data")).get("open")), MAX_TEXT) or "it was stopped by hand"
        return ""

    @property
    def breaker_nodes(self) -> tuple[str, ...]:
        """The nodes that the open breaker's record names."""
        for obj in self._breaker.objects.values():
            rows = text(mapping(obj.get("data")).get("nodes")).split(",")
            return tuple(filter(None, (row.strip() for row in rows)))[:MAX_SEEN]
        return ()

    def operation(self, name: str) -> Operation | None:
        """An operation by name, None if there is none that can be read."""
        obj = self._operations.objects.get(("", name))
        value = None if obj is None else obj["value"]
        return value if isinstance(value, Operation) else None

    def operations(self) -> tuple[Operation, ...]:
        """All operations that can be read."""
        return tuple(value for value in self._values() if isinstance(value, Operation))

    def unreadable(self) -> tuple[UnreadableOperation, ...]:
        """The operations that can't be read: their nodes are not touched."""
        return tuple(value for value in self._values() if isinstance(value, UnreadableOperation))

    async def learn_operation(self, obj: Object) -> None:
        """Take in the API server's answer to a write."""
        await self._operations.learn(obj)

    async def learn_breaker(self, obj: Object) -> None:
        """Take in the API server's answer to a write."""
        await self._breaker.learn(obj)

    async def learn_act(self, obj: Object) -> None:
        """Take in the API server's answer to a write."""
        await self._acts.learn(obj)

    async def learn_node(self, obj: Object) -> None:
        """Take in the API server's answer to a write."""
        await self._nodes.learn(obj)

    def look(self) -> None:
        """Note when the kind was first found absent."""
        if not self.kind_is_absent:
            self._absent_since = None
        elif self._absent_since is None:
            self._absent_since = self._clock.monotonic()
            log.warning("%s", _NO_KIND)

    def _values(self) -> list[Operation | UnreadableOperation]:
        if self.kind_is_gone:
            return []
        return [obj["value"] for obj in self._operations.objects.values()]

    async def _tell(self, informer: Informer | InformerView) -> None:
        revision = -1
        while True:
            revision = await informer.changed(revision)
            self.look()
            self.news.set()


def _operation(obj: Object) -> Object:
    return {"metadata": _identity(obj), "value": read_operation(obj)}


def _node(obj: Object, groups: Collection[str]) -> Object:
    return {"metadata": _identity(obj), "value": read_node(obj, groups)}


def _act(obj: Object) -> Object:
    metadata = {key: obj["metadata"].get(key) for key in ("namespace", "name", "resourceVersion")}
    return {"metadata": metadata, "value": read_act_pod(obj)}


def _driver(obj: Object) -> Object:
    metadata = {key: obj["metadata"].get(key) for key in ("namespace", "name", "resourceVersion")}
    return {"metadata": metadata, "value": read_driver_pod(obj)}


def _identity(obj: Object) -> Object:
    return {key: obj["metadata"].get(key) for key in ("name", "resourceVersion")}
