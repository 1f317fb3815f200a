"""Pure: from a reader's answers to what a look finds: signals as ratios, and by what they are measured.

A performance counter goes before utilisation where the driver has it; both are kept, as they may contradict one
another. Utilisation is the average of the driver's own samples where they are about most of the time since the look
before, else what it is now. A MIG instance whose driver measures nothing (before Hopper) has not been active while no
process and no memory of one was on it; more is not known of it. A GPU whose driver call hangs has no reading: it is
unknown, neither down nor idle.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple

import msgspec

from kgpu.formats.usage_now import UsageSource
from kgpu.hw.port import Accelerator, Activity, Inventory, Partition, Problem, Process, Reading
from kgpu.usage.looks import LookedDevice, LookedPart
from kgpu.usage.states import UsageReading, ratio

# NVML's GPM metrics: graphics engines, multiprocessors, tensor cores, memory's bandwidth, what comes over PCIe.
_SIGNALS: Final = (
    ("gr_engine", "gpm_1", 0.01), ("gpu_util", "utilization_percent", 0.01), ("sm", "gpm_2", 0.01),
    ("tensor", "gpm_5", 0.01), ("dram", "gpm_10", 0.01), ("encoder", "encoder_percent", 0.01),
    ("decoder", "decoder_percent", 0.01), ("power_w", "power_w", 1.0), ("memory_mib", "memory_used_mib", 1.0),
    ("host_to_device_mib_s", "gpm_21_mib_per_s", 1.0),
)  # fmt: skip
"""Of ``UsageReading``: the reading's key, and a factor."""
_COUNTED: Final = ("gr_engine", "sm", "dram")
_LIMIT: Final = "power_limit_w"
_ENERGY: Final = "energy_mj"
_TOTAL: Final = "memory_total_mib"
AVERAGES: Final = frozenset(key for _, key, _ in _SIGNALS if key.startswith("gpm_"))
"""What is asked for of the time since the look before,"""
KEYS: Final = frozenset({key for _, key, _ in _SIGNALS} | {_LIMIT, _ENERGY, _TOTAL}) - AVERAGES
"""and of now."""
_UTILIZATION: Final = "utilization_percent"
MOST: Final = 0.5
"""Samples stand for the time since the look before if they are about that part of it, or more."""
NO_CONTEXT_MIB: Final = 32.0
"""What the driver takes of an instance for itself is less, or less than the part below of it; a context takes more."""
NO_CONTEXT: Final = 0.002
NO_IDLE_PART: Final = 0.6
"""No board draws so much of its limit without work, though a context alone may draw half as much on a small one."""
_SILENT: Final = frozenset({Problem.HUNG})
"""Findings that say that a device can't be read now, and nothing of its health."""


class UsageAnswer(NamedTuple):
    """What a reader says at one look: no readings where it did not answer, None where processes are not known."""

    inventory: Inventory
    readings: Sequence[Reading] = ()
    activity: Sequence[Activity] = ()
    processes: Sequence[Process] | None = None


def devices(answer: UsageAnswer, at: float, passed: float = 0.0) -> tuple[LookedDevice, ...]:
    """The node's devices. ``passed``: seconds since the look before."""
    answers = _Answers(
        at, {(one.uuid, one.gpu_instance): one for one in answer.readings if one.link is None},
        {(one.uuid, one.gpu_instance): one for one in answer.activity}, passed,
    )  # fmt: skip
    if answer.processes is not None:
        answers.names = {}
        for process in answer.processes:
            for instance in {process.gpu_instance, None}:
                answers.names.setdefault((process.uuid, instance), set()).add(str(process.pid))
    return tuple(_device(gpu, answers) for gpu in answer.inventory.accelerators)


class _Answers(msgspec.Struct):
    """A reader's answers by GPU and GPU instance. ``names``: None where processes are not known."""

    at: float
    readings: Mapping[tuple[str, int | None], Reading]
    activity: Mapping[tuple[str, int | None], Activity]
    passed: float
    names: dict[tuple[str, int | None], set[str]] | None = None

    def reading(self, uuid: str, instance: int | None = None) -> UsageReading | None:
        """What judging needs of it, None where it was not read."""
        found = self.readings.get((uuid, instance))
        if found is None:
            return None
        values, done = found.numbers, self.activity.get((uuid, instance))
        peaks = [values.get(_UTILIZATION), None if done is None else done.peak_percent]
        if done is not None:
            sampled = self.averaged(uuid, instance)
            values |= {key: value for key, value in done.values.items() if sampled or key != _UTILIZATION}
        fields: dict[str, Any] = {name: values[key] * factor for name, key, factor in _SIGNALS if key in values}
        names = None if self.names is None else frozenset(self.names.get((uuid, instance), ()))
        known = [part for peak in peaks if peak is not None and (part := ratio(peak * 0.01)) is not None]
        return UsageReading(at=self.at, processes=names, peak=max(known, default=None), **fields)

    def averaged(self, uuid: str, instance: int | None = None) -> bool:
        """Whether the driver's samples stand for the time since the look before."""
        done = self.activity.get((uuid, instance))
        return done is not None and _UTILIZATION in done.values and done.sampled_seconds >= MOST * self.passed

    def source(self, reading: UsageReading | None, uuid: str, instance: int | None = None) -> UsageSource:
        """What a reading's activity is measured by."""
        if reading is None:
            return UsageSource.NOTHING
        if any(getattr(reading, name) is not None for name in _COUNTED):
            return UsageSource.COUNTERS
        if reading.gpu_util is None:
            return UsageSource.NOTHING
        return UsageSource.SAMPLES if self.averaged(uuid, instance) else UsageSource.UTILIZATION


def _device(gpu: Accelerator, answers: _Answers) -> LookedDevice:
    found = answers.readings.get((gpu.uuid, None))
    values = found.numbers if found is not None else {}
    silent = any(finding.problem in _SILENT for finding in gpu.findings)
    seen = None if silent else answers.reading(gpu.uuid)
    source = answers.source(seen, gpu.uuid)
    limit = values.get(_LIMIT)
    return LookedDevice(
        device=gpu.uuid, product=gpu.name.replace(" ", "-"),
        memory_mib=float(gpu.memory_mib or values.get(_TOTAL, 0.0)),
        usable=gpu.usable or _only_silent(gpu), reading=seen, source=source,
        idle_limit_w=None if limit is None else limit * NO_IDLE_PART, energy_mj=values.get(_ENERGY),
        parts=tuple(_part(part, answers, seen, source) for part in _instances(gpu)),
    )  # fmt: skip


def _only_silent(gpu: Accelerator) -> bool:
    """Whether all that is wrong is that it does not answer."""
    return all(finding.problem in _SILENT or finding.problem is Problem.UNREADABLE for finding in gpu.findings)


def _instances(gpu: Accelerator) -> Iterable[Partition]:
    """Its partitions; of the compute instances of one GPU instance the first stands for all, as readings do. One that
    is the whole GPU is none.
    """
    first: dict[int, Partition] = {}
    for part in gpu.partitions:
        first.setdefault(part.gpu_instance, part)
    return () if len(first) == 1 and gpu.uuid in {part.uuid for part in first.values()} else first.values()


def _part(part: Partition, answers: _Answers, card: UsageReading | None, source: UsageSource) -> LookedPart:
    own = answers.reading(part.parent_uuid, part.gpu_instance)
    if own is None and source is not UsageSource.NOTHING:
        own, source = card, UsageSource.CARD
    else:
        own = own if card is not None else None
        source = answers.source(own, part.parent_uuid, part.gpu_instance)
        if source is UsageSource.NOTHING and own is not None and _untouched(own, part):
            own, source = msgspec.structs.replace(own, peak=0.0), UsageSource.PROCESSES
    return LookedPart(id=part.uuid, profile=part.profile, memory_mib=float(part.memory_mib), reading=own, source=source)


def _untouched(reading: UsageReading, part: Partition) -> bool:
    """Whether both its processes and its memory say that no program has it open."""
    memory, own = reading.memory_mib, max(NO_CONTEXT_MIB, NO_CONTEXT * part.memory_mib)
    return reading.processes == frozenset() and memory is not None and memory <= own
