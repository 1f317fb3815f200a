"""Watches of one kind: which watchers get a commit, and as which event.

A commit costs only the watchers that it may concern (of all objects, of its namespace, name or indexed field). An
object that begins or ceases to match a selector is ADDED or DELETED for that watcher. A watcher that reads too slowly
is ended instead of growing; its client continues from the last version it has seen.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Final

from kgpu.lab.embedded.core.model import StoredObject, WatchItem
from kgpu.lab.embedded.status import Object

BACKLOG: Final = 20_000  # items that wait for a slow reader
BOOKMARK_SECONDS: Final = 60.0  # about every minute, as the real one
INITIAL_END: Final = "k8s.io/initial-events-end"


@dataclass(frozen=True, slots=True)
class Commit:
    """One commit: ADDED (``old`` None), MODIFIED or DELETED (``stored`` is the last state under the new revision)."""

    type: str
    stored: StoredObject
    old: StoredObject | None
    size: int


Match = Callable[[Object], bool]
Bucket = tuple[str, str]
EVERYTHING: Final[Bucket] = ("", "")


class ObjectWatch:
    """An async iterator of WatchItem. ``close()`` ends it; it ends by itself when the reader is too slow."""

    def __init__(
        self, kind: tuple[str, str], namespace: str, match: Match | None, now: Callable[[], int], *,
        bookmarks: bool = False, convert: Callable[[StoredObject], StoredObject] | None = None, backlog: int = BACKLOG,
    ) -> None:  # fmt: skip
        """``kind`` is (apiVersion, kind) for bookmarks; ``now`` gives the store's revision."""
        self._kind = kind
        self._namespace = namespace
        self._match = match
        self._now = now
        self._bookmarks = bookmarks
        self._convert = convert
        self._backlog = backlog
        self._initial: Iterator[StoredObject] = iter(())
        self._missed: Iterator[Commit] = iter(())
        self._queue: deque[WatchItem] = deque()
        self._waiter: asyncio.Future[None] | None = None
        self._next_bookmark = 0.0
        self.closed = False
        self.slow = False
        """True when it was ended because its reader was too slow."""
        self.on_close: Callable[[], None] = lambda: None

    def begin(self, initial: Iterable[StoredObject], *, mark_end: bool, revision: int) -> None:
        """Send the present objects first; ``mark_end`` adds the bookmark that ends the initial events."""
        self._initial = iter(initial)
        if mark_end:
            self._queue.append(self._bookmark(revision, ends_initial=True))

    def replay(self, events: Iterable[Commit]) -> None:
        """Send the commits since the reader's version; they are filtered as they are read."""
        self._missed = iter(events)

    def __aiter__(self) -> ObjectWatch:
        return self

    async def __anext__(self) -> WatchItem:
        while True:
            item = self.pop()
            if item is not None:
                return item
            if self.closed:
                raise StopAsyncIteration
            await self._wait()

    def pop(self) -> WatchItem | None:
        """The next item that is available at once, None when there is none."""
        first = next(self._initial, None)
        if first is not None:
            return WatchItem("ADDED", self._converted(first))
        for event in self._missed:
            item = self._item(event.type, event.stored, event.old, lambda event=event: ended(event.stored, event.old))  # type: ignore[misc]
            if item is not None:
                return item
        return self._queue.popleft() if self._queue else None

    async def _wait(self) -> None:
        loop = asyncio.get_running_loop()
        self._waiter = loop.create_future()
        timer = None
        if self._bookmarks:
            if self._next_bookmark <= loop.time():
                self._next_bookmark = loop.time() + BOOKMARK_SECONDS
            timer = loop.call_at(self._next_bookmark, self.bookmark)
        try:
            await self._waiter
        finally:
            self._waiter = None
            if timer is not None:
                timer.cancel()

    def bookmark(self) -> None:
        """Send a bookmark with the present revision."""
        if not self.closed:
            self._put(self._bookmark(self._now()))

    def offer(
        self, change: str, stored: StoredObject, old: StoredObject | None, gone: Callable[[], StoredObject]
    ) -> None:
        """Send one commit if it concerns this watch; ``gone`` returns the old object under the new revision."""
        item = self._item(change, stored, old, gone)
        if item is not None:
            self._put(item)

    def _item(
        self, change: str, stored: StoredObject, old: StoredObject | None, gone: Callable[[], StoredObject]
    ) -> WatchItem | None:
        if self._namespace and stored.namespace != self._namespace:
            return None
        match = self._match
        if match is None:
            return WatchItem(change, self._converted(stored))
        before = old is not None and match(old.obj)
        if change != "DELETED" and match(stored.obj):
            return WatchItem("MODIFIED" if before else "ADDED", self._converted(stored))
        if before:
            return WatchItem("DELETED", self._converted(stored if change == "DELETED" else gone()))
        return None

    def close(self) -> None:
        """End the watch; items not yet read are still returned."""
        if not self.closed:
            self.closed = True
            self.on_close()
            self._wake()

    def _converted(self, stored: StoredObject) -> StoredObject:
        return self._convert(stored) if self._convert else stored

    def _put(self, item: WatchItem) -> None:
        if len(self._queue) >= self._backlog:
            self.slow = True
            self._queue.clear()
            self._initial, self._missed = iter(()), iter(())
            self.close()
            return
        self._queue.append(item)
        self._wake()

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def _bookmark(self, revision: int, *, ends_initial: bool = False) -> WatchItem:
        api_version, kind = self._kind
        metadata: Object = {"resourceVersion": str(revision), "creationTimestamp": None}
        if ends_initial:
            metadata["annotations"] = {INITIAL_END: "true"}
        return WatchItem(
            "BOOKMARK", StoredObject({"kind": kind, "apiVersion": api_version, "metadata": metadata}, revision)
        )


def ended(stored: StoredObject, old: StoredObject | None) -> StoredObject:
    """The old object under the new revision: the DELETED event for an object that no longer matches a watch."""
    assert old is not None
    metadata = {**old.obj["metadata"], "resourceVersion": str(stored.revision)}
    return StoredObject({**old.obj, "metadata": metadata}, stored.revision)


class KindWatches:
    """The watches of one kind, by the bucket of commits that may concern them."""

    def __init__(self) -> None:
        self._buckets: dict[Bucket, dict[ObjectWatch, None]] = {}

    def add(self, watch: ObjectWatch, bucket: Bucket) -> None:
        """``bucket``: ``("namespace", x)``, ``("name", x)``, ``("index", x)`` or EVERYTHING."""
        self._buckets.setdefault(bucket, {})[watch] = None
        watch.on_close = lambda: self._remove(watch, bucket)

    def _remove(self, watch: ObjectWatch, bucket: Bucket) -> None:
        held = self._buckets.get(bucket)
        if held is not None:
            held.pop(watch, None)
            if not held:
                del self._buckets[bucket]

    def __len__(self) -> int:
        return sum(len(held) for held in self._buckets.values())

    def offer(
        self, change: str, stored: StoredObject, old: StoredObject | None, indexed: Callable[[Object], str]
    ) -> None:
        """Send a commit to the watches that it may concern."""
        buckets = self._buckets
        if not buckets:
            return
        concerned = [EVERYTHING, ("namespace", stored.namespace), ("name", stored.name)]
        value = indexed(stored.obj)
        concerned.append(("index", value))
        if old is not None and (before := indexed(old.obj)) != value:
            concerned.append(("index", before))
        memo: list[StoredObject] = []

        def gone() -> StoredObject:
            if not memo:
                memo.append(ended(stored, old))
            return memo[0]

        for bucket in concerned:
            held = buckets.get(bucket)
            if held:
                for watch in list(held):
                    watch.offer(change, stored, old, gone)

    def end(self) -> None:
        """Close every watch."""
        for watch in [watch for held in self._buckets.values() for watch in held]:
            watch.close()
