"""Keeps what health remembers on the disk, however slow that is: what is read, what has still to be written.

Promises: nothing is written over what could not be read yet; what the disk does not take in time is tried again, and
nobody waits for it longer than ``DISK_SECONDS``. Whoever owns it calls ``save`` at each look and ``finish`` at the end.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Protocol

from kgpu.base.advice import Advice, AdviceSink
from kgpu.base.clock import Clock
from kgpu.base.errors import HostError, UserError
from kgpu.base.threads import beside
from kgpu.health.history import HealthHistory, Remembered
from kgpu.health.node import HistoryNote, NodeHealth

SAVE_SECONDS: Final = 300.0
"""Seconds between two writes while nothing important has changed."""
DISK_SECONDS: Final = 3.0
"""The most seconds that verdicts wait for the disk."""
MAX_UNSAVED: Final = 4096
WHAT: Final = "history"


class DiskProblems(Protocol):
    """Takes reports whether something works; both methods may be called repeatedly."""

    def trouble(self, what: str, error: UserError) -> None:
        """Report that ``what`` fails, for this reason."""
        ...

    def well(self, what: str) -> None:
        """Report that ``what`` works."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class _Saving:
    """A write in progress, and how much of what is unsaved it covers."""

    task: asyncio.Task[None]
    outline: object
    at: float
    notes: int
    done: tuple[int, ...]


class HealthKeeper:
    """What is remembered of one node. ``unsaved`` notes and ``done`` orders wait for the next writing.

    ``loaded`` says whether what was saved has been read; without a history there is nothing to read.
    """

    def __init__(
        self,
        history: HealthHistory | None,
        node: NodeHealth,
        *,
        boot: str,
        clock: Clock,
        report: AdviceSink,
        problems: DiskProblems,
        recalled: Callable[[], None],
    ) -> None:
        self.unsaved: list[HistoryNote] = []
        self.done: list[int] = []
        self.loaded = history is None
        self._history = history
        self._node = node
        self._boot = boot
        self._clock = clock
        self._report = report
        self._problems = problems
        self._recalled = recalled
        self._saved_at = float("-inf")
        self._saved: object = None
        self._saving: _Saving | None = None
        self._loading: asyncio.Task[tuple[Remembered, list[Advice]]] | None = None

    async def load(self) -> Remembered | None:
        """Load what was saved; None while it can't be read."""
        history = self._history
        if history is None:
            return None
        if self._loading is None:
            self._loading = asyncio.create_task(beside(history.load))
            await asyncio.wait([self._loading], timeout=DISK_SECONDS)
        if not self._loading.done():
            self._problems.trouble(WHAT, _slow(history.path))
            return None
        loading, self._loading = self._loading, None
        try:
            remembered, advice = loading.result()
        except HostError as error:
            self._problems.trouble(WHAT, error)
            return None
        self.loaded = True
        self._problems.well(WHAT)
        for record in advice:
            self._report(record)
        return remembered

    async def save(self, *, began: float, sequence: Callable[[], int], force: bool) -> None:
        """Write what has changed; a write that takes too long is tried again at the next look."""
        history = self._history
        if history is None:
            self.unsaved.clear()
            return
        if self._saving is not None and not self._saving.task.done():
            self._trim(self._saving.notes)
            return
        self._settle()
        if not self.loaded:
            saved = await self.load()
            if saved is None:
                self._trim()
                return
            # What was saved is taken in after work has begun without it.
            self._node.recall(saved.memories, same_boot=saved.boot == self._boot != "")
            self._recalled()
        now, outline = self._clock.monotonic(), self._outline()
        if not (force or self.unsaved or self.done or outline != self._saved or now - self._saved_at > SAVE_SECONDS):
            return
        notes, done = tuple(self.unsaved), tuple(self.done)
        remembered = Remembered(
            boot=self._boot, began=began, sequence=sequence(), memories=dict(self._node.memories)
        )  # fmt: skip
        task = asyncio.create_task(beside(history.save, remembered, notes, done))
        self._saving = _Saving(task=task, outline=outline, at=now, notes=len(notes), done=done)
        await asyncio.wait([task], timeout=DISK_SECONDS)
        if task.done():
            self._settle()
        else:
            self._problems.trouble(WHAT, _slow(history.path))

    async def finish(self, *, began: float, sequence: Callable[[], int]) -> None:
        """Wait for the write in progress, then write the rest."""
        for task in (self._saving.task if self._saving else None, self._loading):
            if task is not None:
                await asyncio.wait([task], timeout=DISK_SECONDS)
        await self.save(began=began, sequence=sequence, force=True)

    def _trim(self, under_way: int = 0) -> None:
        """Drop the oldest notes over the limit, but not the first ``under_way``: their write removes them by number."""
        del self.unsaved[under_way : max(under_way, len(self.unsaved) - MAX_UNSAVED)]

    def _settle(self) -> None:
        """Take over the result of the last write."""
        saving, self._saving = self._saving, None
        if saving is None:
            return
        error = saving.task.exception()
        if isinstance(error, HostError):
            self._problems.trouble(WHAT, error)
            self._trim()
        elif error is not None:
            raise error
        else:
            self._problems.well(WHAT)
            self._saved, self._saved_at = saving.outline, saving.at
            del self.unsaved[: saving.notes]
            self.done = [order for order in self.done if order not in saving.done]

    def _outline(self) -> tuple[object, ...]:
        """The part of the memories that must not be lost; readings are read again."""
        return tuple(
            (
                name,
                memory.events,
                memory.xids,
                tuple((check.evidence.name, check.raised) for check in memory.conditions),
                memory.accepted_at,
                memory.maintenance_until,
                memory.links,
            )
            for name, memory in self._node.memories.items()
        )


def _slow(path: Path) -> HostError:
    return HostError(
        f"{path} is not written in {math.ceil(DISK_SECONDS)} s", "a disk that answers", "look at the node's disk"
    )
