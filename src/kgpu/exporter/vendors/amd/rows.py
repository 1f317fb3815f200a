"""The metrics of AMD's exporter as data. All are gauges there, counts too, and so they are here."""

from __future__ import annotations

from typing import Final

from kgpu.exporter.vendors.rows import Of, VendorRow

STEPS: Final = "residency_steps"
NODES: Final = "gpu_nodes_total"
HEALTH: Final = "gpu_health"
MADE: Final = {
    NODES: "GPUs of this node; partitions count as GPUs",
    HEALTH: "1 when the health role lets the GPU get new work, else 0",
}
"""Metrics that no reading gives."""

_VALUES: Final = (
    VendorRow("gpu_voltage", "soc_voltage_mv", "Voltage of the SoC", "mV"),
    VendorRow("gpu_gfx_voltage", "graphics_voltage_mv", "Voltage of the graphics engine", "mV"),
    VendorRow("gpu_memory_voltage", "memory_voltage_mv", "Voltage of the memory", "mV"),
    VendorRow("gpu_package_power", "socket_power_w", "Power of the package now", "W"),
    VendorRow("gpu_average_package_power", "average_socket_power_w", "Power of the package on average", "W"),
    VendorRow("gpu_power_usage", "power_w", "Power, whichever of the two the GPU measures", "W"),
    VendorRow("gpu_energy_consumed", "energy_mj", "Energy since the driver was loaded", "uJ", 1000),
    VendorRow("gpu_edge_temperature", "edge_temperature_c", "Temperature at the edge of the die", "C"),
    VendorRow("gpu_junction_temperature", "temperature_c", "Temperature of the hottest place", "C"),
    VendorRow("gpu_memory_temperature", "memory_temperature_c", "Temperature of the memory", "C"),
    VendorRow("gpu_hbm_temperature", "hbm_{}_temperature_c", "Temperature of each stack of memory", "C",
            index="hbm_index"),
    VendorRow("gpu_gfx_activity", "utilization_percent", "Time in which the graphics engine worked", "%", of=Of.WHOLE),
    VendorRow("gpu_umc_activity", "memory_utilization_percent", "Time in which the memory controller worked", "%"),
    VendorRow("gpu_mma_activity", "media_utilization_percent", "Time in which the media engines worked", "%"),
    VendorRow("gpu_vcn_activity", "vcn_{}_percent", "Time in which each video engine worked", "%", index="vcn_index"),
    VendorRow("gpu_jpeg_activity", "jpeg_{}_percent", "Time in which each JPEG engine worked", "%", index="jpeg_index"),
    VendorRow("gpu_gfx_busy_instantaneous", "part_{}_xcc_{}_busy_percent", "How busy each die is now", "%",
            of=Of.PART, index="xcc_index"),
    VendorRow("gpu_vcn_busy_instantaneous", "part_{}_vcn_{}_busy_percent", "How busy each video engine is now", "%",
            of=Of.PART, index="vcn_index"),
    VendorRow("gpu_jpeg_busy_instantaneous", "part_{}_jpeg_{}_busy_percent", "How busy each JPEG engine is now", "%",
            of=Of.PART, index="jpeg_index"),
    *(VendorRow("gpu_clock", f"clock_{kind}_{{}}_mhz", "Each clock now", "MHz", index="clock_index",
              labels=(("clock_type", kind),))
      for kind in ("system", "memory", "video", "data", "soc")),
    VendorRow("pcie_speed", "pcie_speed_gts", "Speed of the PCIe link now", "GT/s"),
    VendorRow("pcie_max_speed", "pcie_max_speed_gts", "Speed that the PCIe link can have", "GT/s"),
    VendorRow("pcie_bandwidth", "pcie_traffic", "Traffic over PCIe now, as the firmware counts it"),
    VendorRow("pcie_replay_count", "pcie_replays", "PCIe packets that were sent again"),
    VendorRow("pcie_recovery_count", "pcie_recoveries", "Times that the PCIe link went into recovery"),
    VendorRow("pcie_replay_rollover_count", "pcie_replay_rollovers", "Times that the link's replay number rolled over"),
    VendorRow("pcie_nack_sent_count", "pcie_naks_sent", "PCIe packets that the GPU refused"),
    VendorRow("pcie_nack_received_count", "pcie_naks_received", "PCIe packets of the GPU that were refused"),
    VendorRow("pcie_bidirectional_bandwidth", "pcie_traffic_sum",
            "Traffic over PCIe so far, as the firmware counts it"),
    VendorRow("gpu_vram_max_bandwidth", "memory_max_gb_per_s", "Bandwidth of the memory at its highest clock", "GB/s"),
)  # fmt: skip


def _memory(name: str, key: str, what: str) -> tuple[VendorRow, ...]:
    total, used = f"{key}_total_mib", f"{key}_used_mib"
    return (
        VendorRow(f"gpu_total_{name}", total, f"All {what}", "MB"),
        VendorRow(f"gpu_used_{name}", used, f"Used {what}", "MB"),
        VendorRow(f"gpu_free_{name}", total, f"Free {what}", "MB", less=used),
    )


# The name of a block there, and here where it is another.
BLOCKS: Final = (
    ("total", "volatile"), ("sdma", ""), ("gfx", ""), ("mmhub", ""), ("athub", ""), ("bif", "pcie_bif"), ("hdp", ""),
    ("xgmi_wafl", ""), ("df", ""), ("smn", ""), ("sem", ""), ("mp0", ""), ("mp1", ""), ("fuse", ""), ("umc", ""),
    ("mca", ""), ("vcn", ""), ("jpeg", ""), ("ih", ""), ("mpio", ""),
)  # fmt: skip
_ECC: Final = tuple(
    VendorRow(
        f"gpu_ecc_{kind}_{name}",
        f"ecc_{ours}_{block or name}",
        f"{kind.capitalize()}{'ed' if kind != 'deferred' else ''} errors "
        + ("of all blocks" if name == "total" else f"of the block {name.upper()}")
        + " since the driver was loaded",
    )
    for name, block in BLOCKS
    for kind, ours in (("correct", "corrected"), ("uncorrect", "uncorrected"), ("deferred", "deferred"))
)
_LINKS: Final = tuple(
    VendorRow(
        f"gpu_xgmi_link_{way}", f"xgmi_{{}}_{way}_kib", f"What each XGMI link has {done}", "KB", index="link_index"
    )
    for way, done in (("rx", "received"), ("tx", "sent"))
)

# The end of a name, the reading, and what held the GPU back.
_HELD_BACK: Final = (
    ("processor_hot_residency", "processor_hot_residency", "the signal that a processor is hot"),
    ("ppt_residency", "power_residency", "the limit of its power"),
    ("socket_thermal_residency", "thermal_residency", "its temperature"),
    ("vr_thermal_residency", "vr_thermal_residency", "the temperature of its voltage regulators"),
    ("hbm_thermal_residency", "memory_thermal_residency", "the temperature of its memory"),
)
_SLOWED: Final = (
    ("low_utilization", "low_utilization", "as there was little to do"),
    ("gfx_clock_below_host_limit_power", "below_limit_power", "below the host's limit by its power"),
    ("gfx_clock_below_host_limit_thermal", "below_limit_thermal", "below the host's limit by its temperature"),
    ("gfx_clock_below_host_limit_total", "below_limit", "below the host's limit for any reason"),
)


def _violations() -> tuple[VendorRow, ...]:
    rows = [VendorRow("gpu_violation_current_accumulated_counter", STEPS, "The firmware's steps so far")]
    for name, key, why in _HELD_BACK:
        start = f"gpu_violation_{name}"
        rows.append(VendorRow(f"{start}_accumulated", key, f"Steps in which the GPU was held back by {why}"))
        rows.append(
            VendorRow(f"{start}_percentage", key, f"Part of the steps since the reading before, by {why}", "%",
                    part_of=STEPS)
        )  # fmt: skip
    for name, key, why in _SLOWED:
        start, found = f"gpu_violation_{name}", f"part_{{}}_xcc_{{}}_{key}"
        rows.append(
            VendorRow(f"{start}_accumulated", found, f"Steps in which the clock was low, {why}", of=Of.PART,
                    index="xcc_index")
        )  # fmt: skip
        rows.append(
            VendorRow(f"{start}_percentage", found, f"Part of the steps since the reading before, {why}", "%",
                    of=Of.PART, index="xcc_index", part_of=STEPS)
        )  # fmt: skip
    return tuple(rows)


ROWS: Final[tuple[VendorRow, ...]] = (
    *_VALUES,
    *_memory("vram", "memory", "memory"),
    *_memory("visible_vram", "visible_memory", "memory that the CPU can address"),
    *_memory("gtt", "gtt", "memory of the machine that the GPU may use"),
    *_ECC,
    *_LINKS,
    *_violations(),
)

# The start of a field that AMD's exporter knows and kgpu does not measure, and why.
UNMEASURED: Final = (
    ("GPU_PROF_", "profilers disturb each other, and kgpu runs none"),
    ("GPU_MIN_CLOCK", "the driver's files do not give it as a number"),
    ("GPU_MAX_CLOCK", "the driver's files do not give it as a number"),
    ("PCIE_RX", "the driver has no counter of it"),
    ("PCIE_TX", "the driver has no counter of it"),
    ("GPU_XGMI_NBR_", "only the library of performance counters has it"),
    ("GPU_AFID_ERRORS", "only AMD's library decodes error records"),
    ("GPU_PROCESS_CU_OCCUPANCY", "kgpu shows who holds a GPU by its pod"),
)
