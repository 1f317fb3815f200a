"""The table of ways: complete, with sources, and as the rest of kgpu has it."""

from __future__ import annotations

import importlib.util

import pytest

from kgpu.advise.model import SharingWay
from kgpu.advise.stands import AMPERE, provided
from kgpu.advise.ways import FACTS, NEED_BY_KEY, NEEDS
from kgpu.cli.advise import NEED_WORDS
from kgpu.discovery.tables import family
from kgpu.formats.mig_geometry import GEOMETRIES
from kgpu.formats.plugin_config import MPS_CLIENTS_BEFORE, VOLTA

CELLS = {row.key: row for row in FACTS}


def test_each_row_says_something_of_each_way_and_where_it_comes_from() -> None:
    assert [(row.key, way) for row in FACTS for way in SharingWay if not row.of(way)] == []
    assert [row.key for row in (*FACTS, *NEEDS) if not row.sources] == []
    assert len(CELLS) == len(FACTS)


@pytest.mark.parametrize(
    ("row", "way", "says"),
    [
        # D40: hardware / none / partial; faults yes / no / no; kernels at once yes / no / yes; fixed / equal / arbitrary
        ("memory-isolation", SharingWay.MIG, "yes, in hardware"),
        ("memory-isolation", SharingWay.TIME_SLICING, "none"),
        ("memory-isolation", SharingWay.MPS, "partial"),
        ("fault-containment", SharingWay.MIG, "yes"),
        ("fault-containment", SharingWay.TIME_SLICING, "no"),
        ("fault-containment", SharingWay.MPS, "no: a crash may end the work of all, and reset the GPU"),  # and D41
        ("concurrent", SharingWay.MIG, "yes"),
        ("concurrent", SharingWay.TIME_SLICING, "no"),
        ("concurrent", SharingWay.MPS, "yes"),
        ("sizes", SharingWay.MIG, "fixed"),
        ("sizes", SharingWay.TIME_SLICING, "equal"),
        ("sizes", SharingWay.MPS, "any"),
        ("partitions", SharingWay.MIG, "7"),
        ("partitions", SharingWay.TIME_SLICING, "no limit"),
        ("partitions", SharingWay.MPS, "48 clients; 16 before Volta"),
        # C17, and T-43 where it is wrong about MPS on any GPU
        ("latency", SharingWay.TIME_SLICING, "jitter"),
        ("latency", SharingWay.MIG, "nothing"),
        ("gpus", SharingWay.TIME_SLICING, "any"),
        ("gpus", SharingWay.MPS, "Volta or newer"),
        ("gpus", SharingWay.MIG, "those with MIG, from Ampere on"),
        ("choose", SharingWay.MIG, "tenants must not disturb each other; inference with a guaranteed latency"),
        ("choose", SharingWay.TIME_SLICING, "development, tests"),
        # C22, C23, C48
        ("together", SharingWay.MPS, "neither time-slicing nor MIG"),
        ("together", SharingWay.TIME_SLICING, "MIG: 7 slices in 4 shares each are 28"),
    ],
)
def test_c17_c24_d40_as_the_documents_and_their_corrections_have_them(row: str, way: SharingWay, says: str) -> None:
    assert CELLS[row].of(way).startswith(says)


def test_isolation_is_answered_by_hardware_and_never_by_a_way_without_it() -> None:
    assert NEED_BY_KEY["isolation"].ways == (SharingWay.MIG, SharingWay.WHOLE)
    assert SharingWay.TIME_SLICING not in NEED_BY_KEY["memory-limit"].ways


def test_the_words_of_the_option_are_the_needs() -> None:
    assert tuple(need.key for need in NEEDS) == NEED_WORDS


def test_numbers_are_those_of_the_device_plugin_and_of_the_tables_of_models() -> None:
    assert str(MPS_CLIENTS_BEFORE) in CELLS["partitions"].mps
    assert (family(VOLTA), family(AMPERE)) == ("volta", "ampere")
    fewer = {name for name, geometry in GEOMETRIES.items() if geometry.max_devices != 7}
    assert fewer == {"a30", "rtx-pro-6000"}
    assert {GEOMETRIES[name].max_devices for name in fewer} == {4}


def test_a_dra_driver_of_kgpu_would_have_a_row_that_advice_asks() -> None:
    assert provided("dra") == (importlib.util.find_spec("kgpu.operator.operands.dra") is not None)
    assert not provided("nothing of that name")
