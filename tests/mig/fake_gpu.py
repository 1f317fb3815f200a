"""A GPU that takes steps as a driver does: what overlaps, is too much or is in use is refused."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from dataclasses import replace

from kgpu.formats.mig_geometry import Geometry, InstanceProfile, fits, places
from kgpu.mig.model import (
    ComputeInstance,
    ComputeProfile,
    MigAction,
    MigGpu,
    MigInstance,
    MigStep,
    compute_starts,
    place_compute,
)


class RefusedStepError(AssertionError):
    """The driver does not do that."""


def run(gpu: MigGpu, steps: Iterable[MigStep]) -> MigGpu:
    """The GPU after the steps."""
    made: dict[int, int] = {}
    for step in steps:
        gpu = one(gpu, step, made)
    return gpu


def one(gpu: MigGpu, step: MigStep, made: dict[int, int]) -> MigGpu:
    assert gpu.geometry is not None
    if step.action is MigAction.MODE:
        _refuse(bool(gpu.instances) and gpu.enabled and not step.enabled, "instances are there")
        return replace(gpu, pending=step.enabled, enabled=gpu.enabled if gpu.geometry.needs_reset else step.enabled)
    if step.action is MigAction.RESET:
        _refuse(any(instance.used for instance in gpu.instances), "somebody uses the GPU")
        return replace(gpu, enabled=gpu.pending, instances=gpu.instances if gpu.enabled == gpu.pending else ())
    _refuse(not gpu.enabled, "MIG is off")
    if step.action is MigAction.CREATE_INSTANCE:
        row = next(row for row in gpu.geometry.rows if row.enum == step.profile)
        assert step.start is not None
        assert step.made is not None
        beside = [(instance.profile, instance.start) for instance in gpu.instances]
        _refuse(step.start not in row.starts, "no such place")
        _refuse(any(places(row, step.start) & places(*other) for other in beside), "the place is taken")
        _refuse(not fits(gpu.geometry, [row, *(other for other, _ in beside)]), "too much")
        new = _free(instance.id for instance in gpu.instances)
        made[step.made] = new
        return replace(gpu, instances=(*gpu.instances, MigInstance(id=new, profile=row, start=step.start)))
    at = made[step.made] if step.made is not None else step.instance
    instance = next(instance for instance in gpu.instances if instance.id == at)
    rest = tuple(other for other in gpu.instances if other is not instance)
    if step.action is MigAction.DESTROY_INSTANCE:
        _refuse(bool(instance.compute), "it has compute instances")
        return replace(gpu, instances=rest)
    if step.action is MigAction.DESTROY_COMPUTE:
        _refuse(step.compute not in {compute.id for compute in instance.compute}, "no such compute instance")
        staying = tuple(compute for compute in instance.compute if compute.id != step.compute)
        return replace(gpu, instances=(*rest, replace(instance, compute=staying)))
    return replace(gpu, instances=(*rest, _with_compute(instance, step)))


def _with_compute(instance: MigInstance, step: MigStep) -> MigInstance:
    assert step.profile is not None
    assert step.start is not None
    profile = ComputeProfile(step.profile, {0: 1, 1: 2, 2: 3, 3: 4, 4: 7, 7: 1}[step.profile])
    _refuse(step.start not in compute_starts(profile, instance.profile.slices), "no such place")
    taken = {at for one in instance.compute for at in range(one.start, one.start + one.profile.slices)}
    _refuse(bool(taken & set(range(step.start, step.start + profile.slices))), "the place is taken")
    new = ComputeInstance(id=_free(one.id for one in instance.compute), profile=profile, start=step.start)
    return replace(instance, compute=(*instance.compute, new))


def _refuse(wrong: bool, why: str) -> None:
    if wrong:
        raise RefusedStepError(why)


def _free(taken: Iterable[int]) -> int:
    known = set(taken)
    return next(number for number in itertools.count() if number not in known)


def cut(
    geometry: Geometry, rows: Sequence[tuple[InstanceProfile, int, Sequence[ComputeProfile]]], **more: bool
) -> MigGpu:
    """A GPU with these instances at these places."""
    instances = []
    for number, (row, start, compute) in enumerate(rows):
        starts = place_compute(compute, row.slices)
        assert starts is not None
        made = tuple(
            ComputeInstance(id=at, profile=profile, start=begin)
            for at, (profile, begin) in enumerate(zip(compute, starts, strict=True))
        )
        instances.append(MigInstance(id=number, profile=row, start=start, compute=made))
    return MigGpu(index=0, geometry=geometry, enabled=True, pending=True, instances=tuple(instances))
