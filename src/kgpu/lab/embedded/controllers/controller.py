"""The runtime of all controllers: changes become keys, keys become ``sync`` calls, failures become retries.

Level-triggered: ``sync`` looks at the present state, whatever the change was. An object whose ``sync`` raises is
retried later and affects no other object.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Hashable, Iterable, Mapping
from typing import Any, ClassVar, TypeAlias

from kgpu.base.errors import KubeError
from kgpu.base.supervise import RoleHandle
from kgpu.kube.port import KubeRefusedError, Object, Resource
from kgpu.lab.embedded.controllers.cluster import ControllerContext
from kgpu.lab.embedded.controllers.meta import key_of
from kgpu.lab.embedded.controllers.pacing import take_turn
from kgpu.lab.embedded.controllers.queue import WorkQueue

log = logging.getLogger(__name__)

KeysOf: TypeAlias = Callable[[Object | None, Object | None], Iterable[Hashable]]
"""Maps a change (object before, after) to the keys to sync."""


class ObjectController:
    """Base of the controllers that follow objects by key."""

    name: ClassVar[str]
    """As kube-controller-manager calls it, also the source of its Events."""
    workers: ClassVar[int] = 4

    def __init__(self, cluster: ControllerContext) -> None:
        self.cluster = cluster
        self.queue: WorkQueue[Any] = WorkQueue()

    def sources(self) -> Mapping[Resource, KeysOf]:
        """The kinds to follow, and for each the keys that a change concerns."""
        raise NotImplementedError

    async def prepare(self, stack: contextlib.ExitStack) -> None:
        """Start following anything else; ``stack`` stops it."""

    async def sync(self, key: Any) -> float | None:
        """Bring one object closer to its spec; returns in how many seconds to sync it again, None for never."""
        raise NotImplementedError

    def emit(self, about: Object, type_: str, reason: str, message: str) -> None:
        """Write an Event."""
        self.cluster.recorder.emit(self.name, about, type_, reason, message)

    async def run(self, handle: RoleHandle) -> None:
        """Follow and sync until cancelled."""
        self.queue = WorkQueue()
        with contextlib.ExitStack() as stack:
            stack.callback(self.queue.close)
            sources = self.sources()
            caches = {resource: self.cluster.cache(resource) for resource in sources}
            for cache in caches.values():
                await cache.synced.wait()
            for resource, keys_of in sources.items():
                stack.callback(caches[resource].subscribe(self._handler(keys_of)))
            await self.prepare(stack)
            handle.running()
            async with asyncio.TaskGroup() as group:
                for _ in range(self.workers):
                    group.create_task(self._work())

    def _handler(self, keys_of: KeysOf) -> Callable[[Object | None, Object | None], None]:
        def handler(old: Object | None, new: Object | None) -> None:
            try:
                for key in keys_of(old, new):
                    self.queue.add(key)
            except Exception:
                log.exception("%s: a change could not be read", self.name)

        return handler

    async def _work(self) -> None:
        while True:
            key = await self.queue.get()
            await take_turn()
            try:
                again = await self.sync(key)
                self.queue.forget(key)
                if again is not None:
                    self.queue.add_after(key, again)
            except KubeError as error:
                pause = self.queue.retry(key)
                conflict = isinstance(error, KubeRefusedError) and error.conflict
                log.log(
                    logging.DEBUG if conflict else logging.INFO,
                    "%s: %s: %s; again in %.3f s", self.name, key, error.one_line(), pause,
                )  # fmt: skip
            except Exception:
                self.queue.retry(key)
                log.exception("%s: %s failed", self.name, key)
            finally:
                self.queue.done(key)


def itself(_: Object | None, new: Object | None) -> list[tuple[str, str]]:
    """The key of an object that was added or changed."""
    return [] if new is None else [key_of(new)]


def itself_or_gone(old: Object | None, new: Object | None) -> list[tuple[str, str]]:
    """As ``itself``, and also of a deleted object."""
    obj = new if new is not None else old
    return [] if obj is None else [key_of(obj)]


def refusal_text(error: KubeError) -> str:
    """The API server's own message, without the client's words around it."""
    return error.message if isinstance(error, KubeRefusedError) else error.what
