"""MIG profile tables: known layouts, names that the memory sizes yield, and what is written into a GPU."""

from __future__ import annotations

import math

import pytest

from kgpu.base.errors import HwError
from kgpu.formats.mig_geometry import GEOMETRIES, Geometry, InstanceProfile, ci_count
from kgpu.hw.simulator import schema
from kgpu.hw.simulator.mig_tables import apply

TOTAL_MIB = {
    "a100-40gb": 40960,
    "a100-80gb": 81920,
    "a30": 24576,
    "h100-80gb": 81559,
    "h100-94gb": 95830,
    "h100-96gb": 97871,
    "h200": 143771,
    "gh200-96gb": 97871,
    "gh200-144gb": 146800,
    "b200": 183359,
    "gb200": 189471,
    "b300": 275040,
    "gb300": 284208,
    "rtx-pro-6000": 97887,
}


def gpu_with(family: str) -> object:
    gpu = schema.CLASSES["kg_gpu"]()
    gpu.mem_total = TOTAL_MIB[family] << 20
    apply(gpu, family)
    return gpu


@pytest.mark.parametrize("family", GEOMETRIES)
def test_memory_yields_the_published_name(family: str) -> None:
    gpu = gpu_with(family)
    total = TOTAL_MIB[family]
    for row in gpu.gi_profile[: gpu.gi_profile_count]:  # type: ignore[attr-defined]
        eighths = math.ceil(row.memory_mib / total * 8)
        gb = math.floor(eighths / 8 * math.ceil(total / 1024) + 0.5)  # go-nvlib's rounding
        assert f".{gb}gb" in row.name.decode()


@pytest.mark.parametrize("family", GEOMETRIES)
def test_profile_ids_and_enums_are_unique_and_fit(family: str) -> None:
    table = GEOMETRIES[family]
    assert len({row.id for row in table.rows}) == len({row.enum for row in table.rows}) == len(table.rows)
    assert len(table.rows) <= schema.C["MAX_GI_PROFILES"]
    for row in table.rows:
        assert len(row.starts) <= schema.C["MAX_PLACEMENTS"]
        assert all(start + row.units <= table.units for start in row.starts)


def test_true_profile_ids() -> None:
    seven = {"1g": 19, "1g+me": 20, "2g": 14, "3g": 9, "4g": 5, "7g": 0}
    for family in ("a100-40gb", "h100-80gb", "h200", "b200", "gb200"):
        by_kind: dict[str, set[int]] = {}
        for row in GEOMETRIES[family].rows:
            by_kind.setdefault(row.name.split(".")[0] + ("+me" if "+me" in row.name else ""), set()).add(row.id)
        assert by_kind.pop("1g") == {19, 15}
        assert by_kind == {kind: {number} for kind, number in seven.items() if kind != "1g"}
    assert {row.name: row.id for row in GEOMETRIES["a30"].rows} == {
        "1g.6gb": 14,
        "1g.6gb+me": 21,
        "2g.12gb": 5,
        "2g.12gb+me": 6,
        "4g.24gb": 0,
    }


def layouts(rows: list[InstanceProfile]) -> set[tuple[int, ...]]:
    """Every multiset of profiles (sorted positions in `rows`) that has a placement without overlap."""
    found: set[tuple[int, ...]] = set()

    # the order of creation does not matter, so placements are walked from left to right
    def walk(at: int, chosen: tuple[int, ...], units: int) -> None:
        found.add(tuple(sorted(chosen)))
        for start in range(at, units):
            for index, row in enumerate(rows):
                if start in row.starts and chosen.count(index) < row.count:
                    walk(start + row.units, (*chosen, index), units)

    walk(0, (), max(row.units + start for row in rows for start in row.starts))
    found.discard(())
    return found


def maximal(all_layouts: set[tuple[int, ...]]) -> set[tuple[int, ...]]:
    def covers(big: tuple[int, ...], small: tuple[int, ...]) -> bool:
        return len(big) > len(small) and all(big.count(item) >= small.count(item) for item in set(small))

    return {one for one in all_layouts if not any(covers(other, one) for other in all_layouts)}


def rows_of(table: Geometry, keep: set[int]) -> list[InstanceProfile]:
    return [row for row in table.rows if row.id in keep]


@pytest.mark.parametrize(
    ("family", "ids", "most", "feasible"),
    [
        ("h100-80gb", {19, 14, 9, 5, 0}, 12, 37),
        ("h100-80gb", {19, 15, 14, 9, 5, 0}, 28, 77),
        ("h100-80gb", {19, 20, 15, 14, 9, 5, 0}, 44, 127),
        ("a30", {14, 5, 0}, 4, 9),
    ],
)
def test_known_numbers_of_layouts(family: str, ids: set[int], most: int, feasible: int) -> None:
    found = layouts(rows_of(GEOMETRIES[family], ids))
    assert (len(maximal(found)), len(found)) == (most, feasible)


CI_COUNTS = [
    *((1, g, g) for g in (1, 2, 3, 4, 7)),
    *((2, 2, 1), (2, 3, 1), (2, 4, 2), (2, 7, 3), (3, 3, 1), (3, 7, 2), (4, 4, 1), (4, 7, 1), (7, 7, 1)),
]


@pytest.mark.parametrize(("slices", "total", "count"), CI_COUNTS)
def test_compute_instances_inside_a_gpu_instance(slices: int, total: int, count: int) -> None:
    assert ci_count(slices, total) == count


def test_double_memory_slices_have_two_compute_profiles_of_one_name_from_hopper_on() -> None:
    def compute_profiles(family: str) -> list[tuple[int, int, bytes]]:
        gpu = gpu_with(family)
        row = next(row for row in gpu.gi_profile if row.used and row.id == 15)  # type: ignore[attr-defined]
        return [(ci.id, ci.sm, ci.name) for ci in row.ci if ci.used]

    assert compute_profiles("h100-80gb") == [(0, 16, b"1g.20gb"), (7, 26, b"1g.20gb")]
    assert compute_profiles("a100-80gb") == [(0, 14, b"1g.20gb")]


def test_unknown_families_are_a_three_part_error() -> None:
    with pytest.raises(HwError, match="no MIG table 'a1000'"):
        apply(schema.CLASSES["kg_gpu"](), "a1000")
