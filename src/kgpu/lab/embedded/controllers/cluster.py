"""The context of the controllers: caches by kind, writes that the caches see at once, Events, and the clock."""

from __future__ import annotations

import asyncio
import datetime as dt
from collections.abc import Callable
from typing import Any

from kgpu.kube.informer import Key
from kgpu.kube.port import KubeApi, Object, Patch, Resource, name_of, namespace_of
from kgpu.lab.embedded.controllers.cache import Cache
from kgpu.lab.embedded.controllers.meta import UTC, merge_patch, uid_of
from kgpu.lab.embedded.controllers.recorder import Recorder


def wall_clock() -> dt.datetime:
    return dt.datetime.now(UTC)


class ControllerContext:
    """One API server, shared by the controllers. A kind's cache starts when it is first requested."""

    def __init__(self, api: KubeApi, *, now: Callable[[], dt.datetime] = wall_clock) -> None:
        self.api = api
        self.now = now
        self.recorder = Recorder(api, now)
        self._caches: dict[tuple[str, str], Cache] = {}
        self._tasks: dict[tuple[str, str], asyncio.Task[None]] = {}

    def cache(self, resource: Resource, *, project: Callable[[Object], Object] | None = None) -> Cache:
        """The kind's cache, following the API from now on. ``project`` counts only in the first call for a kind."""
        key = (resource.group, resource.plural)
        cache = self._caches.get(key)
        if cache is None:
            cache = self._caches[key] = Cache(self.api, resource, project=project)
            self._tasks[key] = asyncio.create_task(cache.run(), name=f"cache-{resource.plural}")
        return cache

    def drop_cache(self, resource: Resource) -> None:
        """The kind is no longer served."""
        key = (resource.group, resource.plural)
        self._caches.pop(key, None)
        task = self._tasks.pop(key, None)
        if task is not None:
            task.cancel()

    async def close(self) -> None:
        """Stop following."""
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._tasks.clear()
        self._caches.clear()

    # Writes. All raise KubeError.

    async def create(self, resource: Resource, obj: Object) -> Object:
        created = await self.api.create(resource, obj)
        self._wrote(resource, created)
        return created

    async def patch(
        self, resource: Resource, key: Key, change: Object, *, subresource: str = "", kind: Patch = Patch.MERGE
    ) -> Object:
        """Patch an object that exists; ``key`` is namespace and name."""
        patched = await self.api.patch(resource, key[1], change, namespace=key[0], subresource=subresource, kind=kind)
        self._wrote(resource, patched)
        return patched

    async def set_status(self, resource: Resource, obj: Object, status: Object) -> bool:
        """Write the status where it differs from the object's; True when something was written."""
        change = merge_patch(obj.get("status") or {}, status)
        if not change:
            return False
        await self.patch(resource, (namespace_of(obj), name_of(obj)), {"status": change}, subresource="status")
        return True

    async def delete(self, resource: Resource, obj: Object, *, grace: int | None = None, propagation: str = "") -> bool:
        """Delete exactly this object (by uid); False when it was gone already."""
        options: dict[str, Any] = {"grace": grace, "uid": uid_of(obj), "propagation": propagation}
        existed = await self.api.delete(resource, name_of(obj), namespace=namespace_of(obj), **options)
        cache = self._caches.get((resource.group, resource.plural))
        if cache is not None:
            cache.deleted(obj)
        return existed

    def _wrote(self, resource: Resource, obj: Object) -> None:
        cache = self._caches.get((resource.group, resource.plural))
        if cache is not None:
            cache.wrote(obj)
