"""Names of AMD's accelerators by PCI device id, for GPUs whose driver gives none, and of their families. An id may be
missing.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

PRODUCTS: Final[Mapping[int, str]] = {
    0x75A3: "AMD Instinct MI355X",
    0x75A0: "AMD Instinct MI350X",
    0x75A8: "AMD Instinct MI350P",
    0x74A5: "AMD Instinct MI325X",
    0x74A2: "AMD Instinct MI308X",
    0x74A8: "AMD Instinct MI308X HF",
    0x74A0: "AMD Instinct MI300A",
    0x74A1: "AMD Instinct MI300X",
    0x74A9: "AMD Instinct MI300X HF",
    0x740F: "AMD Instinct MI210",
    0x7408: "AMD Instinct MI250X",
    0x740C: "AMD Instinct MI250X/MI250",
    0x738C: "AMD Instinct MI100",
    0x738E: "AMD Instinct MI100",
    0x7460: "AMD Radeon PRO V710",
    0x7448: "AMD Radeon PRO W7900",
    0x744A: "AMD Radeon PRO W7900 Dual Slot",
    0x7449: "AMD Radeon PRO W7800 48GB",
    0x745E: "AMD Radeon PRO W7800",
    0x744C: "AMD Radeon RX 7900",
    0x73A3: "AMD Radeon PRO W6800",
    0x73A1: "AMD Radeon PRO V620",
    0x73AE: "AMD Radeon PRO V620 VF",
    0x7551: "AMD Radeon AI PRO R9700",
    0x7550: "AMD Radeon RX 9070",
    0x7590: "AMD Radeon RX 9060 XT",
    0x7410: "AMD Instinct MI210 VF",
    0x74B5: "AMD Instinct MI300X VF",
    0x74B9: "AMD Instinct MI325X VF",
    0x75B0: "AMD Instinct MI350X VF",
    0x75B3: "AMD Instinct MI355X VF",
    0x7461: "AMD Radeon PRO V710 VF",
}
# The first targets of a family, as gfx versions (major, minor, stepping); the last row at or below a GPU's names it.
FAMILIES: Final[tuple[tuple[tuple[int, int, int], str], ...]] = (
    ((6, 0, 0), "SI"),
    ((7, 0, 0), "KV"),
    ((7, 0, 1), "CI"),
    ((7, 0, 3), "KV"),
    ((7, 0, 4), "CI"),
    ((7, 0, 5), "KV"),
    ((8, 0, 0), "VI"),
    ((8, 0, 1), "CZ"),
    ((8, 0, 2), "VI"),
    ((9, 0, 0), "AI"),
    ((9, 0, 2), "RV"),
    ((9, 0, 4), "AI"),
    ((9, 0, 9), "RV"),
    ((9, 0, 10), "AI"),
    ((9, 0, 12), "RV"),
    ((9, 4, 0), "AI"),
    ((10, 1, 0), "NV"),
    ((10, 3, 3), "VGH"),
    ((10, 3, 4), "NV"),
    ((10, 3, 5), "YC"),
    ((10, 3, 6), "GC_10_3_6"),
    ((10, 3, 7), "GC_10_3_7"),
    ((11, 0, 0), "GC_11_0_0"),
    ((11, 0, 3), "GC_11_0_1"),
    ((11, 5, 0), "GC_11_5_0"),
    ((12, 0, 0), "GC_12_0_0"),
)


def product_name(device: int) -> str:
    """A GPU's name by its id."""
    return PRODUCTS.get(device, f"AMD GPU {device:04x}" if device else "AMD GPU")


def family(target: int) -> str:
    """The family of a GPU by its gfx_target_version, "" for one of before."""
    version = (target // 10000, target // 100 % 100, target % 100)
    name = ""
    for start, found in FAMILIES:
        if start <= version:
            name = found
    return name
