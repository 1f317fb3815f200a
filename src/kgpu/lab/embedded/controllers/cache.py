"""The objects of one kind as controllers see them: an informer's, with indexes, plus the controllers' own writes.

A controller must see its own write at the next sync, or it would repeat it: the response to each write is stored at
once, and nothing older replaces it. Objects whose deletion was requested are ``doomed`` until the watch confirms it.
Handlers are called once per real change, synchronously, and must not raise or block.
"""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterable, Iterator
from typing import Final, TypeAlias

from kgpu.kube.informer import Informer, Key, Scope
from kgpu.kube.port import Change, KubeApi, Object, Resource, name_of, namespace_of, version_of
from kgpu.lab.embedded.controllers.meta import controller_of, uid_of

log = logging.getLogger(__name__)

Handler: TypeAlias = Callable[[Object | None, Object | None], None]
"""Called with the object before (None when it came) and after (None when it went)."""
IndexBy: TypeAlias = Callable[[Object], Iterable[Hashable]]

_TOMBSTONES: Final = 4096  # uids remembered, so that a late response doesn't bring a deleted object back


class Index:
    """Keys by a value computed from the object."""

    def __init__(self, by: IndexBy) -> None:
        self._by = by
        self._keys: dict[Hashable, dict[Key, None]] = {}

    def move(self, key: Key, old: Object | None, new: Object | None) -> None:
        before = set(self._by(old)) if old is not None else set()
        after = set(self._by(new)) if new is not None else set()
        for value in before - after:
            keys = self._keys[value]
            keys.pop(key, None)
            if not keys:
                del self._keys[value]
        for value in after - before:
            self._keys.setdefault(value, {})[key] = None

    def keys(self, value: Hashable) -> Iterable[Key]:
        return self._keys.get(value, ())


class Cache:
    """The objects of one kind. Never change what it hands out."""

    def __init__(self, api: KubeApi, resource: Resource, *, project: Callable[[Object], Object] | None = None) -> None:
        self.resource = resource
        self._objects: dict[Key, Object] = {}
        self._indexes: dict[str, Index] = {}
        self._handlers: list[Handler] = []
        self._doomed: set[str] = set()
        self._gone: OrderedDict[str, None] = OrderedDict()
        self._project = project
        self._informer = Informer(api, Scope(resource), project=project, on_change=self._on_change)
        self.index("namespace", lambda obj: (namespace_of(obj),))
        self.index("controller", lambda obj: (uid,) if (uid := (controller_of(obj) or {}).get("uid")) else ())

    async def run(self) -> None:
        """Follow the API until cancelled."""
        await self._informer.run()

    @property
    def synced(self) -> asyncio.Event:
        """Set from the first complete list on."""
        return self._informer.synced

    def __iter__(self) -> Iterator[Object]:
        return iter(list(self._objects.values()))

    def __len__(self) -> int:
        return len(self._objects)

    def get(self, key: Key) -> Object | None:
        return self._objects.get(key)

    def index(self, name: str, by: IndexBy) -> None:
        """Keep an index of that name; the second time does nothing."""
        if name in self._indexes:
            return
        index = self._indexes[name] = Index(by)
        for key, obj in self._objects.items():
            index.move(key, None, obj)

    def select(self, index: str, value: Hashable) -> list[Object]:
        """The objects that the index has under the value."""
        return [self._objects[key] for key in self._indexes[index].keys(value)]

    def subscribe(self, handler: Handler) -> Callable[[], None]:
        """Call ``handler`` with every present object and every change from now on; returns the unsubscribe function."""
        self._handlers.append(handler)
        for obj in self:
            handler(None, obj)
        return lambda: self._handlers.remove(handler)

    def is_doomed(self, obj: Object) -> bool:
        """Whether it is being deleted, or its deletion was requested."""
        return bool(obj["metadata"].get("deletionTimestamp")) or uid_of(obj) in self._doomed

    # What the controllers did

    def wrote(self, obj: Object) -> None:
        """Store the API's response to a write of ours."""
        uid = uid_of(obj)
        if uid not in self._gone:
            self._put(self._project(obj) if self._project else obj)

    def deleted(self, obj: Object) -> None:
        """Note that the API has accepted our request to delete it."""
        key = (namespace_of(obj), name_of(obj))
        known = self._objects.get(key)
        if known is None or uid_of(known) != uid_of(obj) or self.is_doomed(known):
            return
        self._doomed.add(uid_of(obj))
        for handler in list(self._handlers):
            handler(known, known)

    # What the API says

    def _on_change(self, change: Change, obj: Object) -> None:
        try:
            self._apply(change, obj)
        except Exception:
            # One malformed object must not end the cache of all others.
            log.exception("%s %s/%s could not be read", self.resource.plural, namespace_of(obj), name_of(obj))

    def _apply(self, change: Change, obj: Object) -> None:
        uid = uid_of(obj)
        if change is not Change.DELETED:
            if obj["metadata"].get("deletionTimestamp"):
                self._doomed.discard(uid)
            self._put(obj)
            return
        self._doomed.discard(uid)
        self._gone[uid] = None
        if len(self._gone) > _TOMBSTONES:
            self._gone.popitem(last=False)
        key = (namespace_of(obj), name_of(obj))
        known = self._objects.get(key)
        if known is None or uid_of(known) != uid:
            return  # another object has that name already
        del self._objects[key]
        self._notify(key, known, None)

    def _put(self, obj: Object) -> None:
        key = (namespace_of(obj), name_of(obj))
        known = self._objects.get(key)
        if known is not None and uid_of(known) == uid_of(obj) and _number(obj) <= _number(known):
            return
        if known is not None and uid_of(known) != uid_of(obj):
            if _number(obj) < _number(known):
                return
            self._gone[uid_of(known)] = None
            del self._objects[key]
            self._notify(key, known, None)
            known = None
        self._objects[key] = obj
        self._notify(key, known, obj)

    def _notify(self, key: Key, old: Object | None, new: Object | None) -> None:
        for index in self._indexes.values():
            index.move(key, old, new)
        for handler in list(self._handlers):
            handler(old, new)


def _number(obj: Object) -> int:
    """Versions of one kind can be compared as numbers (KEP-5504)."""
    version = version_of(obj)
    return int(version) if version.isdecimal() else 0
