"""Pure: an exporter's text in, the node's GPUs out.

The same GPU comes in many series: one per metric, per MIG instance, and one copy per container that shares it. What an
exporter copies from the GPU to its instances is taken once. A GPU that does not answer is still there.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

from kgpu.top import tables
from kgpu.top.model import GpuHealth, GpuInstance, GpuNode, GpuUser, NodeTrouble, ShownGpu
from kgpu.top.parse import Labels, LabelSets, samples

MOST_GPUS: Final = 1024
"""The most GPUs of one node; an exporter that claims more is shown up to here."""
_NOTHING_TO_DO: Final = "ignore"
_NO_READINGS: Final = "NoReadings"
"""The reason for a GPU without readings; a reason that health gives replaces it."""
_SILENT: Final = {
    tables.DRIVER_UP: NodeTrouble(
        what="the driver does not answer its exporter", remedy="kgpu status; dmesg | kgpu xid"
    ),
}
_MISSING: Final = {
    tables.PODS_KNOWN: NodeTrouble(
        what="who uses what is not known: the kubelet does not tell", remedy="see the exporter's log"
    ),
}


@dataclass(slots=True)
class _Device:
    """A GPU, or an instance of one, while its series are read."""

    values: dict[str, float] = field(default_factory=dict)
    users: dict[tuple[str, str, str], float | None] = field(default_factory=dict)
    profile: str = ""

    def sees(self, labels: Labels, memory: float | None = None) -> None:
        """The user that this series names."""
        pod = _first(labels, tables.POD)
        if not pod:
            return
        key = (_first(labels, tables.NAMESPACE), pod, _first(labels, tables.CONTAINER))
        if memory is not None or key not in self.users:
            self.users[key] = memory

    def holders(self) -> tuple[GpuUser, ...]:
        return tuple(
            GpuUser(namespace=namespace, pod=pod, container=container, memory_mib=memory)
            for (namespace, pod, container), memory in sorted(self.users.items(), key=lambda one: one[0])
        )


@dataclass(slots=True)
class _GpuRead:
    index: int
    name: str
    own: _Device = field(default_factory=_Device)
    parts: dict[int, _Device] = field(default_factory=dict)
    up: bool | None = None
    healthy: bool | None = None
    action: str = ""
    reason: str = ""

    @property
    def muted(self) -> bool:
        """Whether health was told not to judge it."""
        return self.reason == tables.MUTED


def read(text: str, name: str, known: LabelSets, *, at: float = 0.0, through: str = "") -> GpuNode:
    """The node of that name. Raises NotMetricsError."""
    by_uuid: dict[str, _GpuRead] = {}
    of_node: dict[str, float] = {}
    hostname = driver = ""
    for metric, labels, value in samples(text, tables.WANTED, known):
        uuid = _first(labels, tables.UUID)
        if not uuid:
            if metric in tables.OF_NODE:
                of_node[metric] = value
            continue
        gpu = by_uuid.get(uuid)
        if gpu is None:
            if len(by_uuid) == MOST_GPUS:
                continue
            gpu = by_uuid[uuid] = _GpuRead(_number(labels.get(tables.INDEX, "")), _first(labels, tables.MODEL))
        hostname = hostname or _first(labels, tables.HOST)
        driver = driver or labels.get(tables.DRIVER, "")
        _take(gpu, metric, labels, value)
    gpus = sorted((_gpu(uuid, gpu) for uuid, gpu in by_uuid.items()), key=lambda gpu: (gpu.index, gpu.uuid))
    trouble, remark = (
        next((words for metric, words in row.items() if of_node.get(metric, 1) == 0), None)
        for row in (_SILENT, _MISSING)
    )
    return GpuNode(
        name=name, hostname=hostname, driver_version=driver, gpus=tuple(gpus), trouble=trouble, remark=remark, at=at,
        read_at=of_node.get(tables.READ_AT, 0.0), through=through,
    )  # fmt: skip


def _take(gpu: _GpuRead, metric: str, labels: Labels, value: float) -> None:
    instance = labels.get(tables.INSTANCE, "")
    device = gpu.own
    if instance:
        device = gpu.parts.setdefault(_number(instance), _Device())
        device.profile = device.profile or labels.get(tables.PROFILE, "")
    match metric:
        case tables.UP:
            gpu.up = value > 0
        case tables.HEALTHY:
            gpu.healthy = value > 0 if gpu.healthy is not False or instance == "" else False
        case tables.VERDICT:
            if value > 0 and not gpu.action:
                gpu.action, gpu.reason = labels.get("action", ""), labels.get("reason", "")
        case tables.POD_INFO:
            device.sees(labels)
        case tables.POD_MEMORY:
            device.sees(labels, value / (1 << 20))
        case _:
            device.sees(labels)
            attr, factor = tables.VALUES[metric]
            where = device if not instance or attr in tables.OF_PART else gpu.own
            where.values.setdefault(attr, value * factor)


def _gpu(uuid: str, reading: _GpuRead) -> ShownGpu:
    parts = tuple(
        GpuInstance(gpu_instance=number, profile=part.profile, values=with_total(part.values), users=part.holders())
        for number, part in sorted(reading.parts.items())
    )
    action, reason = reading.action, reading.reason
    if reading.up is False and action in {"", _NOTHING_TO_DO}:
        action, reason = "", reason if reading.muted else _NO_READINGS
    return ShownGpu(
        index=reading.index, uuid=uuid, name=reading.name, values=_summed(with_total(reading.own.values), parts),
        health=_health(reading), action=action, reason=reason, users=reading.own.holders(), parts=parts,
    )  # fmt: skip


def _health(reading: _GpuRead) -> GpuHealth:
    """Without readings a GPU is lost, unless health says that it is well: it answers, but slowly, or hangs just now."""
    if reading.up is False:
        well = reading.healthy is True and reading.action == _NOTHING_TO_DO and not reading.muted
        return GpuHealth.WARN if well else GpuHealth.LOST
    if reading.healthy is False:
        return GpuHealth.BAD
    if reading.action not in {"", _NOTHING_TO_DO}:
        return GpuHealth.WARN
    return GpuHealth.UNKNOWN if reading.up is None and reading.healthy is None else GpuHealth.OK


def with_total(values: Mapping[str, float]) -> dict[str, float]:
    """The values with the total memory, which exporters leave to be summed."""
    whole = dict(values)
    if "memory_used_mib" in whole and "memory_free_mib" in whole:
        total = sum(whole.get(f"memory_{name}_mib", 0.0) for name in ("used", "free", "reserved"))
        whole.setdefault("memory_total_mib", total)
    return whole


def _summed(values: dict[str, float], parts: Iterable[GpuInstance]) -> dict[str, float]:
    """A GPU in MIG mode has its memory in its instances."""
    for attr in ("memory_used_mib", "memory_total_mib"):
        amounts = [part.values[attr] for part in parts if attr in part.values]
        if amounts and attr not in values:
            values[attr] = sum(amounts)
    return values


def _first(labels: Labels, names: Iterable[str]) -> str:
    for name in names:
        if value := labels.get(name):
            return value
    return ""


def _number(text: str) -> int:
    return int(text) if text.isascii() and text.isdigit() and len(text) < 9 else -1
