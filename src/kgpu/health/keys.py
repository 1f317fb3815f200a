"""The readings that health judges by, by their names in ``hw.port.Reading``; a shared reader is asked for these."""

from __future__ import annotations

from typing import Final

KEYS: Final = (
    "clock_event_reasons",
    "ecc_corrected_volatile",
    "ecc_uncorrected_volatile",
    "fabric_health_mask",
    "fabric_state",
    "fabric_status",
    "memory_max_temperature_c",
    "memory_temperature_c",
    "memory_unrepairable",
    "nvlink_active",
    "nvlink_crc_data_errors",
    "nvlink_crc_flit_errors",
    "nvlink_recovery_errors",
    "nvlink_replay_errors",
    "pcie_generation",
    "pcie_max_generation",
    "pcie_max_width",
    "pcie_replays",
    "pcie_width",
    "remapped_rows_correctable",
    "remapped_rows_failure",
    "remapped_rows_pending",
    "remapped_rows_uncorrectable",
    "retired_pages_dbe",
    "retired_pages_pending",
    "retired_pages_sbe",
    "slowdown_temperature_c",
    "sram_exceeded",
    "temperature_c",
    "temperature_margin_c",
    "utilization_percent",
)
