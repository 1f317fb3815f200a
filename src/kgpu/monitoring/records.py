"""Recorded series: one value per device of any kind, sums per node and namespace, OpenShift's ``accelerator_*``.

The latter have the names that its dashboards ask for and values that are what the names say (bytes are bytes).
"""

from __future__ import annotations

from typing import Final

from kgpu.monitoring.alerts import MEMORY, ONCE, USE, WASTED_RATE
from kgpu.monitoring.model import RecordingRule

USED: Final = "kgpu:gpu_utilization:percent"
_IN_USE: Final = 'count by (namespace) (count by (namespace, instance, UUID, GPU_I_ID) (DCGM_FI_DEV_FB_USED{pod!=""}))'
_MIB: Final = "1048576"


def _metric(name: str) -> str:
    return f"{name}{{{ONCE}}}"


_TOTAL: Final = " + ".join(_metric(f"DCGM_FI_DEV_FB_{part}") for part in ("USED", "FREE", "RESERVED"))

RECORDS: Final = (
    RecordingRule(name=USED, expr=USE, what="how busy each GPU or MIG instance is, in percent"),
    RecordingRule(name="kgpu:gpu_memory_used:ratio", expr=MEMORY, what="the used part of each device's memory"),
    RecordingRule(name="node:kgpu_gpu_utilization:avg", expr=f"avg by (node, hostname) ({USED})",
                  what="how busy a node's GPUs are on average, in percent"),
    RecordingRule(name="node:kgpu_gpu_power_watts:sum",
                  expr=f"sum by (node, hostname) ({_metric('DCGM_FI_DEV_POWER_USAGE')})",
                  what="what a node's GPUs draw"),
    RecordingRule(name="namespace:kgpu_gpus_held:count", expr=_IN_USE,
                  what="devices that a namespace's pods hold; a shared one counts in each namespace"),
    RecordingRule(name="namespace:kgpu_gpu_utilization:avg",
                  expr='avg by (namespace) (max by (namespace, instance, UUID, GPU_I_ID) '
                '(DCGM_FI_DEV_GPU_UTIL{pod!=""} or 100 * DCGM_FI_PROF_GR_ENGINE_ACTIVE{pod!="",GPU_I_ID!=""}))',
                  what="how busy the devices are that a namespace holds, in percent"),
    RecordingRule(name="namespace:kgpu_gpus_wasted:rate1h",
                  expr=f"sum by (namespace, reason) ({WASTED_RATE.format('')})",
                  what="GPUs that were held without use, free or down, on average of the last hour"),
    RecordingRule(name="cluster:kgpu_wasted_cost_per_hour:rate1h",
                  expr="sum by (currency) (rate(kgpu_wasted_cost_total[1h])) * 3600",
                  what="what GPUs cost an hour that are free, held without use, or down"),
    RecordingRule(name="cluster:kgpu_gpus:count", expr="count(kgpu_gpu_up)", what="GPUs with metrics"),
    RecordingRule(name="cluster:kgpu_gpus_idle:count", expr=f"count({USED} < 5) or vector(0)",
                  what="devices that do nothing"),
    *(
        RecordingRule(name=f"accelerator_{name}", expr=expr, labels={"vendor": "nvidia"}, what=what)
        for name, expr, what in (
            ("gpu_utilization", _metric("DCGM_FI_DEV_GPU_UTIL"), "utilisation in percent"),
            ("memory_used_bytes", f"{_metric('DCGM_FI_DEV_FB_USED')} * {_MIB}", "used memory"),
            ("memory_total_bytes", f"({_TOTAL}) * {_MIB}", "memory"),
            ("power_usage_watts", _metric("DCGM_FI_DEV_POWER_USAGE"), "power"),
            ("temperature_celsius", _metric("DCGM_FI_DEV_GPU_TEMP"), "temperature"),
            ("sm_clock_hertz", f"{_metric('DCGM_FI_DEV_SM_CLOCK')} * 1000000", "SM clock"),
            ("memory_clock_hertz", f"{_metric('DCGM_FI_DEV_MEM_CLOCK')} * 1000000", "memory clock"),
        )
    ),
)  # fmt: skip
