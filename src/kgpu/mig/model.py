"""What is known of a GPU's slices, and what they are to be. Numbers of profiles are NVML's, not the printed ids."""

from __future__ import annotations

import enum
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from kgpu.formats.mig_geometry import Geometry, InstanceProfile, ci_rows, whole_ci

COMPUTE_SLICES: Final = (1, 2, 3, 4, 7, 8, 6, 1, 7)
"""Compute slices by the number of the compute instance's profile."""


@dataclass(frozen=True, slots=True, order=True)
class ComputeProfile:
    """What a compute instance is made of: its profile's number and how many compute slices it takes."""

    number: int
    slices: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ComputeInstance:
    """A compute instance that is there. ``id`` is the driver's; ``start`` is in compute slices of its GPU instance."""

    id: int
    profile: ComputeProfile
    start: int


@dataclass(frozen=True, slots=True, kw_only=True)
class MigInstance:
    """A GPU instance that is there. ``start`` is in memory slices; ``used``: somebody has one of its slices open."""

    id: int
    profile: InstanceProfile
    start: int
    compute: tuple[ComputeInstance, ...] = ()
    used: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class MigGpu:
    """A GPU as it is. ``geometry`` is None where it has no MIG. ``enabled`` is the mode in force, ``pending`` the one
    after its next reset.
    """

    index: int
    geometry: Geometry | None
    enabled: bool = False
    pending: bool = False
    instances: tuple[MigInstance, ...] = ()


@dataclass(frozen=True, slots=True)
class WantedInstance:
    """A GPU instance that is to be there, with its compute instances in the order of their numbers."""

    profile: InstanceProfile
    compute: tuple[ComputeProfile, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class WantedGpu:
    """How a GPU is to be. ``starts`` are the places of the instances, in memory slices; None: wherever they fit."""

    enabled: bool
    instances: tuple[WantedInstance, ...] = ()
    starts: tuple[int, ...] | None = None


class MigAction(enum.StrEnum):
    """What a step does, in the words of its report."""

    DESTROY_COMPUTE = "destroy-compute-instance"
    DESTROY_INSTANCE = "destroy-gpu-instance"
    MODE = "set-mode"
    RESET = "reset"
    CREATE_INSTANCE = "create-gpu-instance"
    CREATE_COMPUTE = "create-compute-instance"


@dataclass(frozen=True, slots=True, kw_only=True)
class MigStep:
    """One change of one GPU.

    ``instance`` and ``compute`` are ids of what is there. ``made`` is the ordinal, from 0, of the GPU instance that an
    earlier step of the same plan makes; a compute instance is made in it, or in ``instance`` where ``made`` is None.
    """

    action: MigAction
    gpu: int
    enabled: bool = False
    instance: int | None = None
    compute: int | None = None
    profile: int | None = None
    start: int | None = None
    made: int | None = None


def whole_compute(geometry: Geometry, profile: InstanceProfile) -> ComputeProfile:
    """The compute instance that takes a whole GPU instance."""
    return ComputeProfile(whole_ci(profile, geometry), profile.slices)


def compute_profiles(geometry: Geometry, profile: InstanceProfile) -> dict[int, ComputeProfile]:
    """The compute instances that a GPU instance can have, by how many slices they take."""
    return {slices: ComputeProfile(number, slices) for number, slices, _, _ in ci_rows(profile, geometry)}


def compute_starts(profile: ComputeProfile, total: int) -> tuple[int, ...]:
    """Where a compute instance can begin in a GPU instance of ``total`` compute slices (``nvidia-smi mig -lcipp``)."""
    step = 4 if profile.slices == 3 else profile.slices
    return tuple(range(0, total - profile.slices + 1, step))


def place_compute(
    wanted: Iterable[ComputeProfile], total: int, beside: Iterable[ComputeInstance] = ()
) -> tuple[int, ...] | None:
    """A start for each compute instance, in their order, in a GPU instance of ``total`` slices; None where they don't
    fit ``beside`` those that stay.
    """
    taken = 0
    for one in beside:
        taken |= ((1 << one.profile.slices) - 1) << one.start
    profiles = list(wanted)
    order = sorted(range(len(profiles)), key=lambda at: -profiles[at].slices)
    found = _placed([profiles[at] for at in order], total, taken)
    return None if found is None else tuple(start for _, start in sorted(zip(order, found, strict=True)))


def _placed(profiles: list[ComputeProfile], total: int, taken: int) -> tuple[int, ...] | None:
    if not profiles:
        return ()
    first, rest = profiles[0], profiles[1:]
    for start in compute_starts(first, total):
        slices = ((1 << first.slices) - 1) << start
        if not slices & taken and (after := _placed(rest, total, taken | slices)) is not None:
            return (start, *after)
    return None


def layout(gpu: MigGpu) -> Counter[WantedInstance]:
    """The GPU's instances without their places and ids, with orphans, which have no compute instance."""
    return Counter(
        WantedInstance(one.profile, tuple(sorted(made.profile for made in one.compute))) for one in gpu.instances
    )
