"""The metrics of Gaudi's exporter as data. All are gauges there, counts too, and so they are here."""

from __future__ import annotations

from typing import Final

from kgpu.exporter.vendors.rows import VendorRow

MIB: Final = 1 << 20
CONFIG: Final = "habanalabs_device_config"
MADE: Final = {CONFIG: "1 for each card, with its identity as labels"}
"""Metrics that no reading gives."""


def _row(name: str, key: str, text: str, unit: str = "", factor: float = 1.0, **more: object) -> VendorRow:
    return VendorRow(f"habanalabs_{name}", key, text, unit, factor, **more)  # type: ignore[arg-type]


ROWS: Final[tuple[VendorRow, ...]] = (
    _row("clock_soc_mhz", "sm_clock_mhz", "Clock of the SoC now", "MHz"),
    _row("clock_soc_max_mhz", "max_sm_clock_mhz", "Highest clock of the SoC", "MHz"),
    _row("clock_ic_max_mhz", "max_ic_clock_mhz", "Highest clock of the interconnect, where a card tells it", "MHz"),
    _row("clock_mme_max_mhz", "max_mme_clock_mhz", "Highest clock of the matrix engines, where a card tells it", "MHz"),
    _row("clock_tpc_max_mhz", "max_tpc_clock_mhz", "Highest clock of the tensor cores, where a card tells it", "MHz"),
    _row("memory_free_bytes", "memory_free_mib", "Free memory", "bytes", MIB),
    _row("memory_used_bytes", "memory_used_mib", "Used memory", "bytes", MIB),
    _row("memory_total_bytes", "memory_total_mib", "All memory", "bytes", MIB),
    _row("power_mW", "power_w", "Power now", "mW", 1000),
    _row("power_default_limit_mW", "power_limit_w", "Limit of the power", "mW", 1000),
    _row("energy", "energy_mj", "Energy since the driver was loaded", "mJ"),
    _row("temperature_onboard", "board_temperature_c", "Temperature of the board", "C"),
    _row("temperature_onchip", "temperature_c", "Temperature of the chip", "C"),
    _row("temperature_threshold_gpu", "max_temperature_c", "Highest temperature of the chip at work", "C"),
    _row("temperature_threshold_memory", "memory_max_temperature_c", "Highest temperature of the memory at work", "C"),
    _row("temperature_threshold_shutdown", "shutdown_temperature_c", "Temperature at which the card ends", "C"),
    _row("temperature_threshold_slowdown", "slowdown_temperature_c", "Temperature at which the card slows down", "C"),
    _row("pci_link_speed", "pcie_generation", "Generation that the PCIe link works at"),
    _row("pci_link_width", "pcie_width", "Lanes of the PCIe link in use"),
    _row("pcie_receive_throughput", "pcie_rx_rate", "What the card receives over PCIe, as libhlml counts it"),
    _row("pcie_transmit_throughput", "pcie_tx_rate", "What the card sends over PCIe, as libhlml counts it"),
    _row("pcie_rx", "pcie_rx_rate", "The same as pcie_receive_throughput"),
    _row("pcie_tx", "pcie_tx_rate", "The same as pcie_transmit_throughput"),
    _row("pcie_replay_count", "pcie_replays", "PCIe packets that were sent again"),
    _row("ecc_feature_mode", "ecc_mode", "1 when memory errors are corrected, else 0"),
    _row("pending_rows_state", "remapped_rows_pending", "1 when rows of the memory wait to be replaced, else 0"),
    _row("pending_rows_with_single_bit_ecc_errors", "remapped_rows_correctable",
         "Rows that are replaced for single-bit errors"),
    _row("pending_rows_with_double_bit_ecc_errors", "remapped_rows_uncorrectable",
         "Rows that are replaced for double-bit errors"),
    *(_row("nic_port_status", f"{kind}_port_{{}}_up", "1 for a network port that is up, else 0", index="port",
           labels=(("port_type", kind),))
      for kind in ("internal", "external")),
    _row("utilization", "utilization_percent", "Time in which the card worked", "%"),
)  # fmt: skip
