"""The loop: every node is read again and again, each at its own pace, and ``changed`` is set after each reading.

A round never waits for a node that hangs, a node that failed is tried again more rarely, and reading takes at most a
quarter of a core: with a thousand nodes the rounds get longer by themselves.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Final

from kgpu.base.errors import UserError
from kgpu.base.printable import one_line
from kgpu.base.service import end
from kgpu.top.history import GpuHistory
from kgpu.top.model import GpuNode, NodeRoutes, NodeTrouble
from kgpu.top.plan import whole
from kgpu.top.source import GpuNodeSource

AT_ONCE: Final = 64
"""Nodes that are read at the same time."""
RETRY: Final = 10.0
"""Seconds until a node that failed is tried again."""
IDLE_PER_WORK: Final = 3.0
SHORTEST: Final = 0.05  # seconds between two rounds, whatever was asked for


class NodeWatch:
    """Reads every node in rounds and keeps what was last read."""

    def __init__(
        self, source: GpuNodeSource, *, only: frozenset[str] = frozenset(), now: Callable[[], float] = time.monotonic
    ) -> None:  # fmt: skip
        self._source = source
        self._only = only
        self._now = now
        self._room = asyncio.Semaphore(AT_ONCE)
        self._pending: dict[str, asyncio.Task[None]] = {}
        self._not_before: dict[str, float] = {}
        self._hurry = asyncio.Event()
        self._found: dict[str, GpuNode] = {}
        self.changed = asyncio.Event()
        """Set whenever there is something new to draw."""
        self.history = GpuHistory()
        self.trouble: UserError | None = None
        self.took = 0.0
        """How many seconds the last round took."""
        self.rounds = 0

    @property
    def nodes(self) -> Mapping[str, GpuNode]:
        """The nodes by name; those that were not read yet are absent."""
        return self._found

    @property
    def waiting(self) -> int:
        """The nodes that are being read now."""
        return len(self._pending)

    async def once(self) -> None:
        """Read every node one time. Raises UserError when the nodes can't be listed."""
        await self._round(patience=None)
        if self.trouble is not None:
            raise self.trouble

    async def run(self, interval: float) -> None:
        """Read in rounds until cancelled. ``interval`` is seconds between the starts of two rounds, at the least."""
        try:
            while True:
                worked = time.process_time()
                began = self._now()
                await self._round(patience=max(interval, 1.0))
                worked = time.process_time() - worked
                rest = max(interval - (self._now() - began), worked * IDLE_PER_WORK, SHORTEST)
                self._hurry.clear()
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self._hurry.wait(), rest)
        finally:
            await self.close()

    def refresh(self) -> None:
        """Read everything now, also what failed."""
        self._not_before.clear()
        self._hurry.set()

    async def close(self) -> None:
        """Cancel the readings under way."""
        await end(*self._pending.values())

    async def _round(self, *, patience: float | None) -> None:
        began = self._now()
        try:
            targets = await self._source.targets()
            self.trouble = None
        except UserError as error:
            self.trouble = error
            self.changed.set()
            return
        targets = tuple(target for target in targets if not self._only or target.node in self._only)
        names = {target.node for target in targets} | (self._only or set())
        for gone in self._found.keys() - names:
            del self._found[gone]
        for name in self._only - {target.node for target in targets}:
            self._put(
                GpuNode(name=name, trouble=NodeTrouble(what="there is no GPU node of that name", remedy="kgpu status"))
            )
        started = [self._start(target) for target in targets if self._due(target)]
        if started:
            await asyncio.wait(started, timeout=patience)
        gpus = [gpu for node in self._found.values() if node.trouble is None for gpu in node.gpus]
        self.history.round_ends(whole(gpus).utilization, self._now())
        self.took = self._now() - began
        self.rounds += 1
        self.changed.set()

    def _due(self, target: NodeRoutes) -> bool:
        return target.node not in self._pending and self._not_before.get(target.node, 0.0) <= self._now()

    def _start(self, target: NodeRoutes) -> asyncio.Task[None]:
        task = asyncio.create_task(self._look(target))
        self._pending[target.node] = task
        task.add_done_callback(lambda _: self._pending.pop(target.node, None))
        return task

    async def _look(self, target: NodeRoutes) -> None:
        if target.trouble is not None:
            self._put(GpuNode(name=target.node, devices=target.devices, trouble=target.trouble))
            return
        try:
            async with self._room:
                node = await self._source.look(target)
        except UserError as error:
            before = self._found.get(target.node) or GpuNode(name=target.node, devices=target.devices)
            self._not_before[target.node] = self._now() + RETRY
            self._put(
                replace(before, trouble=NodeTrouble(what=one_line(error.what, 200), remedy=one_line(error.remedy, 200)))
            )
            return
        self._not_before.pop(target.node, None)
        if node.trouble is not None and not node.gpus and target.node in self._found:
            node = replace(node, gpus=self._found[target.node].gpus)
        self.history.add(node, self._now())
        self._put(node)

    def _put(self, node: GpuNode) -> None:
        self._found[node.name] = node
        self.changed.set()
