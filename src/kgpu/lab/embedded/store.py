"""Objects by kind, namespace and name, their revisions, and the recent history.

Every write gets the next revision of one sequence. Returned objects are shared and never change. A list of one
namespace, one name or one value of an indexed field costs by its result, not by the store. A snapshot of any revision
in the history can be read. History is bounded by count and bytes, watchers by count.
"""

from __future__ import annotations

import bisect
import heapq
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final, Protocol

from kgpu.lab.embedded.core import sizes
from kgpu.lab.embedded.core.model import StoredObject
from kgpu.lab.embedded.status import Object
from kgpu.lab.embedded.watching import Commit, KindWatches, ObjectWatch

Key = tuple[str, str]
"""(group, plural)."""
CommitListener = Callable[[Key, str, StoredObject, "StoredObject | None"], None]

RESTART_GAP: Final = 1000  # revisions skipped when stored data is loaded
HISTORY_EVENTS: Final = 5_000  # per kind
HISTORY_BYTES: Final = 8 << 20  # per kind, of encoded objects
# For kubelets' lists and watches of their own pods, and for drains of a node.
INDEXED: Final[dict[Key, tuple[str, ...]]] = {("", "pods"): ("spec", "nodeName")}


class CommitLog(Protocol):
    """Stores commits; ``kgpu.lab.embedded.journal.Journal``."""

    def load(self) -> tuple[int, Iterable[tuple[Key, Object]]]:
        """The last revision and every object."""
        ...

    def append(self, key: Key, stored: StoredObject, removed: bool) -> None:
        """Queue one commit for writing. Raises ApiError 500 when no more can be stored."""
        ...

    async def kept(self, revision: int) -> None:
        """Return when all commits up to ``revision`` are on disk. Raises ApiError 500 when they can't be written."""
        ...

    def close(self) -> None:
        """Write pending commits."""
        ...


class ExpiredError(Exception):
    """The history doesn't reach back that far; ``oldest`` is the first revision that can be watched from."""

    def __init__(self, oldest: int) -> None:
        super().__init__(oldest)
        self.oldest = oldest


class _Space:
    """The objects of one namespace, in the order of their names."""

    __slots__ = ("names", "objects")

    def __init__(self) -> None:
        self.names: list[str] = []
        self.objects: dict[str, StoredObject] = {}


class Table:
    """One kind's objects and history."""

    def __init__(self, index: tuple[str, ...] | None, revision: int) -> None:
        self.spaces: dict[str, _Space] = {}
        self._order: list[tuple[str, str]] = []  # (sort key, namespace)
        self._path = index
        self.index: dict[str, dict[tuple[str, str], StoredObject]] = {}
        self.events: deque[Commit] = deque()
        self._bytes = 0
        self.oldest = revision
        """Watches may start from this revision on."""
        self.changed = revision
        """The revision of the last change."""
        self.watching = KindWatches()

    def find(self, namespace: str, name: str) -> StoredObject | None:
        space = self.spaces.get(namespace)
        return space.objects.get(name) if space else None

    def indexed(self, obj: Object) -> str:
        """The indexed field's value, "" when there is none."""
        value: Any = obj
        for part in self._path or ("",):
            value = value.get(part) if isinstance(value, dict) else None
        return value if isinstance(value, str) else ""

    def place(self, stored: StoredObject, old: StoredObject | None) -> None:
        """Add the object, or replace ``old`` by it."""
        namespace, name = stored.namespace, stored.name
        space = self.spaces.get(namespace)
        if space is None:
            space = self.spaces[namespace] = _Space()
            bisect.insort(self._order, (f"{namespace}/", namespace))
        if name not in space.objects:
            bisect.insort(space.names, name)
        space.objects[name] = stored
        if self._path:
            self._unindex(old)
            self.index.setdefault(self.indexed(stored.obj), {})[namespace, name] = stored

    def drop(self, old: StoredObject) -> None:
        """Remove the object."""
        namespace, name = old.namespace, old.name
        space = self.spaces[namespace]
        del space.objects[name]
        del space.names[bisect.bisect_left(space.names, name)]
        if not space.names:
            del self.spaces[namespace]
            self._order.remove((f"{namespace}/", namespace))
        if self._path:
            self._unindex(old)

    def _unindex(self, old: StoredObject | None) -> None:
        if old is None:
            return
        value = self.indexed(old.obj)
        held = self.index[value]
        del held[old.namespace, old.name]
        if not held:
            del self.index[value]

    def record(self, event: Commit) -> None:
        """Add a commit to the history, and drop the oldest beyond its limits."""
        self.events.append(event)
        self.changed = event.stored.revision
        self._bytes += event.size
        while len(self.events) > HISTORY_EVENTS or (self._bytes > HISTORY_BYTES and len(self.events) > 1):
            self.forget(1)

    def forget(self, count: int) -> None:
        """Drop the oldest events."""
        for _ in range(min(count, len(self.events))):
            gone = self.events.popleft()
            self._bytes -= gone.size
            self.oldest = gone.stored.revision

    def since(self, revision: int) -> list[Commit]:
        """Events after ``revision``, oldest first. Raises ExpiredError."""
        if revision < self.oldest:
            raise ExpiredError(self.oldest)
        commits: list[Commit] = []
        for event in reversed(self.events):
            if event.stored.revision <= revision:
                break
            commits.append(event)
        commits.reverse()
        return commits

    def scan(self, namespace: str, start: str = "") -> Iterator[StoredObject]:
        """In key order from ``start`` (``namespace/name``) on; all namespaces for "" unless objects have none."""
        for space, first in self._spaces(namespace, start):
            yield from map(space.objects.__getitem__, space.names[first:])

    def count(self, namespace: str, start: str = "") -> int:
        """How many ``scan`` gives."""
        return sum(len(space.names) - first for space, first in self._spaces(namespace, start))

    def _spaces(self, namespace: str, start: str) -> Iterator[tuple[_Space, int]]:
        at, _, name = start.partition("/")
        for order, held in self._order if not namespace else [(f"{namespace}/", namespace)]:
            space = self.spaces.get(held)
            if space is None or (start and order < f"{at}/"):
                continue
            yield space, bisect.bisect_left(space.names, name) if start and held == at else 0

    def snapshot(self, namespace: str, start: str, revision: int) -> Iterator[StoredObject]:
        """As ``scan``, but at ``revision``. Raises ExpiredError at once."""
        undo: dict[tuple[str, str], StoredObject | None] = {}
        for event in reversed(self.since(revision)):
            undo[event.stored.namespace, event.stored.name] = event.old
        if not undo:
            return self.scan(namespace, start)
        present = (stored for stored in self.scan(namespace, start) if (stored.namespace, stored.name) not in undo)
        past = sorted(
            (
                stored
                for stored in undo.values()
                if stored and namespace in ("", stored.namespace) and order_of(stored) >= start
            ),
            key=order_of,
        )
        return heapq.merge(present, past, key=order_of)


def order_of(stored: StoredObject) -> str:
    """The sort key of lists."""
    return f"{stored.namespace}/{stored.name}"


class ObjectStore:
    """``ObjectStore()`` in memory, ``ObjectStore(Journal.open(folder))`` kept on disk. Use from one thread."""

    def __init__(self, journal: CommitLog | None = None) -> None:
        self.revision = 1
        self.compacted = 0
        """Lists of revisions before this one are too old, whatever the history still holds."""
        self._next_compaction = 0
        self._tables: dict[Key, Table] = {}
        self._journal = journal
        self._listeners: list[CommitListener] = []
        if journal is not None:
            last, objects = journal.load()
            # Revisions that a killed process sent to watchers but did not write must not be used again.
            self.revision = max(1, last) + (RESTART_GAP if last else 0)
            for key, obj in objects:
                self.table(key).place(StoredObject(obj, int(obj["metadata"]["resourceVersion"])), None)

    def table(self, key: Key) -> Table:
        """The kind's table, an empty one when nothing was ever written."""
        table = self._tables.get(key)
        if table is None:
            table = self._tables[key] = Table(INDEXED.get(key), self.revision)
        return table

    def get(self, key: Key, namespace: str, name: str) -> StoredObject | None:
        """The object as it is now."""
        return self.table(key).find(namespace, name)

    def put(self, key: Key, obj: Object) -> StoredObject:
        """Write an object, new or not. ``obj`` now belongs to the store; its resourceVersion is set.

        Raises TooLargeError, and ApiError 500 when the journal can't keep it.
        """
        table = self.table(key)
        metadata = obj["metadata"]
        old = table.find(metadata.get("namespace", ""), metadata["name"])
        revision = self.revision + 1
        metadata["resourceVersion"] = str(revision)
        stored = StoredObject(obj, revision)
        size = len(stored.encoded())
        sizes.check(obj, size)
        if self._journal is not None:
            self._journal.append(key, stored, False)
        self.revision = revision
        table.place(stored, old)
        self._announce(key, table, Commit("ADDED" if old is None else "MODIFIED", stored, old, size))
        return stored

    def remove(self, key: Key, old: StoredObject) -> StoredObject:
        """Remove an object; returns its last state under the revision of the removal."""
        table = self.table(key)
        revision = self.revision + 1
        metadata = {**old.obj["metadata"], "resourceVersion": str(revision)}
        last = StoredObject({**old.obj, "metadata": metadata}, revision)
        if self._journal is not None:
            self._journal.append(key, last, True)
        self.revision = revision
        table.drop(old)
        self._announce(key, table, Commit("DELETED", last, old, len(last.encoded())))
        return last

    def _announce(self, key: Key, table: Table, event: Commit) -> None:
        table.record(event)
        table.watching.offer(event.type, event.stored, event.old, table.indexed)
        for listener in self._listeners:
            listener(key, event.type, event.stored, event.old)

    def on_commit(self, listener: CommitListener) -> None:
        """Call ``listener(key, type, stored, old)`` after each commit, before the write returns."""
        self._listeners.append(listener)

    async def kept(self) -> None:
        """Return once all writes so far are on disk (at once without a journal). Raises ApiError 500."""
        if self._journal is not None:
            await self._journal.kept(self.revision)

    def compact(self) -> None:
        """Call periodically: revisions before the last call can no longer be listed.

        Watches may still begin where the history reaches, as they do from the real server's cache.
        """
        self.compacted, self._next_compaction = self._next_compaction, self.revision

    def expire(self, key: Key | None = None) -> None:
        """Drop the history of one kind or all, as compaction does after a while."""
        for table in [self.table(key)] if key else self._tables.values():
            table.forget(len(table.events))
            table.oldest = self.revision

    def drop_kind(self, key: Key) -> None:
        """Drop an empty kind with its history and end its watches, as after its CRD is gone."""
        table = self._tables.pop(key, None)
        if table is not None:
            table.watching.end()

    def close(self) -> None:
        """End every watch and close the journal."""
        for table in self._tables.values():
            table.watching.end()
        if self._journal is not None:
            self._journal.close()


__all__ = ["INDEXED", "Commit", "CommitLog", "ExpiredError", "Key", "ObjectStore", "ObjectWatch", "Table", "order_of"]
