"""The fewest steps from a GPU's layout to the one that is wanted. Pure; nothing is asked of the driver.

What may stay, stays where it is: of all ways to keep instances, the cheapest is taken after which the rest still fits,
and one that takes a slice from nobody before one that does. A layout that fits in no way is refused with the largest
part of it that would.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from kgpu.formats.mig_geometry import Geometry, InstanceProfile, placements
from kgpu.mig.model import (
    ComputeInstance,
    ComputeProfile,
    MigAction,
    MigGpu,
    MigInstance,
    MigStep,
    WantedGpu,
    WantedInstance,
    place_compute,
)
from kgpu.mig.placed import changes_to, placed_gpu
from kgpu.mig.wanted import LayoutError

_TAKEN_FROM_SOMEBODY: Final = 1000
"""What a step counts that takes a slice from its user: more than all steps of a GPU together."""


@dataclass(frozen=True, slots=True)
class _Kept:
    """A GPU instance that stays, and what becomes of its compute instances."""

    instance: MigInstance
    gone: tuple[ComputeInstance, ...]
    made: tuple[tuple[ComputeProfile, int], ...]

    @property
    def cost(self) -> int:
        taken = _TAKEN_FROM_SOMEBODY if self.gone and self.instance.used else 0
        return len(self.gone) + len(self.made) + taken


@dataclass(frozen=True, slots=True)
class _Change:
    """A way from one layout to another."""

    kept: tuple[_Kept, ...] = ()
    gone: tuple[MigInstance, ...] = ()
    made: tuple[tuple[WantedInstance, int], ...] = ()

    @property
    def cost(self) -> int:
        kept, made = sum(one.cost for one in self.kept), sum(1 + len(wanted.compute) for wanted, _ in self.made)
        return kept + made + sum(map(_cost_of_loss, self.gone))


def gpu_steps(gpu: MigGpu, wanted: WantedGpu, name: str) -> tuple[MigStep, ...]:
    """What turns the GPU into the wanted one, none if it is that already; ``name`` is the GPU's for people.

    Raises LayoutError for a layout that does not fit, and for MIG on a GPU that has none.
    """
    if gpu.geometry is None:
        if wanted.enabled:
            raise LayoutError(f"{name} has no MIG", "a GPU with MIG", "leave it out by devices or device-filter")
        return ()
    if wanted.starts is not None:
        gone, made = changes_to(gpu, placed_gpu(gpu, gpu.geometry, wanted, name))
        return (*gone, *_mode(gpu, gpu.geometry, enabled=wanted.enabled), *made)
    change = _cheapest(gpu.geometry, gpu.instances if gpu.enabled else (), wanted.instances, name)
    if gpu.enabled and not wanted.enabled:
        change = _Change(gone=gpu.instances)
    return (
        *_removals(gpu.index, change),
        *_mode(gpu, gpu.geometry, enabled=wanted.enabled),
        *_additions(gpu.index, change),
    )


def takes_from(gpu: MigGpu, steps: Sequence[MigStep]) -> tuple[MigInstance, ...]:
    """The instances in use that the steps take away or change."""
    ids = {step.instance for step in steps if step.action in {MigAction.DESTROY_INSTANCE, MigAction.DESTROY_COMPUTE}}
    return tuple(one for one in gpu.instances if one.used and one.id in ids)


def _mode(gpu: MigGpu, geometry: Geometry, *, enabled: bool) -> Iterator[MigStep]:
    """A mode that waits for a reset which is not wanted is taken back by setting the one in force."""
    if gpu.pending != enabled:
        yield MigStep(action=MigAction.MODE, gpu=gpu.index, enabled=enabled)
    if gpu.enabled != enabled and (geometry.needs_reset or gpu.pending == enabled):
        yield MigStep(action=MigAction.RESET, gpu=gpu.index)


def _removals(gpu: int, change: _Change) -> Iterator[MigStep]:
    for kept in change.kept:
        yield from (_lost(gpu, kept.instance, one) for one in kept.gone)
    for instance in change.gone:
        yield from (_lost(gpu, instance, one) for one in instance.compute)
        yield MigStep(action=MigAction.DESTROY_INSTANCE, gpu=gpu, instance=instance.id)


def _lost(gpu: int, instance: MigInstance, compute: ComputeInstance) -> MigStep:
    return MigStep(action=MigAction.DESTROY_COMPUTE, gpu=gpu, instance=instance.id, compute=compute.id)


def _additions(gpu: int, change: _Change) -> Iterator[MigStep]:
    for kept in change.kept:
        for profile, start in kept.made:
            yield MigStep(
                action=MigAction.CREATE_COMPUTE, gpu=gpu, instance=kept.instance.id, profile=profile.number, start=start
            )
    for ordinal, (wanted, at) in enumerate(change.made):
        yield MigStep(action=MigAction.CREATE_INSTANCE, gpu=gpu, profile=wanted.profile.enum, start=at, made=ordinal)
        starts = place_compute(wanted.compute, wanted.profile.slices)
        assert starts is not None, "wanted.py makes only what fits"
        for profile, start in zip(wanted.compute, starts, strict=True):
            yield MigStep(action=MigAction.CREATE_COMPUTE, gpu=gpu, profile=profile.number, start=start, made=ordinal)


# --- the cheapest change ---


def _cheapest(
    geometry: Geometry, present: Sequence[MigInstance], wanted: Sequence[WantedInstance], name: str
) -> _Change:
    if placements(geometry, [one.profile for one in wanted]) is None:
        raise _too_large(geometry, wanted, name)
    found = min(_ways(geometry, present, wanted), key=lambda way: way.cost)
    return _in_order(found)


def _ways(geometry: Geometry, present: Sequence[MigInstance], wanted: Sequence[WantedInstance]) -> Iterator[_Change]:
    """Every way to keep some of what is there; the one that keeps nothing is always among them."""
    for kept, left in _matches(tuple(present), tuple(wanted)):
        rest = sorted(left, key=lambda one: -one.profile.units)
        beside = [(one.instance.profile, one.instance.start) for one in kept]
        starts = placements(geometry, [one.profile for one in rest], beside)
        if starts is not None:
            staying = {one.instance.id for one in kept}
            gone = tuple(one for one in present if one.id not in staying)
            yield _Change(kept, gone, tuple(zip(rest, starts, strict=True)))


def _matches(
    present: tuple[MigInstance, ...], wanted: tuple[WantedInstance, ...]
) -> Iterator[tuple[tuple[_Kept, ...], tuple[WantedInstance, ...]]]:
    if not present:
        yield (), wanted
        return
    first, rest = present[0], present[1:]
    for match in dict.fromkeys(one for one in wanted if one.profile == first.profile):
        at = wanted.index(match)
        keeping = _keep(first, match.compute)
        for kept, left in _matches(rest, wanted[:at] + wanted[at + 1 :]):
            yield (keeping, *kept), left
    yield from _matches(rest, wanted)


def _keep(instance: MigInstance, wanted: Sequence[ComputeProfile]) -> _Kept:
    """The cheapest way to have the wanted compute instances in a GPU instance that stays."""
    ways = []
    by_slices = {one.slices: one for one in wanted}
    for count in range(len(instance.compute), -1, -1):
        for staying in itertools.combinations(instance.compute, count):
            # By their slices, which is all that a config says: of a slice of double memory there are two, and
            # mig-parted makes the one that kgpu does not.
            missing = Counter(one.slices for one in wanted)
            missing.subtract(one.profile.slices for one in staying)
            if any(number < 0 for number in missing.values()):
                continue
            rest = sorted(by_slices[slices] for slices in missing.elements())
            starts = place_compute(rest, instance.profile.slices, staying)
            if starts is not None:
                gone = tuple(one for one in instance.compute if one not in staying)
                ways.append(_Kept(instance, gone, tuple(zip(rest, starts, strict=True))))
        if ways:  # with fewer of them staying it only costs more
            break
    return min(ways, key=lambda way: way.cost)


def _cost_of_loss(instance: MigInstance) -> int:
    return 1 + len(instance.compute) + (_TAKEN_FROM_SOMEBODY if instance.used else 0)


def _in_order(change: _Change) -> _Change:
    """The same with what is made in the order of its places, which makes plans comparable."""
    made = tuple(sorted(change.made, key=lambda one: (one[1], one[0].profile.enum)))
    return _Change(change.kept, change.gone, made)


# --- what does not fit ---


def _too_large(geometry: Geometry, wanted: Sequence[WantedInstance], name: str) -> LayoutError:
    rows = [one.profile for one in wanted]
    largest = largest_part(geometry, rows)
    return LayoutError(
        f"{name} can't be cut into {_spelled(rows)}",
        f"a layout that fits; of these at most {_spelled(largest)}" if largest else "a layout that fits",
        "ask for fewer or smaller slices; `nvidia-smi mig -lgip` shows how many of each a GPU takes",
    )


def largest_part(geometry: Geometry, rows: Sequence[InstanceProfile]) -> tuple[InstanceProfile, ...]:
    """The part of these that uses the most memory slices, then the one of the fewest instances, that fits."""
    counted = Counter(rows)
    choices = [range(min(number, row.count), -1, -1) for row, number in counted.items()]
    best: tuple[InstanceProfile, ...] = ()
    for numbers in itertools.product(*choices):
        part = tuple(row for row, number in zip(counted, numbers, strict=True) for _ in range(number))
        if _size(part) > _size(best) and placements(geometry, part) is not None:
            best = part
    return best


def _size(part: Sequence[InstanceProfile]) -> tuple[int, int]:
    return sum(row.units for row in part), -len(part)


def _spelled(rows: Sequence[InstanceProfile]) -> str:
    return ", ".join(f"{number} of {row.name}" for row, number in Counter(rows).items()) or "nothing"
