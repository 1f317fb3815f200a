"""A whole change of a node's slices, with what is to run around it: hooks in mig-parted's order.

``apply-start`` comes first, then ``pre-apply-mode`` if a mode changes, then ``pre-apply-config`` if slices do, then the
change, and ``apply-exit`` in the end, whatever happens after ``apply-start``. Both of the middle run before anything
changes, so that one that fails leaves all as it was; what they have ended no longer uses a GPU, so that GPUs are read
again after them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from kgpu.base.errors import UserError
from kgpu.formats.mig_hooks import APPLY_EXIT, APPLY_START, PRE_APPLY_CONFIG, PRE_APPLY_MODE
from kgpu.mig.apply import Applying, GpuOutcome
from kgpu.mig.hooks import HookRunner
from kgpu.mig.model import MigAction, MigStep
from kgpu.mig.node_plan import PlannedGpu
from kgpu.mig.survey import SurveyedGpu, survey

Plan: TypeAlias = Callable[[Sequence[SurveyedGpu]], tuple[PlannedGpu, ...]]
"""What becomes of the node's GPUs. Raises UserError."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HookedChange:
    """How a plan is made and carried out. ``warn`` hears of a last hook that fails after something else has."""

    applying: Applying
    plan: Plan
    hooks: HookRunner
    warn: Callable[[UserError], None]

    async def run(self) -> tuple[GpuOutcome, ...]:
        """Change the GPUs. Raises UserError where nothing is changed, and if all is well but the last hook."""
        await self.hooks.run(APPLY_START)
        try:
            outcomes = await self._changed()
        except BaseException:
            await self._exit(failed=True)
            raise
        await self._exit(failed=any(one.failure is not None for one in outcomes))
        return outcomes

    async def _changed(self) -> tuple[GpuOutcome, ...]:
        planned = await self._planned()
        due = [name for name in due_hooks(planned) if self.hooks.has(name)]
        for name in due:
            # We have the GPUs open as well, which a hook may want to reset.
            await self.applying.driver.close()
            await self.hooks.run(name)
        return await self.applying.node(await self._planned() if due else planned)

    async def _planned(self) -> tuple[PlannedGpu, ...]:
        return self.plan([survey(gpu) for gpu in await self.applying.driver.gpus()])

    async def _exit(self, *, failed: bool) -> None:
        await self.applying.driver.close()
        try:
            await self.hooks.run(APPLY_EXIT)
        except UserError as error:
            if not failed:
                raise
            self.warn(error)


def due_hooks(planned: Iterable[PlannedGpu]) -> tuple[str, ...]:
    """The hooks that these changes call for before them."""
    steps = [step for one in planned for step in one.steps]
    mode = any(map(_is_mode, steps))
    slices = any(not _is_mode(step) and one.wanted.enabled for one in planned for step in one.steps)
    return (*((PRE_APPLY_MODE,) if mode else ()), *((PRE_APPLY_CONFIG,) if slices else ()))


def _is_mode(step: MigStep) -> bool:
    return step.action in {MigAction.MODE, MigAction.RESET}
