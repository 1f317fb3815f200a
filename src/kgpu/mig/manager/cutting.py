"""Changes the node's GPUs, with a record, so that whoever is killed in the middle goes on or gives back what was.

A change is obeyed once: asked for again, it has the same result. Where a GPU does not become as it is to be, it gets
the layout that it had when the change began, also if another process began it.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final

import msgspec

from kgpu.base.clock import Clock, SystemClock
from kgpu.base.errors import HostError, UserError
from kgpu.base.threads import beside
from kgpu.formats.mig_request import MigLayout
from kgpu.formats.node_order import ChangeResult
from kgpu.mig.manager.kind import LayoutKind, LayoutOutcome, LayoutPlan
from kgpu.mig.manager.memory import ChangeRecord, MemoryFile
from kgpu.mig.wanted import LayoutError

log = logging.getLogger(__name__)

LOCK_SECONDS: Final = 60.0
"""How long another program's change of GPUs is waited for."""
_LOCK_PAUSE: Final = 0.5


@dataclass(slots=True, kw_only=True)
class NodeCutter:
    """Parts this node's GPUs in the way of its ``kind``. ``alone(what)`` keeps other programs from doing so meanwhile,
    and raises HostError if one does. In ``services()`` no service of the host uses GPUs.
    """

    kind: LayoutKind
    memory: MemoryFile
    alone: Callable[[str], AbstractContextManager[None]] = field(default=lambda _what: contextlib.nullcontext())
    services: Callable[[], AbstractAsyncContextManager[None]] = contextlib.nullcontext
    clock: Clock = field(default_factory=SystemClock)

    async def survey(self) -> Sequence[Any]:
        """The node's GPUs. Raises HwError."""
        async with self._driver() as driver:
            return await self.kind.survey(driver)

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
        log.warning("the change of GPUs %s was broken off; finishing it", known.act)
        async with self._locked(f"change {known.act}"), self._driver() as driver:
            await self._finish(driver, known, holders)

    async def forget(self) -> None:
        """A change that has its result is over. Raises HostError."""
        known = self.memory.now.change
        if known is not None and known.result is not None:
            await beside(self.memory.note, None)

    # --- a change ---

    async def _begin(self, driver: Any, act: str, layouts: tuple[MigLayout, ...], *, alone: bool) -> ChangeRecord:
        gpus = await self.kind.survey(driver)
        known = ChangeRecord(act=act, layouts=layouts, alone=alone)
        known = self.kind.begun(known, gpus, self.kind.plans(gpus, layouts))
        await beside(self.memory.note, known)
        return known

    async def _carried(self, driver: Any, known: ChangeRecord) -> ChangeResult:
        """Raises nothing of the driver's: what it says is in the result."""
        try:
            outcomes = await self._applied(driver, self.kind.plans(await self.kind.survey(driver), known.layouts))
        except UserError as problem:
            words = [problem.one_line()]
        else:
            words = list(dict.fromkeys(one.failure.one_line() for one in outcomes))
        if not words:
            return await self._end(known.act, ChangeResult(done=True))
        loss = await self._given_back(driver, known)
        kept = "; GPUs that could not be cut have their former layout" if loss is None else f"; {loss.one_line()}"
        return await self._end(known.act, ChangeResult(done=False, text="; ".join(words) + kept, lost=loss is not None))

    async def _given_back(self, driver: Any, known: ChangeRecord) -> UserError | None:
        """Give the former layout to GPUs that are not as wanted. Returns why one has neither."""
        try:
            gpus = await self.kind.survey(driver)
            wrong = frozenset(one.gpu for one in self._planned(gpus, known.layouts) if one.changes)
            outcomes = await self._applied(driver, self.kind.back(gpus, known, wrong))
        except UserError as problem:
            return problem
        return next((one.loss or one.failure for one in outcomes), None)

    async def _finish(self, driver: Any, known: ChangeRecord, holders: Mapping[str, Sequence[str]]) -> None:
        """Raises UserError where the GPUs are neither as wanted nor as before."""
        gpus = await self.kind.survey(driver)
        if not (known.former or known.former_modes):
            await beside(self.memory.note, None)
            return
        ways, problem = self._ways(gpus, known)
        for way in ways:
            try:
                _check_free(way, holders)
                outcomes = await self._applied(driver, way)
            except UserError as error:
                problem = error
                continue
            if not outcomes:
                await beside(self.memory.note, None)
                return
            problem = outcomes[0].failure
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
            log.warning("the change of GPUs %s: %s", act, result.text)
        return result

    # --- the driver ---

    async def _applied(self, driver: Any, plans: Sequence[LayoutPlan]) -> tuple[LayoutOutcome, ...]:
        if not any(one.stops for one in plans):
            return await self.kind.apply(driver, plans)
        async with self.services():
            return await self.kind.apply(driver, plans)

    def _planned(self, gpus: Sequence[Any], layouts: Iterable[MigLayout]) -> tuple[LayoutPlan, ...]:
        """Plans for those of the layouts that can be planned for."""
        found: list[LayoutPlan] = []
        for layout in layouts:
            with contextlib.suppress(UserError):
                found += self.kind.plans(gpus, [layout])
        return tuple(found)

    def _ways(
        self, gpus: Sequence[Any], known: ChangeRecord
    ) -> tuple[list[tuple[LayoutPlan, ...]], UserError | None]:  # fmt: skip
        """The plans that end a change which was broken off, the one to prefer first, and why there is not another."""
        ways: list[tuple[LayoutPlan, ...]] = []
        problem: UserError | None = None
        for way in (partial(self.kind.plans, gpus, known.layouts), partial(self.kind.back, gpus, known)):
            try:
                ways.append(way())
            except UserError as error:
                problem = error
        return sorted(ways, key=lambda plans: any(one.release for one in plans)), problem

    @contextlib.asynccontextmanager
    async def _driver(self) -> AsyncIterator[Any]:
        driver = self.kind.open()
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


def _check_free(plans: Sequence[LayoutPlan], holders: Mapping[str, Sequence[str]]) -> None:
    for one in plans:
        users = holders.get(one.gpu, ())
        if users and one.changes and one.takes:
            raise LayoutError(
                f"{one.name} is neither as it is to be nor as it was, since a change of it was broken off, and "
                f"can't be changed while it is in use by {', '.join(users[:8])}",
                "a GPU that nobody uses", "end these, and it is finished by itself",
            )  # fmt: skip
