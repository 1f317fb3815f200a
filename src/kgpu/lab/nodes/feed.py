"""One list and watch for all nodes of a host: every change is handed to a callback, whatever happens to the API server.

One connection instead of one for each node, so that a thousand nodes cost the API server no more than one reader. After
an outage or a forgotten version the difference to a new list is told as ordinary changes.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Final

from kgpu.base.backoff import Backoff, BackoffPolicy
from kgpu.base.errors import KubeError
from kgpu.kube.port import (
    EVERYTHING,
    Change,
    KubeApi,
    KubeRefusedError,
    Object,
    Resource,
    Selector,
    name_of,
    namespace_of,
    version_of,
)

log = logging.getLogger(__name__)

Key = tuple[str, str]
_POLICY: Final = BackoffPolicy(first=0.2, cap=5.0)
_LONG_S: Final = 5.0  # a watch that lasted so long was well


class ObjectFeed:
    """Follows one kind of object while ``run`` runs."""

    def __init__(
        self,
        api: KubeApi,
        resource: Resource,
        on_change: Callable[[Change, Object], None],
        *,
        selector: Selector = EVERYTHING,
        keep: Callable[[Object], Object] = lambda obj: obj,
    ) -> None:
        """``keep`` reduces what is kept of an object; ``on_change`` gets it whole."""
        self._api = api
        self._resource = resource
        self._selector = selector
        self._on_change = on_change
        self._keep = keep
        self._objects: dict[Key, Object] = {}
        self._version = ""
        self.synced = asyncio.Event()
        self.away = ""
        """Why nothing is heard of the API server; "" while the watch stands."""

    @property
    def objects(self) -> Mapping[Key, Object]:
        """What is there, by namespace and name."""
        return MappingProxyType(self._objects)

    async def run(self) -> None:
        """Follow until cancelled."""
        backoff = Backoff(_POLICY)
        loop = asyncio.get_running_loop()
        while True:
            begun = loop.time()
            try:
                if not self._version:
                    await self._list()
                await self._watch()
            except KubeError as error:
                if isinstance(error, KubeRefusedError) and error.gone:
                    self._version = ""
                else:
                    if not self.away:
                        log.warning("%s: %s", self._resource.plural, error.one_line())
                    self.away = error.what
            if loop.time() - begun > _LONG_S:
                backoff.reset()
            else:
                await asyncio.sleep(backoff.next_delay())

    async def _list(self) -> None:
        listing = await self._api.list(self._resource, selector=self._selector)
        objects = {(namespace_of(obj), name_of(obj)): obj for obj in listing.items}
        for key in [key for key in self._objects if key not in objects]:
            self._on_change(Change.DELETED, self._objects.pop(key))
        for key, obj in objects.items():
            self._store(key, obj)
        self._version = listing.resource_version
        self._heard()
        self.synced.set()

    async def _watch(self) -> None:
        async for event in self._api.watch(self._resource, self._version, selector=self._selector):
            self._heard()
            self._version = version_of(event.object) or self._version
            if event.change is Change.BOOKMARK:
                continue
            key = (namespace_of(event.object), name_of(event.object))
            if event.change is Change.DELETED:
                self._objects.pop(key, None)
                self._on_change(Change.DELETED, event.object)
            else:
                self._store(key, event.object)

    def _store(self, key: Key, obj: Object) -> None:
        known = self._objects.get(key)
        if known is not None and version_of(known) == version_of(obj):
            return
        if known is not None and known["metadata"].get("uid") != obj["metadata"].get("uid"):
            self._on_change(Change.DELETED, known)
            known = None
        self._objects[key] = self._keep(obj)
        self._on_change(Change.ADDED if known is None else Change.MODIFIED, obj)

    def _heard(self) -> None:
        if self.away:
            log.info("%s: the API server answers again", self._resource.plural)
        self.away = ""
