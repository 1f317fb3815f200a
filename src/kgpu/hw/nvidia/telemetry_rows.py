"""What telemetry asks NVML, as data: readings by call, by field id and by GPM metric.

The keys are those of ``hw.port.Reading``, the unit of measure in the name. Rows that hold for as long as nobody changes
a setting are read every few seconds only. Part of the hardware child, so it stays clear of dataclasses and typing.
"""

from __future__ import annotations

MIB = 1 << 20
ANY = 0xFFFFFFFF
"""The scope of a field that is summed over all links."""

# call of fallbacks.CALLS; arguments after the handle; (key, member of the output or "", divisor) for each reading
FAST = (
    ("temperature", (0,), (("temperature_c", "", 1),)),
    ("margin", (), (("temperature_margin_c", "marginTemperature", 1),)),
    ("power", (), (("power_w", "", 1000),)),
    ("power_limit", (), (("power_limit_w", "", 1000),)),
    ("utilization", (), (("utilization_percent", "gpu", 1), ("memory_utilization_percent", "memory", 1))),
    ("encoder", (), (("encoder_percent", "", 1),)),
    ("decoder", (), (("decoder_percent", "", 1),)),
    ("clock", (1,), (("sm_clock_mhz", "", 1),)),
    ("clock", (2,), (("memory_clock_mhz", "", 1),)),
    ("clock", (3,), (("video_clock_mhz", "", 1),)),
    ("clock_reasons", (), (("clock_event_reasons", "", 1),)),
    ("performance_state", (), (("performance_state", "", 1),)),
    ("fan", (), (("fan_percent", "", 1),)),
    ("pcie_generation", (), (("pcie_generation", "", 1),)),
    ("pcie_width", (), (("pcie_width", "", 1),)),
    (
        "bar1",
        (),
        (("bar1_total_mib", "bar1Total", MIB), ("bar1_used_mib", "bar1Used", MIB), ("bar1_free_mib", "bar1Free", MIB)),
    ),
    (
        "fabric",
        (),
        (
            ("fabric_state", "state", 1),
            ("fabric_status", "status", 1),
            ("fabric_clique", "cliqueId", 1),
            ("fabric_health_mask", "healthMask", 1),
            ("fabric_health", "healthSummary", 1),
        ),
    ),
)

_LOCATIONS = (("l1", 0), ("l2", 1), ("dev", 2), ("reg", 3), ("tex", 4), ("shm", 5), ("cbu", 6), ("srm", 7))
_SLOW = (
    ("app_clock", (1,), (("app_sm_clock_mhz", "", 1),)),
    ("app_clock", (2,), (("app_memory_clock_mhz", "", 1),)),
    ("max_clock", (1,), (("max_sm_clock_mhz", "", 1),)),
    ("max_clock", (2,), (("max_memory_clock_mhz", "", 1),)),
    ("max_clock", (3,), (("max_video_clock_mhz", "", 1),)),
    ("threshold", (0,), (("shutdown_temperature_c", "", 1),)),
    ("threshold", (1,), (("slowdown_temperature_c", "", 1),)),
    ("threshold", (2,), (("memory_max_temperature_c", "", 1),)),
    ("threshold", (3,), (("max_temperature_c", "", 1),)),
    ("power_limit_set", (), (("power_limit_set_w", "", 1000),)),
    ("power_limits", (), (("power_limit_min_w", 0, 1000), ("power_limit_max_w", 1, 1000))),
    ("power_limit_default", (), (("power_limit_default_w", "", 1000),)),
    ("pcie_max_generation", (), (("pcie_max_generation", "", 1),)),
    ("pcie_max_width", (), (("pcie_max_width", "", 1),)),
    ("ecc_mode", (), (("ecc_mode", 0, 1), ("ecc_pending", 1, 1))),
    ("sram_errors", (), (("sram_exceeded", "bThresholdExceeded", 1),)),
    (
        "remap_banks",
        (),
        tuple((f"remap_banks_{name}", name, 1) for name in ("max", "high", "partial", "low", "none")),
    ),
    ("compute_mode", (), (("compute_mode", "", 1),)),
    ("persistence_mode", (), (("persistence_mode", "", 1),)),
    ("vbios", (), (("vbios_version", "", 1),)),
    ("inforom_image", (), (("inforom_image", "", 1),)),
    ("inforom", (0,), (("inforom_oem", "", 1),)),
    ("inforom", (1,), (("inforom_ecc", "", 1),)),
    ("inforom", (2,), (("inforom_power", "", 1),)),
)
SLOW = _SLOW + tuple(
    ("ecc_count", (error, span, place), ((f"ecc_{bits}_{name}_{where}", "", 1),))
    for span, name in ((0, "vol"), (1, "agg"))
    for where, place in _LOCATIONS
    for error, bits in ((0, "sbe"), (1, "dbe"))
)

# key, field id, scope, divisor; several rows of one key are added up
FIELDS = (
    ("memory_temperature_c", 82, 0, 1),
    ("energy_mj", 83, 0, 1),
    ("power_instant_w", 186, 0, 1000),
    ("pcie_replays", 94, 0, 1),
    ("pcie_tx_bytes", 197, 0, 1),
    ("pcie_rx_bytes", 198, 0, 1),
    ("pcie_correctable_errors", 173, 0, 1),
    ("ecc_corrected_volatile", 3, 0, 1),
    ("ecc_uncorrected_volatile", 4, 0, 1),
    ("ecc_corrected_aggregate", 5, 0, 1),
    ("ecc_uncorrected_aggregate", 6, 0, 1),
    ("retired_pages_sbe", 29, 0, 1),
    ("retired_pages_dbe", 30, 0, 1),
    ("retired_pages_pending", 31, 0, 1),
    ("remapped_rows_correctable", 142, 0, 1),
    ("remapped_rows_uncorrectable", 143, 0, 1),
    ("remapped_rows_pending", 144, 0, 1),
    ("remapped_rows_failure", 145, 0, 1),
    ("power_violation_ns", 74, 0, 1),
    ("thermal_violation_ns", 75, 0, 1),
    ("sync_boost_violation_ns", 76, 0, 1),
    ("board_limit_violation_ns", 77, 0, 1),
    ("low_util_violation_ns", 78, 0, 1),
    ("reliability_violation_ns", 79, 0, 1),
    ("app_clocks_violation_ns", 80, 0, 1),
    ("base_clocks_violation_ns", 81, 0, 1),
    ("sw_power_cap_ns", 74, 0, 1),
    ("sync_boost_ns", 76, 0, 1),
    ("sw_therm_slowdown_ns", 269, 0, 1),
    ("hw_therm_slowdown_ns", 270, 0, 1),
    ("hw_power_brake_slowdown_ns", 271, 0, 1),
    ("recovery_action", 230, 0, 1),
    ("c2c_links", 170, 0, 1),
    ("c2c_status", 171, 0, 1),
    ("c2c_max_mb_per_s", 172, 0, 1),
    ("nvlink_data_kib", 138, ANY, 1),
    ("nvlink_data_kib", 139, ANY, 1),
    ("nvlink_crc_flit_errors", 38, 0, 1),
    ("nvlink_crc_data_errors", 45, 0, 1),
    ("nvlink_replay_errors", 52, 0, 1),
    ("nvlink_recovery_errors", 59, 0, 1),
    ("nvlink_dl_replay_errors", 161, ANY, 1),
    ("nvlink_dl_recovery_errors", 162, ANY, 1),
    ("nvlink_dl_crc_errors", 163, ANY, 1),
)
# The same of one link, in the GPU's own reading (key with a place for the number) ...
GPU_LINK_FIELDS = (("nvlink_{}_data_kib", 138), ("nvlink_{}_data_kib", 139))
# ... and in a reading of the link, where the GPU counts this (Blackwell and later).
LINK_FIELDS = (
    ("nvlink_tx_packets", 201),
    ("nvlink_tx_bytes", 202),
    ("nvlink_rx_packets", 203),
    ("nvlink_rx_bytes", 204),
    ("nvlink_rx_malformed_packet_errors", 206),
    ("nvlink_rx_buffer_overrun_errors", 207),
    ("nvlink_rx_errors", 208),
    ("nvlink_rx_remote_errors", 209),
    ("nvlink_rx_general_errors", 210),
    ("nvlink_local_link_integrity_errors", 211),
    ("nvlink_tx_discards", 212),
    ("nvlink_link_recovery_successful_events", 213),
    ("nvlink_link_recovery_failed_events", 214),
    ("nvlink_link_recovery_events", 215),
    ("nvlink_rx_symbol_errors", 221),
    ("nvlink_effective_errors", 219),
)
# Where a driver has no such field, the call of old.
INSTEAD = (
    ("energy_mj", "energy", (), 1),
    ("pcie_replays", "pcie_replays", (), 1),
    ("ecc_corrected_volatile", "ecc_total", (0, 0), 1),
    ("ecc_uncorrected_volatile", "ecc_total", (1, 0), 1),
    ("ecc_corrected_aggregate", "ecc_total", (0, 1), 1),
    ("ecc_uncorrected_aggregate", "ecc_total", (1, 1), 1),
)

# GPM metrics: percent, MiB per second, and counters; the second only of the whole GPU
GPM_SHARED = (*range(1, 14), *range(30, 38), *range(40, 48), 50, 51, *range(160, 164))
GPM_RATES = frozenset((20, 21, *range(60, 98), *range(100, 104)))
GPM_WHOLE = (*GPM_SHARED, *sorted(GPM_RATES), *range(248, 261))
GPM_KEYS = {number: f"gpm_{number}_mib_per_s" if number in GPM_RATES else f"gpm_{number}" for number in GPM_WHOLE}

# nvmlReturn_t to the reason in Reading.failures
NO_NUMBER = "no-number"  # the call succeeded with a value that is none
REASONS = {
    1: "driver-gone",
    2: "invalid-argument",
    4: "no-permission",
    6: "not-found",
    8: "insufficient-power",
    9: "driver-gone",
    10: "timeout",
    11: "interrupt",
    14: "corrupt-inforom",
    17: "operating-system",
    18: "version-mismatch",
    19: "in-use",
    20: "memory",
    21: "no-data",
    23: "resources",
    27: "not-ready",
    29: "invalid-state",
    999: "unknown",
}
