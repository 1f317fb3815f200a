"""The data of health: evidence about one GPU, readings of it, and the one verdict that follows.

Times are seconds since 1970. Everything is a frozen value that msgspec can write and read, so that what is known
survives a restart of the process and of the node.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass, field
from typing import Final

import msgspec

from kgpu.base.advice import Advice, Severity
from kgpu.formats.gpu_remedies import words
from kgpu.formats.xid.action import WORDS, Action


class EvidenceSource(enum.StrEnum):
    """Where evidence comes from; also the words of the config's ``ignore.checks``."""

    RECOVERY = "recovery-action"  # the driver's own verdict
    DRIVER = "driver"  # lost, hung, missing: what the reader found
    XID = "xid"
    SXID = "sxid"
    LOG = "driver-log"  # what the driver says in the kernel log without a number
    ECC = "ecc"
    ROWS = "remapped-rows"
    PAGES = "retired-pages"
    NVLINK = "nvlink"
    PCIE = "pcie"
    THROTTLE = "throttle"
    TEMPERATURE = "temperature"
    FABRIC = "fabric"


_NUMBERED: Final = frozenset({EvidenceSource.XID, EvidenceSource.SXID})


class GpuEvidence(msgspec.Struct, frozen=True, kw_only=True, rename={"remedy_key": "remedy"}):
    """One fact about one GPU and what it alone calls for.

    ``key`` tells facts of one source apart (the Xid's number, the name of a check). ``value`` grows when the fact gets
    worse: a count or a level. ``remedy_key`` is a key of ``kgpu.formats.gpu_remedies``. ``text`` is what the kernel log
    says. ``urgent`` is False for what can wait until the GPU is idle. ``gpu_instance`` and ``compute_instance`` are set
    when only that MIG slice is concerned.
    """

    source: EvidenceSource
    key: str
    what: str
    action: Action
    remedy_key: str = ""
    severity: Severity = Severity.WARNING
    first: float = 0.0
    last: float = 0.0
    count: int = 1
    value: float = 1.0
    text: str = ""
    urgent: bool = True
    gpu_instance: int | None = None
    compute_instance: int | None = None

    def __post_init__(self) -> None:
        if not self.remedy_key and self.source in _NUMBERED:  # as an earlier kgpu has written it down
            msgspec.structs.force_setattr(self, "remedy_key", f"{self.source}/{self.key}")

    @property
    def number(self) -> int | None:
        """The Xid's or SXid's number, None for anything else."""
        return int(self.key) if self.source in _NUMBERED and self.key.isdecimal() else None

    @property
    def remedy(self) -> str:
        """The remedy in words, "" where nothing is to be done."""
        return words(self.remedy_key)

    @property
    def name(self) -> str:
        """The name of the fact: the same when it is seen again, and another for a slice than for the whole GPU."""
        place = "" if self.gpu_instance is None else f"@{self.gpu_instance}"
        place += "" if self.compute_instance is None else f".{self.compute_instance}"
        return f"{self.source}:{self.key}{place}"

    @property
    def quoted(self) -> str:
        """The fact in words, with the kernel log's text if there is any."""
        return f"{self.what} ({self.text})" if self.text else self.what


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """An error as the kernel log or the driver's events tell it: an Xid, an SXid, or a line without a number.

    ``code`` is the number, and ``key`` a row's of ``amdgpu_log`` where there is none. ``text`` is what the log says
    after it, "" from the driver's events. For SXids ``fatal`` is the log's own word; ``link`` is the NVLink that the
    line names. ``recovery`` is what an Xid 154 says, as in ``HealthReading``.
    """

    code: int
    at: float
    sxid: bool = False
    key: str = ""
    text: str = ""
    fatal: bool | None = None
    link: int | None = None
    recovery: str = ""
    gpu_instance: int | None = None
    compute_instance: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class HealthReading:
    """What was read of one GPU at one moment; None is "not known", which is evidence of nothing.

    ``recovery`` is the driver's own verdict in the words of ``kgpu.hw.port`` (none, reset, reboot, drain, drain-reset,
    unknown). ``problems`` are the kinds of findings about the device (lost, hung, ...) with what was found.
    ``ecc_uncorrected`` counts since the driver was loaded. ``links_active`` NVLinks are up. ``nvlink_crc``,
    ``nvlink_errors`` (replays and recoveries) and ``pcie_replays`` only grow. ``slowdown`` is the bit mask of clock
    event reasons. ``margin_c`` is how far the GPU is below its limit. ``fabric_state`` is one of not-supported,
    not-started, in-progress, completed; ``fabric_health`` are words such as degraded-bandwidth, route-unhealthy.
    """

    at: float
    recovery: str = "unknown"
    problems: tuple[tuple[str, str], ...] = ()
    busy: bool | None = None
    mig: bool = False
    ecc_uncorrected: int | None = None
    ecc_corrected: int | None = None
    sram_exceeded: bool | None = None
    unrepairable: bool | None = None
    rows_correctable: int | None = None
    rows_uncorrectable: int | None = None
    rows_pending: bool | None = None
    rows_failed: bool | None = None
    pages_retired: int | None = None
    pages_pending: bool | None = None
    links_active: int | None = None
    nvlink_crc: int | None = None
    nvlink_errors: int | None = None
    pcie_replays: int | None = None
    pcie_generation: int | None = None
    pcie_generation_max: int | None = None
    pcie_width: int | None = None
    pcie_width_max: int | None = None
    slowdown: int | None = None
    margin_c: float | None = None
    memory_margin_c: float | None = None
    fabric_state: str = ""
    fabric_error: str = ""
    fabric_health: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class HealthVerdict:
    """What is true of one GPU now.

    ``action`` is the strongest that the evidence calls for, and ``evidence`` has the reasons, strongest first.
    ``healthy`` is False when the GPU should get no new work. ``since`` is when this action was first called for.
    ``muted`` says why evidence is not acted on: maintenance, or a person's word that the GPU is healthy.
    """

    gpu: str
    action: Action = Action.IGNORE
    healthy: bool = True
    severity: Severity = Severity.INFO
    evidence: tuple[GpuEvidence, ...] = ()
    remedy_key: str = ""
    since: float = 0.0
    muted: str = ""

    @property
    def remedy(self) -> str:
        """The remedy in words, "" where nothing is to be done."""
        return words(self.remedy_key)

    @property
    def what(self) -> str:
        """One sentence without a period."""
        return self.sentence(f"GPU {self.gpu}")

    def sentence(self, title: str) -> str:
        """The same of the GPU under another name for people."""
        if self.muted:
            return f"{title}: {self.muted}"
        if not self.evidence or self.action is Action.IGNORE:
            return f"{title} is well"
        first, rest = self.evidence[0], len(self.evidence) - 1
        more = f" and {rest} more" if rest else ""
        return f"{title}: {first.what}{more}"

    def advice(self, title: str = "") -> Advice:
        """The verdict as an advice record, for logs, Events and conditions; ``title`` is the GPU's name for people."""
        return Advice(
            subject=self.gpu,
            what=self.sentence(title) if title else self.what,
            why=f"the evidence calls for: {WORDS[self.action]}" if self.evidence else "nothing speaks against it",
            evidence=tuple(evidence.quoted for evidence in self.evidence),
            severity=self.severity,
            remedy=self.remedy,
            reason=REASONS[self.action] if not self.muted else "GPUMuted",
        )


REASONS: Final = {
    Action.IGNORE: "GPUHealthy",
    Action.RESTART_APP: "GPUApplicationError",
    Action.INSPECT: "GPUNeedsInspection",
    Action.DRAIN: "GPUNeedsDrain",
    Action.RESET_GPU: "GPUNeedsReset",
    Action.REBOOT: "GPUNeedsReboot",
    Action.REPLACE: "GPUNeedsReplacement",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class CounterSample:
    """Counters at one moment; None where there is none."""

    at: float
    pcie_replays: int | None = None
    nvlink_crc: int | None = None
    nvlink_errors: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckState:
    """A check that is or was true: since when, when last, and whether it has been raised."""

    evidence: GpuEvidence
    since: float
    last: float
    raised: bool = False


FOREVER: Final = 253402300800.0
"""The year 10000: a time that JSON can hold, for "until somebody says otherwise"."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RememberedGpu:
    """What is remembered of one GPU between readings.

    ``events`` are Xids and SXids that still matter, with the action that the catalogue has for them. ``conditions`` are
    checks that are true or were a moment ago. ``samples`` are counters for rates, one a minute, newest last.
    ``slow_minutes`` are minutes since 1970 in which hardware slowed the GPU down. ``episodes`` are when troubles began,
    as (evidence's name, time), for counting how often one comes back. ``accepted`` is what a person has called healthy:
    names of checks with their values then. ``links`` is the most NVLinks that were ever up. ``recovery`` and
    ``ecc`` were last read, ``recovery`` at ``recovery_at``: other readings go on without it. ``action`` has been called
    for since ``since``. ``xids`` says how often each came since the boot: by its number, for one of an instance with an
    ``@`` and the instance.
    """

    gpu: str
    index: int | None = None
    driver: int | None = None  # major version
    events: tuple[GpuEvidence, ...] = ()
    conditions: tuple[CheckState, ...] = ()
    samples: tuple[CounterSample, ...] = ()
    slow_minutes: tuple[int, ...] = ()
    episodes: tuple[tuple[str, float], ...] = ()
    accepted: dict[str, float] = field(default_factory=dict)
    accepted_at: float = 0.0
    maintenance_until: float = 0.0
    links: int = 0
    recovery: str = "unknown"
    recovery_at: float = 0.0
    ecc: int | None = None
    read_at: float = 0.0
    booted_at: float = 0.0
    action: Action = Action.IGNORE
    since: float = 0.0
    xids: dict[str, int] = field(default_factory=dict)
