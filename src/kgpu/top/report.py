"""Pure: what was read, as JSON data of a stable form; a GPU has gpustat's keys and kgpu's beside them.

``version`` grows when a key goes or changes its meaning; keys may be added. Memory is MiB, power W, temperatures C,
utilisation percent; null is what is not known.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable, Mapping
from typing import Any, Final

from kgpu.top.history import activity, busy
from kgpu.top.model import GpuInstance, GpuNode, GpuProcess, GpuUser, ShownGpu
from kgpu.top.rows import GpuRow, Screen, Wish
from kgpu.top.sorts import natural

VERSION: Final = 1
# gpustat's keys, and the value that each has.
_KEYS: Final = (
    ("temperature.gpu", "temperature_c"), ("temperature.memory", "memory_temperature_c"), ("fan.speed", "fan_percent"),
    ("utilization.gpu", "utilization_percent"), ("utilization.enc", "encoder_percent"),
    ("utilization.dec", "decoder_percent"), ("utilization.sm", "sm_percent"), ("power.draw", "power_w"),
    ("enforced.power.limit", "power_limit_w"), ("memory.used", "memory_used_mib"), ("memory.total", "memory_total_mib"),
)  # fmt: skip
_PART_KEYS: Final = (
    ("utilization.sm", "sm_percent"), ("memory.used", "memory_used_mib"), ("memory.total", "memory_total_mib"),
)  # fmt: skip


def report(nodes: Iterable[GpuNode], screen: Screen, wish: Wish, *, at: float) -> dict[str, Any]:
    """Every node that was asked for, with those GPUs of it that the filter lets through, in the sort's order."""
    rows: dict[str, list[GpuRow]] = {}
    for row in screen.gpus:
        rows.setdefault(row.node.name, []).append(row)
    order = {name: place for place, name in enumerate(rows)}
    shown = [node for node in nodes if not wish.nodes or node.name in wish.nodes]
    if wish.words or wish.namespaces:
        shown = [node for node in shown if node.name in rows or node.trouble]
    shown.sort(key=lambda node: (order.get(node.name, len(order)), natural(node.name)))
    whole = screen.whole
    return {
        "version": VERSION,
        "query_time": _time(at),
        "total": {
            "nodes": screen.nodes, "nodes.silent": screen.silent, "gpus": whole.gpus, "gpus.used": whole.used,
            "devices.unread": screen.unread,
            "gpus.bad": whole.bad, "gpus.lost": whole.lost, "pods": whole.pods,
            "utilization.gpu": _number(whole.utilization), "memory.used": _number(whole.memory_mib),
            "memory.total": _number(whole.total_mib), "power.draw": _number(whole.power_w),
        },
        "nodes": [_node(node, rows.get(node.name, ())) for node in shown],
    }  # fmt: skip


def _node(node: GpuNode, rows: Iterable[GpuRow]) -> dict[str, Any]:
    trouble = {"what": node.trouble.what, "todo": node.trouble.remedy} if node.trouble else None
    return {
        "hostname": node.name, "driver_version": node.driver_version or None,
        "query_time": _time(node.at) if node.at else None, "read_time": _time(node.read_at) if node.read_at else None,
        "through": node.through or None, "problem": trouble, "remark": node.remark.what if node.remark else None,
        "gpus": [_gpu(row) for row in rows],
    }  # fmt: skip


def _gpu(row: GpuRow) -> dict[str, Any]:
    gpu = row.gpu
    return {
        "index": gpu.index, "uuid": gpu.uuid, "name": gpu.name, **_values(gpu.values, _KEYS),
        "activity": _number(activity(gpu)), "idle_seconds": round(row.idle.seconds) if row.idle else None,
        "health": gpu.health.value, "action": gpu.action or None, "reason": gpu.reason or None,
        "last_xid": int(gpu.values.get("last_xid", 0)) or None,
        "xid_age_seconds": round(row.xid_age) if row.xid_age is not None else None,
        "pods": [_user(user) for user in gpu.users], "mig": [_part(part) for part in gpu.parts],
        "processes": _processes(gpu),
    }  # fmt: skip


def _part(part: GpuInstance) -> dict[str, Any]:
    return {
        "gpu_instance": part.gpu_instance, "profile": part.profile, **_values(part.values, _PART_KEYS),
        "activity": _number(busy(part.values)), "pods": [_user(user) for user in part.users],
    }  # fmt: skip


def _user(user: GpuUser) -> dict[str, Any]:
    return {
        "namespace": user.namespace, "pod": user.pod, "container": user.container or None,
        "gpu_memory_usage": _number(user.memory_mib),
    }  # fmt: skip


def _processes(gpu: ShownGpu) -> list[dict[str, Any]]:
    return [_process(process) for process in gpu.processes]


def _process(process: GpuProcess) -> dict[str, Any]:
    return {
        "pid": process.pid, "username": process.user or None, "command": process.command or None, "type": process.kind,
        "gpu_memory_usage": _number(process.memory_mib), "gpu_instance": process.gpu_instance,
        "utilization.sm": _number(process.sm_percent),
    }  # fmt: skip


def _values(values: Mapping[str, float], keys: Iterable[tuple[str, str]]) -> dict[str, Any]:
    return {key: _number(values.get(name)) for key, name in keys}


def _number(value: float | None) -> float | int | None:
    """Whole numbers as such; nothing that JSON does not have."""
    if value is None or value != value or value in {float("inf"), float("-inf")}:  # noqa: PLR0124 - NaN
        return None
    return int(value) if value == int(value) else round(value, 3)


def _time(seconds: float) -> str | None:
    try:
        return dt.datetime.fromtimestamp(seconds, tz=dt.UTC).isoformat(timespec="seconds")
    except (OverflowError, ValueError, OSError):  # an exporter may say anything
        return None
