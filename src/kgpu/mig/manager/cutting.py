"""Changes the node's GPUs, with a record, so that whoever is killed in the middle goes on or gives back what was.

A change is obeyed once: asked for again, it has the same result. Where a GPU does not become as it is to be, it gets
the layout that it had when the change began, also if another process began it.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from dataclasses import dataclass, field, replace
from typing import Final

import msgspec

from kgpu.base.clock import Clock, SystemClock
from kgpu.base.errors import HostError, UserError
from kgpu.base.threads import beside
from kgpu.formats.mig_request import MigLayout
from kgpu.formats.node_order import ChangeResult
from kgpu.hw.partitioning import Partitioner
from kgpu.mig.apply import Applying, GpuOutcome
from kgpu.mig.checkpoint import plan_restore, saved_gpus
from kgpu.mig.manager.layouts import needs_reset, plan_layouts
from kgpu.mig.manager.memory import ChangeRecord, MemoryFile
from kgpu.mig.model import MigAction
from kgpu.mig.node_plan import PlannedGpu
from kgpu.mig.survey import SurveyedGpu, survey
from kgpu.mig.wanted import LayoutError

log = logging.getLogger(__name__)

LOCK_SECONDS: Final = 60.0
"""How long another program's change of slices is waited for."""
_LOCK_PAUSE: Final = 0.5
_TAKING: Final = frozenset({MigAction.DESTROY_COMPUTE, MigAction.DESTROY_INSTANCE, MigAction.MODE, MigAction.RESET})
"""Steps by which whoever uses the GPU loses something."""


@dataclass(slots=True, kw_only=True)
class NodeCutter:
    """Cuts this node's GPUs. ``open_driver()`` raises HwError where there is no driver; ``alone(what)`` keeps other
    programs from cutting meanwhile, and raises HostError if one does. In ``services()`` no service of the host uses a
    GPU that is to be reset.
    """

    open_driver: Callable[[], Partitioner]
    memory: MemoryFile
    alone: Callable[[str], AbstractContextManager[None]] = field(default=lambda _what: contextlib.nullcontext())
    services: Callable[[], AbstractAsyncContextManager[None]] = contextlib.nullcontext
    clock: Clock = field(default_factory=SystemClock)

    async def survey(self) -> tuple[SurveyedGpu, ...]:
        """The node's GPUs. Raises HwError."""
        async with self._driver() as driver:
            return await _surveyed(driver)

    async def obey(self, act: str, layouts: tuple[MigLayout, ...], *, alone: bool = False) -> ChangeResult:
        """Make the change ``act``, or go on with it, or say again what has come of it."""
        known = self.memory.now.change
        if known is not None and known.act == act and known.result is not None:
            return known.result
        try:
            async with self._locked(f"change {act}"), self._driver() as driver:
                if known is None or known.act != act:
                    if known is not None and known.result is None:
                        await self._finish(driver, known, {})
                    known = await self._begin(driver, act, layouts, alone=alone)
                return await self._carried(driver, known)
        except UserError as problem:
            return await self._end(act, ChangeResult(done=False, text=problem.one_line()))

    async def recover(self, holders: Mapping[str, Sequence[str]]) -> None:
        """Bring the GPUs of a change that was broken off to the wanted layout, or else to the former one. Raises
        UserError, as long as neither can be had, or somebody in ``holders`` uses them.
        """
        known = self.memory.now.change
        if known is None or known.result is not None:
            return
        log.warning("the change of slices %s was broken off; finishing it", known.act)
        async with self._locked(f"change {known.act}"), self._driver() as driver:
            await self._finish(driver, known, holders)

    async def forget(self) -> None:
        """A change that has its result is over. Raises HostError."""
        known = self.memory.now.change
        if known is not None and known.result is not None:
            await beside(self.memory.note, None)

    # --- a change ---

    async def _begin(
        self, driver: Partitioner, act: str, layouts: tuple[MigLayout, ...], *, alone: bool
    ) -> ChangeRecord:
        gpus = await _surveyed(driver)
        planned = plan_layouts(gpus, layouts)
        former = saved_gpus([one.found for one in planned])
        known = ChangeRecord(act=act, layouts=layouts, former=former, alone=alone)
        await beside(self.memory.note, known)
        return known

    async def _carried(self, driver: Partitioner, known: ChangeRecord) -> ChangeResult:
        """Raises nothing of the driver's: what it says is in the result."""
        try:
            outcomes = await self._applied(driver, plan_layouts(await _surveyed(driver), known.layouts))
        except UserError as problem:
            words = [problem.one_line()]
        else:
            words = [_words(one) for one in outcomes if one.failure is not None]
        if not words:
            return await self._end(known.act, ChangeResult(done=True))
        loss = await self._given_back(driver, known)
        kept = "; GPUs that could not be cut have their former layout" if loss is None else f"; {loss.one_line()}"
        return await self._end(known.act, ChangeResult(done=False, text="; ".join(words) + kept, lost=loss is not None))

    async def _given_back(self, driver: Partitioner, known: ChangeRecord) -> UserError | None:
        """Give the former layout to GPUs that are not as wanted. Returns why one has neither."""
        try:
            gpus = await _surveyed(driver)
            wrong = {one.found.uuid for one in _planned(gpus, known.layouts) if one.steps}
            planned = plan_restore(gpus, [one for one in known.former if one.uuid in wrong])
            outcomes = await self._applied(driver, planned)
        except UserError as problem:
            return problem
        return next((one.loss or one.failure for one in outcomes if one.failure is not None), None)

    async def _finish(self, driver: Partitioner, known: ChangeRecord, holders: Mapping[str, Sequence[str]]) -> None:
        """Raises UserError where the GPUs are neither as wanted nor as before."""
        gpus = await _surveyed(driver)
        if not known.former:
            await beside(self.memory.note, None)
            return
        ways, problem = _ways(gpus, known)
        for way in ways:
            try:
                _check_free(way, holders)
                outcomes = await self._applied(driver, way)
            except UserError as error:
                problem = error
                continue
            failed = next((one for one in outcomes if one.failure is not None), None)
            if failed is None:
                await beside(self.memory.note, None)
                return
            problem = failed.failure
        assert problem is not None, "a way that is none has one"
        raise problem

    async def _end(self, act: str, result: ChangeResult) -> ChangeResult:
        known = self.memory.now.change
        if known is not None and known.act == act:
            try:
                await beside(self.memory.note, msgspec.structs.replace(known, result=result))
            except HostError as error:  # the next process makes sure of it again
                log.warning("%s", error.one_line())
        if not result.done:
            log.warning("the change of slices %s: %s", act, result.text)
        return result

    # --- the driver ---

    async def _applied(self, driver: Partitioner, planned: Sequence[PlannedGpu]) -> tuple[GpuOutcome, ...]:
        if not needs_reset(planned):
            return await Applying(driver=driver).node(planned)
        async with self.services():
            # What these had open counted as use.
            found = {one.uuid: one for one in await _surveyed(driver)}
            again = [replace(one, found=found.get(one.found.uuid, one.found)) for one in planned]
            return await Applying(driver=driver).node(again)

    @contextlib.asynccontextmanager
    async def _driver(self) -> AsyncIterator[Partitioner]:
        driver = self.open_driver()
        try:
            yield driver
        finally:
            await driver.close()

    @contextlib.asynccontextmanager
    async def _locked(self, what: str) -> AsyncIterator[None]:
        until = self.clock.monotonic() + LOCK_SECONDS
        with contextlib.ExitStack() as stack:
            while True:
                try:
                    stack.enter_context(self.alone(what))
                    break
                except HostError:
                    if self.clock.monotonic() >= until:
                        raise
                await self.clock.sleep(_LOCK_PAUSE)
            yield


async def _surveyed(driver: Partitioner) -> tuple[SurveyedGpu, ...]:
    return tuple(survey(gpu) for gpu in await driver.gpus())


def _planned(gpus: Sequence[SurveyedGpu], layouts: Iterable[MigLayout]) -> tuple[PlannedGpu, ...]:
    """Plans for those of the layouts that can be planned for."""
    found: list[PlannedGpu] = []
    for layout in layouts:
        with contextlib.suppress(UserError):
            found += plan_layouts(gpus, [layout])
    return tuple(found)


def _ways(
    gpus: Sequence[SurveyedGpu], known: ChangeRecord
) -> tuple[list[tuple[PlannedGpu, ...]], UserError | None]:  # fmt: skip
    """The plans that end a change which was broken off, the one to prefer first, and why there is not another."""
    ways: list[tuple[PlannedGpu, ...]] = []
    problem: UserError | None = None
    try:
        ways.append(plan_layouts(gpus, known.layouts))
    except UserError as error:
        problem = error
    try:
        ways.append(plan_restore(gpus, known.former))
    except UserError as error:
        problem = error
    return sorted(ways, key=needs_reset), problem


def _check_free(planned: Sequence[PlannedGpu], holders: Mapping[str, Sequence[str]]) -> None:
    for one in planned:
        users = holders.get(one.found.uuid, ())
        if users and any(step.action in _TAKING for step in one.steps):
            raise LayoutError(
                f"{one.found.name} is neither as it is to be nor as it was, since a change of it was broken off, and "
                f"can't be changed while it is in use by {', '.join(users[:8])}",
                "a GPU that nobody uses", "end these, and it is finished by itself",
            )  # fmt: skip


def _words(outcome: GpuOutcome) -> str:
    assert outcome.failure is not None, "asked of failures alone"
    return outcome.failure.one_line()
