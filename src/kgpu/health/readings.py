"""From what the hardware reader says of a GPU to what health judges: a table of readings, nothing is concluded here.

What is not read is None. Values come from a driver, so one that is no sensible number is as good as not read.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any, Final

from kgpu.health.model import HealthReading
from kgpu.hw import port
from kgpu.hw.port import Accelerator, Problem

_MOST: Final = 2.0**63
# HealthReading's attribute -> the reader's; more than one are added up.
_COUNTS: Final[Mapping[str, tuple[str, ...]]] = {
    "ecc_uncorrected": ("ecc_uncorrected_volatile",),
    "ecc_corrected": ("ecc_corrected_volatile",),
    "rows_correctable": ("remapped_rows_correctable",),
    "rows_uncorrectable": ("remapped_rows_uncorrectable",),
    "pages_retired": ("retired_pages_sbe", "retired_pages_dbe"),
    "links_active": ("nvlink_active",),
    "nvlink_crc": ("nvlink_crc_flit_errors", "nvlink_crc_data_errors"),
    "nvlink_errors": ("nvlink_replay_errors", "nvlink_recovery_errors"),
    "pcie_replays": ("pcie_replays",),
    "pcie_generation": ("pcie_generation",),
    "pcie_generation_max": ("pcie_max_generation",),
    "pcie_width": ("pcie_width",),
    "pcie_width_max": ("pcie_max_width",),
    "slowdown": ("clock_event_reasons",),
}
_FLAGS: Final[Mapping[str, str]] = {
    "sram_exceeded": "sram_exceeded",
    "unrepairable": "memory_unrepairable",
    "rows_pending": "remapped_rows_pending",
    "rows_failed": "remapped_rows_failure",
    "pages_pending": "retired_pages_pending",
}
BUSY_PERCENT: Final = 10.0
_FABRIC_STATES: Final = ("not-supported", "not-started", "in-progress", "completed")
# NVML_GPU_FABRIC_HEALTH_MASK_*: first bit, number of bits, the value that means trouble, the word for it.
_MASK: Final = (
    (0, 2, (1,), "degraded-bandwidth"),
    (2, 2, (1,), "route-recovery"),
    (4, 2, (1,), "route-unhealthy"),
    (6, 2, (1,), "access-timeout-recovery"),
    (8, 4, tuple(range(2, 16)), "incorrect-configuration"),
)


def reading_of(gpu: Accelerator, values: Mapping[str, Any], at: float) -> HealthReading:
    """One GPU at ``at``; ``values`` by the names of ``hw.port.Reading``."""
    numbers = {name: value for name, value in values.items() if _is_number(value)}
    fields: dict[str, Any] = {}
    for attr, names in _COUNTS.items():
        known = [int(numbers[name]) for name in names if name in numbers]
        fields[attr] = sum(known) if known else None
    for attr, name in _FLAGS.items():
        fields[attr] = bool(numbers[name]) if name in numbers else None
    busy = numbers.get("utilization_percent")
    # Where the driver says what it asks for, that says it better. NVML's "reset required" comes without.
    redundant = Problem.NEEDS_RESET if gpu.recovery_action not in {"none", "unknown"} else None
    return HealthReading(
        at=at,
        recovery=gpu.recovery_action,
        problems=tuple(
            (str(finding.problem), finding.what) for finding in gpu.findings if finding.problem is not redundant
        ),
        busy=None if busy is None else busy >= BUSY_PERCENT,
        mig=gpu.mig_enabled,
        margin_c=_margin(numbers, "temperature_c", "slowdown_temperature_c", "temperature_margin_c"),
        memory_margin_c=_margin(numbers, "memory_temperature_c", "memory_max_temperature_c"),
        **_fabric(numbers),
        **fields,
    )


def by_gpu(readings: Iterable[port.Reading]) -> dict[str, dict[str, Any]]:
    """Values of whole GPUs by uuid."""
    return {one.uuid: dict(one.values) for one in readings if one.whole}


def _is_number(value: object) -> bool:
    # NaN is neither less nor more than anything.
    return isinstance(value, int | float) and math.isfinite(value) and abs(value) < _MOST


def _margin(numbers: Mapping[str, float], now: str, most: str, told: str = "") -> float | None:
    if told in numbers:
        return numbers[told]
    return numbers[most] - numbers[now] if now in numbers and numbers.get(most) else None


def _fabric(numbers: Mapping[str, float]) -> dict[str, Any]:
    state = numbers.get("fabric_state")
    if state is None or not 0 <= state < len(_FABRIC_STATES):
        return {}
    status, mask = int(numbers.get("fabric_status", 0)), int(numbers.get("fabric_health_mask", 0))
    words = [word for first, bits, bad, word in _MASK if (mask >> first) & ((1 << bits) - 1) in bad]
    return {
        "fabric_state": _FABRIC_STATES[int(state)],
        "fabric_error": f"NVML error {status}" if status else "",
        "fabric_health": tuple(words),
    }
