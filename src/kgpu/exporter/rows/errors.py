"""Rows of what goes wrong: Xids, ECC, remapped rows, retired pages, throttling, PCIe and recovery."""

from __future__ import annotations

from typing import Final

from kgpu.exporter.fields import FieldScope, MetricField, ReadingSource
from kgpu.exporter.rows.builders import counter, gauge, named

_VIOLATIONS: Final = (
    (240, "POWER", "power", 74), (241, "THERMAL", "thermal", 75), (242, "SYNC_BOOST", "sync boost", 76),
    (243, "BOARD_LIMIT", "board limit", 77), (244, "LOW_UTIL", "low utilisation", 78),
    (245, "RELIABILITY", "reliability", 79),
)  # fmt: skip
_ECC: Final = (
    (310, "SBE_VOL", "Corrected memory errors since the driver was loaded.", "ecc_corrected_volatile", 3, "volatile"),
    (311, "DBE_VOL", "Uncorrected memory errors since the driver was loaded.", "ecc_uncorrected_volatile", 4,
     "volatile"),
    (312, "SBE_AGG", "Corrected memory errors in the GPU's life.", "ecc_corrected_aggregate", 5, "aggregate"),
    (313, "DBE_AGG", "Uncorrected memory errors in the GPU's life.", "ecc_uncorrected_aggregate", 6, "aggregate"),
)  # fmt: skip
# First id, then SBE and DBE in turns.
_LOCATIONS: Final = (
    (314, "VOL", ("L1", "L2", "DEV", "REG", "TEX")), (324, "AGG", ("L1", "L2", "DEV", "REG", "TEX")),
    (334, "VOL", ("SHM", "CBU")), (338, "AGG", ("SHM", "CBU")), (342, "VOL", ("SRM",)), (344, "AGG", ("SRM",)),
)  # fmt: skip
_SPANS: Final = {"VOL": "since the driver was loaded", "AGG": "in the GPU's life"}
_BANKS: Final = ((385, "MAX"), (386, "HIGH"), (387, "PARTIAL"), (388, "LOW"), (389, "NONE"))
_SLOW: Final = (
    (1420, "SW_POWER_CAP", "the power limit", 74), (1421, "SYNC_BOOST", "sync boost", 76),
    (1422, "SW_THERM_SLOWDOWN", "temperature, by software", 269),
    (1423, "HW_THERM_SLOWDOWN", "temperature, by hardware", 270),
    (1424, "HW_POWER_BRAKE_SLOWDOWN", "the power brake", 271),
)  # fmt: skip

_violations = tuple(
    counter(number, f"{name}_VIOLATION", f"Time in which clocks were held back by {why} (in ns).", "ns",
            ReadingSource(f"{name.lower()}_violation_ns", f"field {field}"),
            aliases=(f"dcgm_{name.lower()}_violation",))
    for number, name, why, field in _VIOLATIONS
)  # fmt: skip
_ecc = tuple(
    counter(number, f"ECC_{name}_TOTAL", text, "", ReadingSource(reading, f"field {field}"),
            aliases=(f"dcgm_ecc_{name[:3].lower()}_{span}_total",))
    for number, name, text, reading, field, span in _ECC
)  # fmt: skip
_locations = tuple(
    counter(first + 2 * place + double, f"ECC_{bits}_{span}_{name}", f"{kind} errors in {name} {_SPANS[span]}.", "",
            ReadingSource(f"ecc_{bits.lower()}_{span.lower()}_{name.lower()}",
                          f"GetMemoryErrorCounter({bits}, {span}, {name})"))
    for first, span, names in _LOCATIONS
    for place, name in enumerate(names)
    for double, (bits, kind) in enumerate((("SBE", "Corrected"), ("DBE", "Uncorrected")))
)  # fmt: skip
_banks = tuple(
    gauge(number, f"BANKS_REMAP_ROWS_AVAIL_{name}", f"Memory banks with {name.lower()} spare rows left.", "",
          ReadingSource(f"remap_banks_{name.lower()}", "GetRowRemapperHistogram"))
    for number, name in _BANKS
)  # fmt: skip
_slow = tuple(
    counter(number, f"CLOCKS_EVENT_REASON_{name}_NS", f"Time in which {why} held clocks back (in ns).", "ns",
            ReadingSource(f"{name.lower()}_ns", f"field {field}"))
    for number, name, why, field in _SLOW
)  # fmt: skip

ERRORS: Final[tuple[MetricField, ...]] = (
    counter(202, "PCIE_REPLAY_COUNTER", "Transfers that PCIe had to repeat.", "",
            ReadingSource("pcie_replays", "GetPcieReplayCounter"), default=True, modern=named("PCIE_REPLAY_TOTAL"),
            aliases=("dcgm_pcie_replay_counter",)),
    gauge(230, "XID_ERRORS", "Number of the last Xid; it stays until the next one.", "",
          ReadingSource("last_xid", "event set, type 0x8, and the kernel log"), scope=FieldScope.EITHER, default=True,
          modern=named("XID_ERROR"), aliases=("dcgm_xid_errors",)),
    counter(393, "UNCORRECTABLE_REMAPPED_ROWS", "Memory rows replaced after uncorrectable errors.", "",
            ReadingSource("remapped_rows_uncorrectable", "field 143"), default=True,
            modern=named("ROW_REMAP_UNCORRECTABLE_TOTAL")),
    counter(394, "CORRECTABLE_REMAPPED_ROWS", "Memory rows replaced after correctable errors.", "",
            ReadingSource("remapped_rows_correctable", "field 142"), default=True,
            modern=named("ROW_REMAP_CORRECTABLE_TOTAL")),
    gauge(395, "ROW_REMAP_FAILURE", "1 when a memory row could not be replaced.", "",
          ReadingSource("remapped_rows_failure", "field 145"), default=True, modern=named("ROW_REMAP_FAILED")),
    gauge(396, "ROW_REMAP_PENDING", "1 when a row is replaced at the next reset.", "",
          ReadingSource("remapped_rows_pending", "field 144")),
    *_banks,
    *_violations,
    counter(246, "TOTAL_APP_CLOCKS_VIOLATION", "Time below the clocks that applications asked for (in ns).", "ns",
            ReadingSource("app_clocks_violation_ns", "field 80")),
    counter(247, "TOTAL_BASE_CLOCKS_VIOLATION", "Time below the base clocks (in ns).", "ns",
            ReadingSource("base_clocks_violation_ns", "field 81")),
    *_slow,
    *_ecc,
    *_locations,
    gauge(300, "ECC_CURRENT", "1 when ECC is on.", "", ReadingSource("ecc_mode", "GetEccMode.current"),
          modern=named("ECC_MODE")),
    gauge(301, "ECC_PENDING", "1 when ECC is on after the next reset.", "",
          ReadingSource("ecc_pending", "GetEccMode.pending")),
    gauge(346, "THRESHOLD_SRM", "1 when the SRAM has more errors than it may.", "",
          ReadingSource("sram_exceeded", "GetSramEccErrorStatus"), modern=named("SRAM_EXCEEDED")),
    counter(390, "RETIRED_SBE", "Pages retired after corrected errors.", "",
            ReadingSource("retired_pages_sbe", "field 29"), modern=named("PAGE_RETIRED_SBE_TOTAL"),
            aliases=("dcgm_retired_pages_sbe",)),
    counter(391, "RETIRED_DBE", "Pages retired after uncorrected errors.", "",
            ReadingSource("retired_pages_dbe", "field 30"), modern=named("PAGE_RETIRED_DBE_TOTAL"),
            aliases=("dcgm_retired_pages_dbe",)),
    counter(392, "RETIRED_PENDING", "Pages that are retired at the next reset.", "",
            ReadingSource("retired_pages_pending", "field 31"), modern=named("PAGE_RETIRED_PENDING"),
            aliases=("dcgm_retired_pages_pending",)),
    counter(1501, "PCIE_COUNT_CORRECTABLE_ERRORS", "Errors that PCIe corrected.", "",
            ReadingSource("pcie_correctable_errors", "field 173")),
    gauge(1507, "MEMORY_UNREPAIRABLE_FLAG", "1 when the memory can't be repaired.", "",
          ReadingSource("memory_unrepairable", "GetUnrepairableMemoryFlag")),
    gauge(1523, "GET_GPU_RECOVERY_ACTION", "What the driver asks for: 0 nothing, 1 GPU reset, 2 node reboot, 3 drain "
          "of peers, 4 drain and reset, 5 IMEX domain.", "", ReadingSource("recovery_action", "field 230")),
)  # fmt: skip
