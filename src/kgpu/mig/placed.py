"""From one layout to another whose instances have their places: each stands where it is to, or is made there. Pure.

The way back after a failure, and from a checkpoint. What is at its place already is not touched.
"""

from __future__ import annotations

from collections.abc import Iterator

from kgpu.formats.mig_geometry import Geometry, placements, places
from kgpu.mig.model import (
    ComputeInstance,
    MigAction,
    MigGpu,
    MigInstance,
    MigStep,
    WantedGpu,
    WantedInstance,
    place_compute,
)
from kgpu.mig.wanted import LayoutError


def changes_to(now: MigGpu, target: MigGpu) -> tuple[tuple[MigStep, ...], tuple[MigStep, ...]]:
    """What has to go, and then what has to be made; a change of mode comes in between."""
    gpu = target.index
    gone: list[MigStep] = []
    made: list[MigStep] = []
    missing = {(one.profile.enum, one.start): one for one in target.instances} if target.enabled else {}
    for one in now.instances if now.enabled else ():
        match = missing.pop((one.profile.enum, one.start), None)
        staying = {(ci.profile, ci.start) for ci in match.compute} if match else set()
        gone += [
            MigStep(action=MigAction.DESTROY_COMPUTE, gpu=gpu, instance=one.id, compute=ci.id)
            for ci in one.compute
            if (ci.profile, ci.start) not in staying
        ]
        if match is None:
            gone.append(MigStep(action=MigAction.DESTROY_INSTANCE, gpu=gpu, instance=one.id))
            continue
        there = {(ci.profile, ci.start) for ci in one.compute}
        made += [
            MigStep(
                action=MigAction.CREATE_COMPUTE, gpu=gpu, instance=one.id, profile=ci.profile.number, start=ci.start
            )
            for ci in sorted(match.compute, key=lambda ci: ci.id)
            if (ci.profile, ci.start) not in there
        ]
    for ordinal, one in enumerate(missing.values()):
        made += _making(gpu, ordinal, one)
    return tuple(gone), tuple(made)


def _making(gpu: int, ordinal: int, one: MigInstance) -> Iterator[MigStep]:
    yield MigStep(action=MigAction.CREATE_INSTANCE, gpu=gpu, profile=one.profile.enum, start=one.start, made=ordinal)
    for ci in sorted(one.compute, key=lambda ci: ci.id):
        yield MigStep(action=MigAction.CREATE_COMPUTE, gpu=gpu, profile=ci.profile.number, start=ci.start, made=ordinal)


def placed_gpu(now: MigGpu, geometry: Geometry, wanted: WantedGpu, name: str) -> MigGpu:
    """The GPU as it is to be, with all places: ``wanted`` has ``starts``. Compute instances that are there already keep
    their places. ``name`` is the GPU's for people. Raises LayoutError for places that do not go together.
    """
    assert wanted.starts is not None, "whoever asks has places"
    chosen = list(zip(wanted.instances, wanted.starts, strict=True))
    _check_places(geometry, chosen, name)
    there = {(one.profile.enum, one.start): one for one in now.instances} if now.enabled else {}
    instances = tuple(
        MigInstance(
            id=ordinal, profile=one.profile, start=start,
            compute=_compute(there.get((one.profile.enum, start)), one, start, name),
        )
        for ordinal, (one, start) in enumerate(chosen)
    )  # fmt: skip
    return MigGpu(
        index=now.index, geometry=geometry, enabled=wanted.enabled, pending=wanted.enabled, instances=instances
    )


def _check_places(geometry: Geometry, chosen: list[tuple[WantedInstance, int]], name: str) -> None:
    taken = 0
    for one, start in chosen:
        cells = places(one.profile, start)
        if start not in one.profile.starts or cells & taken:
            raise LayoutError(
                f"{name} can't have {one.profile.name} at {start}: "
                + ("another instance is there" if cells & taken else "it has no such place"),
                f"places of their own, of {one.profile.name} some of {', '.join(map(str, one.profile.starts))}",
                "`nvidia-smi mig -lgipp` shows the places of a GPU",
            )  # fmt: skip
        taken |= cells
    if placements(geometry, [], [(one.profile, start) for one, start in chosen]) is None:
        names = ", ".join(one.profile.name for one, _ in chosen)
        raise LayoutError(
            f"{name} can't be cut into {names}", "a layout that fits",
            "`nvidia-smi mig -lgip` shows how many of each a GPU takes",
        )  # fmt: skip


def _compute(there: MigInstance | None, wanted: WantedInstance, start: int, name: str) -> tuple[ComputeInstance, ...]:
    if there is not None and sorted(one.profile for one in there.compute) == sorted(wanted.compute):
        return there.compute
    starts = place_compute(wanted.compute, wanted.profile.slices)
    if starts is None:
        raise LayoutError(
            f"{name}: the compute instances in {wanted.profile.name} at {start} do not fit it",
            f"compute instances of {wanted.profile.slices} slices together", "`nvidia-smi mig -lcip` shows what fits",
        )  # fmt: skip
    return tuple(
        ComputeInstance(id=at, profile=profile, start=begin)
        for at, (profile, begin) in enumerate(zip(wanted.compute, starts, strict=True))
    )
