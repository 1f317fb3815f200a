"""What is told of the verdicts: the rows of the verdict file, and the Node condition. Pure but for the port's fakes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

from kgpu.base.errors import KubeError
from kgpu.base.printable import one_line
from kgpu.formats.xid.action import Action
from kgpu.health.model import REASONS, Evidence, Memory, Verdict
from kgpu.health.node import ADDRESS
from kgpu.health.watches import watches
from kgpu.hw.verdicts import GpuVerdict, XidCount

MAX_EVIDENCE: Final = 16
MAX_SHOWN: Final = 8
MAX_MESSAGE: Final = 1500
MAX_TEXT: Final = 300
WELL: Final = "GPUsHealthy"
MUTED: Final = "GPUMuted"


@dataclass(frozen=True, slots=True, kw_only=True)
class Shown:
    """The condition: ``status`` is True (every GPU is well enough for work), False, or Unknown."""

    status: str
    reason: str
    message: str


class ConditionWriter(Protocol):
    """Writes this node's condition; ``kgpu.kube.conditions.NodeCondition`` is the real one."""

    async def write(self, status: str, reason: str, message: str) -> None:
        """Raises KubeError."""
        ...


class MemoryCondition:
    """The fake: keeps what was written; ``refuse`` makes it fail."""

    def __init__(self) -> None:
        self.written: list[Shown] = []
        self.refuse: KubeError | None = None

    async def write(self, status: str, reason: str, message: str) -> None:
        if self.refuse is not None:
            raise self.refuse
        self.written.append(Shown(status=status, reason=reason, message=message))


def gpu_verdict(verdict: Verdict, memory: Memory, *, pci: str = "") -> GpuVerdict:
    """One row of the verdict file."""
    stranger = verdict.gpu.startswith(ADDRESS)
    return GpuVerdict(
        uuid="" if stranger else verdict.gpu,
        index=memory.index,
        pci=verdict.gpu.removeprefix(ADDRESS) if stranger else pci,
        action=str(verdict.action),
        withdraws=not verdict.healthy,
        causes=tuple(one.name for one in verdict.evidence if one.urgent and one.action.withdraws)
        if not verdict.healthy
        else (),
        reason=MUTED if verdict.muted else REASONS[verdict.action],
        severity=str(verdict.severity),
        what=_what(verdict),
        todo=verdict.todo,
        remedy=verdict.remedy,
        facts=tuple(one.name for one in verdict.evidence[:MAX_EVIDENCE]),
        evidence=tuple(_shown(one) for one in verdict.evidence[:MAX_EVIDENCE]),
        since=verdict.since,
        muted=verdict.muted,
        xids=tuple(_counts(memory.xids)),
        watches=watches(verdict.evidence, memory.recovery),
    )


def _counts(xids: Mapping[str, int]) -> Iterator[XidCount]:
    for key, count in xids.items():
        code, _, instance = key.partition("@")
        if code.isdecimal() and (instance.isdecimal() or not instance):
            yield XidCount(code=int(code), count=count, gpu_instance=int(instance) if instance else None)


def condition(rows: Sequence[GpuVerdict], *, unreadable: str = "") -> Shown:
    """The Node's condition. ``unreadable``: why the driver can't be read, "" when it can."""
    bad = [row for row in rows if row.withdraws]
    minor = [row for row in rows if not row.withdraws and row.action != Action.IGNORE]
    muted = [row for row in rows if row.muted]
    said = [f"{_name(row)}: {row.what}; to do: {row.todo}" if row.todo else f"{_name(row)}: {row.what}" for row in bad]
    said += [f"{_name(row)}: {row.what} (it goes on working)" for row in minor]
    said += [f"{_name(row)}: {row.muted}" for row in muted]
    shown = said[:MAX_SHOWN] + ([f"and {len(said) - MAX_SHOWN} more"] if len(said) > MAX_SHOWN else [])
    if bad:
        strongest = max(bad, key=lambda row: Action(row.action).rank)
        return _made("False", strongest.reason, shown)
    if unreadable:
        return _made("Unknown", "DriverUnreadable", [f"the driver can't be read: {unreadable}", *shown])
    if not rows:
        return _made("Unknown", "NoGPUs", ["the driver lists no GPU"])
    well = len(rows) - len(minor) - len(muted)
    return _made("True", WELL, [f"{well} of {len(rows)} GPUs are well", *shown])


def _made(status: str, reason: str, parts: Sequence[str]) -> Shown:
    return Shown(status=status, reason=reason, message=one_line(". ".join(parts), MAX_MESSAGE))


def _name(row: GpuVerdict) -> str:
    if row.uuid:
        return f"GPU {row.index} ({row.uuid})" if row.index is not None else f"GPU {row.uuid}"
    return f"GPU at {row.pci}"


def _what(verdict: Verdict) -> str:
    if verdict.muted or not verdict.evidence or verdict.action is Action.IGNORE:
        return verdict.muted or "well"
    rest = len(verdict.evidence) - 1
    return one_line(verdict.evidence[0].what + (f" and {rest} more" if rest else ""), MAX_TEXT)


def _shown(one: Evidence) -> str:
    text = f": {one.text}" if one.text else ""
    times = f" ({one.count} times)" if one.count > 1 else ""
    return one_line(f"{one.what}{times}{text}", MAX_TEXT)


def summary(rows: Sequence[GpuVerdict]) -> Mapping[str, int]:
    """How many GPUs each action is called for."""
    counts: dict[str, int] = {}
    for row in rows:
        counts[row.action] = counts.get(row.action, 0) + 1
    return counts
