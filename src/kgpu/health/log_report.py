"""What a kernel log says about each GPU and switch: every Xid with its count, and the one action that follows.

The driver's own verdict (Xid 154) beats what came before it, and a boot ends it all. Order is that of the log; times
are shown as they are written. Bounded: a log of any size keeps at most ``MAX_ROWS`` rows.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import BinaryIO, Final

from kgpu.base.advice import Severity
from kgpu.base.printable import one_line
from kgpu.formats.gpu_remedies import words
from kgpu.formats.xid.action import CURED_BY_RESET, Action
from kgpu.formats.xid.buckets import RECOVERY, Bucket, Guidance
from kgpu.formats.xid.catalogue import switch_guidance, sxids, xids
from kgpu.health.amdgpu_log import BY_KEY
from kgpu.health.faults import xid_guidance
from kgpu.health.klog import MAX_LINE, LineKind, LogEvent

MAX_ROWS: Final = 4096
MAX_PROCESSES: Final = 5
MAX_TEXT: Final = 160
RECOVERY_XID: Final = 154
LOST_XID: Final = 79
DOUBLE_BIT: Final = 48
CONTAINED: Final = 94
WORSE: Final = frozenset({64, 95})


@dataclass(slots=True, kw_only=True)
class LogRow:
    """One Xid, SXid or line without a number, of ``key``, on one device or on one slice of it."""

    kind: LineKind
    code: int
    key: str = ""
    what: str
    guidance: Guidance
    bucket: str
    gpu_instance: int | None = None
    compute_instance: int | None = None
    count: int = 0
    first: str = ""
    last: str = ""
    text: str = ""
    processes: list[str] = field(default_factory=list)
    position: int = 0
    over: bool = False  # before the last boot that the log has


@dataclass(slots=True, kw_only=True)
class LogDevice:
    """One GPU or switch. ``recovery`` is the driver's last verdict, "" when it gave none."""

    pci: str
    kind: str
    uuid: str = ""
    rows: list[LogRow] = field(default_factory=list)
    recovery: str = ""
    told_at: int = 0

    @property
    def guidance(self) -> Guidance:
        """The strongest action that is still called for."""
        open_rows = [row for row in self.rows if row.position > self.told_at and not row.over]
        codes = {row.code for row in open_rows}
        if CONTAINED in codes and not codes & WORSE:
            open_rows = [row for row in open_rows if row.code != DOUBLE_BIT]
        guidances = [row.guidance for row in open_rows]
        if self.recovery in RECOVERY:
            guidances.append(RECOVERY[self.recovery])
        nothing = Guidance(Action.IGNORE, Severity.INFO, "nothing")
        return max(guidances, key=lambda guidance: guidance.action.rank, default=nothing)


@dataclass(slots=True, kw_only=True)
class LogReport:
    """The whole log. ``left_out`` counts events beyond the limit; ``stuck`` lines about NVLinks that name no GPU."""

    devices: list[LogDevice] = field(default_factory=list)
    stuck: int = 0
    left_out: int = 0

    @property
    def action(self) -> Action:
        """The strongest action that any device calls for."""
        found = [device.guidance.action for device in self.devices]
        return max([*found, *([Action.REBOOT] if self.stuck else [])], key=lambda one: one.rank, default=Action.IGNORE)


def summarise(events: Iterable[LogEvent]) -> LogReport:
    """Count and judge. Never fails."""
    report = LogReport()
    devices: dict[tuple[str, str], LogDevice] = {}
    rows: dict[tuple[str, str, int, int | None, int | None, str], LogRow] = {}
    numbered: set[str] = set()
    implied: list[tuple[int, LogEvent]] = []
    booted = 0
    uuids: dict[str, str] = {}
    resets: dict[str, int] = {}
    for position, event in enumerate(events, 1):
        if event.kind is LineKind.BOOT:
            booted, report.stuck = position, 0
        elif event.kind is LineKind.NVLINK_STUCK:
            report.stuck += 1
        elif event.kind is LineKind.IDENTITY:
            if len(uuids) < MAX_ROWS:
                uuids[event.pci] = event.uuid
        elif event.implied:
            if len(implied) < MAX_ROWS:
                implied.append((position, event))
        elif event.kind is LineKind.RESET:
            resets[event.pci] = position
        elif event.kind in {LineKind.XID, LineKind.SXID, LineKind.DRIVER}:
            if event.code == LOST_XID:
                numbered.add(event.pci)
            _count(report, devices, rows, event, position)
    for position, event in implied:
        # The driver prints both the number and the sentence, in this order: count them once.
        if event.pci not in numbered:
            _count(report, devices, rows, event, position)
    for device in devices.values():
        device.uuid = uuids.get(device.pci, "")
        if device.told_at <= booted:
            device.recovery = ""
        for row in device.rows:
            cured = row.kind is LineKind.DRIVER and row.guidance.action in CURED_BY_RESET
            row.over = row.position <= max(booted, resets.get(device.pci, 0) if cured else 0)
        device.rows.sort(key=lambda row: (-row.guidance.action.rank, row.code))
    report.devices = sorted(devices.values(), key=lambda device: (-device.guidance.action.rank, device.pci))
    return report


def _count(
    report: LogReport,
    devices: dict[tuple[str, str], LogDevice],
    rows: dict[tuple[str, str, int, int | None, int | None, str], LogRow],
    event: LogEvent,
    position: int,
) -> None:
    kind = "switch" if event.kind is LineKind.SXID else "gpu"
    guidance, what, bucket = _meaning(event)
    key = (event.pci, kind, event.code, event.gpu_instance, event.compute_instance, what)
    row = rows.get(key)
    if row is None:
        if len(rows) >= MAX_ROWS:
            report.left_out += 1
            return
        device = devices.setdefault((event.pci, kind), LogDevice(pci=event.pci, kind=kind))
        row = rows[key] = LogRow(
            kind=event.kind, code=event.code, key=event.key, what=what, guidance=guidance, bucket=bucket,
            gpu_instance=event.gpu_instance, compute_instance=event.compute_instance, first=event.when,
        )  # fmt: skip
        device.rows.append(row)
    row.count += 1
    row.last = event.when or row.last
    row.text = one_line(event.text, MAX_TEXT)
    row.position = position
    name = one_line(event.process, 32)
    process = "" if event.pid is None else f"{name} (pid {event.pid})" if name else f"pid {event.pid}"
    if process and process not in row.processes and len(row.processes) < MAX_PROCESSES:
        row.processes.append(process)
    if event.code == RECOVERY_XID and event.recovery:
        device = devices[event.pci, kind]
        device.recovery, device.told_at = event.recovery, position


def _meaning(event: LogEvent) -> tuple[Guidance, str, str]:
    if event.kind is LineKind.SXID:
        switch_row = sxids().get(event.code)
        what = switch_row.what if switch_row else f"{'fatal' if event.fatal else 'not fatal'}, not in the guide"
        return switch_guidance(event.code, fatal=event.fatal), what, str(switch_row.bucket if switch_row else "")
    if event.kind is LineKind.DRIVER:
        line = BY_KEY[event.key]
        return Guidance(line.action, line.severity, words(line.remedy_key), line.remedy_key), line.what, ""
    guidance, what = xid_guidance(event.code, event.text, event.recovery)
    if event.recovery == "none":
        guidance = Guidance(Action.IGNORE, Severity.INFO, "nothing: the driver asks for nothing any more")
        what = "the driver asks for nothing any more"
    row = xids().get(event.code)
    return guidance, what, str(row.immediate if row else Bucket.NONE)


def bounded_lines(file: BinaryIO) -> Iterator[bytes]:
    """The lines of a file, each cut to ``MAX_LINE`` bytes; the rest of a long line is skipped."""
    while line := file.readline(MAX_LINE):
        yield line
        while line and not line.endswith(b"\n") and len(line) == MAX_LINE:
            line = file.readline(MAX_LINE)
