"""What a config asks of each GPU: its profiles as GPU instances and compute instances.

Several entries may be about one GPU; the last one counts. A profile with fewer compute slices than its GPU instance
shares one with the others of its kind for as long as there is room, as mig-parted has it: ``1c.3g.40gb: 3`` is one GPU
instance.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from kgpu.base.errors import ConfigError
from kgpu.base.suggest import did_you_mean
from kgpu.formats.mig_config import MigEntry
from kgpu.formats.mig_geometry import Geometry, InstanceProfile, find
from kgpu.formats.mig_profile import MigProfile
from kgpu.mig.model import (
    ComputeProfile,
    WantedGpu,
    WantedInstance,
    compute_profiles,
    place_compute,
    whole_compute,
)


class LayoutError(ConfigError):
    """A GPU can't be cut as asked."""


def wanted_gpu(entry: MigEntry, geometry: Geometry, gpu: str) -> WantedGpu:
    """What the entry asks of a GPU with MIG; ``gpu`` is its name for people. Raises LayoutError for a profile that it
    does not have.
    """
    if not entry.enabled:
        return WantedGpu(enabled=False)
    slices = [
        (profile, _known(geometry, profile, gpu)) for profile, count in entry.profiles for _ in range(count) if count
    ]
    # Large before small, as room for the large is found first.
    slices.sort(key=lambda one: (-one[1].units, one[1].enum, -one[0].c, one[0]))
    return WantedGpu(enabled=True, instances=tuple(_instances(geometry, slices, gpu)))


def entry_of(entries: Sequence[MigEntry], index: int, device: int, subsystem: int) -> MigEntry | None:
    """The last entry about a GPU, None if none is. ``device`` and ``subsystem`` are packed PCI ids."""
    return next((one for one in reversed(entries) if one.is_about(index, device, subsystem)), None)


def _known(geometry: Geometry, profile: MigProfile, gpu: str) -> InstanceProfile:
    exact = next((row for row in geometry.rows if row.name == str(profile)), None)
    row = exact or find(geometry, profile)
    if row is None:
        names = [one.name for one in geometry.rows]
        raise LayoutError(
            f"{gpu} has no MIG profile {profile}",
            f"one of {', '.join(names)}",
            did_you_mean(str(profile), names) or "take one of these",
        )
    return row


def _instances(
    geometry: Geometry, slices: Iterable[tuple[MigProfile, InstanceProfile]], gpu: str
) -> Iterable[WantedInstance]:
    row: InstanceProfile | None = None
    compute: list[ComputeProfile] = []
    for profile, of in slices:
        one = whole_compute(geometry, of) if profile.whole else _part(geometry, profile, of, gpu)
        if row != of or place_compute([*compute, one], of.slices) is None:
            if row is not None:
                yield WantedInstance(row, tuple(sorted(compute)))
            row, compute = of, []
        compute.append(one)
    if row is not None:
        yield WantedInstance(row, tuple(sorted(compute)))


def _part(geometry: Geometry, profile: MigProfile, row: InstanceProfile, gpu: str) -> ComputeProfile:
    known = compute_profiles(geometry, row)
    if profile.c not in known:
        names = ", ".join(f"{slices}c.{row.name}" for slices in sorted(known) if slices < row.slices)
        raise LayoutError(
            f"{gpu} has no MIG profile {profile}: no compute instance of {profile.c} slices fits {row.name}",
            names or row.name,
            "take one of these",
        )
    return known[profile.c]
