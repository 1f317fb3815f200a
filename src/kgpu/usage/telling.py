"""Pure: what is gathered, as others ask for it: metrics, the devices as they are now, lines after a cursor."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Final, TypeAlias

from kgpu.base.metric_text import head, label_text, page
from kgpu.formats.usage import RecordedNode, UsageState
from kgpu.formats.usage_now import VERSION, DeviceSaid, HolderSaid, UsageBucket, UsageNow
from kgpu.usage import infos
from kgpu.usage.gathering import WORKED_US, Gathered, TrackedGpu, TrackedHolder, TrackedUnit, UnitKey

_COUNTERS: Final[tuple[tuple[str, str, Callable[[TrackedHolder], int | None], float], ...]] = (
    ("kgpu_usage_held_seconds_total", "Seconds in which a container has held the device.",
     lambda one: one.held_us, 1e6),
    ("kgpu_usage_busy_seconds_total", "Activity of the device while a container held it, integrated over time.",
     lambda one: one.busy_us, 1e6),
    ("kgpu_usage_sm_seconds_total", "Active multiprocessors while a container held it, integrated over time.",
     lambda one: one.sm_us, 1e6),
    ("kgpu_usage_memory_gib_seconds_total", "Memory that a container has used, integrated over time.",
     lambda one: one.memory_mib_ms, 1024e3),
)  # fmt: skip


def metrics(gathered: Gathered, now_s: float, *, node: str, about: RecordedNode | None = None) -> str:
    """The text; ``now_s`` is the time since 1970 at the last look, ``about`` what the node is."""
    return page((*_lines(gathered, now_s), *infos.lines(gathered, now_s, node, about)))


def _lines(gathered: Gathered, now_s: float) -> Iterator[str]:
    for name, about, value, unit in _COUNTERS:
        yield from head(name, "counter", about)
        for device, gpu in gathered.devices.items():
            for holder in gpu.holders.values():
                amount = value(holder)
                if amount is not None:
                    yield f"{name}{_holder_labels(device, holder)} {amount / unit:.6f}"
    yield from head("kgpu_usage_energy_joules_total", "counter", "What the device's board has used.")
    for device, gpu in gathered.devices.items():
        if gpu.energy_uj is not None:
            yield f"kgpu_usage_energy_joules_total{label_text(UUID=device)} {gpu.energy_uj / 1e6:.3f}"
    yield from head("kgpu_usage_state_seconds_total", "counter", "Seconds in which the device was in a state.")
    for device, part, unit_now in _units(gathered):
        for state, amount in unit_now.states_us.items():
            labels = label_text(UUID=device, partition=part, state=state.value)
            yield f"kgpu_usage_state_seconds_total{labels} {amount / 1e6:.6f}"
    yield from head("kgpu_gpu_state", "gauge", "1 for the state that the device is in.")
    for device, part, unit_now in _units(gathered):
        for state in UsageState:
            labels = label_text(UUID=device, partition=part, state=state.value)
            yield f"kgpu_gpu_state{labels} {int(unit_now.state is state)}"
    yield from head("kgpu_gpu_idle_since_seconds", "gauge", "When its last activity ended, while it is held and idle.")
    for device, part, unit_now in _units(gathered):
        if unit_now.idle_since_us is not None:
            at = now_s - (gathered.uptime_us - unit_now.idle_since_us) / 1e6
            yield f"kgpu_gpu_idle_since_seconds{label_text(UUID=device, partition=part)} {at:.0f}"


def _units(gathered: Gathered) -> Iterator[tuple[str, str, TrackedUnit]]:
    for device, gpu in gathered.devices.items():
        for part, unit in gpu.units():
            yield device, part, unit


def _holder_labels(device: str, holder: TrackedHolder) -> str:
    who = holder.who
    return label_text(
        UUID=device, partition=who.partition, namespace=who.namespace, pod=who.pod, container=who.container, uid=who.uid
    )


def now(
    node: str, gathered: Gathered, closed: Mapping[UnitKey, Iterable[UsageBucket]], *, at: dt.datetime, uptime_us: int
) -> UsageNow:
    """The devices as they were at the last look; ``closed`` are the stretches to tell."""
    return UsageNow(
        version=VERSION, node=node, at=at, boot=gathered.boot, uptime_us=uptime_us, looked_us=gathered.uptime_us,
        devices=tuple(
            _device(device, part, gpu, unit, closed)
            for device, gpu in gathered.devices.items() for part, unit in gpu.units()
            if part or not gpu.parts
        ),
    )  # fmt: skip


_Closed: TypeAlias = Mapping[UnitKey, Iterable[UsageBucket]]


def _device(device: str, part: str, gpu: TrackedGpu, unit: TrackedUnit, closed: _Closed) -> DeviceSaid:
    keys = [key for key, holder in gpu.holders.items() if holder.who.partition == part]
    shares = sum(gpu.holders[key].who.units for key in keys)
    return DeviceSaid(
        device=device, partition=part, product=gpu.product, memory_mib=unit.memory_mib, usable=gpu.usable,
        source=unit.source, idle_limit_w=None if part else gpu.idle_limit_w, last=unit.watch.last,
        buckets=unit.watch.buckets(closed.get((device, part, ""), ())), held=gpu.known,
        holders=tuple(_holder(gpu.holders[key], shares, closed.get((device, part, key), ())) for key in keys),
        busy_us=unit.busy_us,
    )  # fmt: skip


def _holder(one: TrackedHolder, shares: int, closed: Iterable[UsageBucket]) -> HolderSaid:
    who = one.who
    return HolderSaid(
        namespace=who.namespace, pod=who.pod, uid=who.uid, container=who.container, owner=who.owner, gang=who.gang,
        labels=who.labels, sharing=who.sharing, share=1_000_000 * who.units // shares, since_us=one.since_us,
        worked=(one.busy_us or 0) >= WORKED_US, buckets=one.watch.buckets(closed) or None,
    )  # fmt: skip
