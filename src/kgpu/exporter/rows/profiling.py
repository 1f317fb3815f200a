"""Rows of the profiling metrics, from GPM (Hopper and later); older GPUs do not have them without DCGM's own module."""

from __future__ import annotations

from typing import Any, Final

from kgpu.exporter.fields import PROF, MetricField, ReadingSource
from kgpu.exporter.rows.builders import MIB, counter, gauge, named, ratio

_ENGINES: Final = (("NVDEC", 8, 1017, 30), ("NVJPG", 8, 1025, 40), ("NVOFA", 2, 1033, 50))
_LINKS: Final = 18
_CUMULATIVE: Final = (
    (1084, "SM_CYCLES_ELAPSED_TOTAL", "Cycles of the SMs", 248), (1085, "SM_CYCLES_ACTIVE_TOTAL", "SM cycles with work",
    249), (1086, "MMA_CYCLES_ACTIVE_TOTAL", "Cycles of any tensor pipe", 250),
    (1087, "DMMA_CYCLES_ACTIVE_TOTAL", "Cycles of the FP64 tensor pipe", 251),
    (1088, "HMMA_CYCLES_ACTIVE_TOTAL", "Cycles of the FP16 tensor pipe", 252),
    (1089, "IMMA_CYCLES_ACTIVE_TOTAL", "Cycles of the integer tensor pipe", 253),
    (1090, "DFMA_CYCLES_ACTIVE_TOTAL", "Cycles of the FP64 pipe's multiply-add", 254),
    (1091, "PCIE_TX_BYTES_TOTAL", "Bytes sent over PCIe", 255), (1092, "PCIE_RX_BYTES_TOTAL",
    "Bytes received over PCIe", 256),
    (1093, "INT_CYCLES_ACTIVE_TOTAL", "Cycles of the integer pipe", 257),
    (1094, "FP64_CYCLES_ACTIVE_TOTAL", "Cycles of the FP64 pipe", 258),
    (1095, "FP32_CYCLES_ACTIVE_TOTAL", "Cycles of the FP32 pipe", 259),
    (1096, "FP16_CYCLES_ACTIVE_TOTAL", "Cycles of the FP16 pipe", 260),
)  # fmt: skip


def _prof(number: int, name: str, text: str, gpm: int, modern: str = "", **more: Any) -> MetricField:
    spelled = named(PROF + modern, "ratio", decimals=True) if modern else None
    return ratio(number, PROF + name, text, gpm, modern=spelled, **more)


def _bytes(number: int, name: str, text: str, gpm: int, *fallback: ReadingSource, **more: Any) -> MetricField:
    """Bytes per second from GPM's MiB per second; of the whole GPU also with MIG on."""
    return gauge(
        number, PROF + name, text, "B/s", ReadingSource(f"gpm_{gpm}_mib_per_s", f"GPM {gpm}", MIB), *fallback, **more
    )


_engines = tuple(
    _prof(first + n, f"{name}{n}_ACTIVE", f"Part of the time in which {name} {n} worked.", gpm + n)
    for name, count, first, gpm in _ENGINES
    for n in range(count)
)
# GPM numbers a link's RX before its TX, DCGM the other way round.
_nvlinks = tuple(
    _bytes(1040 + 2 * n + way, f"NVLINK_L{n}_{name}_BYTES", f"Bytes {text} over NVLink {n} per second.",
           62 + 2 * n + (1 - way))
    for n in range(_LINKS)
    for way, name, text in ((0, "TX", "sent"), (1, "RX", "received"))
)  # fmt: skip
_C2C: Final = ((1076, "TX_ALL", 100), (1077, "TX_DATA", 102), (1078, "RX_ALL", 101), (1079, "RX_DATA", 103))
_CACHE: Final = ((1080, "HOSTMEM_CACHE_HIT"), (1081, "HOSTMEM_CACHE_MISS"), (1082, "PEERMEM_CACHE_HIT"),
                 (1083, "PEERMEM_CACHE_MISS"))  # fmt: skip
_c2c = tuple(
    _bytes(number, f"C2C_{name}_BYTES", f"Bytes over the chip-to-chip links per second, {name}.", gpm)
    for number, name, gpm in _C2C
)
_cache = tuple(
    _prof(number, name, f"Part of the accesses: {name}.", 160 + place) for place, (number, name) in enumerate(_CACHE)
)
_cumulative = tuple(
    counter(number, PROF + name, f"{text}.", "", ReadingSource(f"gpm_{gpm}", f"GPM {gpm}"))
    for number, name, text, gpm in _CUMULATIVE
)

PROFILING: Final[tuple[MetricField, ...]] = (
    _prof(1001, "GR_ENGINE_ACTIVE", "Part of the time in which the graphics engine worked.", 1,
          "GR_ENGINE_UTIL_RATIO", default=True, aliases=("dcgm_fi_prof_gr_engine_active",)),
    _prof(1002, "SM_ACTIVE", "Part of the time in which an SM had work, over all SMs.", 2,
          "SM_UTIL_RATIO", extra=True, aliases=("dcgm_fi_prof_sm_active",)),
    _prof(1003, "SM_OCCUPANCY", "Resident warps, as a part of what the SMs can hold.", 3,
          "SM_OCCUPANCY_RATIO", aliases=("dcgm_fi_prof_sm_occupancy",)),
    _prof(1004, "PIPE_TENSOR_ACTIVE", "Part of the cycles in which a tensor pipe worked.", 5,
          "TENSOR_UTIL_RATIO", default=True, aliases=("dcgm_fi_prof_pipe_tensor_active",)),
    _prof(1005, "DRAM_ACTIVE", "Part of the cycles in which memory was read or written.", 10,
          "DRAM_UTIL_RATIO", default=True, aliases=("dcgm_fi_prof_dram_active",)),
    _prof(1006, "PIPE_FP64_ACTIVE", "Part of the cycles in which the FP64 pipe worked.", 11,
          "FP64_UTIL_RATIO"),
    _prof(1007, "PIPE_FP32_ACTIVE", "Part of the cycles in which the FP32 pipe worked.", 12,
          "FP32_UTIL_RATIO"),
    _prof(1008, "PIPE_FP16_ACTIVE", "Part of the cycles in which the FP16 pipe worked.", 13,
          "FP16_UTIL_RATIO"),
    _bytes(1009, "PCIE_TX_BYTES", "Bytes sent over PCIe per second.", 20,
           ReadingSource("pcie_tx_bytes", "field 197", rate=True),
           default=True, aliases=("dcgm_fi_prof_pcie_tx_bytes",)),
    _bytes(1010, "PCIE_RX_BYTES", "Bytes received over PCIe per second.", 21,
           ReadingSource("pcie_rx_bytes", "field 198", rate=True),
           default=True, aliases=("dcgm_fi_prof_pcie_rx_bytes",)),
    _bytes(1011, "NVLINK_TX_BYTES", "Bytes sent over all NVLinks per second.", 61),
    _bytes(1012, "NVLINK_RX_BYTES", "Bytes received over all NVLinks per second.", 60),
    _prof(1013, "PIPE_TENSOR_IMMA_ACTIVE", "Part of the cycles of the integer tensor pipe.", 9,
          "IMMA_UTIL_RATIO"),
    _prof(1014, "PIPE_TENSOR_HMMA_ACTIVE", "Part of the cycles of the FP16 tensor pipe.", 7,
          "HMMA_UTIL_RATIO"),
    _prof(1015, "PIPE_TENSOR_DFMA_ACTIVE", "Part of the cycles of the FP64 tensor pipe.", 6,
          "DFMA_UTIL_RATIO"),
    _prof(1016, "PIPE_INT_ACTIVE", "Part of the cycles in which the integer pipe worked.", 4, "INT_UTIL_RATIO"),
    *_engines,
    *_nvlinks,
    *_c2c,
    *_cache,
    *_cumulative,
)  # fmt: skip
