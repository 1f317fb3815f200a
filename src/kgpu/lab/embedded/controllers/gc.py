"""The garbage collector: objects whose owners are gone, foreground deletion and orphaning, for every kind there is."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Mapping
from typing import Any, Final

from kgpu.kube.port import KubeRefusedError, Object, Resource
from kgpu.lab.embedded.controllers.cluster import ControllerContext
from kgpu.lab.embedded.controllers.controller import KeysOf, ObjectController
from kgpu.lab.embedded.controllers.gc_graph import (
    FOREGROUND,
    ORPHAN,
    CollectorAction,
    Graph,
    GraphObject,
    OwnerReference,
    OwnerState,
    decide,
    node_of,
    same_edges,
    without_owners,
)
from kgpu.lab.embedded.controllers.meta import uid_of
from kgpu.lab.embedded.controllers.served import ServedKind, ServedKinds

log = logging.getLogger(__name__)

_IGNORED: Final = frozenset({("", "events"), ("events.k8s.io", "events")})
_SYNC: Final = 30.0  # seconds to wait for the first lists; a kind that can't be listed must not stop the others
_UNKNOWN_KIND: Final = 30.0  # seconds until an owner of a kind that isn't served is looked for again


class GarbageCollector(ObjectController):
    name = "garbage-collector-controller"

    def __init__(self, cluster: ControllerContext, kinds: ServedKinds) -> None:
        super().__init__(cluster)
        self._kinds = kinds
        self._graph = Graph()
        self._ends: dict[Resource, Callable[[], None]] = {}

    def sources(self) -> Mapping[Resource, KeysOf]:
        return {}

    async def prepare(self, stack: contextlib.ExitStack) -> None:
        """Follow every kind that can be deleted, also those that come later."""
        self._graph = Graph()
        await self._kinds.ready()
        stack.callback(self._unfollow_all)
        stack.callback(self._kinds.on_change(self._kind_changed))
        for served in self._kinds:
            self._follow(served)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_SYNC):
                for resource in list(self._ends):
                    await self.cluster.cache(resource).synced.wait()

    def _follow(self, served: ServedKind) -> None:
        resource = served.resource
        if (resource.group, resource.plural) in _IGNORED or not {"delete", "list", "watch"} <= served.verbs:
            return

        def handler(old: Object | None, new: Object | None) -> None:
            self._changed(resource, old, new)

        self._ends[resource] = self.cluster.cache(resource).subscribe(handler)

    def _unfollow(self, resource: Resource) -> None:
        end = self._ends.pop(resource, None)
        if end is not None:
            for obj in self.cluster.cache(resource):
                self._look(self._graph.drop(uid_of(obj)))
            end()

    def _unfollow_all(self) -> None:
        for end in self._ends.values():
            end()
        self._ends.clear()

    def _kind_changed(self, old: ServedKind | None, new: ServedKind | None) -> None:
        if old is not None and old.custom:
            self._unfollow(old.resource)
            self.cluster.drop_cache(old.resource)
        if new is not None:
            self._follow(new)

    def _changed(self, resource: Resource, old: Object | None, new: Object | None) -> None:
        if old is not None and new is not None and same_edges(old, new):
            return
        if new is None:
            if old is not None:
                self._look(self._graph.drop(uid_of(old)))
            return
        self._look(self._graph.put(node_of(resource, new)))

    def _look(self, uids: set[str]) -> None:
        for uid in uids:
            self.queue.add(uid)

    async def sync(self, key: str) -> float | None:
        node = self._graph.get(key)
        if node is None:
            return None
        states: dict[str, OwnerState | None] = {owner.uid: await self._state(node, owner) for owner in node.owners}
        if None in states.values():
            return _UNKNOWN_KIND
        move, owners = decide(node, self._graph, lambda owner: states[owner.uid] or OwnerState.SOLID)
        obj = self.cluster.cache(node.resource).get(node.key)
        if obj is None or uid_of(obj) != key:
            return None
        try:
            await self._carry_out(move, node, obj, owners)
        except KubeRefusedError as refused:
            if refused.code != 404:
                raise
        return None

    async def _state(self, node: GraphObject, owner: OwnerReference) -> OwnerState | None:
        """The owner's state; None, unknown, when its kind isn't served."""
        known = self._graph.get(owner.uid)
        if known is not None and known.key[0] in ("", node.key[0]):
            return OwnerState.WAITING if known.deletes_dependents else OwnerState.SOLID
        if node.deleting:
            return OwnerState.SOLID  # not needed
        served = self._kinds.of(owner.api_version, owner.kind)
        if served is None or (served.resource.namespaced and not node.key[0]):
            return None
        namespace = node.key[0] if served.resource.namespaced else ""
        # Read from the API: the owner may be newer than the informer's objects.
        obj = await self.cluster.api.get(served.resource, owner.name, namespace=namespace)
        if obj is None or uid_of(obj) != owner.uid:
            return OwnerState.GONE
        return OwnerState.WAITING if node_of(served.resource, obj).deletes_dependents else OwnerState.SOLID

    async def _carry_out(self, move: CollectorAction, node: GraphObject, obj: Object, owners: frozenset[str]) -> None:
        match move:
            case CollectorAction.UNLINK:
                await self._patch(node, obj, {"ownerReferences": without_owners(obj, owners) or None})
            case CollectorAction.DELETE:
                policy = {ORPHAN: "Orphan", FOREGROUND: "Foreground"}
                kept = next(
                    (policy[finalizer] for finalizer in (ORPHAN, FOREGROUND) if finalizer in node.finalizers),
                    "Background",
                )
                await self.cluster.delete(node.resource, obj, propagation=kept)
            case CollectorAction.DELETE_FOREGROUND:
                if any(dependent.deletes_dependents for dependent in self._graph.dependents(node.uid)):
                    # There may be a cycle, whose members would wait for each other forever.
                    free = [
                        {**reference, "blockOwnerDeletion": False} for reference in obj["metadata"]["ownerReferences"]
                    ]
                    await self._patch(node, obj, {"ownerReferences": free})
                await self.cluster.delete(node.resource, obj, propagation="Foreground")
            case CollectorAction.RELEASE:
                await self._remove_finalizer(node, obj, FOREGROUND)
            case CollectorAction.DELETE_DEPENDENTS:
                self._look(
                    {dependent.uid for dependent in self._graph.blocking(node.uid) if not dependent.deletes_dependents}
                )
            case CollectorAction.ORPHAN:
                await self._orphan(node, obj)
            case CollectorAction.NOTHING:
                pass

    async def _orphan(self, node: GraphObject, obj: Object) -> None:
        for dependent in self._graph.dependents(node.uid):
            current = self.cluster.cache(dependent.resource).get(dependent.key)
            if current is not None:
                with contextlib.suppress(_MissingError):
                    await self._patch(
                        dependent, current, {"ownerReferences": without_owners(current, [node.uid]) or None}
                    )
        await self._remove_finalizer(node, obj, ORPHAN)

    async def _remove_finalizer(self, node: GraphObject, obj: Object, finalizer: str) -> None:
        rest = [other for other in obj["metadata"].get("finalizers") or () if other != finalizer]
        await self._patch(node, obj, {"finalizers": rest or None})

    async def _patch(self, node: GraphObject, obj: Object, metadata: dict[str, Any]) -> None:
        known = {"uid": node.uid, "resourceVersion": obj["metadata"]["resourceVersion"]}
        try:
            await self.cluster.patch(node.resource, node.key, {"metadata": {**metadata, **known}})
        except KubeRefusedError as refused:
            if refused.code == 404:
                raise _MissingError(
                    refused.what, refused.expected, refused.remedy, code=404, reason=refused.reason
                ) from refused
            raise


class _MissingError(KubeRefusedError):
    """The object is gone already."""
