"""The verdict's evidence in the words of DCGM's health watches: which system, warning or failure, which code. Pure.

The rows are DCGM's passive health rules. DCGM keeps an Xid for as long as its engine runs; here it counts for as long
as the verdict has it as evidence. What no system of DCGM's is about has no row.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Final

from kgpu.health.model import EvidenceSource, GpuEvidence
from kgpu.hw.verdicts import DcgmSystem

WARN: Final = 10
FAIL: Final = 20
XID: Final = "DCGM_FR_XID_ERROR"
Rule = tuple[str, int, str]

_XIDS: Final[Mapping[int, Rule]] = {
    **dict.fromkeys((48, 74, 119, 120, 140), ("ALL", FAIL, XID)),
    79: ("ALL", FAIL, "DCGM_FR_FALLEN_OFF_BUS"),
    94: ("ALL", WARN, "DCGM_FR_CONTAINED_ERROR"),
    95: ("ALL", FAIL, "DCGM_FR_UNCONTAINED_ERROR"),
    **dict.fromkeys((31, 32, 43, 63), ("MEM", WARN, XID)),
    64: ("MEM", FAIL, XID),
    **dict.fromkeys((38, 39, 42), ("PCIE", WARN, XID)),
    **dict.fromkeys((60, 61, 62), ("THERMAL", WARN, XID)),
    **dict.fromkeys((54, 56, 57, 58, 78), ("POWER", WARN, XID)),
    **dict.fromkeys((67, 73, 121, 137), ("NVLINK", WARN, XID)),
}
_CHECKS: Final[Mapping[str, Rule]] = {
    "driver:lost": ("ALL", FAIL, "DCGM_FR_FALLEN_OFF_BUS"),
    "driver:missing": ("ALL", FAIL, "DCGM_FR_FALLEN_OFF_BUS"),
    "ecc:uncorrected": ("MEM", FAIL, "DCGM_FR_VOLATILE_DBE_DETECTED"),
    "remapped-rows:failed": ("MEM", FAIL, "DCGM_FR_ROW_REMAP_FAILURE"),
    "remapped-rows:pending": ("MEM", WARN, "DCGM_FR_PENDING_ROW_REMAP"),
    "remapped-rows:many": ("MEM", WARN, "DCGM_FR_UNCORRECTABLE_ROW_REMAP"),
    "retired-pages:pending": ("MEM", WARN, "DCGM_FR_PENDING_PAGE_RETIREMENTS"),
    "retired-pages:many": ("MEM", FAIL, "DCGM_FR_RETIRED_PAGES_LIMIT"),
    "nvlink:down": ("NVLINK", FAIL, "DCGM_FR_NVLINK_DOWN"),
    "nvlink:crc": ("NVLINK", FAIL, "DCGM_FR_NVLINK_CRC_ERROR_THRESHOLD"),
    "nvlink:errors": ("NVLINK", WARN, "DCGM_FR_NVLINK_ERROR_THRESHOLD"),
    "pcie:replays": ("PCIE", WARN, "DCGM_FR_PCI_REPLAY_RATE"),
    "throttle:hardware": ("THERMAL", WARN, "DCGM_FR_CLOCKS_EVENT_THERMAL"),
    "temperature:margin": ("THERMAL", WARN, "DCGM_FR_TEMP_VIOLATION"),
    "temperature:memory_margin": ("THERMAL", WARN, "DCGM_FR_TEMP_VIOLATION"),
}
_RECOVERY: Final[Mapping[str, Rule]] = {
    word: ("DRIVER", FAIL, f"DCGM_FR_GPU_RECOVERY_{code}")
    for word, code in (
        ("reset", "RESET"), ("reboot", "REBOOT"), ("drain", "DRAIN_P2P"), ("drain-reset", "DRAIN_RESET"),
        ("imex", "IMEX_DOMAIN"),
    )
}  # fmt: skip


def watches(evidence: Iterable[GpuEvidence], recovery: str) -> tuple[DcgmSystem, ...]:
    """What does not pass, each once; ``recovery`` is the driver's own verdict."""
    found = dict.fromkeys(
        DcgmSystem(system=system, status=status, code=code) for system, status, code in _rules(evidence)
    )
    if recovery in _RECOVERY:
        system, status, code = _RECOVERY[recovery]
        found[DcgmSystem(system=system, status=status, code=code)] = None
    return tuple(sorted(found, key=lambda one: (one.system, -one.status, one.code)))


def _rules(evidence: Iterable[GpuEvidence]) -> Iterator[Rule]:
    for one in evidence:
        known = one.source is EvidenceSource.XID and one.key.isdecimal()
        rule = _XIDS.get(int(one.key)) if known else _CHECKS.get(f"{one.source}:{one.key}")
        if rule is not None:
            yield rule
