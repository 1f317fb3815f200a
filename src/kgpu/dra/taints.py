"""Which taints a device has, from what health says of its GPU and what the reader found. Pure.

Health's verdict decides, because it knows what a reset has cured: a taint is gone when the verdict is. An Xid for which
the GPU is withdrawn keeps claims away, another one is only to be seen. What the driver itself reports as broken always
counts. An Xid of one instance concerns that instance alone.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Final

from kgpu.dra.model import DeviceTaintEffect, DraDevice, DraTaint, PublishRules, TaintWords
from kgpu.formats.names import DRA_TAINT_UNHEALTHY, DRA_TAINT_XID
from kgpu.formats.xid import xid_of
from kgpu.hw.port import Accelerator, Problem
from kgpu.hw.verdicts import GpuVerdict

_GONE: Final = frozenset({Problem.LOST, Problem.MISSING})
_CRITICAL: Final = frozenset({Problem.LOST, Problem.NEEDS_RESET})
_BROKEN: Final = _GONE | {Problem.HUNG, Problem.CRASHED, Problem.NEEDS_RESET, Problem.UNPROVEN}
_CAUSE: Final = "driver:"
_PLACE: Final = re.compile(r"@([0-9]{1,9})(?:\.([0-9]{1,9}))?$", re.ASCII)
_NO_SCHEDULE: Final = DeviceTaintEffect.NO_SCHEDULE
_NONE: Final = DeviceTaintEffect.NONE


@dataclass(frozen=True, slots=True)
class PlacedTaint:
    """A taint of a whole GPU, or of the devices of one instance of it."""

    taint: DraTaint
    instance: int | None = None
    compute: int | None = None

    def touches(self, device: DraDevice) -> bool:
        """Whether the device is what the taint is about, or belongs to it."""
        if self.instance is None:
            return True
        return device.instance == self.instance and self.compute in (None, device.compute)


def tainted(
    devices: Iterable[DraDevice], gpu: Accelerator, verdict: GpuVerdict | None, rules: PublishRules, words: TaintWords
) -> tuple[DraDevice, ...]:
    """One GPU's devices with their taints."""
    placed = taints_of(gpu, verdict, rules, words)
    return tuple(replace(device, taints=_one_of_each(placed, device)) for device in devices)


def taints_of(
    gpu: Accelerator, verdict: GpuVerdict | None, rules: PublishRules, words: TaintWords
) -> tuple[PlacedTaint, ...]:
    """The GPU's taints, what keeps claims away first; several may have one key."""
    causes = verdict.causes if verdict is not None and verdict.withdraws else ()
    facts = verdict.facts if verdict is not None else ()
    found = [_xid(cause, rules) for cause in causes if xid_of(cause) is not None]
    told = _problems(gpu) | {cause.removeprefix(_CAUSE) for cause in causes if cause.startswith(_CAUSE)}
    if words.critical is not None and _CRITICAL & told:
        found.append(PlacedTaint(words.critical))
    elif words.gone and _GONE & told:
        found.append(PlacedTaint(DraTaint(words.gone, _NO_SCHEDULE)))
    elif reason := _unwell(gpu, verdict):
        found.append(PlacedTaint(DraTaint(DRA_TAINT_UNHEALTHY, _NO_SCHEDULE, reason)))
    seen = (fact for fact in facts if xid_of(fact) is not None and fact not in causes)
    found += [_xid(fact, rules, only_seen=True) for fact in seen]
    if rules.monitored and verdict is None:
        found.append(PlacedTaint(DraTaint(words.unmonitored, _NONE)))
    return tuple(sorted(found, key=lambda one: one.taint.effect is _NONE))


def _xid(fact: str, rules: PublishRules, *, only_seen: bool = False) -> PlacedTaint:
    code, place = xid_of(fact), _PLACE.search(fact)
    effect = _NONE if only_seen or code in rules.ignored_xids else _NO_SCHEDULE
    instance, compute = (place[1], place[2]) if place else (None, None)
    return PlacedTaint(
        DraTaint(DRA_TAINT_XID, effect, str(code)),
        None if instance is None else int(instance),
        None if compute is None else int(compute),
    )


def _unwell(gpu: Accelerator, verdict: GpuVerdict | None) -> str:
    """Why the GPU is to get no new work although no Xid says so, as a word that a taint's value can be."""
    if problem := min(_BROKEN & _problems(gpu), default=None):
        return str(problem)
    if verdict is None or not verdict.withdraws:
        return ""
    others = [cause for cause in verdict.causes if xid_of(cause) is None]
    word = re.sub(r"[^A-Za-z0-9._-]", "-", verdict.reason or "unhealthy")[:63].strip("._-") or "unhealthy"
    return word if others or not verdict.causes else ""


def _problems(gpu: Accelerator) -> frozenset[str]:
    return frozenset(finding.problem for finding in gpu.findings)


def _one_of_each(placed: Iterable[PlacedTaint], device: DraDevice) -> tuple[DraTaint, ...]:
    """The device's taints, the first of each key: a second could only say less."""
    found: dict[str, DraTaint] = {}
    for one in placed:
        if one.touches(device):
            found.setdefault(one.taint.key, one.taint)
    return tuple(found.values())
