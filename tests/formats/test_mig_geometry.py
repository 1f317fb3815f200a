"""What fits together on one GPU: against every placement tried out, and against what is published."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import combinations_with_replacement, product

import pytest

from kgpu.formats.mig_geometry import GEOMETRIES, Geometry, InstanceProfile, find, fits, geometry_of, placements
from kgpu.formats.mig_profile import parse_mig_profile
from kgpu.hw.simulator.profiles import Model, load, names
from tests.budget import count, sample


def is_legal(geometry: Geometry, profiles: Sequence[InstanceProfile], starts: Sequence[int]) -> bool:
    """Whether instances may stand there: on places of the table, each unit once, no engine twice, none too often."""
    units = [unit for row, start in zip(profiles, starts, strict=True) for unit in range(start, start + row.units)]
    whole = next(row for row in geometry.rows if row.slices == geometry.slices and not row.graphics)
    return (
        len(starts) == len(profiles) <= geometry.max_devices
        and all(start in row.starts for row, start in zip(profiles, starts, strict=True))
        and len(units) == len(set(units))
        and all(0 <= unit < geometry.units for unit in units)
        and all(profiles.count(row) <= row.count for row in profiles)
        and all(
            sum(getattr(row, engine) for row in profiles) <= getattr(whole, engine)
            for engine in ("slices", "dec", "enc", "jpeg", "ofa")
        )
    )


def can_stand(geometry: Geometry, profiles: Sequence[InstanceProfile]) -> bool:
    """By trying every combination of places."""
    return any(is_legal(geometry, profiles, starts) for starts in product(*(row.starts for row in profiles)))


ENGINES = ("dec", "enc", "jpeg", "ofa")


def made_up(draw: random.Random) -> Geometry:
    """A geometry that no card has: the tables of real ones leave much to the places alone."""
    units = draw.randint(2, 5)
    whole = InstanceProfile(
        name="9g.99gb", enum=9, id=9, slices=draw.randint(2, 5), sm=9, units=units, count=1, starts=(0,),
        **{engine: draw.randint(1, 2) for engine in ENGINES},
    )  # fmt: skip
    rows = [whole]
    for number in range(draw.randint(1, 3)):
        size = draw.randint(1, 2)
        places = draw.sample(range(units - size + 1), draw.randint(1, units - size + 1))
        row = InstanceProfile(
            name=f"1g.{number + 1}gb", enum=number, id=number, slices=draw.randint(1, 2), sm=1, units=size,
            count=draw.randint(1, 3), starts=tuple(sorted(places)), **{draw.choice(ENGINES): draw.randint(0, 1)},
        )  # fmt: skip
        rows.append(row)
    return Geometry(
        number=99, units=units, slices=whole.slices, max_devices=draw.randint(2, 5), rows=tuple(rows)
    )  # fmt: skip


def wishes(geometry: Geometry, most: int) -> Iterator[tuple[InstanceProfile, ...]]:
    """Every choice of so many profiles of a GPU, each as often as one likes."""
    for size in range(most + 1):
        yield from combinations_with_replacement(geometry.rows, size)


def check(geometry: Geometry, profiles: tuple[InstanceProfile, ...]) -> None:
    starts = placements(geometry, profiles)
    assert (starts is not None) is fits(geometry, profiles) is can_stand(geometry, profiles), (geometry, profiles)
    if starts is not None:
        assert is_legal(geometry, profiles, starts), (geometry, profiles, starts)


@pytest.mark.parametrize("seed", range(count(20, 400)))
def test_they_fit_exactly_where_some_placement_is_legal(seed: int) -> None:
    draw = random.Random(seed)
    for _ in range(20):
        geometry = made_up(draw)
        for profiles in wishes(geometry, 4):
            check(geometry, profiles)


@pytest.mark.parametrize("name", GEOMETRIES)
def test_so_they_do_on_every_real_gpu(name: str) -> None:
    for profiles in sample(wishes(GEOMETRIES[name], 4), name):
        check(GEOMETRIES[name], profiles)


def layouts(geometry: Geometry, ids: set[int]) -> Iterator[tuple[InstanceProfile, ...]]:
    rows = [row for row in geometry.rows if row.id in ids]
    for size in range(1, geometry.max_devices + 2):
        yield from (each for each in combinations_with_replacement(rows, size) if fits(geometry, each))


def maximal(found: Sequence[tuple[InstanceProfile, ...]]) -> list[tuple[InstanceProfile, ...]]:
    counts = [Counter(each) for each in found]
    return [each for each in found if not any(Counter(each) < other for other in counts)]


@pytest.mark.parametrize(
    ("name", "ids", "most", "feasible"),
    [
        ("h100-80gb", {19, 14, 9, 5, 0}, 12, 37),
        ("h100-80gb", {19, 15, 14, 9, 5, 0}, 28, 77),
        ("h100-80gb", {19, 20, 15, 14, 9, 5, 0}, 44, 127),
        ("a100-40gb", {19, 14, 9, 5, 0}, 12, 37),
        ("a30", {14, 5, 0}, 4, 9),
    ],
)
def test_there_are_as_many_layouts_as_are_known(name: str, ids: set[int], most: int, feasible: int) -> None:
    found = list(layouts(GEOMETRIES[name], ids))
    assert (len(maximal(found)), len(found)) == (most, feasible)


def named(geometry: Geometry, *profiles: str) -> list[InstanceProfile]:
    found = [find(geometry, parse_mig_profile(profile)) for profile in profiles]
    assert None not in found
    return [row for row in found if row is not None]


@pytest.mark.parametrize(
    ("name", "profiles", "together"),
    [
        ("h100-80gb", ("1g.10gb", "1g.10gb", "2g.20gb", "3g.40gb"), True),  # lowest places first would fail
        ("h100-80gb", ("3g.40gb", "3g.40gb"), True),
        ("h100-80gb", ("3g.40gb", "3g.40gb", "1g.10gb"), False),  # 7 slices, and no place
        ("h100-80gb", ("1g.10gb+me", "1g.10gb+me"), False),
        ("rtx-pro-6000", ("1g.24gb+me", "1g.24gb+me.all"), False),  # one OFA engine
        ("rtx-pro-6000", ("1g.24gb+me.all", *("1g.24gb-me",) * 3), True),
        ("rtx-pro-6000", ("1g.24gb+me.all", "1g.24gb"), False),  # no decoder is left
        ("a30", ("2g.12gb", "1g.6gb", "1g.6gb"), True),
        ("a30", (), True),
    ],
)
def test_some_that_are_known(name: str, profiles: tuple[str, ...], together: bool) -> None:
    geometry = GEOMETRIES[name]
    assert fits(geometry, named(geometry, *profiles)) is together


def test_places_are_in_the_order_of_the_profiles() -> None:
    geometry = GEOMETRIES["h100-80gb"]
    assert placements(geometry, named(geometry, "1g.10gb", "4g.40gb", "2g.20gb")) == (6, 0, 4)


def test_a_profile_is_found_by_any_name_that_drivers_give_it() -> None:
    h100 = GEOMETRIES["h100-80gb"]
    said = {"3g.39gb": 9, "7g.79gb": 0, "1c.3g.40gb": 9, "1g.10gb+me": 20, "1g.20gb": 15}
    assert {name: row.id for name in said for row in named(h100, name)} == said
    for other in ("1g.5gb", "1g.10gb+gfx", "1g.10gb-me", "6g.60gb", "1g.30gb"):
        assert find(h100, parse_mig_profile(other)) is None


@pytest.mark.parametrize("name", GEOMETRIES)
def test_every_profile_is_found_by_its_own_name(name: str) -> None:
    geometry = GEOMETRIES[name]
    assert [row for each in geometry.rows for row in named(geometry, each.name)] == list(geometry.rows)
    assert (geometry.smallest.slices, geometry.whole.units) == (1, geometry.units)


def models() -> dict[str, Model]:
    profiles = map(load, names())
    return {card.model.name: card.model for profile in profiles for card in profile.gpus}


@pytest.mark.parametrize("model", models().values(), ids=lambda model: model.name)
def test_the_simulated_models_have_the_geometry_of_their_names(model: Model) -> None:
    for product_name in (model.name, model.name.replace(" ", "-"), f"{model.name.replace(' ', '-')}-SHARED"):
        assert geometry_of(product_name) is (GEOMETRIES[model.mig] if model.mig else None)


@pytest.mark.parametrize(
    ("product_name", "name"),
    [
        ("NVIDIA-A100-PCIE-40GB", "a100-40gb"), ("NVIDIA-A100-SXM4-80GB-MIG-1g.10gb", "a100-80gb"),
        ("NVIDIA-A800-SXM4-80GB", "a100-80gb"), ("NVIDIA-A800-40GB-Active", "a100-40gb"), ("NVIDIA-A30", "a30"),
        ("NVIDIA H100 PCIe", "h100-80gb"), ("NVIDIA-H100-NVL", "h100-94gb"), ("NVIDIA-H800", "h100-80gb"),
        ("NVIDIA-H20", "h100-96gb"), ("NVIDIA-H20-3e", "h200"), ("NVIDIA-H200-NVL", "h200"),
        ("NVIDIA-GH200-480GB", "gh200-96gb"), ("NVIDIA-GH200-144G-HBM3e", "gh200-144gb"), ("NVIDIA-GB200", "gb200"),
        ("NVIDIA-B300-SXM6-AC", "b300"), ("NVIDIA-GB300", "gb300"),
    ],
)  # fmt: skip
def test_products_that_are_sold(product_name: str, name: str) -> None:
    assert geometry_of(product_name) is GEOMETRIES[name]


@pytest.mark.parametrize("product_name", ["", "NVIDIA-L40S", "NVIDIA-RTX-A3000", "Tesla-T4", "NVIDIA-A100-SXM-64GB"])
def test_of_others_nothing_is_known(product_name: str) -> None:
    assert geometry_of(product_name) is None
