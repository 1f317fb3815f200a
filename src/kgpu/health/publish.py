"""Verdicts as they are published: rows of the verdict file, and the Node condition. Pure but for the port's fake."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Final, Protocol

from kgpu.base.errors import DriverFault, KubeError
from kgpu.base.printable import one_line
from kgpu.formats.gpu_report import GpuReport, ReportedGpu, Shown, rendered, report
from kgpu.formats.xid.action import Action
from kgpu.health.model import REASONS, GpuEvidence, HealthVerdict, RememberedGpu
from kgpu.health.node import ADDRESS
from kgpu.health.watches import watches
from kgpu.hw.verdicts import GpuVerdict, XidCount

MAX_EVIDENCE: Final = 16
MAX_TEXT: Final = 300
MUTED: Final = "GPUMuted"


class ReportWriter(Protocol):
    """Puts a report on this node's Node, with the condition that people read; the agent has the real one."""

    async def write(self, report: GpuReport) -> None:
        """Raises KubeError."""
        ...


class MemoryReports:
    """The fake: keeps what was written, and the conditions that follow; ``refuse`` makes it fail."""

    def __init__(self) -> None:
        self.reports: list[GpuReport] = []
        self.written: list[Shown] = []
        self.refuse: KubeError | None = None

    async def write(self, report: GpuReport) -> None:
        if self.refuse is not None:
            raise self.refuse
        self.reports.append(report)
        self.written.append(rendered(report))


def gpu_verdict(verdict: HealthVerdict, memory: RememberedGpu, *, pci: str = "") -> GpuVerdict:
    """One row of the verdict file."""
    stranger = verdict.gpu.startswith(ADDRESS)
    return GpuVerdict(
        uuid="" if stranger else verdict.gpu,
        index=memory.index,
        pci=verdict.gpu.removeprefix(ADDRESS) if stranger else pci,
        action=str(verdict.action),
        withdraws=not verdict.healthy,
        causes=tuple(fact.name for fact in verdict.evidence if fact.urgent and fact.action.withdraws)
        if not verdict.healthy
        else (),
        reason=MUTED if verdict.muted else REASONS[verdict.action],
        severity=str(verdict.severity),
        what=_what(verdict),
        remedy=verdict.remedy,
        remedy_key=verdict.remedy_key,
        facts=tuple(fact.name for fact in verdict.evidence[:MAX_EVIDENCE]),
        evidence=tuple(_shown(fact) for fact in verdict.evidence[:MAX_EVIDENCE]),
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


def report_of(
    rows: Sequence[tuple[GpuVerdict, HealthVerdict]], *, unreadable: str = "", fault: DriverFault | None = None,
    boot: str = "",
) -> GpuReport:  # fmt: skip
    """The report about all GPUs in this boot. ``unreadable``, and ``fault`` for programs: why the driver can't be read,
    "" and None when it can.
    """
    notable = [_gpu(row, verdict) for row, verdict in rows if row.muted or row.action != Action.IGNORE]
    return report(notable, count=len(rows), unreadable=unreadable, fault=fault, boot=boot)


def _gpu(row: GpuVerdict, verdict: HealthVerdict) -> ReportedGpu:
    # How often something came is left out: it would be another report each time.
    evidence = (fact.quoted for fact in verdict.evidence)
    return ReportedGpu(
        uuid=row.uuid,
        index=row.index,
        pci=row.pci,
        action=verdict.action,
        reason=row.reason,
        works=not row.withdraws and not row.muted,
        what=row.what,
        remedy_key=row.remedy_key,
        facts=row.facts,
        evidence=tuple(evidence),
        since=row.since,
        muted=row.muted,
    )


def _what(verdict: HealthVerdict) -> str:
    if verdict.muted or not verdict.evidence or verdict.action is Action.IGNORE:
        return verdict.muted or "well"
    rest = len(verdict.evidence) - 1
    return one_line(verdict.evidence[0].what + (f" and {rest} more" if rest else ""), MAX_TEXT)


def _shown(one: GpuEvidence) -> str:
    text = f": {one.text}" if one.text else ""
    times = f" ({one.count} times)" if one.count > 1 else ""
    return one_line(f"{one.what}{times}{text}", MAX_TEXT)


def summary(rows: Sequence[GpuVerdict]) -> Mapping[str, int]:
    """The number of GPUs by the action that they call for."""
    counts: dict[str, int] = {}
    for row in rows:
        counts[row.action] = counts.get(row.action, 0) + 1
    return counts
