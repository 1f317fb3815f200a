"""Readings of one GPU: tables of its files, sensors and ``gpu_metrics``, and one pass over them. May block for good.

The keys are those of ``hw.port.Reading``. A later table wins: the driver's own figures before those of sensors.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Callable, Mapping
from typing import Final

from kgpu.formats import amd_gpu_metrics
from kgpu.formats.amd_gpu_metrics import GpuMetricsError, MetricValue
from kgpu.hw import sysfs as files
from kgpu.hw.amd.gather import DEVICES
from kgpu.hw.port import Reading, Value
from kgpu.hw.sysfs import GarbageError

MIB: Final = 1 << 20
ENERGY_MJ: Final = 15.259 / 1000
"""A step of the energy counter."""
_GENERATIONS: Final = {"2.5": 1, "5.0": 2, "8.0": 3, "16.0": 4, "32.0": 5, "64.0": 6, "128.0": 7}
_SPEED: Final = re.compile(r"([0-9]{1,3}\.[0-9]) GT/s.*", re.ASCII)


def _generation(path: str) -> int:
    found = _SPEED.fullmatch(files.line(path))
    if found is None or found[1] not in _GENERATIONS:
        raise GarbageError(path)
    return _GENERATIONS[found[1]]


def _speed(path: str) -> int:
    """Tenths of GT/s."""
    found = _SPEED.fullmatch(files.line(path))
    if found is None:
        raise GarbageError(path)
    return int(found[1].replace(".", ""))


RAS_BLOCKS: Final = (
    "umc", "sdma", "gfx", "mmhub", "athub", "pcie_bif", "hdp", "xgmi_wafl", "df", "smn", "sem", "mp0", "mp1", "fuse",
    "mca", "vcn", "jpeg", "ih", "mpio",
)  # fmt: skip
"""Every block that a driver may count errors of; a GPU has some."""

# file, key, how it is read, divisor
FILES: Final[tuple[tuple[str, str, Callable[[str], int], int], ...]] = (
    ("mem_info_vram_total", "memory_total_mib", files.number, MIB),
    ("mem_info_vram_used", "memory_used_mib", files.number, MIB),
    ("mem_info_vis_vram_total", "visible_memory_total_mib", files.number, MIB),
    ("mem_info_vis_vram_used", "visible_memory_used_mib", files.number, MIB),
    ("mem_info_gtt_total", "gtt_total_mib", files.number, MIB),
    ("mem_info_gtt_used", "gtt_used_mib", files.number, MIB),
    ("gpu_busy_percent", "utilization_percent", files.number, 1),
    ("mem_busy_percent", "memory_utilization_percent", files.number, 1),
    ("pcie_replay_count", "pcie_replays", files.number, 1),
    ("current_link_speed", "pcie_generation", _generation, 1),
    ("max_link_speed", "pcie_max_generation", _generation, 1),
    ("current_link_speed", "pcie_speed_gts", _speed, 10),
    ("max_link_speed", "pcie_max_speed_gts", _speed, 10),
    ("current_link_width", "pcie_width", files.number, 1),
    ("max_link_width", "pcie_max_width", files.number, 1),
)
SENSORS: Final[tuple[tuple[str, str, Callable[[str], int], int], ...]] = (
    ("power1_average", "power_w", files.number, 1_000_000),
    ("power1_input", "power_w", files.number, 1_000_000),
    ("power1_cap", "power_limit_w", files.number, 1_000_000),
    ("power1_cap_max", "power_limit_max_w", files.number, 1_000_000),
    ("temp1_input", "edge_temperature_c", files.number, 1000),
    ("temp2_input", "temperature_c", files.number, 1000),
    ("temp2_crit", "critical_temperature_c", files.number, 1000),
    ("temp3_input", "memory_temperature_c", files.number, 1000),
    ("freq1_input", "sm_clock_mhz", files.number, 1_000_000),
)
# field of gpu_metrics, key, factor
METRICS: Final[tuple[tuple[str, str, float], ...]] = (
    ("temperature_hotspot", "temperature_c", 1),
    ("temperature_mem", "memory_temperature_c", 1),
    ("temperature_edge", "edge_temperature_c", 1),
    ("average_socket_power", "power_w", 1),
    ("curr_socket_power", "power_w", 1),
    ("average_gfx_activity", "utilization_percent", 1),
    ("average_umc_activity", "memory_utilization_percent", 1),
    ("energy_accumulator", "energy_mj", ENERGY_MJ),
    ("current_gfxclk", "sm_clock_mhz", 1),
    ("current_uclk", "memory_clock_mhz", 1),
    ("current_vclk0", "video_clock_mhz", 1),
    ("pcie_replay_count_acc", "pcie_replays", 1),
    ("pcie_nak_sent_count_acc", "pcie_naks_sent", 1),
    ("pcie_nak_rcvd_count_acc", "pcie_naks_received", 1),
    ("prochot_residency_acc", "processor_hot_residency", 1),
    ("ppt_residency_acc", "power_residency", 1),
    ("socket_thm_residency_acc", "thermal_residency", 1),
    ("vr_thm_residency_acc", "vr_thermal_residency", 1),
    ("hbm_thm_residency_acc", "memory_thermal_residency", 1),
    ("accumulation_counter", "residency_steps", 1),
    ("curr_socket_power", "socket_power_w", 1),
    ("average_socket_power", "average_socket_power_w", 1),
    ("average_mm_activity", "media_utilization_percent", 1),
    ("voltage_soc", "soc_voltage_mv", 1),
    ("voltage_gfx", "graphics_voltage_mv", 1),
    ("voltage_mem", "memory_voltage_mv", 1),
    ("pcie_bandwidth_inst", "pcie_traffic", 1),
    ("pcie_bandwidth_acc", "pcie_traffic_sum", 1),
    ("pcie_l0_to_recov_count_acc", "pcie_recoveries", 1),
    ("pcie_replay_rover_count_acc", "pcie_replay_rollovers", 1),
    ("mem_max_bandwidth", "memory_max_gb_per_s", 1),
)
# field of gpu_metrics, key of each of its values
LISTS: Final = (
    ("xgmi_read_data_acc", "xgmi_{}_rx_kib"),
    ("xgmi_write_data_acc", "xgmi_{}_tx_kib"),
    ("temperature_hbm", "hbm_{}_temperature_c"),
    ("vcn_activity", "vcn_{}_percent"),
    ("jpeg_activity", "jpeg_{}_percent"),
)
# field of each partition, key of each of its values
PARTS: Final = (
    ("gfx_busy_inst", "part_{}_xcc_{}_busy_percent"),
    ("vcn_busy", "part_{}_vcn_{}_busy_percent"),
    ("jpeg_busy", "part_{}_jpeg_{}_busy_percent"),
    ("gfx_below_host_limit_acc", "part_{}_xcc_{}_below_limit"),
    ("gfx_below_host_limit_total_acc", "part_{}_xcc_{}_below_limit"),
    ("gfx_below_host_limit_ppt_acc", "part_{}_xcc_{}_below_limit_power"),
    ("gfx_below_host_limit_thm_acc", "part_{}_xcc_{}_below_limit_thermal"),
    ("gfx_low_utilization_acc", "part_{}_xcc_{}_low_utilization"),
)
# field of gpu_metrics, kind of clock; clocks are numbered through, as AMD's tools do
CLOCKS: Final = (
    ("current_gfxclk", "system"),
    ("current_uclk", "memory"),
    ("current_vclk0", "video"),
    ("current_dclk0", "data"),
    ("current_socclk", "soc"),
)


def read(sys: str, bus: str) -> Reading:
    """Everything that is read of a GPU."""
    folder = f"{sys}/{DEVICES}/{bus}"
    values: dict[str, Value] = {}
    failures: dict[str, str] = {}
    _rows(folder, FILES, values, failures)
    _rows(_sensors(folder), SENSORS, values, failures)
    _ras(folder, values, failures)
    try:
        values |= of_metrics(amd_gpu_metrics.decode(files.raw(f"{folder}/gpu_metrics", amd_gpu_metrics.MAX_BYTES)))
    except FileNotFoundError:
        pass
    except (OSError, GpuMetricsError):
        failures |= {key: "unknown" for _, key, _ in METRICS if key not in values}
    with contextlib.suppress(OSError, GarbageError):
        values["vbios_version"] = files.line(f"{folder}/vbios_version")
    _memory(values)
    return Reading(uuid=bus, values=values, failures=failures)


def of_metrics(fields: Mapping[str, MetricValue]) -> dict[str, float]:
    """The readings in ``gpu_metrics``. Of several clocks it is the highest."""
    found: dict[str, float] = {}
    for name, key, factor in METRICS:
        value = fields.get(name)
        if isinstance(value, tuple):
            value = max((one for one in value if one is not None), default=None)
        if value is not None:
            found[key] = value * factor
    for name, form in LISTS:
        found |= {form.format(number): value for number, value in _listed(fields.get(name))}
    for part in range(amd_gpu_metrics.PARTITIONS):
        for name, form in PARTS:
            rows = _listed(fields.get(f"xcp{part}.{name}"))
            found |= {form.format(part, number): value for number, value in rows}
    return found | _clocks(fields)


def _listed(value: MetricValue) -> list[tuple[int, float]]:
    """The values that a GPU has of one field, with their places."""
    rows = value if isinstance(value, tuple) else (value,)
    return [(number, float(row)) for number, row in enumerate(rows) if row is not None]


def _clocks(fields: Mapping[str, MetricValue]) -> dict[str, float]:
    found: dict[str, float] = {}
    first = 0
    for name, kind in CLOCKS:
        value = fields.get(name)
        found |= {f"clock_{kind}_{first + number}_mhz": clock for number, clock in _listed(value)}
        first += len(value) if isinstance(value, tuple) else 1
    return found


def _rows(
    folder: str,
    rows: tuple[tuple[str, str, Callable[[str], int], int], ...],
    values: dict[str, Value],
    failures: dict[str, str],
) -> None:
    for name, key, how, divisor in rows:
        try:
            values[key] = how(f"{folder}/{name}") / divisor
        except FileNotFoundError:
            continue
        except PermissionError:
            failures[key] = "no-permission"
        except (OSError, GarbageError):
            failures[key] = "unknown"


def _sensors(folder: str) -> str:
    """The folder of the GPU's sensors."""
    with contextlib.suppress(OSError):
        for entry in sorted(os.listdir(f"{folder}/hwmon")):
            return f"{folder}/hwmon/{entry}"
    return f"{folder}/hwmon/none"


def _ras(folder: str, values: dict[str, Value], failures: dict[str, str]) -> None:
    counted = False
    sums = [0, 0]
    for block in RAS_BLOCKS:
        try:
            *counts, deferred = files.all_error_counts(f"{folder}/ras/{block}_err_count")
        except FileNotFoundError:
            continue
        except (OSError, GarbageError):
            failures["ecc_uncorrected_volatile"] = failures["ecc_corrected_volatile"] = "unknown"
            continue
        counted = True
        sums = [sums[0] + counts[0], sums[1] + counts[1]]
        values[f"ecc_uncorrected_{block}"], values[f"ecc_corrected_{block}"] = map(float, counts)
        if deferred is not None:
            values[f"ecc_deferred_{block}"] = float(deferred)
            values["ecc_deferred_volatile"] = float(values.get("ecc_deferred_volatile", 0.0)) + deferred
    if counted and "ecc_uncorrected_volatile" not in failures:
        values["ecc_uncorrected_volatile"], values["ecc_corrected_volatile"] = map(float, sums)


def _memory(values: dict[str, Value]) -> None:
    total, used = values.get("memory_total_mib"), values.get("memory_used_mib")
    if isinstance(total, float) and isinstance(used, float) and total > 0:
        values["memory_free_mib"] = max(0.0, total - used)
        values["memory_used_ratio"] = min(1.0, used / total)
