"""From any layout to any other: the target is reached, by the fewest steps, and what may stay is not touched."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kgpu.formats.mig_config import MigEntry
from kgpu.formats.mig_geometry import GEOMETRIES, Geometry, InstanceProfile, ci_rows, placements, places
from kgpu.formats.mig_profile import parse_mig_profile
from kgpu.mig.model import (
    ComputeProfile,
    MigAction,
    MigGpu,
    MigInstance,
    WantedGpu,
    WantedInstance,
    compute_profiles,
    layout,
    place_compute,
    whole_compute,
)
from kgpu.mig.plan import gpu_steps, largest_part, takes_from
from kgpu.mig.wanted import LayoutError, wanted_gpu
from tests.budget import count
from tests.mig.fake_gpu import cut, run

A100, A30, H100 = GEOMETRIES["a100-40gb"], GEOMETRIES["a30"], GEOMETRIES["h100-80gb"]
OFF = WantedGpu(enabled=False)


def ask(geometry: Geometry, enabled: bool = True, **profiles: int) -> WantedGpu:
    """``ask(A100, **{"1g.5gb": 7})``."""
    listed = tuple((parse_mig_profile(name), count) for name, count in profiles.items())
    return wanted_gpu(MigEntry(enabled=enabled, profiles=listed), geometry, "GPU 0")


def fresh(geometry: Geometry, wanted: WantedGpu) -> MigGpu:
    """A GPU that was cut so from nothing."""
    empty = MigGpu(index=0, geometry=geometry, enabled=True, pending=True)
    return run(empty, gpu_steps(empty, wanted, "GPU 0"))


def used(gpu: MigGpu, *names: str) -> MigGpu:
    """The same with the first instances of these names in use."""
    left = Counter(names)
    instances = []
    for instance in gpu.instances:
        busy = left[instance.profile.name] > 0
        left[instance.profile.name] -= busy
        instances.append(replace(instance, used=busy))
    return replace(gpu, instances=tuple(instances))


@st.composite
def slices(draw: Any, geometry: Geometry) -> list[tuple[InstanceProfile, int, list[ComputeProfile]]]:
    """GPU instances that fit together, somewhere, each with compute instances that fit it, or none."""
    rows: list[InstanceProfile] = []
    for row in draw(st.lists(st.sampled_from(geometry.rows), max_size=7)):
        if placements(geometry, [*rows, row]) is not None:
            rows.append(row)
    found: list[tuple[InstanceProfile, int]] = []
    for number, row in enumerate(rows):
        free = [
            start
            for start in row.starts
            if not any(places(row, start) & places(*other) for other in found)
            and placements(geometry, rows[number + 1 :], [*found, (row, start)]) is not None
        ]
        found.append((row, draw(st.sampled_from(free))))
    return [(row, start, draw(compute(geometry, row))) for row, start in found]


@st.composite
def compute(draw: Any, geometry: Geometry, row: InstanceProfile) -> list[ComputeProfile]:
    known = list(compute_profiles(geometry, row).values())
    if draw(st.booleans()):
        return [whole_compute(geometry, row)]
    chosen: list[ComputeProfile] = []
    for profile in draw(st.lists(st.sampled_from(known), max_size=4)):
        if place_compute([*chosen, profile], row.slices) is not None:
            chosen.append(profile)
    return sorted(chosen)


def wanted_of(rows: list[tuple[InstanceProfile, int, list[ComputeProfile]]]) -> WantedGpu:
    return WantedGpu(enabled=True, instances=tuple(WantedInstance(row, tuple(made)) for row, _, made in rows))


@st.composite
def pairs(draw: Any, geometry: Geometry | None = None) -> tuple[MigGpu, WantedGpu]:
    chosen = geometry or GEOMETRIES[draw(st.sampled_from(sorted(GEOMETRIES)))]
    before = cut(chosen, draw(slices(chosen)))
    busy = draw(st.sets(st.integers(0, 6)))
    instances = tuple(replace(one, used=one.id in busy) for one in before.instances)
    return replace(before, instances=instances), wanted_of(draw(slices(chosen)))


@settings(max_examples=count(200, 10_000), deadline=None)
@given(pairs())
def test_every_layout_is_reached_and_then_there_is_nothing_to_do(pair: tuple[MigGpu, WantedGpu]) -> None:
    gpu, wanted = pair
    after = run(gpu, gpu_steps(gpu, wanted, "GPU 0"))
    assert layout(after) == Counter(wanted.instances)
    assert gpu_steps(after, wanted, "GPU 0") == ()


@settings(max_examples=count(60, 1_000), deadline=None)
@given(pairs(A30))
def test_no_way_takes_fewer_slices_from_somebody_or_has_fewer_steps(pair: tuple[MigGpu, WantedGpu]) -> None:
    gpu, wanted = pair
    steps = gpu_steps(gpu, wanted, "GPU 0")
    assert (len(takes_from(gpu, steps)), len(steps)) == fewest(gpu, wanted)


def fewest(gpu: MigGpu, wanted: WantedGpu) -> tuple[int, int]:
    """How many users lose something, and the number of steps, by brute force: any set of instances stays at its place,
    the rest goes, and what lacks is made wherever it fits.
    """
    return min(
        cost
        for size in range(len(gpu.instances) + 1)
        for staying in itertools.permutations(gpu.instances, size)
        for targets in itertools.combinations(range(len(wanted.instances)), size)
        if (cost := _cost(gpu, wanted, staying, targets)) is not None
    )


def _cost(gpu: MigGpu, wanted: WantedGpu, staying: Any, targets: Any) -> tuple[int, int] | None:
    assert gpu.geometry is not None
    chosen = [wanted.instances[at] for at in targets]
    rest = [one for at, one in enumerate(wanted.instances) if at not in targets]
    if any(one.profile != target.profile for one, target in zip(staying, chosen, strict=True)):
        return None
    beside = [(one.profile, one.start) for one in staying]
    if placements(gpu.geometry, [one.profile for one in rest], beside) is None:
        return None
    gone: list[MigInstance] = [one for one in gpu.instances if one not in staying]
    within = [_within(one, target) for one, target in zip(staying, chosen, strict=True)]
    losers = sum(one.used for one in gone) + sum(lost for lost, _ in within)
    return losers, sum(1 + len(one.compute) for one in gone) + sum(1 + len(one.compute) for one in rest) + sum(
        steps for _, steps in within
    )


def _within(instance: Any, target: WantedInstance) -> tuple[int, int]:
    ways = []
    for size in range(len(instance.compute) + 1):
        for kept in itertools.combinations(instance.compute, size):
            missing = Counter(target.compute)
            missing.subtract(one.profile for one in kept)
            if min(missing.values(), default=0) < 0:
                continue
            rest, gone = list(missing.elements()), len(instance.compute) - size
            if place_compute(rest, instance.profile.slices, kept) is not None:
                ways.append((int(instance.used and gone > 0), gone + len(rest)))
    return min(ways)


def test_what_stays_is_not_touched() -> None:
    gpu = fresh(A100, ask(A100, **{"3g.20gb": 1, "1g.5gb": 3}))
    steps = gpu_steps(gpu, ask(A100, **{"3g.20gb": 1, "2g.10gb": 1, "1g.5gb": 1}), "GPU 0")
    [large] = [one for one in gpu.instances if one.profile.name == "3g.20gb"]
    assert large.id not in {step.instance for step in steps}
    gone = [step.action for step in steps if step.action in {MigAction.DESTROY_COMPUTE, MigAction.DESTROY_INSTANCE}]
    assert len(gone) == 4


def test_of_two_that_could_go_the_one_that_nobody_uses_goes() -> None:
    for number in range(7):
        gpu = fresh(A100, ask(A100, **{"1g.5gb": 7}))
        gpu = replace(gpu, instances=tuple(replace(one, used=one.id == number) for one in gpu.instances))
        steps = gpu_steps(gpu, ask(A100, **{"1g.5gb": 6}), "GPU 0")
        assert takes_from(gpu, steps) == ()
        assert len(steps) == 2


def test_a_layout_that_fits_in_one_order_only_is_found() -> None:
    """Placed lowest first and in the order of the config, mig-parted's first try fails."""
    wanted = ask(A100, **{"3g.20gb": 1, "2g.10gb": 1, "1g.5gb": 2})
    assert len(fresh(A100, wanted).instances) == 4


@pytest.mark.parametrize(
    ("profiles", "fits"),
    [
        ({"1g.5gb": 6}, True), ({"1g.5gb": 7}, True), ({"1g.5gb": 8}, False),
        ({"1g.5gb": 3, "2g.10gb": 2}, True), ({"1g.5gb": 2, "2g.10gb": 2}, True), ({"1g.5gb": 2, "2g.10gb": 1}, True),
        ({"1g.5gb": 4, "2g.10gb": 2}, False), ({"7g.40gb": 1, "1g.5gb": 1}, False), ({"1g.5gb+me": 2}, False),
    ],
)  # fmt: skip
def test_what_fits_is_as_mig_parted_has_it(profiles: dict[str, int], fits: bool) -> None:
    """``known_configs_test.go``."""
    if fits:
        assert fresh(A100, ask(A100, **profiles)).instances
        return
    with pytest.raises(LayoutError, match="GPU 0 can't be cut into") as refused:
        gpu_steps(MigGpu(index=0, geometry=A100), ask(A100, **profiles), "GPU 0")
    assert "of these at most" in refused.value.expected


def test_the_largest_part_that_fits_is_named() -> None:
    one, two, three = (next(row for row in A100.rows if row.name == name) for name in ("1g.5gb", "2g.10gb", "3g.20gb"))
    assert Counter(largest_part(A100, [three, three, one])) == Counter({three: 2})
    assert Counter(largest_part(A100, [one] * 9)) == Counter({one: 7})
    assert Counter(largest_part(A100, [three, two, two, two])) == Counter({three: 1, two: 2})


@pytest.mark.parametrize("name", ["a100-40gb", "h100-80gb", "a30", "b200", "rtx-pro-6000"])
def test_a_mode_change_resets_where_the_generation_needs_it(name: str) -> None:
    geometry = GEOMETRIES[name]
    off = MigGpu(index=3, geometry=geometry)
    wanted = ask(geometry, **{geometry.smallest.name: 1})
    actions = [step.action for step in gpu_steps(off, wanted, "GPU 3")]
    reset = [MigAction.RESET] if geometry.needs_reset else []
    assert actions == [MigAction.MODE, *reset, MigAction.CREATE_INSTANCE, MigAction.CREATE_COMPUTE]
    on = run(off, gpu_steps(off, wanted, "GPU 3"))
    assert on.enabled
    assert len(on.instances) == 1
    back = gpu_steps(on, OFF, "GPU 3")
    assert [step.action for step in back] == [
        MigAction.DESTROY_COMPUTE,
        MigAction.DESTROY_INSTANCE,
        MigAction.MODE,
        *reset,
    ]
    assert run(on, back) == off


def test_a_mode_that_waits_for_a_reset_is_taken_back_or_finished_and_never_left() -> None:
    waiting = MigGpu(index=0, geometry=A100, enabled=False, pending=True)
    assert [step.action for step in gpu_steps(waiting, OFF, "GPU 0")] == [MigAction.MODE]
    assert [step.action for step in gpu_steps(waiting, ask(A100), "GPU 0")] == [MigAction.RESET]
    for wanted in (OFF, ask(A100)):
        after = run(waiting, gpu_steps(waiting, wanted, "GPU 0"))
        assert after.enabled == after.pending == wanted.enabled


def test_an_instance_without_a_compute_instance_is_seen_and_goes() -> None:
    """mig-parted counts compute instances only, so that an orphan stays and takes the room."""
    row = next(row for row in A100.rows if row.name == "3g.20gb")
    gpu = cut(A100, [(row, 4, [])])
    assert run(gpu, gpu_steps(gpu, ask(A100), "GPU 0")).instances == ()
    assert len(run(gpu, gpu_steps(gpu, ask(A100, **{"1g.5gb": 7}), "GPU 0")).instances) == 7


@pytest.mark.parametrize("name", ["h100-80gb", "b200"])
def test_a_double_memory_slice_that_mig_parted_made_counts_as_applied(name: str) -> None:
    """Of its two compute instances of one name mig-parted makes the first, and kgpu the one that takes all of it."""
    geometry = GEOMETRIES[name]
    row = next(row for row in geometry.rows if row.enum == 9)
    plain, whole = ComputeProfile(0, 1), whole_compute(geometry, row)
    assert plain != whole
    wanted = ask(geometry, **{row.name: 2})
    assert {one.compute for one in wanted.instances} == {(whole,)}
    gpu = cut(geometry, [(row, 0, [plain]), (row, 2, [whole])])
    assert gpu_steps(gpu, wanted, "GPU 0") == ()
    assert len(gpu_steps(gpu, ask(geometry, **{row.name: 3}), "GPU 0")) == 2, "what is there stays"
    assert len(gpu_steps(gpu, ask(geometry, **{row.name: 1}), "GPU 0")) == 2
    orphan = cut(geometry, [(row, 0, []), (row, 2, [plain])])
    (step,) = gpu_steps(orphan, wanted, "GPU 0")
    assert (step.action, step.profile) == (MigAction.CREATE_COMPUTE, whole.number), "a new one takes all"


def test_a_gpu_without_mig_is_left_alone_or_refused() -> None:
    plain = MigGpu(index=2, geometry=None)
    assert gpu_steps(plain, OFF, "GPU 2 (L4)") == ()
    with pytest.raises(LayoutError, match=r"GPU 2 \(L4\) has no MIG"):
        gpu_steps(plain, WantedGpu(enabled=True), "GPU 2 (L4)")


def test_slices_in_use_that_have_to_go_are_named() -> None:
    gpu = used(fresh(A100, ask(A100, **{"1g.5gb": 7})), "1g.5gb", "1g.5gb")
    assert len(takes_from(gpu, gpu_steps(gpu, ask(A100, **{"7g.40gb": 1}), "GPU 0"))) == 2
    assert takes_from(gpu, gpu_steps(gpu, ask(A100, **{"1g.5gb": 2}), "GPU 0")) == ()


@pytest.mark.parametrize("name", sorted(GEOMETRIES))
def test_a_slice_has_the_compute_instance_that_takes_all_of_it(name: str) -> None:
    """By name alone it may be one with fewer multiprocessors, or one that the driver does not have."""
    geometry = GEOMETRIES[name]
    for row in geometry.rows:
        known = {number: sm for number, _, sm, called in ci_rows(row, geometry) if called == row.name}
        made = whole_compute(geometry, row)
        assert known[made.number] == max(known.values()) == row.sm, row.name
        (wanted,) = ask(geometry, **{row.name: 1}).instances
        assert wanted.compute == (made,)


@pytest.mark.parametrize(
    ("family", "said", "known"),
    [
        ("h100-80gb", {"3g.39gb": 1, "4g.39gb": 1}, {"3g.40gb": 1, "4g.40gb": 1}),
        ("h100-80gb", {"7g.79gb": 1}, {"7g.80gb": 1}),
        ("a100-40gb", {"7g.39gb": 1}, {"7g.40gb": 1}),
        ("h100-80gb", {"1c.3g.39gb": 3}, {"1c.3g.40gb": 3}),
    ],
)
def test_names_that_drivers_round_otherwise_are_the_same_slices(
    family: str, said: dict[str, int], known: dict[str, int]
) -> None:
    geometry = GEOMETRIES[family]
    assert ask(geometry, **said) == ask(geometry, **known)
    assert gpu_steps(fresh(geometry, ask(geometry, **known)), ask(geometry, **said), "GPU 0") == ()


@pytest.mark.parametrize("name", sorted(GEOMETRIES))
def test_more_slices_than_a_gpu_takes_make_the_search_no_longer(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """mig-parted tries every order in which they can be made: 64 of each have more than anybody can try."""
    geometry, looks = GEOMETRIES[name], list[int]()

    def counted(*given: Any) -> tuple[int, ...] | None:
        looks[-1] += 1
        return placements(*given)

    monkeypatch.setattr("kgpu.mig.plan.placements", counted)
    for number in (max(row.count for row in geometry.rows), 64):
        looks.append(0)
        wanted = ask(geometry, **{row.name: number for row in geometry.rows})
        with pytest.raises(LayoutError, match="can't be cut into"):
            gpu_steps(MigGpu(index=0, geometry=geometry), wanted, "GPU 0")
    parts = math.prod(row.count + 1 for row in geometry.rows)
    assert looks[0] == looks[1] <= parts + 1
