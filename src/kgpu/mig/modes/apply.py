"""Sets the modes of plans on a driver: all GPUs end as wanted, or all as they were.

Memory modes come first, of all GPUs at once, as the driver is loaded anew for them and chooses compute modes itself.
Then compute modes, GPU by GPU; after them all GPUs are read again. What fails is undone in the same way. Nothing is
written down meanwhile: a program that ends in the middle leaves modes from which the next plan goes on.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence

from kgpu.base.errors import UserError
from kgpu.formats.partition_mode import PartitionMode
from kgpu.hw.partitioning import ModeGpu, ModePartitioner, PartitionError
from kgpu.mig.manager.kind import LayoutOutcome, LayoutPlan
from kgpu.mig.modes.plan import ModeChange, mode_of, name_of


async def apply(driver: ModePartitioner, plans: Sequence[LayoutPlan]) -> tuple[LayoutOutcome, ...]:
    """Carry the plans out; what has failed."""
    changes: dict[str, ModeChange] = {one.gpu: one.plan for one in plans if one.changes}
    try:
        failed = await _set(driver, {uuid: change.wanted for uuid, change in changes.items()})
    except asyncio.CancelledError:
        await asyncio.shield(_set(driver, {uuid: change.found for uuid, change in changes.items()}))
        raise
    if not failed:
        return ()
    lost = await _set(driver, {uuid: change.found for uuid, change in changes.items()})
    outcomes = [LayoutOutcome(failure=failed[uuid], loss=lost.get(uuid)) for uuid in failed]
    return (*outcomes, *(LayoutOutcome(failure=why, loss=why) for uuid, why in lost.items() if uuid not in failed))


async def _set(driver: ModePartitioner, wanted: Mapping[str, PartitionMode]) -> dict[str, UserError]:
    """Bring GPUs to modes; why some are otherwise."""
    try:
        gpus = await _found(driver, wanted)
        memory = {uuid: mode.memory for uuid, mode in wanted.items() if gpus[uuid].memory != mode.memory}
        if memory:
            await driver.set_memory(memory)
            gpus = await _found(driver, wanted)
    except UserError as problem:
        return dict.fromkeys(wanted, problem)
    failed: dict[str, UserError] = {}
    for uuid, mode in wanted.items():
        try:
            if gpus[uuid].compute != mode.compute:
                await driver.set_compute(uuid, mode.compute)
        except UserError as problem:
            failed[uuid] = problem
    try:
        now = await _found(driver, wanted)
    except UserError as problem:
        return dict.fromkeys(wanted, problem) | failed
    others = _otherwise({uuid: (now[uuid], mode) for uuid, mode in wanted.items() if mode_of(now[uuid]) != mode})
    return others | {uuid: problem for uuid, problem in failed.items() if uuid in others}


async def _found(driver: ModePartitioner, wanted: Mapping[str, PartitionMode]) -> dict[str, ModeGpu]:
    """The GPUs by UUID. Raises HwError where one is not there, or can't be read."""
    found = {gpu.uuid: gpu for gpu in await driver.gpus()}
    for uuid in wanted:
        if uuid not in found:
            raise PartitionError(
                f"the driver lists no GPU {uuid} any more", "the GPUs of before", "see dmesg for amdgpu"
            )
        if (problem := found[uuid].problem) is not None:
            raise problem
    return found


def _otherwise(found: Mapping[str, tuple[ModeGpu, PartitionMode]]) -> dict[str, UserError]:
    """Why GPUs are in other modes than the driver has taken; those with the same modes have one error."""
    alike: dict[tuple[PartitionMode, PartitionMode], list[str]] = {}
    for gpu, mode in found.values():
        alike.setdefault((mode, mode_of(gpu)), []).append(name_of(gpu))
    errors = {
        (mode, now): PartitionError(
            f"{', '.join(gpus)}: the driver has taken {mode.compute}/{mode.memory}, and is in "
            f"{now.compute}/{now.memory}",
            "the modes that were set",
            "see dmesg for amdgpu, and set the label anew",
        )
        for (mode, now), gpus in alike.items()
    }
    return {uuid: errors[mode, mode_of(gpu)] for uuid, (gpu, mode) in found.items()}
