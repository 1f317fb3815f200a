"""What a config asks of all GPUs of a node: the steps of each, or why it can't be had. Pure.

Everything that can be known before the first step is asked here, so that a GPU that can't be cut keeps the others as
they are. GPUs that no entry is about are left alone, as are those without MIG that ``devices: all`` takes in.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from kgpu.formats.mig_config import MigEntry
from kgpu.mig.model import MigAction, MigGpu, MigStep, WantedGpu, layout
from kgpu.mig.placed import changes_to
from kgpu.mig.plan import gpu_steps, takes_from
from kgpu.mig.survey import SurveyedGpu
from kgpu.mig.wanted import LayoutError, entry_of, wanted_gpu


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedGpu:
    """What becomes of one GPU; no steps if it is as it is to be."""

    found: SurveyedGpu
    wanted: WantedGpu
    steps: tuple[MigStep, ...]


def plan_node(
    gpus: Sequence[SurveyedGpu], entries: Sequence[MigEntry], *, mode_only: bool = False
) -> tuple[PlannedGpu, ...]:
    """A plan for each GPU that the config is about. ``mode_only``: its mode alone counts.

    Raises LayoutError for a layout that does not fit or a GPU without MIG, and a GPU's own problem.
    """
    return tuple(_plans(gpus, entries, mode_only=mode_only))


def _plans(gpus: Sequence[SurveyedGpu], entries: Sequence[MigEntry], *, mode_only: bool) -> Iterator[PlannedGpu]:
    for found in gpus:
        entry = _entry(found, entries)
        if entry is None:
            continue
        off = bool(found.uuid) and not (entry.enabled or found.gpu.enabled or found.gpu.pending)
        if found.problem is not None and not off:
            raise found.problem
        if found.gpu.geometry is None and entry.devices is None:
            continue
        wanted = _wanted(found, entry, mode_only=mode_only)
        yield PlannedGpu(found=found, wanted=wanted, steps=gpu_steps(found.gpu, wanted, found.name))


def _entry(found: SurveyedGpu, entries: Sequence[MigEntry]) -> MigEntry | None:
    """The entry about a GPU; of one that says nothing of itself, any entry that may be."""
    if found.problem is None or found.uuid:
        return entry_of(entries, found.gpu.index, found.device, found.subsystem)
    return next((one for one in entries if one.devices is None or found.gpu.index in one.devices), None)


def _wanted(found: SurveyedGpu, entry: MigEntry, *, mode_only: bool) -> WantedGpu:
    gpu = found.gpu
    if gpu.geometry is None:
        return WantedGpu(enabled=entry.enabled)
    if not mode_only:
        return wanted_gpu(entry, gpu.geometry, found.name)
    stays = gpu.enabled and entry.enabled
    return WantedGpu(enabled=entry.enabled, instances=tuple(layout(gpu).elements()) if stays else ())


def missing_gpus(gpus: Sequence[SurveyedGpu], entries: Sequence[MigEntry]) -> tuple[int, ...]:
    """Indexes that the config names and the node does not have."""
    known = {found.gpu.index for found in gpus}
    return tuple(sorted({index for entry in entries for index in entry.devices or ()} - known))


def check_unused(planned: Sequence[PlannedGpu]) -> None:
    """Raise LayoutError if a plan takes a slice, or a whole GPU, from who uses it."""
    for one in planned:
        name = one.found.name
        taken = takes_from(one.found.gpu, one.steps)
        if taken:
            slices = ", ".join(f"{instance.profile.name} at {instance.start}" for instance in taken)
            raise LayoutError(
                f"{name}: the change takes {slices} from processes that use {'them' if len(taken) > 1 else 'it'}",
                "slices that nobody uses", "end the work on them first; `nvidia-smi` lists its processes",
            )  # fmt: skip
        if one.found.used and any(step.action is MigAction.MODE for step in one.steps):
            raise LayoutError(
                f"{name}: its MIG mode can't change while processes use it", "a GPU that nobody uses",
                "end the work on it first; `nvidia-smi` lists its processes",
            )  # fmt: skip


def restoring_steps(now: MigGpu, before: MigGpu) -> tuple[MigStep, ...]:
    """What gives a GPU the layout back that it had, each instance at its place, and a mode that waits for no reset."""
    gone, made = changes_to(now, before)
    return (*gone, *_former_mode(now, before), *made)


def _former_mode(now: MigGpu, before: MigGpu) -> Iterator[MigStep]:
    if now.pending != before.enabled:
        yield MigStep(action=MigAction.MODE, gpu=before.index, enabled=before.enabled)
    if now.enabled != before.enabled:
        yield MigStep(action=MigAction.RESET, gpu=before.index)
