"""Keeps what is known of the cluster up to date while somebody looks, and asks nobody while nobody does.

Nodes are read by ``kgpu top``'s own loop. What takes longer is asked beside it, each at its own pace: never sooner than
a fixed time, and so that asking takes a small part of the time. What can't be asked now stays as it was, with its age.
"""

from __future__ import annotations

import asyncio
import contextlib
import statistics
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any, Final

from kgpu.base.errors import UserError
from kgpu.base.service import first_end, running
from kgpu.overview.model import KnownCluster, Told, ToldIdleness, ToldReport
from kgpu.overview.port import OverviewWorld
from kgpu.top.run import NodeWatch

INTERVAL: Final = 2.0  # seconds between two readings of a node, at the least
PAUSE_AFTER: Final = 60.0
"""Seconds for which it goes on after the last page was sent or the last viewer has left."""
REST_PER_WORK: Final = 20.0


@dataclass(frozen=True, slots=True)
class _Question:
    """What is asked again ``rest`` seconds after its answer, at the least."""

    name: str
    ask: Callable[[], Awaitable[Any]]
    rest: float


class ClusterGatherer:
    """Gathers. ``changed`` is set whenever there is something new."""

    def __init__(self, watch: NodeWatch, world: OverviewWorld, *, pause_after: float = PAUSE_AFTER) -> None:
        self._watch = watch
        self._pause_after = pause_after
        self._questions = (
            _Question("waiting", world.waiting, 5.0),
            _Question("limits", world.limits, 30.0),
            _Question("report", world.report, 30.0),
            _Question("idleness", world.idleness, 60.0),
            _Question("events", world.events, 30.0),
            _Question("verdicts", world.verdicts, 30.0),
        )
        self._told: dict[str, Told[Any]] = {
            "waiting": Told(()),
            "limits": Told(()),
            "report": Told(ToldReport()),
            "idleness": Told(ToldIdleness()),
            "events": Told(()),
            "verdicts": Told(()),
        }
        self._read_at: dict[str, tuple[float, float]] = {}
        self._gaps: dict[str, float] = {}  # seconds between the last two readings
        self._viewers = 0
        self._until = 0.0
        self._wanted = asyncio.Event()
        self._left = asyncio.Event()
        self._hurry = {question.name: asyncio.Event() for question in self._questions}
        self._round = asyncio.Event()
        self.changed = asyncio.Event()

    @property
    def paused(self) -> bool:
        """Whether nobody has looked for some time."""
        return not self._wanted.is_set()

    def look(self) -> None:
        """Somebody looks now: go on for some time."""
        self._until = self._now() + self._pause_after
        self._wanted.set()

    @contextlib.contextmanager
    def watching(self) -> Iterator[None]:
        """Somebody looks until the block ends."""
        self._viewers += 1
        self.look()
        try:
            yield
        finally:
            self._viewers -= 1
            self.look()
            self._left.set()

    def hurry(self) -> None:
        """Something has been changed: ask everybody now."""
        self._watch.refresh()
        for event in self._hurry.values():
            event.set()

    async def fresh(self, within: float) -> None:
        """Wait for the end of a round that has been awaited, for so many seconds at the most."""
        self._round.clear()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(within):
                await self._round.wait()

    def gathered(self) -> KnownCluster:
        """All that is known now."""
        trouble = self._watch.trouble
        return KnownCluster(
            now=self._now(),
            nodes=tuple(self._watch.nodes.values()),
            read_at={name: at for name, (at, _) in self._read_at.items()},
            pace=statistics.median(self._gaps.values()) if self._gaps else 0.0,
            history=self._watch.history,
            found=self._watch.rounds > 0,
            trouble="" if trouble is None else trouble.statement,
            remedy="" if trouble is None else trouble.remedy,
            named=None,
            **self._told,
        )

    async def run(self) -> None:
        """Gather until cancelled."""
        while True:
            await self._wanted.wait()
            asking = {question.name: self._ask(question) for question in self._questions}
            ends = {"nodes": self._watch.run(INTERVAL), "follow": self._follow(), "nobody": self._nobody()}
            async with running(**ends, **asking) as tasks:
                await first_end(tasks)
            self._wanted.clear()

    async def _nobody(self) -> None:
        """Return when nobody has looked for some time."""
        while self._viewers or self._now() < self._until:
            self._left.clear()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(None if self._viewers else self._until - self._now()):
                    await self._left.wait()

    async def _follow(self) -> None:
        """Note when each node was read. An exporter that gives again what it has given before has read nothing."""
        while True:
            await self._watch.changed.wait()
            self._watch.changed.clear()
            nodes, now = self._watch.nodes, self._now()
            for name, node in nodes.items():
                before = self._read_at.get(name)
                if node.trouble is None and (before is None or before[1] != (node.read_at or node.at)):
                    self._read_at[name] = (now, node.read_at or node.at)
                    if before is not None:
                        self._gaps[name] = now - before[0]
            for gone in self._read_at.keys() - nodes.keys():
                del self._read_at[gone]
                self._gaps.pop(gone, None)
            self._round.set()
            self.changed.set()

    async def _ask(self, question: _Question) -> None:
        hurry = self._hurry[question.name]
        while True:
            began = self._now()
            hurry.clear()
            try:
                self._told[question.name] = Told(await question.ask(), self._now())
            except UserError as error:
                self._told[question.name] = replace(self._told[question.name], trouble=error.one_line())
            self.changed.set()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(max(question.rest, REST_PER_WORK * (self._now() - began))):
                    await hurry.wait()

    @staticmethod
    def _now() -> float:
        return asyncio.get_running_loop().time()
