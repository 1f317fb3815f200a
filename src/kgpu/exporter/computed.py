"""Computed samples, of metrics that no driver call gives: health by DCGM's watches, and peer-to-peer status. Pure.

Without a health role there are no series of health: a missing verdict does not mean that a GPU is well.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Final

from kgpu.exporter.model import ComputedSample, Unit, Value
from kgpu.hw.port import Inventory
from kgpu.hw.verdicts import GpuVerdict

HEALTH: Final = "DCGM_EXP_GPU_HEALTH_STATUS"
P2P: Final = "DCGM_EXP_P2P_STATUS"
P2P_READING: Final = "p2p_status"
SYSTEMS: Final = (
    "PCIE", "NVLINK", "PMU", "MCU", "MEM", "SM", "INFOROM", "THERMAL", "POWER", "DRIVER", "ALL",
)  # fmt: skip
_PASS: Final = 0
# By nvmlGpuP2PStatus_t.
LINK_STATUS: Final = (
    "OK", "ChipsetNotSupported", "GPUNotSupported", "TopologyNotSupported", "DisabledByRegKey", "NotSupported",
    "Unknown",
)  # fmt: skip


def health(verdicts: Iterable[GpuVerdict]) -> tuple[ComputedSample, ...]:
    """A sample for each system of each GPU; one for each code of a system that does not pass."""
    return tuple(made for verdict in verdicts if verdict.uuid for made in _watched(verdict))


def _watched(verdict: GpuVerdict) -> Iterator[ComputedSample]:
    for system in SYSTEMS:
        rows = [(row.code, row.status) for row in verdict.watches if row.system == system] or [("", _PASS)]
        for code, status in rows:
            yield ComputedSample(
                Unit(verdict.uuid), (("health_error_code", code), ("health_watch", system)), float(status)
            )  # fmt: skip


def p2p(inventory: Inventory, values: Mapping[Unit, Mapping[str, Value]]) -> tuple[ComputedSample, ...]:
    """A sample for each pair of GPUs, as far as it was read."""
    known = {str(gpu.index) for gpu in inventory.accelerators}
    samples: list[ComputedSample] = []
    for gpu in inventory.accelerators:
        for word in str(values.get(Unit(gpu.uuid), {}).get(P2P_READING, "")).split():
            peer, _, status = word.partition(":")
            if peer in known and status.isdecimal():
                text = LINK_STATUS[min(int(status), len(LINK_STATUS) - 1)]
                samples.append(
                    ComputedSample(Unit(gpu.uuid), (("link_status", text), ("peer_gpu", peer)), float(int(status)))
                )
    return tuple(samples)
