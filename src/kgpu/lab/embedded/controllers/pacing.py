"""Pacing: however busy controllers and scheduler are, the event loop serves clients between any two of their steps.

They all share one loop with the API's clients. A loop runs everything that is ready before it looks at the network
again, so a hundred small steps at once would be one long one. ``take_turn`` lets one task continue per round of the
loop, first come, first served.
"""

from __future__ import annotations

import asyncio
import weakref
from collections import deque
from collections.abc import AsyncIterator
from typing import Final

from kgpu.kube.port import (
    EVERYTHING,
    Change,
    KubeApi,
    Listing,
    Object,
    Patch,
    Project,
    Resource,
    Selector,
    WatchEvent,
)

_SLICE: Final = 0.002  # seconds that a watch may deliver changes before it waits for a turn


class _Turns:
    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        # A weak reference: the table of loops must not keep them alive.
        self._loop = weakref.ref(loop)
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._pumping = False

    async def take(self) -> None:
        loop = asyncio.get_running_loop()
        mine: asyncio.Future[None] = loop.create_future()
        self._waiting.append(mine)
        if not self._pumping:
            self._pumping = True
            loop.call_soon(self._pump)
        await mine

    def _pump(self) -> None:
        while self._waiting:
            first = self._waiting.popleft()
            if not first.done():
                first.set_result(None)
                break
        loop = self._loop()
        if self._waiting and loop is not None:
            loop.call_soon(self._pump)
        else:
            self._pumping = False


_loops: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, _Turns] = weakref.WeakKeyDictionary()


async def take_turn() -> None:
    """Wait until it is the caller's turn on this loop."""
    loop = asyncio.get_running_loop()
    turns = _loops.get(loop)
    if turns is None:
        turns = _loops[loop] = _Turns(loop)
    await turns.take()


class PacedApi:
    """An API whose calls wait for their turn, and whose watches pause now and then for other tasks."""

    def __init__(self, api: KubeApi) -> None:
        self._api = api

    async def get(self, resource: Resource, name: str, *, namespace: str = "") -> Object | None:
        await take_turn()
        return await self._api.get(resource, name, namespace=namespace)

    async def list(
        self, resource: Resource, *, namespace: str = "", selector: Selector = EVERYTHING,
        project: Project | None = None,
    ) -> Listing:  # fmt: skip
        await take_turn()
        return await self._api.list(resource, namespace=namespace, selector=selector, project=project)

    async def watch(
        self, resource: Resource, resource_version: str, *, namespace: str = "", selector: Selector = EVERYTHING
    ) -> AsyncIterator[WatchEvent]:
        loop = asyncio.get_running_loop()
        events = self._api.watch(resource, resource_version, namespace=namespace, selector=selector)
        since = loop.time()
        try:
            async for event in events:
                yield event
                if event.change is not Change.BOOKMARK and loop.time() - since > _SLICE:
                    await take_turn()
                    since = loop.time()
        finally:
            close = getattr(events, "aclose", None)
            if close is not None:
                await close()

    async def apply(
        self, resource: Resource, obj: Object, *, manager: str, subresource: str = "", force: bool = True
    ) -> Object:
        await take_turn()
        return await self._api.apply(resource, obj, manager=manager, subresource=subresource, force=force)

    async def patch(
        self, resource: Resource, name: str, change: Object, *, namespace: str = "", subresource: str = "",
        kind: Patch = Patch.MERGE,
    ) -> Object:  # fmt: skip
        await take_turn()
        return await self._api.patch(
            resource, name, change, namespace=namespace, subresource=subresource, kind=kind
        )  # fmt: skip

    async def create(self, resource: Resource, obj: Object, *, subresource: str = "") -> Object:
        await take_turn()
        return await self._api.create(resource, obj, subresource=subresource)

    async def delete(
        self, resource: Resource, name: str, *, namespace: str = "", grace: int | None = None, uid: str = "",
        propagation: str = "",
    ) -> bool:  # fmt: skip
        await take_turn()
        return await self._api.delete(
            resource, name, namespace=namespace, grace=grace, uid=uid, propagation=propagation
        )  # fmt: skip

    async def close(self) -> None:
        await self._api.close()
