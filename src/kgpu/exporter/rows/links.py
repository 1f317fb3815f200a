"""Rows of what connects GPUs: PCIe and NVLink."""

from __future__ import annotations

from typing import Final

from kgpu.exporter.fields import FieldScope, MetricField, ReadingSource
from kgpu.exporter.model import MetricKind
from kgpu.exporter.rows.builders import counter, gauge, named

KIB: Final = 1024.0
# DCGM's numbers of the links' bandwidth have grown in pieces.
_BANDWIDTH: Final = (*range(440, 446), *range(475, 481), *range(446, 449), *range(494, 497))
_COUNTS: Final = (
    (1200, "TX_PACKETS", "Packets sent", 201), (1201, "TX_BYTES", "Bytes sent", 202),
    (1202, "RX_PACKETS", "Packets received", 203), (1203, "RX_BYTES", "Bytes received", 204),
    (1204, "RX_MALFORMED_PACKET_ERRORS", "Malformed packets received", 206),
    (1205, "RX_BUFFER_OVERRUN_ERRORS", "Packets dropped because buffers were full", 207),
    (1206, "RX_ERRORS", "Packets received with errors", 208),
    (1207, "RX_REMOTE_ERRORS", "Packets that the sender marked as bad", 209),
    (1208, "RX_GENERAL_ERRORS", "Packets received with a header that does not match", 210),
    (1209, "LOCAL_LINK_INTEGRITY_ERRORS", "How often local errors passed their threshold", 211),
    (1210, "TX_DISCARDS", "Packets that were not sent", 212),
    (1211, "LINK_RECOVERY_SUCCESSFUL_EVENTS", "Recoveries after which the link came back", 213),
    (1212, "LINK_RECOVERY_FAILED_EVENTS", "Recoveries after which the link stayed down", 214),
    (1213, "LINK_RECOVERY_EVENTS", "Recoveries", 215),
    (1214, "RX_SYMBOL_ERRORS", "Wrong symbols received", 221),
    (1219, "EFFECTIVE_ERRORS", "Errors in packets", 219),
)  # fmt: skip
_ERRORS: Final = (
    (409, "CRC_FLIT", "flow control", "nvlink_crc_flit_errors", "flit_crc", 38),
    (419, "CRC_DATA", "data", "nvlink_crc_data_errors", "data_crc", 45),
    (429, "REPLAY", "replay", "nvlink_replay_errors", "replay", 52),
    (439, "RECOVERY", "recovery", "nvlink_recovery_errors", "recovery", 59),
)
_DL: Final = ((497, "CRC", 163), (498, "RECOVERY", 162), (499, "REPLAY", 161))

_errors = tuple(
    counter(number, f"NVLINK_{name}_ERROR_COUNT_TOTAL", f"NVLink {what} errors on all links.", "",
            ReadingSource(reading, f"field {field}"), modern=named(f"NVLINK_{name}_ERROR_TOTAL"),
            aliases=(f"dcgm_nvlink_{old}_error_count_total",))
    for number, name, what, reading, old, field in _ERRORS
)  # fmt: skip
_dl = tuple(
    counter(number, f"NVLINK_ERROR_DL_{name}", f"NVLink {name.lower()} errors of the data link layer.", "",
            ReadingSource(f"nvlink_dl_{name.lower()}_errors", f"field {field}"))
    for number, name, field in _DL
)  # fmt: skip
_bandwidth = tuple(
    gauge(number, f"NVLINK_BANDWIDTH_L{link}", f"Data over NVLink {link} (in MB/s).", "MB/s",
          ReadingSource(f"nvlink_{link}_data_kib", f"fields 138 + 139, link {link}", 0.001, rate=True),
          kind_in_a=MetricKind.COUNTER)
    for link, number in enumerate(_BANDWIDTH)
)  # fmt: skip
_counts = tuple(
    counter(number, f"NVLINK_COUNT_{name}", f"{text}, by NVLink.", "",
            ReadingSource(f"nvlink_{name.lower()}", f"field {field}, per link"), scope=FieldScope.LINK)
    for number, name, text, field in _COUNTS
)  # fmt: skip

LINKS: Final[tuple[MetricField, ...]] = (
    # DCGM calls 1000 KiB a MB here; generation c has true bytes.
    gauge(449, "NVLINK_BANDWIDTH_TOTAL", "Data over all NVLinks, both ways (in MB/s).", "MB/s",
          ReadingSource("nvlink_data_kib", "fields 138 + 139, all links", 0.001, rate=True), default=True,
          kind_in_a=MetricKind.COUNTER, aliases=("NVLINK_THROUGHPUT_TOTAL", "dcgm_nvlink_bandwidth_total"),
          modern=named("NVLINK_THROUGHPUT_BYTES_PER_SECOND", "B/s", 1000 * KIB)),
    *_bandwidth,
    *_errors,
    *_dl,
    *_counts,
    gauge(200, "PCIE_TX_THROUGHPUT", "Data sent over PCIe (in KB/s).", "KB/s",
          ReadingSource("pcie_tx_kb_per_s", "GetPcieThroughput(TX)"),
          ReadingSource("pcie_tx_bytes", "field 197", 0.001, rate=True),
          aliases=("dcgm_pcie_tx_throughput",)),
    gauge(201, "PCIE_RX_THROUGHPUT", "Data received over PCIe (in KB/s).", "KB/s",
          ReadingSource("pcie_rx_kb_per_s", "GetPcieThroughput(RX)"),
          ReadingSource("pcie_rx_bytes", "field 198", 0.001, rate=True),
          aliases=("dcgm_pcie_rx_throughput",)),
    gauge(235, "PCIE_MAX_LINK_GEN", "Fastest PCIe generation of the GPU and its slot.", "",
          ReadingSource("pcie_max_generation", "GetMaxPcieLinkGeneration")),
    gauge(236, "PCIE_MAX_LINK_WIDTH", "Most PCIe lanes of the GPU and its slot.", "",
          ReadingSource("pcie_max_width", "GetMaxPcieLinkWidth")),
    gauge(237, "PCIE_LINK_GEN", "PCIe generation in use.", "",
          ReadingSource("pcie_generation", "GetCurrPcieLinkGeneration")),
    gauge(238, "PCIE_LINK_WIDTH", "PCIe lanes in use.", "", ReadingSource("pcie_width", "GetCurrPcieLinkWidth")),
    gauge(285, "C2C_LINK_COUNT", "Chip-to-chip links.", "", ReadingSource("c2c_links", "field 170")),
    gauge(286, "C2C_LINK_STATUS", "State of the chip-to-chip links.", "", ReadingSource("c2c_status", "field 171")),
    gauge(287, "C2C_MAX_BANDWIDTH", "Highest data rate of the chip-to-chip links (in MB/s).", "MB/s",
          ReadingSource("c2c_max_mb_per_s", "field 172")),
)  # fmt: skip
