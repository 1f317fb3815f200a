"""Readings of one Gaudi card: a table of the library's figures and the driver's files. Pure.

The keys are those of ``hw.port.Reading``. A later row wins.
"""

from __future__ import annotations

from typing import Final

from kgpu.hw.gaudi.facts import GaudiFacts
from kgpu.hw.port import Reading, Value

MIB: Final = 1 << 20
# what was read, key, divisor
ROWS: Final[tuple[tuple[str, str, int], ...]] = (
    ("clk_cur_freq_mhz", "sm_clock_mhz", 1),
    ("clk_max_freq_mhz", "max_sm_clock_mhz", 1),
    ("max_power", "power_limit_w", 1000),
    ("current_link_width", "pcie_width", 1),
    ("memory_total", "memory_total_mib", MIB),
    ("memory_used", "memory_used_mib", MIB),
    ("utilization", "utilization_percent", 1),
    ("power", "power_w", 1000),
    ("power_limit", "power_limit_w", 1000),
    ("energy", "energy_mj", 1),
    ("temperature_chip", "temperature_c", 1),
    ("temperature_board", "board_temperature_c", 1),
    ("temperature_slowdown", "slowdown_temperature_c", 1),
    ("temperature_shutdown", "shutdown_temperature_c", 1),
    ("clock_soc", "sm_clock_mhz", 1),
    ("clock_soc_highest", "max_sm_clock_mhz", 1),
    ("replays", "pcie_replays", 1),
    ("link_generation", "pcie_generation", 1),
    ("link_width", "pcie_width", 1),
    ("ecc_corrected", "ecc_corrected_volatile", 1),
    ("ecc_uncorrected", "ecc_uncorrected_volatile", 1),
    ("ecc_uncorrected_lifetime", "ecc_uncorrected_aggregate", 1),
    ("rows_pending", "remapped_rows_pending", 1),
    ("rows_single_bit", "remapped_rows_correctable", 1),
    ("rows_double_bit", "remapped_rows_uncorrectable", 1),
    ("ecc_mode", "ecc_mode", 1),
    ("temperature_chip_highest", "max_temperature_c", 1),
    ("temperature_memory_highest", "memory_max_temperature_c", 1),
    ("clock_ic_highest", "max_ic_clock_mhz", 1),
    ("clock_mme_highest", "max_mme_clock_mhz", 1),
    ("clock_tpc_highest", "max_tpc_clock_mhz", 1),
    ("pcie_tx", "pcie_tx_rate", 1),
    ("pcie_rx", "pcie_rx_rate", 1),
)
PORT: Final = "_port_"
"""What is in the names of the states of network ports, of which there are as many as a card has."""
TEXTS: Final = (("board_uuid", "board_uuid"), ("armcp_kernel_ver", "kernel_version"), ("uboot_ver", "boot_version"))


def reading(uuid: str, facts: GaudiFacts) -> Reading:
    """Everything that was read of a card."""
    values: dict[str, Value] = {
        key: facts.values[name] / divisor for name, key, divisor in ROWS if name in facts.values
    }
    values |= {f"{name}_up": up for name, up in facts.values.items() if PORT in name}
    values |= {key: facts.values[name] for name, key in TEXTS if name in facts.values}
    failures = {key: "unknown" for name, key, _ in ROWS if name in facts.unreadable and key not in values}
    total, used = values.get("memory_total_mib"), values.get("memory_used_mib")
    if isinstance(total, float) and isinstance(used, float) and total > 0:
        values["memory_free_mib"] = max(0.0, total - used)
        values["memory_used_ratio"] = min(1.0, used / total)
    return Reading(uuid=uuid, values=values, failures=failures)
