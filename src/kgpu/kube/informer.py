"""A live copy of the objects a selector matches: list once, then watch, and keep the last good state through outages.

Promises: ``objects`` is never emptied by a failure; a version that the server has forgotten (410) leads to a new list,
whose difference is reported as ordinary changes; pauses between attempts grow and are jittered; bookmarks keep the
position current, so that a quiet kind does not run into 410 at every reconnect.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

from kgpu.base.backoff import Backoff, BackoffPolicy
from kgpu.base.change_notifier import ChangeNotifier
from kgpu.base.clock import Clock, SystemClock
from kgpu.base.errors import KubeError
from kgpu.kube.port import (
    EVERYTHING,
    Change,
    KubeApi,
    KubeRefusedError,
    Object,
    Resource,
    Selector,
    WatchEvent,
    is_newer,
    name_of,
    namespace_of,
    version_of,
)

log = logging.getLogger(__name__)

Key = tuple[str, str]
"""An object's namespace ("" for none) and name."""

_POLICY: Final = BackoffPolicy(first=0.2, cap=30.0)
_LEARNED: Final = 60.0  # seconds in which what was learned counts for more than a list
_SHORT: Final = 1.0  # seconds; a watch that lasts no longer is followed by a pause


@dataclass(frozen=True, slots=True)
class Scope:
    """What an informer follows."""

    resource: Resource
    namespace: str = ""
    selector: Selector = EVERYTHING


class ObjectCopy:
    """What is read of a copy that is kept up to date: its objects, and when they change."""

    def __init__(self) -> None:
        self._objects: dict[Key, Object] = {}
        self._changes = ChangeNotifier()

    @property
    def objects(self) -> Mapping[Key, Object]:
        """The last known objects by namespace and name, read-only."""
        return MappingProxyType(self._objects)

    @property
    def revision(self) -> int:
        """A number that grows with every change of ``objects`` (apart from their versions) or of why they may be out of
        date, and with the first list.
        """
        return self._changes.revision

    async def changed(self, after: int) -> int:
        """Wait until ``revision`` differs from ``after``; returns it."""
        return await self._changes.changed(after)


class Informer(ObjectCopy):
    """Follows one scope while ``run`` runs. Read ``objects``; wait with ``changed``."""

    def __init__(
        self,
        api: KubeApi,
        scope: Scope,
        *,
        clock: Clock | None = None,
        backoff: Backoff | None = None,
        project: Callable[[Object], Object] | None = None,
        on_change: Callable[[Change, Object], None] | None = None,
        on_state: Callable[[], None] | None = None,
    ) -> None:
        """``project`` reduces an object to what is worth keeping; the version and the name must stay. A change of the
        version alone, such as a kubelet's heartbeat, is stored and not reported as a change.

        ``on_change`` is called at once with every object that came, changed or went (with the last known state), and
        after a new list with the difference. ``on_state`` is called after ``error`` has changed and after a list.
        """
        super().__init__()
        self._api = api
        self._scope = scope
        self._clock = clock or SystemClock()
        self._backoff = backoff or Backoff(_POLICY)
        self._project = project or _without_managed_fields
        self._on_change = on_change or (lambda _change, _obj: None)
        self._on_state = on_state or (lambda: None)
        self._version = ""
        self._anew = False
        self._learned: dict[Key, float] = {}
        """When objects were learned, by the clock."""
        self.synced = asyncio.Event()
        """Set from the first complete list on, for good."""
        self.error: KubeError | None = None
        """Why the copy may be out of date; None while the watch stands."""

    async def learn(self, obj: Object) -> None:
        """Store the server's answer to a write of this process, before the watch delivers it.

        An older version than the stored one is ignored; resourceVersions are compared as numbers.
        """
        key, known = _key(obj), self._objects.get(_key(obj))
        if not self.synced.is_set() or not is_newer(version_of(obj), version_of(known) if known else self._version):
            return
        obj = self._objects[key] = self._project(obj)
        self._learned[key] = self._clock.monotonic()
        self._on_change(Change.ADDED if known is None else Change.MODIFIED, obj)
        if known is None or not same(known, obj):
            self._changes.notify()

    def forget(self) -> None:
        """Let the next ``run`` read everything anew, because ``project`` keeps something else by then."""
        self._version = ""
        self._anew = True

    async def run(self) -> None:
        """Follow until cancelled. API errors never end it."""
        while True:
            started = self._clock.monotonic()
            try:
                if not self._version:
                    await self._list()
                await self._watch()
            except KubeError as error:
                self._failed(error)
            ran_for = self._clock.monotonic() - started
            # A server that ends watches at once, without an error, must not be asked without a pause either.
            if self.error is not None or ran_for < _SHORT or not self._version:
                await self._clock.sleep(self._backoff.next_delay(ran_for=ran_for))

    async def _list(self) -> None:
        scope = self._scope
        listing = await self._api.list(
            scope.resource, namespace=scope.namespace, selector=scope.selector, project=self._project
        )
        objects = {_key(item): item for item in listing.items}
        objects |= self._learned_since(listing.resource_version)
        unchanged = (
            self.synced.is_set()
            and not self._anew
            and {key: version_of(obj) for key, obj in objects.items()}
            == {key: version_of(obj) for key, obj in self._objects.items()}
        )
        before, self._objects = self._objects, objects
        self._version = listing.resource_version
        for key in before.keys() - objects.keys():
            self._on_change(Change.DELETED, before[key])
        for key, obj in objects.items():
            if key not in before or self._anew or version_of(before[key]) != version_of(obj):
                self._on_change(Change.MODIFIED if key in before else Change.ADDED, obj)
        self._anew = False
        self.synced.set()
        self._recovered()
        if not unchanged:
            self._changes.notify()
            self._on_state()

    def _learned_since(self, version: str) -> dict[Key, Object]:
        """What this process wrote after the server had made its list: it would seem undone until the watch brings it.
        Forgotten after a while, as a server that was restored from a backup counts from less.
        """
        now = self._clock.monotonic()
        self._learned = {key: at for key, at in self._learned.items() if now - at < _LEARNED and key in self._objects}
        return {key: self._objects[key] for key in self._learned if is_newer(version_of(self._objects[key]), version)}

    async def _watch(self) -> None:
        scope = self._scope
        events = self._api.watch(scope.resource, self._version, namespace=scope.namespace, selector=scope.selector)
        async for event in events:
            self._recovered()
            if self._take(event):
                self._changes.notify()

    def _take(self, event: WatchEvent) -> bool:
        """Store the event's object; True when more than its version has changed."""
        self._version = version_of(event.object) or self._version
        if event.change is Change.BOOKMARK:
            return False
        key = _key(event.object)
        known = self._objects.get(key)
        if event.change is Change.DELETED:
            self._objects.pop(key, None)
            self._on_change(Change.DELETED, self._project(event.object))
            return known is not None
        if known is not None and not is_newer(version_of(event.object), version_of(known)):
            return False  # it was learned, or something newer was
        obj = self._objects[key] = self._project(event.object)
        self._on_change(Change.ADDED if known is None else Change.MODIFIED, obj)
        return known is None or not same(known, obj)

    def _failed(self, error: KubeError) -> None:
        gone = isinstance(error, KubeRefusedError) and error.gone
        if gone:
            self._version = ""
        else:
            first = self.error is None
            self.error = error
            log.log(
                logging.WARNING if first else logging.DEBUG, "%s: %s", self._scope.resource.plural, error.one_line()
            )
            if first:
                self._changes.notify()
                self._on_state()

    def _recovered(self) -> None:
        if self.error is not None:
            self.error = None
            log.info("%s: the API server answers again", self._scope.resource.plural)
            self._changes.notify()
            self._on_state()


def _key(obj: Object) -> Key:
    return namespace_of(obj), name_of(obj)


def same(left: Object, right: Object) -> bool:
    """Whether two objects are equal apart from the version."""
    first, second = ({**obj, "metadata": {**obj["metadata"], "resourceVersion": ""}} for obj in (left, right))
    return first == second


def _without_managed_fields(obj: Object) -> Object:
    """The object without its managed fields, which are most of a small object's size and of no use to a reader."""
    metadata = {key: value for key, value in obj["metadata"].items() if key != "managedFields"}
    return {**obj, "metadata": metadata}
