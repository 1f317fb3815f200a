"""How a node's GPUs are cut, for a checkpoint, and the plans that make it so again. Pure.

GPUs are found by their UUIDs, and each instance gets its place back. Of compute instances a checkpoint has no places:
those that are there stay, and others stand where kgpu puts them. GPUs that it does not have are left alone.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from kgpu.formats.mig_checkpoint import SavedGpu, SavedInstance
from kgpu.formats.mig_geometry import Geometry, ci_rows
from kgpu.mig.model import COMPUTE_SLICES, ComputeProfile, WantedGpu, WantedInstance, layout
from kgpu.mig.node_plan import PlannedGpu
from kgpu.mig.plan import gpu_steps
from kgpu.mig.survey import SurveyedGpu
from kgpu.mig.wanted import LayoutError

_OTHER_GPU = "take a checkpoint of this GPU, or cut it by a config"


def saved_gpus(gpus: Sequence[SurveyedGpu]) -> tuple[SavedGpu, ...]:
    """The node's GPUs with MIG. Raises the problem of one that can't be read, or is cut as kgpu does not know."""
    return tuple(_saved(found) for found in gpus if found.problem is not None or found.gpu.geometry is not None)


def _saved(found: SurveyedGpu) -> SavedGpu:
    if found.problem is not None and (not found.uuid or found.gpu.enabled):
        raise found.problem
    instances = [
        # mig-parted writes compute instances by their profiles' numbers, and makes them again in that order.
        SavedInstance(
            profile=one.profile.enum, start=one.start, size=one.profile.units,
            compute=tuple(sorted(ci.profile.number for ci in one.compute)),
        )
        for one in sorted(found.gpu.instances, key=lambda one: (one.profile.enum, one.id))
    ] if found.gpu.enabled else []  # fmt: skip
    return SavedGpu(uuid=found.uuid, enabled=found.gpu.enabled, instances=tuple(instances))


def plan_restore(
    gpus: Sequence[SurveyedGpu], saved: Sequence[SavedGpu], *, mode_only: bool = False
) -> tuple[PlannedGpu, ...]:
    """A plan for each GPU of the checkpoint. ``mode_only``: its mode alone counts.

    Raises LayoutError if the node lacks one, or it can't be cut so, and a GPU's own problem.
    """
    return tuple(_plans(gpus, saved, mode_only=mode_only))


def _plans(gpus: Sequence[SurveyedGpu], saved: Sequence[SavedGpu], *, mode_only: bool) -> Iterator[PlannedGpu]:
    known = {found.uuid: found for found in gpus if found.uuid}
    for one in saved:
        found = known.get(one.uuid)
        if found is None:
            raise _missing(one.uuid, gpus)
        if found.problem is not None and (one.enabled or found.gpu.enabled or found.gpu.pending):
            raise found.problem
        wanted = _wanted(found, one, mode_only=mode_only)
        yield PlannedGpu(found=found, wanted=wanted, steps=gpu_steps(found.gpu, wanted, found.name))


def _missing(uuid: str, gpus: Sequence[SurveyedGpu]) -> LayoutError:
    unread = [found.gpu.index for found in gpus if not found.uuid]
    more = f"; GPU {', '.join(map(str, unread))} can't be read" if unread else ""
    return LayoutError(
        f"the node has no GPU {uuid}, which the checkpoint has{more}", "the GPUs that the checkpoint was taken of",
        "look at `nvidia-smi -L`; after a change of GPUs, cut them by a config",
    )  # fmt: skip


def _wanted(found: SurveyedGpu, saved: SavedGpu, *, mode_only: bool) -> WantedGpu:
    gpu = found.gpu
    if gpu.geometry is None or not saved.enabled:
        return WantedGpu(enabled=saved.enabled)
    if mode_only:
        return WantedGpu(enabled=True, instances=tuple(layout(gpu).elements()) if gpu.enabled else ())
    geometry = gpu.geometry
    instances = tuple(_instance(geometry, one, found.name) for one in saved.instances)
    return WantedGpu(enabled=True, instances=instances, starts=tuple(one.start for one in saved.instances))


def _instance(geometry: Geometry, saved: SavedInstance, name: str) -> WantedInstance:
    row = next((row for row in geometry.rows if row.enum == saved.profile), None)
    if row is None:
        numbers = ", ".join(f"{row.enum} ({row.name})" for row in geometry.rows)
        raise LayoutError(f"{name} has no MIG profile of number {saved.profile}", f"one of {numbers}", _OTHER_GPU)
    if saved.size != row.units:
        raise LayoutError(
            f"{name}: {row.name} takes {row.units} memory slices, not {saved.size}", "sizes as this GPU has them",
            _OTHER_GPU,
        )  # fmt: skip
    known = {number for number, *_ in ci_rows(row, geometry)}
    unknown = [number for number in saved.compute if number not in known]
    if unknown:
        raise LayoutError(
            f"{name}: {row.name} has no compute instance of profile {unknown[0]}",
            f"one of {', '.join(map(str, sorted(known)))}", _OTHER_GPU,
        )  # fmt: skip
    return WantedInstance(
        row, tuple(sorted(ComputeProfile(number, COMPUTE_SLICES[number]) for number in saved.compute))
    )
