"""The metrics of AMD's exporter as data: name, reading, factor, who has it, help. The order is that of the output.

All are gauges there, counts too, and so they are here. A ``{}`` in a reading's key stands for a place, which becomes
the label ``index``; with ``Of.PART`` the first one is the partition's number.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import Final


class Of(enum.StrEnum):
    """What has the metric: CARD rows are of physical sensors, and on a parted GPU the first partition has them; WHOLE
    rows say nothing on a parted GPU; PART rows are each partition's.
    """

    CARD = "GPU"
    WHOLE = "GPU that is not parted"
    PART = "partition"


@dataclass(frozen=True, slots=True)
class RocmRow:
    """One metric, or one kind of its series. ``less`` is a reading that is taken away, ``part_of`` one whose change
    since the reading before is the whole of a percentage.
    """

    name: str
    key: str
    help: str
    unit: str = ""
    factor: float = 1.0
    of: Of = Of.CARD
    index: str = ""
    labels: tuple[tuple[str, str], ...] = ()
    less: str = ""
    part_of: str = ""

    @property
    def field(self) -> str:
        """Its name in the configuration."""
        return self.name.upper()


PLACES: Final = 64
"""More values than any list has."""
STEPS: Final = "residency_steps"
NODES: Final = "gpu_nodes_total"
HEALTH: Final = "gpu_health"
MADE: Final = {
    NODES: "GPUs of this node; partitions count as GPUs",
    HEALTH: "1 when the health role lets the GPU get new work, else 0",
}
"""Metrics that no reading gives."""

_VALUES: Final = (
    RocmRow("gpu_voltage", "soc_voltage_mv", "Voltage of the SoC", "mV"),
    RocmRow("gpu_gfx_voltage", "graphics_voltage_mv", "Voltage of the graphics engine", "mV"),
    RocmRow("gpu_memory_voltage", "memory_voltage_mv", "Voltage of the memory", "mV"),
    RocmRow("gpu_package_power", "socket_power_w", "Power of the package now", "W"),
    RocmRow("gpu_average_package_power", "average_socket_power_w", "Power of the package on average", "W"),
    RocmRow("gpu_power_usage", "power_w", "Power, whichever of the two the GPU measures", "W"),
    RocmRow("gpu_energy_consumed", "energy_mj", "Energy since the driver was loaded", "uJ", 1000),
    RocmRow("gpu_edge_temperature", "edge_temperature_c", "Temperature at the edge of the die", "C"),
    RocmRow("gpu_junction_temperature", "temperature_c", "Temperature of the hottest place", "C"),
    RocmRow("gpu_memory_temperature", "memory_temperature_c", "Temperature of the memory", "C"),
    RocmRow("gpu_hbm_temperature", "hbm_{}_temperature_c", "Temperature of each stack of memory", "C",
            index="hbm_index"),
    RocmRow("gpu_gfx_activity", "utilization_percent", "Time in which the graphics engine worked", "%", of=Of.WHOLE),
    RocmRow("gpu_umc_activity", "memory_utilization_percent", "Time in which the memory controller worked", "%"),
    RocmRow("gpu_mma_activity", "media_utilization_percent", "Time in which the media engines worked", "%"),
    RocmRow("gpu_vcn_activity", "vcn_{}_percent", "Time in which each video engine worked", "%", index="vcn_index"),
    RocmRow("gpu_jpeg_activity", "jpeg_{}_percent", "Time in which each JPEG engine worked", "%", index="jpeg_index"),
    RocmRow("gpu_gfx_busy_instantaneous", "part_{}_xcc_{}_busy_percent", "How busy each die is now", "%",
            of=Of.PART, index="xcc_index"),
    RocmRow("gpu_vcn_busy_instantaneous", "part_{}_vcn_{}_busy_percent", "How busy each video engine is now", "%",
            of=Of.PART, index="vcn_index"),
    RocmRow("gpu_jpeg_busy_instantaneous", "part_{}_jpeg_{}_busy_percent", "How busy each JPEG engine is now", "%",
            of=Of.PART, index="jpeg_index"),
    *(RocmRow("gpu_clock", f"clock_{kind}_{{}}_mhz", "Each clock now", "MHz", index="clock_index",
              labels=(("clock_type", kind),))
      for kind in ("system", "memory", "video", "data", "soc")),
    RocmRow("pcie_speed", "pcie_speed_gts", "Speed of the PCIe link now", "GT/s"),
    RocmRow("pcie_max_speed", "pcie_max_speed_gts", "Speed that the PCIe link can have", "GT/s"),
    RocmRow("pcie_bandwidth", "pcie_traffic", "Traffic over PCIe now, as the firmware counts it"),
    RocmRow("pcie_replay_count", "pcie_replays", "PCIe packets that were sent again"),
    RocmRow("pcie_recovery_count", "pcie_recoveries", "Times that the PCIe link went into recovery"),
    RocmRow("pcie_replay_rollover_count", "pcie_replay_rollovers", "Times that the link's replay number rolled over"),
    RocmRow("pcie_nack_sent_count", "pcie_naks_sent", "PCIe packets that the GPU refused"),
    RocmRow("pcie_nack_received_count", "pcie_naks_received", "PCIe packets of the GPU that were refused"),
    RocmRow("pcie_bidirectional_bandwidth", "pcie_traffic_sum",
            "Traffic over PCIe so far, as the firmware counts it"),
    RocmRow("gpu_vram_max_bandwidth", "memory_max_gb_per_s", "Bandwidth of the memory at its highest clock", "GB/s"),
)  # fmt: skip


def _memory(name: str, key: str, what: str) -> tuple[RocmRow, ...]:
    total, used = f"{key}_total_mib", f"{key}_used_mib"
    return (
        RocmRow(f"gpu_total_{name}", total, f"All {what}", "MB"),
        RocmRow(f"gpu_used_{name}", used, f"Used {what}", "MB"),
        RocmRow(f"gpu_free_{name}", total, f"Free {what}", "MB", less=used),
    )


# The name of a block there, and here where it is another.
BLOCKS: Final = (
    ("total", "volatile"), ("sdma", ""), ("gfx", ""), ("mmhub", ""), ("athub", ""), ("bif", "pcie_bif"), ("hdp", ""),
    ("xgmi_wafl", ""), ("df", ""), ("smn", ""), ("sem", ""), ("mp0", ""), ("mp1", ""), ("fuse", ""), ("umc", ""),
    ("mca", ""), ("vcn", ""), ("jpeg", ""), ("ih", ""), ("mpio", ""),
)  # fmt: skip
_ECC: Final = tuple(
    RocmRow(
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
    RocmRow(f"gpu_xgmi_link_{way}", f"xgmi_{{}}_{way}_kib", f"What each XGMI link has {done}", "KB", index="link_index")
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


def _violations() -> tuple[RocmRow, ...]:
    rows = [RocmRow("gpu_violation_current_accumulated_counter", STEPS, "The firmware's steps so far")]
    for name, key, why in _HELD_BACK:
        start = f"gpu_violation_{name}"
        rows.append(RocmRow(f"{start}_accumulated", key, f"Steps in which the GPU was held back by {why}"))
        rows.append(
            RocmRow(f"{start}_percentage", key, f"Part of the steps since the reading before, by {why}", "%",
                    part_of=STEPS)
        )  # fmt: skip
    for name, key, why in _SLOWED:
        start, found = f"gpu_violation_{name}", f"part_{{}}_xcc_{{}}_{key}"
        rows.append(
            RocmRow(f"{start}_accumulated", found, f"Steps in which the clock was low, {why}", of=Of.PART,
                    index="xcc_index")
        )  # fmt: skip
        rows.append(
            RocmRow(f"{start}_percentage", found, f"Part of the steps since the reading before, {why}", "%",
                    of=Of.PART, index="xcc_index", part_of=STEPS)
        )  # fmt: skip
    return tuple(rows)


ROWS: Final[tuple[RocmRow, ...]] = (
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
