"""Pure: one row per pod, from the GPUs and MIG instances that it holds."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from kgpu.top.history import busy
from kgpu.top.model import GpuInstance, GpuUser, ShownGpu
from kgpu.top.rows import GpuRow, PodRow, Row, Wish
from kgpu.top.sorts import BADNESS, natural


def pod_rows(gpu_rows: Iterable[GpuRow], wish: Wish) -> list[Row]:
    """Rows of pods in the order of their first sorted device."""
    held: dict[tuple[str, str], list[tuple[GpuRow, GpuInstance | None, GpuUser]]] = {}
    for row in gpu_rows:
        for part, user in _holders(row.gpu):
            if not wish.namespaces or user.namespace in wish.namespaces:
                held.setdefault((user.namespace, user.pod), []).append((row, part, user))
    rows = [_pod(*key, devices) for key, devices in held.items()]
    if wish.sort in {"natural", "user"}:
        rows.sort(key=lambda row: (natural(row.namespace), natural(row.pod)), reverse=wish.reverse)
    return list(rows)


def _holders(gpu: ShownGpu) -> Iterable[tuple[GpuInstance | None, GpuUser]]:
    yield from ((None, user) for user in gpu.users)
    yield from ((part, user) for part in gpu.parts for user in part.users)


def _pod(namespace: str, pod: str, held: Sequence[tuple[GpuRow, GpuInstance | None, GpuUser]]) -> PodRow:
    devices: dict[tuple[str, int], tuple[GpuRow, GpuInstance | None]] = {}
    own: dict[tuple[str, int], list[float | None]] = {}
    for row, part, user in held:
        key = (row.gpu.uuid, -1 if part is None else part.gpu_instance)
        devices[key] = (row, part)
        own.setdefault(key, []).append(user.memory_mib)
    values = {key: (part.values if part else row.gpu.values) for key, (row, part) in devices.items()}
    shared = {
        key for key, (row, part) in devices.items()
        if len({user.name for user in (part.users if part else row.gpu.users)}) > 1
    }  # fmt: skip
    memory = [_memory(own[key], values[key], alone=key not in shared) for key in devices]
    totals = [readings["memory_total_mib"] for readings in values.values() if "memory_total_mib" in readings]
    whole_gpus = {row.gpu.uuid: row.gpu for row, part in devices.values() if part is None}
    power = [gpu.values["power_w"] for gpu in whole_gpus.values() if "power_w" in gpu.values]
    utilizations = [percent for readings in values.values() if (percent := busy(readings)) is not None]
    rows = [row for row, _ in devices.values()]
    idle = [row.idle for row in rows if row.idle]
    return PodRow(
        namespace=namespace, pod=pod, nodes=tuple(dict.fromkeys(row.node.name for row in rows)), devices=len(devices),
        shared=len(shared), utilization=sum(utilizations) / len(utilizations) if utilizations else None,
        memory_mib=sum(known) if (known := [mib for mib in memory if mib is not None]) else None,
        total_mib=sum(totals) if totals else None, power_w=sum(power) if power else None,
        models=tuple(sorted({row.gpu.name for row in rows if row.gpu.name})),
        health=max((row.gpu.health for row in rows), key=lambda health: BADNESS[health]),
        idle=min(idle, key=lambda period: period.seconds) if len(idle) == len(rows) else None,
    )  # fmt: skip


def _memory(own: Sequence[float | None], values: Mapping[str, float], *, alone: bool) -> float | None:
    """MiB that a pod's processes hold of a device; all that is used where the pod is the only user."""
    known = [mib for mib in own if mib is not None]
    if known:
        return sum(known)
    return values.get("memory_used_mib") if alone else None
