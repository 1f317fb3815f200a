"""Writes the Nodes' labels: many at a time, each with its own retries, so that one bad Node holds up no other.

Every plan replaces what is wanted; a change no longer wanted is dropped, also while it waits for a retry. Labels are
applied without force first. When another manager owns a label with another value, the Node is read again: if the plan
knew that value, it is overridden; otherwise the plan was made from old data, and a new one is made.
"""

from __future__ import annotations

import asyncio
import dataclasses
import logging
from collections import deque
from collections.abc import Callable, Iterable
from typing import Final

from kgpu.base.backoff import Backoff, BackoffPolicy
from kgpu.base.clock import Clock
from kgpu.base.errors import KubeError
from kgpu.base.plain import mapping, strings, text
from kgpu.formats import names
from kgpu.kube.leader_election import LostLeadError
from kgpu.kube.port import NODES, KubeApi, KubeRefusedError, Object, is_newer, version_of
from kgpu.operator.model import NodeLabels
from kgpu.operator.watching import ClusterWatching

log = logging.getLogger(__name__)

CONCURRENCY: Final = 16
# The labels come by the watch: of the answer only the version is needed.
_BRIEFLY: Final = dataclasses.replace(NODES, metadata_only=True)
_PAUSE: Final = BackoffPolicy(first=0.1, cap=3.0, factor=2.0, jitter=0.5, healthy_after=60.0)


class NodeLabeller:
    """Writes labels of Nodes. ``run`` writes what ``want`` asks for."""

    def __init__(self, api: KubeApi, watching: ClusterWatching, *, clock: Clock, count: Callable[[str], None]) -> None:
        self._api = api
        self._watching = watching
        self._clock = clock
        self._count = count
        self._wanted: dict[str, NodeLabels] = {}
        self._queue: deque[str] = deque()
        self._queued: set[str] = set()
        self._active: set[str] = set()
        self._pauses: dict[str, Backoff] = {}
        self._later: dict[str, asyncio.Task[None]] = {}
        self._written: dict[str, tuple[NodeLabels, str]] = {}
        self._work = asyncio.Semaphore(0)
        self.errors: dict[str, str] = {}
        """Why a Node's labels could not be written, by its name."""

    @property
    def pending(self) -> int:
        """How many Nodes do not have the wanted labels yet."""
        return len(self._wanted)

    def want(self, wanted: Iterable[NodeLabels]) -> None:
        """Replace the changes to be written."""
        self._wanted = {change.name: change for change in wanted if not self._is_written(change)}
        for name in self.errors.keys() - self._wanted.keys():
            del self.errors[name]
        for name in self._later.keys() - self._wanted.keys():
            self._later.pop(name).cancel()
        for name in self._wanted:
            if name not in self._later:
                self._enqueue(name)

    async def run(self) -> None:
        """Write until cancelled."""
        try:
            async with asyncio.TaskGroup() as group:
                for _ in range(CONCURRENCY):
                    group.create_task(self._work_on())
        finally:
            for task in self._later.values():
                task.cancel()

    def _is_written(self, change: NodeLabels) -> bool:
        """True when this change was written and the Node has not changed since, as far as is known."""
        wrote, version = self._written.get(change.name, (None, ""))
        live = self._watching.objects("nodes").get(("", change.name))
        return wrote == change and live is not None and not is_newer(version_of(live), version)

    def _enqueue(self, name: str) -> None:
        if name not in self._queued and name not in self._active:
            self._queued.add(name)
            self._queue.append(name)
            self._work.release()

    async def _work_on(self) -> None:
        while True:
            await self._work.acquire()
            name = self._queue.popleft()
            self._queued.discard(name)
            change = self._wanted.get(name)
            if change is None:
                continue
            self._active.add(name)
            try:
                await self._write(change)
            except KubeError as error:
                self._failed(name, error)
            else:
                self._pauses.pop(name, None)
                self.errors.pop(name, None)
                if self._wanted.get(name) == change:
                    del self._wanted[name]
            finally:
                self._active.discard(name)
            if name in self._wanted and name not in self._later:
                self._enqueue(name)

    def _failed(self, name: str, error: KubeError) -> None:
        pause = self._pauses.setdefault(name, Backoff(_PAUSE))
        if self.errors.get(name) != error.what:
            quiet = len(self.errors) > 3 or isinstance(error, LostLeadError)  # logged once, not per Node
            log.log(logging.DEBUG if quiet else logging.WARNING, "Node %s: %s", name, error.one_line())
        self.errors[name] = error.what
        self._later[name] = asyncio.create_task(self._again(name, pause.next_delay()))

    async def _again(self, name: str, seconds: float) -> None:
        await self._clock.sleep(seconds)
        self._later.pop(name, None)
        if name in self._wanted:
            self._enqueue(name)

    async def _write(self, change: NodeLabels) -> None:
        live = self._watching.objects("nodes").get(("", change.name))
        if live is None:
            return
        metadata: Object = {"name": change.name, "uid": live["metadata"]["uid"]}
        if change.clear or change.clear_annotations:
            self._count("Node")
            gone = (("labels", change.clear), ("annotations", change.clear_annotations))
            removal = {"metadata": {"uid": metadata["uid"], **{key: dict.fromkeys(keys) for key, keys in gone if keys}}}
            await self._watching.learn(NODES, await self._api.patch(NODES, change.name, removal))
        if change.labels:
            metadata["labels"] = dict(change.labels)
        if change.annotations:
            metadata["annotations"] = dict(change.annotations)
        obj: Object = {"metadata": metadata}
        self._count("Node")
        try:
            applied = await self._api.apply(_BRIEFLY, obj, manager=names.OPERATOR_FIELD_MANAGER, force=False)
        except KubeRefusedError as refused:
            if not refused.conflict:
                raise
            fresh = await self._api.get(NODES, change.name)
            if fresh is None:
                return
            if not self._is_known(change, fresh, text(metadata["uid"])):
                await self._watching.learn(NODES, fresh)
                return
            self._count("Node")
            applied = await self._api.apply(_BRIEFLY, obj, manager=names.OPERATOR_FIELD_MANAGER)
        self._written[change.name] = (change, version_of(applied))

    def _is_known(self, change: NodeLabels, fresh: Object, uid: str) -> bool:
        """True when the labels that the change is about are as the plan knew them."""
        live = self._watching.objects("nodes").get(("", change.name))
        if live is None or mapping(fresh.get("metadata")).get("uid") != uid:
            return False
        now = strings(mapping(fresh.get("metadata")).get("labels"))
        return all(now.get(key) == live["node"].labels.get(key) for key in (*change.labels, *change.clear))
