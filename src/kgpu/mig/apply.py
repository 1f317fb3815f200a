"""Takes the steps of plans on a driver, GPU by GPU: each ends as wanted, or as it was.

After the steps the GPU is read again, and counts as changed only when nothing is left to do. What fails is undone: the
former layout is made again at its places, and a mode that waits for a reset is taken back. One GPU's failure leaves the
others to go on. Nothing is written down meanwhile: a program that ends in the middle leaves a layout from which the
next plan goes on.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Final

from kgpu.base.errors import UserError
from kgpu.hw.partitioning import Partitioner, PartitionError
from kgpu.mig.model import MigAction, MigGpu, MigStep
from kgpu.mig.node_plan import PlannedGpu, check_unused, restoring_steps
from kgpu.mig.plan import gpu_steps
from kgpu.mig.survey import survey

TRIES: Final = 3
"""How often the former layout is tried for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuOutcome:
    """What has become of one GPU. ``failure`` is why it is not as wanted; ``loss`` then, why it is not as it was
    either, None if it is. ``waits``: its mode comes with the next reset, as was asked.
    """

    planned: PlannedGpu
    failure: UserError | None = None
    loss: UserError | None = None
    waits: bool = False


class WaitsForResetError(PartitionError):
    """A mode that only a reset puts in force, which was ruled out."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Applying:
    """How plans are carried out. ``skip_reset``: no GPU is reset; with ``may_wait`` a mode may wait for that then.
    ``tell`` hears of every step before it is taken.
    """

    driver: Partitioner
    skip_reset: bool = False
    may_wait: bool = False
    tell: Callable[[PlannedGpu, MigStep], None] = lambda _planned, _step: None

    async def node(self, planned: Sequence[PlannedGpu]) -> tuple[GpuOutcome, ...]:
        """Carry out all plans. Raises LayoutError, before any change, if one takes slices from their users."""
        check_unused(planned)
        return tuple([await self._gpu(one) for one in planned])

    async def _gpu(self, planned: PlannedGpu) -> GpuOutcome:
        if not planned.steps:
            return GpuOutcome(planned=planned)
        try:
            await self._check_same(planned)
        except UserError as failure:
            return GpuOutcome(planned=planned, failure=failure)
        try:
            await self._take(planned, planned.steps, enabled=planned.wanted.enabled)
            await self._verify(planned)
        except WaitsForResetError as failure:
            return GpuOutcome(planned=planned, waits=True) if self.may_wait else await self._back(planned, failure)
        except UserError as failure:
            return await self._back(planned, failure)
        except asyncio.CancelledError:
            await asyncio.shield(self._back(planned, _cancelled(planned)))
            raise
        return GpuOutcome(planned=planned)

    async def _check_same(self, planned: PlannedGpu) -> None:
        now = await self._now(planned)
        if _unused(now) != _unused(planned.found.gpu):
            raise PartitionError(
                f"{planned.found.name} has been cut by somebody else since it was read", "one who changes it at a time",
                "do it again",
            )  # fmt: skip

    async def _verify(self, planned: PlannedGpu) -> None:
        if left := gpu_steps(await self._now(planned), planned.wanted, planned.found.name):
            raise PartitionError(
                f"{planned.found.name}: the driver has taken every step, and {len(left)} are to do still",
                "the layout that was made", "look at `nvidia-smi mig -lgi`, and do it again",
            )  # fmt: skip

    async def _back(self, planned: PlannedGpu, failure: UserError) -> GpuOutcome:
        """Undo what was done, however much that is."""
        before, loss = planned.found.gpu, failure
        for _attempt in range(TRIES):
            try:
                steps = restoring_steps(await self._now(planned), before)
                if not steps:
                    return GpuOutcome(planned=planned, failure=failure)
                await self._take(planned, steps, enabled=before.enabled)
                if not restoring_steps(await self._now(planned), before):
                    return GpuOutcome(planned=planned, failure=failure)
            except UserError as error:
                loss = error
        return GpuOutcome(planned=planned, failure=failure, loss=loss)

    async def _now(self, planned: PlannedGpu) -> MigGpu:
        found = survey(await self.driver.gpu(planned.found.uuid))
        if found.problem is not None:
            raise found.problem
        return replace(found.gpu, index=planned.found.gpu.index)

    async def _take(self, planned: PlannedGpu, steps: Iterable[MigStep], *, enabled: bool) -> None:
        made: dict[int, int] = {}
        for step in steps:
            if step.action is MigAction.RESET:
                await self._reset(planned, step, enabled=enabled)
                continue
            self.tell(planned, step)
            await self._step(planned.found.uuid, step, made)

    async def _reset(self, planned: PlannedGpu, step: MigStep, *, enabled: bool) -> None:
        """Put a mode in force; a GPU at leisure has changed already."""
        if (await self._now(planned)).enabled == enabled:
            return
        if self.skip_reset:
            raise WaitsForResetError(
                f"the MIG mode of {planned.found.name} waits for a reset, which --skip-reset rules out",
                "a reset of the GPU", "leave --skip-reset out, or reboot the node with --mode-only",
            )  # fmt: skip
        self.tell(planned, step)
        await self.driver.reset(planned.found.uuid)

    async def _step(self, uuid: str, step: MigStep, made: dict[int, int]) -> None:
        match step:
            case MigStep(action=MigAction.MODE):
                await self.driver.set_mode(uuid, step.enabled)
            case MigStep(action=MigAction.DESTROY_INSTANCE, instance=int() as instance):
                await self.driver.destroy(uuid, instance)
            case MigStep(action=MigAction.DESTROY_COMPUTE, instance=int() as instance, compute=int() as compute):
                await self.driver.destroy(uuid, instance, compute)
            case MigStep(
                action=MigAction.CREATE_INSTANCE, profile=int() as profile, start=int() as start, made=int() as n
            ):
                made[n] = await self.driver.create_instance(uuid, profile, start)
            case MigStep(action=MigAction.CREATE_COMPUTE, profile=int() as profile, start=int() as start):
                within = step.instance if step.made is None else made[step.made]
                assert within is not None, "a compute instance is made in one that is there or was made"
                await self.driver.create_compute(uuid, within, profile, start)
            case _:
                raise AssertionError(f"no such step: {step}")


def _unused(gpu: MigGpu) -> MigGpu:
    """The same without who uses it, in the order of places."""
    instances = sorted((replace(one, used=False) for one in gpu.instances), key=lambda one: one.start)
    return replace(gpu, instances=tuple(instances))


def _cancelled(planned: PlannedGpu) -> PartitionError:
    return PartitionError(f"the change of {planned.found.name} was called off", "time for it", "do it again")
