"""Families of AMD's GPUs by their targets, and the names of those whose driver gives none."""

from __future__ import annotations

import pytest

from kgpu.hw.amd.product_names import FAMILIES, family, product_name


@pytest.mark.parametrize(
    ("target", "name"),
    [
        (60000, "SI"), (70000, "KV"), (70001, "CI"), (70003, "KV"), (70004, "CI"), (80003, "VI"), (80001, "CZ"), (90006, "AI"), (90010, "AI"), (90402, "AI"),
        (90500, "AI"), (90002, "RV"), (90012, "RV"), (100300, "NV"), (100303, "VGH"), (100305, "YC"), (100306, "GC_10_3_6"),
        (100307, "GC_10_3_7"), (110000, "GC_11_0_0"), (110003, "GC_11_0_1"), (110501, "GC_11_5_0"), (120001, "GC_12_0_0"),
        (0, ""),
    ],
)  # fmt: skip
def test_families(target: int, name: str) -> None:
    assert family(target) == name


def test_the_names_are_libdrms() -> None:
    assert {name for _, name in FAMILIES} == {
        "SI", "CI", "KV", "VI", "CZ", "AI", "RV", "NV", "VGH", "GC_11_0_0", "YC", "GC_11_0_1", "GC_10_3_6", "GC_10_3_7",
        "GC_11_5_0", "GC_12_0_0",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("device", "name"),
    [(0x74A1, "AMD Instinct MI300X"), (0x740F, "AMD Instinct MI210"), (0x1234, "AMD GPU 1234"), (0, "AMD GPU")],
)
def test_a_product_is_known_by_its_id(device: int, name: str) -> None:
    assert product_name(device) == name
