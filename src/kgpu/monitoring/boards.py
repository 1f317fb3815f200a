"""The dashboards as rows of panels: the cluster at a glance, and one whose panels are those of Grafana's 12239.

Queries of the latter are that dashboard's own, so that what people know works; units are right (MiB, not MB).
"""

from __future__ import annotations

from typing import Final

from kgpu.monitoring.alerts import ONCE, WASTED_RATE
from kgpu.monitoring.grafana import Board, BoardVariable, Panel, PanelRow, PanelType

_N: Final = 'node=~"$node"'
_D: Final = f"{ONCE},{_N}"
_F: Final = 'instance=~"$instance", gpu=~"$gpu"'
_LEGEND: Final = "{{node}} GPU {{gpu}} {{GPU_I_ID}}"
_USE: Final = f'(DCGM_FI_DEV_GPU_UTIL{{{_D}}} or 100 * DCGM_FI_PROF_GR_ENGINE_ACTIVE{{{_D},GPU_I_ID!=""}})'
_USED: Final = f"DCGM_FI_DEV_FB_USED{{{_D}}}"
_ALL: Final = f"({_USED} + DCGM_FI_DEV_FB_FREE{{{_D}}})"
_BY_GPU: Final = "instance, UUID, GPU_I_ID"
_HELD: Final = 'pod!="",namespace=~"$namespace",' + _N
_XIDS: Final = f"max by (instance, UUID, GPU_I_ID, xid) (DCGM_EXP_XID_ERRORS_TOTAL{{{_D}}}"
# Without increase(): the series begins with the first Xid, and increase() would not count that one.
_XIDS_OF_A_DAY: Final = f"clamp_min({_XIDS}) - ({_XIDS} offset 1d) or {_XIDS}) * 0), 0)"
_XID_TABLE: Final = (
    f"sum by (node, hostname, gpu, xid) (max_over_time(DCGM_EXP_XID_ERRORS_TOTAL{{{_D}}}[1d])) "
    f"or sum by (node, hostname, gpu) (DCGM_EXP_XID_ERRORS_COUNT{{{_D}}}) * 0"
)
# Both replicas of the operator tell of every operation.
_OPERATIONS: Final = "max by (type, phase) (kgpu_node_operations{{{}}})"
_BEGUN: Final = 'phase!~"Pending|Complete|Failed"'
_PENDING: Final = 'phase="Pending"'
_SUGGESTED: Final = f"max by (operation) (kgpu_node_operation_unapproved_seconds{{{_N}}})"
_FAILED: Final = f"max by (operation) (kgpu_node_operation_failed_timestamp_seconds{{{_N}}})"
_HOLDING: Final = f"max by (node, operation, type) (kgpu_node_operation_held_seconds{{{_N}}})"
_INSTANCE: Final = "{{node}} GPU {{gpu}} {{GPU_I_PROFILE}} {{GPU_I_ID}}"
_GPU: Final = "GPU {{gpu}}"
_HELD_IDLE: Final = '{namespace=~"$namespace",reason=~"held-.+|hung"}'
_SHARED: Final = f'DCGM_FI_DEV_GPU_UTIL{{{_HELD}}} or 100 * DCGM_FI_PROF_GR_ENGINE_ACTIVE{{{_HELD},GPU_I_ID!=""}}'

OVERVIEW: Final = Board(
    uid="kgpu-cluster",
    title="GPU Cluster Overview",
    file="gpu-cluster-overview",
    variables=(
        BoardVariable("node", "label_values(kgpu_gpu_up, node)"),
        BoardVariable("namespace", 'label_values(DCGM_FI_DEV_FB_USED{pod!=""}, namespace)'),
    ),
    rows=(
        PanelRow(5, (
            Panel("GPU Util %", PanelType.GAUGE, ((f"avg({_USE})", ""),), "percent", (70, 95)),
            Panel("Memory Used", PanelType.GAUGE, ((f"100 * sum({_USED}) / sum({_ALL})", ""),), "percent", (80, 95)),
            Panel("Temperature", PanelType.GAUGE, ((f"max(DCGM_FI_DEV_GPU_TEMP{{{_D}}})", ""),), "celsius", (75, 85)),
        )),
        PanelRow(4, (
            Panel("GPUs", PanelType.STAT, ((f"count(kgpu_gpu_up{{{_N}}})", ""),)),
            Panel("GPUs that do not answer", PanelType.STAT, ((f"sum(1 - kgpu_gpu_up{{{_N}}})", ""),), steps=(1, 1)),
            Panel("Devices in use", PanelType.STAT, (
                (f"count(count by ({_BY_GPU}) (DCGM_FI_DEV_FB_USED{{{_HELD}}})) or vector(0)", ""),)),
            Panel("Idle devices", PanelType.STAT, ((f"count({_USE} < 5) or vector(0)", ""),), steps=(1, 10_000)),
            Panel("Xid Errors (last 24h)", PanelType.STAT, ((f"sum({_XIDS_OF_A_DAY}) or vector(0)", ""),),
                  steps=(1, 1)),
            Panel("Power Draw", PanelType.STAT, ((f"sum(DCGM_FI_DEV_POWER_USAGE{{{_D}}})", ""),), "watt"),
        )),
        PanelRow(9, (Panel("Per-GPU Utilization Timeline", PanelType.LINES, ((_USE, _LEGEND),), "percent"),)),
        PanelRow(8, (
            Panel("Memory used", PanelType.LINES, ((_USED, _LEGEND),), "mbytes"),
            Panel("Temperature of each GPU", PanelType.LINES, ((f"DCGM_FI_DEV_GPU_TEMP{{{_D}}}", _LEGEND),), "celsius"),
            Panel("Power of each GPU", PanelType.LINES, ((f"DCGM_FI_DEV_POWER_USAGE{{{_D}}}", _LEGEND),), "watt"),
        )),
        PanelRow(8, (
            Panel("Devices held per namespace", PanelType.LINES, (
                (f"count by (namespace) (count by (namespace, {_BY_GPU}) (DCGM_FI_DEV_FB_USED{{{_HELD}}}))",
                 "{{namespace}}"),)),
            Panel("Use of what a namespace holds", PanelType.LINES, (
                (f"avg by (namespace) (max by (namespace, {_BY_GPU}) ({_SHARED}))", "{{namespace}}"),), "percent"),
            Panel("Memory per pod", PanelType.BARS, (
                (f"sum by (namespace, pod) (max by (namespace, pod, {_BY_GPU}) (DCGM_FI_DEV_FB_USED{{{_HELD}}}))",
                 "{{namespace}}/{{pod}}"),), "mbytes"),
        )),
        PanelRow(8, (
            Panel("GPUs held and not used", PanelType.LINES, (
                (f"sum by (namespace) ({WASTED_RATE.format(_HELD_IDLE)})", "{{namespace}}"),)),
            Panel("GPUs wasted, by why", PanelType.LINES, (
                (f"sum by (reason) ({WASTED_RATE.format('')})", "{{reason}}"),)),
            Panel("What waste costs an hour", PanelType.LINES, (
                ("sum by (currency, reason) (rate(kgpu_wasted_cost_total[1h])) * 3600", "{{reason}} {{currency}}"),)),
        )),
        PanelRow(8, (
            Panel("Devices that hardly do anything", PanelType.TABLE, ((f"sort({_USE} < 100)", ""),), "percent"),
            Panel("Xids within a day", PanelType.TABLE, (
                (_XID_TABLE, ""),)),
            Panel("Health", PanelType.TABLE, (
                (f"kgpu_gpu_verdict{{{_N}}} or kgpu_gpu_healthy{{{_N}}}", ""),)),
        )),
        PanelRow(8, (
            Panel("Tensor cores", PanelType.LINES, ((f"DCGM_FI_PROF_PIPE_TENSOR_ACTIVE{{{_D}}}", _LEGEND),),
                  "percentunit"),
            Panel("Memory bandwidth in use", PanelType.LINES, (
                (f"DCGM_FI_PROF_DRAM_ACTIVE{{{_D}}}", _LEGEND),), "percentunit"),
            Panel("MIG instances: engines in use", PanelType.LINES, (
                (f'DCGM_FI_PROF_GR_ENGINE_ACTIVE{{{_D},GPU_I_ID!=""}}', _INSTANCE),),
                "percentunit"),
        )),
        PanelRow(4, (
            Panel("Nodes held by operations", PanelType.STAT, (("max(kgpu_nodes_held)", ""),)),
            Panel("Operations at work", PanelType.STAT, (
                (f"sum({_OPERATIONS.format(_BEGUN)}) or vector(0)", ""),)),
            Panel("Operations that wait", PanelType.STAT, (
                (f"sum({_OPERATIONS.format(_PENDING)}) or vector(0)", ""),)),
            Panel("Suggestions to approve", PanelType.STAT, (
                (f"count({_SUGGESTED}) or vector(0)", ""),), steps=(1, 10_000)),
            Panel("Operations that failed (last 24h)", PanelType.STAT, (
                (f"count({_FAILED}) or vector(0)", ""),), steps=(1, 1)),
            Panel("Remediation stopped", PanelType.STAT, (("max(kgpu_remediation_stopped)", ""),), steps=(1, 1)),
        )),
        PanelRow(8, (
            Panel("Operations by phase", PanelType.LINES, ((_OPERATIONS.format(""), "{{type}} {{phase}}"),)),
            Panel("How long nodes are held", PanelType.TABLE, ((_HOLDING, ""),), "s"),
            Panel("Operations by outcome", PanelType.TABLE, (
                ("max by (type, result, reason) (kgpu_node_operations_ended)", ""),)),
        )),
    ),
)  # fmt: skip

DEVICES: Final = Board(
    uid="kgpu-devices",
    title="GPU Devices",
    file="gpu-devices",
    variables=(
        BoardVariable("instance", "label_values(DCGM_FI_DEV_GPU_TEMP, instance)"),
        BoardVariable("gpu", "label_values(DCGM_FI_DEV_GPU_TEMP, gpu)"),
    ),
    rows=(
        PanelRow(8, (
            Panel("GPU Temperature", PanelType.LINES, ((f"DCGM_FI_DEV_GPU_TEMP{{{_F}}}", _GPU),), "celsius", width=18),
            Panel("GPU Avg. Temp", PanelType.GAUGE, ((f"avg(DCGM_FI_DEV_GPU_TEMP{{{_F}}})", ""),), "celsius", (83, 87),
                  width=6),
        )),
        PanelRow(8, (
            Panel("GPU Power Usage", PanelType.LINES, ((f"DCGM_FI_DEV_POWER_USAGE{{{_F}}}", _GPU),), "watt", width=18),
            Panel("GPU Power Total", PanelType.GAUGE, ((f"sum(DCGM_FI_DEV_POWER_USAGE{{{_F}}})", ""),), "watt",
                  (1800, 2200),
                  width=6),
        )),
        PanelRow(8, (
            Panel("GPU SM Clocks", PanelType.LINES, ((f"DCGM_FI_DEV_SM_CLOCK{{{_F}}} * 1000000", _GPU),), "hertz"),)),
        PanelRow(8, (
            Panel("GPU Utilization", PanelType.LINES, ((f"DCGM_FI_DEV_GPU_UTIL{{{_F}}}", _GPU),), "percent"),
            Panel("Tensor Core Utilization", PanelType.LINES, (
                (f"DCGM_FI_PROF_PIPE_TENSOR_ACTIVE{{{_F}}}", _GPU),), "percentunit"),
        )),
        PanelRow(8, (
            Panel("GPU Framebuffer Mem Used", PanelType.LINES, ((f"DCGM_FI_DEV_FB_USED{{{_F}}}", _GPU),), "mbytes"),)),
    ),
)  # fmt: skip

BOARDS: Final = (OVERVIEW, DEVICES)
