"""Which metrics ``kgpu top`` reads, under every name that an exporter gives them, and the unit that it shows them in.

The names are those of dcgm-exporter up to 4.8, from 4.9 on, and before 2.0, and kgpu's own.
"""

from __future__ import annotations

from typing import Final

_MIB: Final = 1 / (1 << 20)
_DEV: Final = "DCGM_FI_DEV_"

_ROWS: Final[tuple[tuple[str, tuple[tuple[str, float], ...]], ...]] = (
    ("utilization_percent",
     ((f"{_DEV}GPU_UTIL", 1), (f"{_DEV}GPU_UTIL_RATIO", 100), ("dcgm_gpu_utilization", 1))),
    ("sm_percent", (("DCGM_FI_PROF_SM_ACTIVE", 100), ("DCGM_FI_PROF_SM_UTIL_RATIO", 100))),
    ("engine_percent", (("DCGM_FI_PROF_GR_ENGINE_ACTIVE", 100), ("DCGM_FI_PROF_GR_ENGINE_UTIL_RATIO", 100))),
    ("memory_utilization_percent",
     ((f"{_DEV}MEM_COPY_UTIL", 1), (f"{_DEV}MEMORY_UTIL_RATIO", 100), ("dcgm_mem_copy_utilization", 1))),
    ("encoder_percent", ((f"{_DEV}ENC_UTIL", 1), (f"{_DEV}ENC_UTIL_RATIO", 100), ("dcgm_enc_utilization", 1))),
    ("decoder_percent", ((f"{_DEV}DEC_UTIL", 1), (f"{_DEV}DEC_UTIL_RATIO", 100), ("dcgm_dec_utilization", 1))),
    ("memory_used_mib", ((f"{_DEV}FB_USED", 1), (f"{_DEV}FB_USED_BYTES", _MIB), ("dcgm_fb_used", 1))),
    ("memory_free_mib", ((f"{_DEV}FB_FREE", 1), (f"{_DEV}FB_FREE_BYTES", _MIB), ("dcgm_fb_free", 1))),
    ("memory_reserved_mib", ((f"{_DEV}FB_RESERVED", 1), (f"{_DEV}FB_RESERVED_BYTES", _MIB))),
    ("memory_total_mib", ((f"{_DEV}FB_TOTAL", 1), (f"{_DEV}FB_CAPACITY_BYTES", _MIB))),
    ("temperature_c", ((f"{_DEV}GPU_TEMP", 1), (f"{_DEV}GPU_TEMP_CELSIUS", 1), ("dcgm_gpu_temp", 1))),
    ("memory_temperature_c",
     ((f"{_DEV}MEMORY_TEMP", 1), (f"{_DEV}MEMORY_TEMP_CELSIUS", 1), ("dcgm_memory_temp", 1))),
    ("power_w", ((f"{_DEV}POWER_USAGE", 1), (f"{_DEV}BOARD_POWER_WATTS", 1), ("dcgm_power_usage", 1))),
    ("power_limit_w", ((f"{_DEV}ENFORCED_POWER_LIMIT", 1), (f"{_DEV}BOARD_POWER_LIMIT_ENFORCED_WATTS", 1))),
    ("fan_percent", ((f"{_DEV}FAN_SPEED", 1),)),
    ("sm_clock_mhz", ((f"{_DEV}SM_CLOCK", 1), (f"{_DEV}SM_CLOCK_HERTZ", 1e-6), ("dcgm_sm_clock", 1))),
    ("last_xid", ((f"{_DEV}XID_ERRORS", 1), (f"{_DEV}XID_ERROR", 1), ("dcgm_xid_errors", 1))),
)  # fmt: skip

VALUES: Final[dict[str, tuple[str, float]]] = {
    metric: (attr, float(factor)) for attr, spellings in _ROWS for metric, factor in spellings
}
"""Metric -> the value's name, and the factor to its unit."""

UP: Final = "kgpu_gpu_up"
HEALTHY: Final = "kgpu_gpu_healthy"
VERDICT: Final = "kgpu_gpu_verdict"
MUTED: Final = "GPUMuted"  # a verdict's reason: in maintenance, say
POD_INFO: Final = "kgpu_gpu_pod_info"
POD_MEMORY: Final = "kgpu_pod_gpu_memory_used_bytes"
READ_AT: Final = "kgpu_exporter_last_reading_timestamp_seconds"
DRIVER_UP: Final = "kgpu_exporter_driver_up"
PODS_KNOWN: Final = "kgpu_exporter_pods_known"
OF_NODE: Final = frozenset({READ_AT, DRIVER_UP, PODS_KNOWN})
WANTED: Final = frozenset({*VALUES, *OF_NODE, UP, HEALTHY, VERDICT, POD_INFO, POD_MEMORY})
"""Every metric that is read; others are skipped."""

# Of an instance; what else an exporter gives an instance is the whole GPU's, copied.
OF_PART: Final = frozenset({
    "sm_percent", "engine_percent", "memory_used_mib", "memory_free_mib", "memory_reserved_mib", "memory_total_mib",
    "memory_utilization_percent",
})  # fmt: skip

# Labels by what they say, in every spelling.
UUID: Final = ("UUID", "uuid", "gpu_uuid")
INDEX: Final = "gpu"
MODEL: Final = ("modelName", "model_name")
HOST: Final = ("Hostname", "hostname")
INSTANCE: Final = "GPU_I_ID"
PROFILE: Final = "GPU_I_PROFILE"
DRIVER: Final = "DCGM_FI_DRIVER_VERSION"
POD: Final = ("pod", "pod_name")
NAMESPACE: Final = ("namespace", "pod_namespace")
CONTAINER: Final = ("container", "container_name")
