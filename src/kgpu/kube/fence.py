"""Keeps a deposed leader from writing: every write asks whether the lead is still held, by this clock, when it begins
and again when it is put on the wire.

A process that was stopped for a while (SIGSTOP, a paused machine, a loop that was busy) goes on where it was, also with
writes that it was about to begin; another may lead by then. Only what was on the wire before can still arrive.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable

from kgpu.kube.guard import guarded
from kgpu.kube.port import (
    EVERYTHING,
    KubeApi,
    Listing,
    Object,
    Patch,
    Project,
    Resource,
    Selector,
    WatchEvent,
)


class Fenced:
    """A ``KubeApi`` whose writes call ``guard`` first, which raises when nothing may be written any more."""

    def __init__(self, api: KubeApi, guard: Callable[[], None]) -> None:
        self._api = api
        self._guard = guard

    async def get(self, resource: Resource, name: str, *, namespace: str = "") -> Object | None:
        return await self._api.get(resource, name, namespace=namespace)

    async def list(
        self, resource: Resource, *, namespace: str = "", selector: Selector = EVERYTHING,
        project: Project | None = None,
    ) -> Listing:  # fmt: skip
        return await self._api.list(resource, namespace=namespace, selector=selector, project=project)

    def watch(
        self, resource: Resource, resource_version: str, *, namespace: str = "", selector: Selector = EVERYTHING
    ) -> AsyncIterator[WatchEvent]:
        return self._api.watch(resource, resource_version, namespace=namespace, selector=selector)

    async def apply(
        self, resource: Resource, obj: Object, *, manager: str, subresource: str = "", force: bool = True
    ) -> Object:
        with guarded(self._guard):
            return await self._api.apply(resource, obj, manager=manager, subresource=subresource, force=force)

    async def patch(
        self, resource: Resource, name: str, change: Object, *, namespace: str = "", subresource: str = "",
        kind: Patch = Patch.MERGE,
    ) -> Object:  # fmt: skip
        with guarded(self._guard):
            return await self._api.patch(
                resource, name, change, namespace=namespace, subresource=subresource, kind=kind
            )

    async def create(self, resource: Resource, obj: Object, *, subresource: str = "") -> Object:
        with guarded(self._guard):
            return await self._api.create(resource, obj, subresource=subresource)

    async def delete(
        self, resource: Resource, name: str, *, namespace: str = "", grace: int | None = None, uid: str = "",
        propagation: str = "",
    ) -> bool:  # fmt: skip
        with guarded(self._guard):
            return await self._api.delete(
                resource, name, namespace=namespace, grace=grace, uid=uid, propagation=propagation
            )

    async def close(self) -> None:
        await self._api.close()
