"""Operator and engine in one process over a ``LiveFleet``, in time that a test moves: from the wish to what came of it."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Mapping
from typing import Any

import pytest

from kgpu.base.clock import settle
from kgpu.base.service import end
from kgpu.manager.run import ManagerProcess, Options
from kgpu.operations.config import OperationBudget
from kgpu.operations.run import OperationsController
from kgpu.operator.model import OperatorSettings
from kgpu.operator.run import OperatorController
from tests.operations.world import OPEN, START, Killed, SimCollector
from tests.operator.upgrades.live_fleet import OLD, LiveFleet
from tests.operator.world import NAMESPACE, SETTINGS

AUTO: Mapping[str, Any] = {"autoUpgrade": True, "maxParallelUpgrades": 0, "maxUnavailable": "100%"}
"""All nodes at once, so that a story is short."""


class Story:
    """One process of kgpu; ``fleet`` outlives it."""

    def __init__(self, fleet: LiveFleet, budget: OperationBudget = OPEN) -> None:
        self.fleet = fleet
        self.budget = budget
        self.problems: set[str] = set()
        self._task: asyncio.Task[None] | None = None
        self._operator: OperatorController | None = None

    async def start(self, settings: OperatorSettings = SETTINGS) -> None:
        fleet, clock = self.fleet, self.fleet.clock
        # Measured in the story's time, else plans are made in threads, and time passes meanwhile, on a busy machine.
        self._operator = OperatorController(fleet, settings, clock=clock, stopwatch=clock.monotonic)
        engine = OperationsController(
            fleet, self.budget, clock=clock, now=lambda: START + clock.monotonic(), collector=SimCollector(fleet)
        )
        options = Options(lease_namespace=NAMESPACE, elect=False)
        self._task = asyncio.create_task(ManagerProcess(fleet, [self._operator, engine], options, clock=clock).run())
        await settle()

    @property
    def killed(self) -> bool:
        """Whether the process was killed at a write of its own (``fleet.die_at``)."""
        if self._task is None or not self._task.done():
            return False
        return _has_killed(self._task.exception())

    async def stop(self) -> None:
        if self._task is not None:
            await end(self._task)
        self._task = None

    async def run_for(self, seconds: float, step: float = 1.0) -> None:
        """Let time pass; the cluster's own programs act at each step."""
        passed = 0.0
        while passed < seconds:
            await self._tick(step)
            passed += step

    async def until(self, true: Callable[[], Any], what: str, seconds: float = 300.0) -> None:
        """Let time pass until something is so."""
        last = self.fleet.clock.monotonic() + seconds
        while not true():
            if self.fleet.clock.monotonic() > last:
                pytest.fail(f"{what} within {seconds:g} s: {self.told()}")
            await self._tick(1.0)

    async def _tick(self, step: float) -> None:
        if self._task is not None and self._task.done() and not self.killed:
            self._task.result()
        await self.fleet.clock.advance(step)
        await self.fleet.kubelets()
        await settle()
        if self._operator is not None and self._operator.problem:
            self.problems.add(self._operator.problem)

    def told(self) -> str:
        """What a test that fails shows."""
        fleet = self.fleet
        rows = [
            (row["spec"]["nodeName"], row["spec"]["driver"]["version"], row.get("status")) for row in fleet.operations()
        ]
        return f"{fleet.loaded()}, {rows}, problems {self.problems}, {fleet.said()[:1500]}"


def _has_killed(error: BaseException | None) -> bool:
    if isinstance(error, BaseExceptionGroup):
        return any(map(_has_killed, error.exceptions))
    return isinstance(error, Killed)


@contextlib.asynccontextmanager
async def story(fleet: LiveFleet, budget: OperationBudget = OPEN) -> AsyncIterator[Story]:
    """A process that runs until the block ends. No driver may have been unloaded under a pod that uses it."""
    told = Story(fleet, budget)
    await told.start()
    try:
        yield told
        assert fleet.harm == []
    finally:
        await told.stop()


@contextlib.asynccontextmanager
async def running_old(
    *nodes: str, upgrade: Mapping[str, Any] = AUTO, budget: OperationBudget = OPEN
) -> AsyncIterator[Story]:
    """A fleet on which ``OLD`` runs, by a ClusterPolicy, and all is well."""
    fleet = LiveFleet(*(nodes or ("n1",)))
    fleet.want(OLD, upgrade)
    async with story(fleet, budget) as told:
        await told.until(fleet.ready, f"driver {OLD} runs everywhere")
        assert set(fleet.loaded().values()) == {OLD}
        yield told
