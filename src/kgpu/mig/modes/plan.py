"""What a partition profile asks of a node's GPUs: the modes of each, or why they can't be had. Pure.

GPUs that are not skipped get the profile's rows in the order of their indexes, as AMD's device config manager does it.
All is checked before the first step. A memory mode is of all GPUs of a node: the driver is loaded anew for it, and GPUs
that are linked change it together. So a change of it concerns GPUs whose modes stay, too.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from kgpu.base.suggest import did_you_mean
from kgpu.formats.mig_request import MigLayout
from kgpu.formats.partition_mode import COMPUTE, MEMORY, WHOLE, PartitionMode, parse_mode
from kgpu.formats.partition_profiles import PartitionProfile
from kgpu.hw.partitioning import ModeGpu
from kgpu.mig.manager.kind import LayoutPlan
from kgpu.mig.wanted import LayoutError


@dataclass(frozen=True, slots=True, kw_only=True)
class ModeChange:
    """How a GPU is and how it is to be."""

    found: PartitionMode
    wanted: PartitionMode


def name_of(gpu: ModeGpu) -> str:
    """The GPU for people."""
    return f"GPU {gpu.index}" + (f" ({gpu.product})" if gpu.product else "")


def mode_of(gpu: ModeGpu) -> PartitionMode:
    """The modes of a GPU that can be parted."""
    return PartitionMode(gpu.compute, gpu.memory)


def aim(gpus: Sequence[ModeGpu], name: str, profile: PartitionProfile) -> tuple[LayoutPlan, ...]:
    """A plan for each GPU that the profile is about. Raises LayoutError, and a GPU's own problem."""
    _check_count(gpus, name, profile)
    assigned = iter([row.mode for row in profile.rows for _ in range(row.gpus)])
    wanted = {gpu.uuid: next(assigned) for gpu in gpus if gpu.index not in profile.skipped}
    for gpu in gpus:
        if gpu.uuid in wanted:
            check(gpu, wanted[gpu.uuid])
    _check_memory(gpus, wanted)
    return plan(gpus, wanted)


def plan(gpus: Sequence[ModeGpu], wanted: dict[str, PartitionMode]) -> tuple[LayoutPlan, ...]:
    """A plan for each GPU of ``wanted``, and where a memory mode changes for all that can be parted."""
    partable = [gpu for gpu in gpus if gpu.compute]
    reloads = any(gpu.memory != wanted[gpu.uuid].memory for gpu in partable if gpu.uuid in wanted)
    made = [_plan(gpu, wanted.get(gpu.uuid), reloads=reloads) for gpu in partable]
    return tuple(one for one in made if one is not None)


def _plan(gpu: ModeGpu, wanted: PartitionMode | None, *, reloads: bool) -> LayoutPlan | None:
    if wanted is None and not reloads:
        return None
    found = mode_of(gpu)
    wanted = wanted or found
    return LayoutPlan(
        gpu=gpu.uuid, name=name_of(gpu), layout=layout(gpu.uuid, wanted), now=f"{found.compute}/{found.memory}",
        changes=reloads or wanted != found, release=reloads, stops=reloads or wanted != found,
        gone=found.compute == WHOLE and wanted.compute != WHOLE, plan=ModeChange(found=found, wanted=wanted),
    )  # fmt: skip


def layout(uuid: str, mode: PartitionMode) -> MigLayout:
    """The mode as requests and orders have it."""
    return MigLayout(gpu=uuid, enabled=True, devices={mode.name: 1})


def of_layouts(gpus: Sequence[ModeGpu], layouts: Sequence[MigLayout]) -> dict[str, PartitionMode]:
    """The modes of layouts by GPU. Raises LayoutError for a GPU that the node lacks or one that can't be parted so."""
    known = {gpu.uuid: gpu for gpu in gpus}
    found: dict[str, PartitionMode] = {}
    for one in layouts:
        mode = parse_mode(next(iter(one.devices), "")) if len(one.devices) == 1 else None
        if mode is None:
            raise LayoutError(
                f"{', '.join(one.devices) or 'nothing'} is no partition mode", "one such as cpx_nps4",
                "set the Node's label to a profile",
            )  # fmt: skip
        if one.gpu not in known:
            raise LayoutError(
                f"this node's driver lists no GPU {one.gpu}", "GPUs of this node", "look at `amd-smi list` there"
            )
        check(known[one.gpu], mode)
        found[one.gpu] = mode
    return found


def check(gpu: ModeGpu, wanted: PartitionMode) -> None:
    """Raise the GPU's problem, or LayoutError if it can't be parted so."""
    if gpu.problem is not None:
        raise gpu.problem
    if not (gpu.computes and gpu.compute):
        raise LayoutError(
            f"{name_of(gpu)} can't be parted: its driver has no partition modes", "GPUs such as the MI300X",
            "remove the label, or skip the GPU by skippedGPUs",
        )  # fmt: skip
    for kind, mode, modes in (("compute", wanted.compute, gpu.computes), ("memory", wanted.memory, gpu.memories)):
        if mode not in modes:
            raise LayoutError(
                f"{name_of(gpu)} has no {kind} partition mode {mode}", f"one of {', '.join(modes) or 'none'}",
                did_you_mean(mode, modes) or "choose another profile",
            )  # fmt: skip
    if MEMORY[wanted.memory] > COMPUTE[wanted.compute]:
        raise LayoutError(
            f"{wanted.compute} with {wanted.memory}", "at least as many compute partitions as memory partitions",
            "choose another profile",
        )  # fmt: skip


def _check_count(gpus: Sequence[ModeGpu], name: str, profile: PartitionProfile) -> None:
    there = {gpu.index for gpu in gpus}
    if missing := sorted(set(profile.skipped) - there):
        raise LayoutError(
            f'the profile "{name:.100}" skips GPU {", ".join(map(str, missing))}, which this node does not have',
            f"indexes from 0 to {len(gpus) - 1}", "correct skippedGPUs",
        )  # fmt: skip
    if profile.gpus != len(gpus):
        given = f"{profile.gpus - len(profile.skipped)} assigned and {len(profile.skipped)} skipped"
        raise LayoutError(
            f'the profile "{name:.100}" is for {profile.gpus} GPUs ({given}), and this node has {len(gpus)}',
            "numGPUsAssigned and skippedGPUs that make up the node's GPUs",
            "choose another profile, or correct this one",
        )  # fmt: skip


def _check_memory(gpus: Sequence[ModeGpu], wanted: dict[str, PartitionMode]) -> None:
    mode = next((one.memory for one in wanted.values()), "")
    others = [gpu for gpu in gpus if gpu.uuid not in wanted and gpu.memory and gpu.memory != mode]
    if wanted and others:
        raise LayoutError(
            f"{name_of(others[0])} would have to keep {others[0].memory} beside {mode}",
            "one memory partition mode for all GPUs of a node", "take it out of skippedGPUs",
        )  # fmt: skip
