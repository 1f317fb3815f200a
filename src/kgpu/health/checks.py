"""The checks of one reading: rows of pure functions, each about one fact.

A check answers with evidence when the fact is there, with ``WELL`` when it is not, and with None when the reading does
not say: what can't be read is evidence of nothing, and a GPU without NVLink or ECC is not judged by them.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, TypeAlias

from kgpu.base.advice import Severity
from kgpu.base.printable import counted
from kgpu.formats import gpu_remedies as remedies
from kgpu.formats.xid.action import Action
from kgpu.formats.xid.buckets import RECOVERY
from kgpu.health.config import HealthConfig
from kgpu.health.model import EvidenceSource, GpuEvidence, HealthReading, RememberedGpu


class Well(enum.Enum):
    """The answer of a check that looked and found nothing."""

    WELL = "well"


WELL: Final = Well.WELL
Answer: TypeAlias = "GpuEvidence | Well | None"
Look: TypeAlias = Callable[[RememberedGpu, HealthReading, HealthConfig], "GpuEvidence | Well | None"]

HW_SLOWDOWN: Final = 0x8
HW_THERMAL: Final = 0x40
POWER_BRAKE: Final = 0x80
SLOW: Final = HW_SLOWDOWN | HW_THERMAL | POWER_BRAKE
"""Clock event reasons that are trouble. A power cap (0x4) and an idle GPU (0x1) are not."""

REPLAYS_PER_LANE: Final = {1: 0.15, 2: 0.3, 3: 0.48, 4: 0.96, 5: 1.92, 6: 3.84}
"""PCIe replays a minute that are normal, per lane, by generation (DCGM's passive health watch)."""


class Delay(enum.Enum):
    """How long a fact has to hold, and to be gone."""

    NONE = "none"
    HUNG = "hung"
    USUAL = "usual"


@dataclass(frozen=True, slots=True)
class ReadingCheck:
    """One row: its ``key`` within the source, how long the fact has to hold, and what looks at a reading."""

    source: EvidenceSource
    key: str
    delay: Delay
    look: Look

    @property
    def name(self) -> str:
        """The name that its evidence has."""
        return f"{self.source}:{self.key}"


def _found(
    check: tuple[EvidenceSource, str],
    what: str,
    action: Action,
    remedy_key: str,
    *,
    value: float = 1.0,
    severity: Severity = Severity.WARNING,
    urgent: bool = True,
) -> GpuEvidence:
    source, key = check
    return GpuEvidence(
        source=source,
        key=key,
        what=what,
        action=action,
        remedy_key=remedy_key,
        value=value,
        severity=severity,
        urgent=urgent,
    )


def _recovery(memory: RememberedGpu, reading: HealthReading, config: HealthConfig) -> Answer:
    del memory, config
    if reading.recovery in {"unknown", ""}:
        return None
    guidance = RECOVERY.get(reading.recovery)
    if guidance is None:
        return WELL
    return _found(
        (EvidenceSource.RECOVERY, "recovery"), f"the driver asks for: {reading.recovery}", guidance.action,
        guidance.key, value=guidance.action.rank, severity=guidance.severity,
    )  # fmt: skip


_PROBLEMS: Final = {
    "lost": (Action.REBOOT, Severity.ERROR, Delay.NONE, "GPU has fallen off the bus", remedies.REBOOT),
    "missing": (Action.REBOOT, Severity.ERROR, Delay.USUAL, "the driver does not list it any more", remedies.REBOOT),
    "hung": (Action.REBOOT, Severity.ERROR, Delay.HUNG, "the driver does not answer about it", remedies.REBOOT),
    "needs-reset": (Action.RESET_GPU, Severity.ERROR, Delay.NONE, "the driver wants it to be reset", remedies.RESET),
    "crashed": (Action.INSPECT, Severity.ERROR, Delay.NONE, "the driver library crashes on it",
                remedies.KERNEL_LOG_OR_RESET),
    "unproven": (Action.INSPECT, Severity.ERROR, Delay.NONE, "CUDA does not work on it", remedies.CUDA),
    "unreadable": (Action.INSPECT, Severity.WARNING, Delay.USUAL, "some of its readings fail",
                   remedies.KERNEL_LOG),
}  # fmt: skip


def _problem(kind: str) -> Look:
    def look(memory: RememberedGpu, reading: HealthReading, config: HealthConfig) -> Answer:
        del memory, config
        action, severity, _, usual, remedy_key = _PROBLEMS[kind]
        said = next((text for name, text in reading.problems if name == kind), None)
        if said is None:
            return WELL
        return _found((EvidenceSource.DRIVER, kind), said or usual, action, remedy_key, severity=severity)

    return look


def _ecc(memory: RememberedGpu, reading: HealthReading, config: HealthConfig) -> Answer:
    del memory, config
    # Where rows can be replaced, the rows and the driver say what an error calls for; counting it twice is no help.
    if reading.ecc_uncorrected is None or reading.rows_failed is not None:
        return None
    if reading.ecc_uncorrected == 0:
        return WELL
    errors = counted(reading.ecc_uncorrected, "uncorrectable memory error")
    what = f"{errors} since the driver was loaded"
    return _found((EvidenceSource.ECC, "uncorrected"), what, Action.RESET_GPU, remedies.RESET,
                  value=reading.ecc_uncorrected,
                  severity=Severity.ERROR)  # fmt: skip


def _flag(
    attr: str, check: tuple[EvidenceSource, str], what: str, action: Action, remedy_key: str, *, urgent: bool = True
) -> Look:
    def look(memory: RememberedGpu, reading: HealthReading, config: HealthConfig) -> Answer:
        del memory, config
        value = getattr(reading, attr)
        if value is None:
            return None
        severity = Severity.ERROR if urgent else Severity.WARNING
        return _found(check, what, action, remedy_key, severity=severity, urgent=urgent) if value else WELL

    return look


def _rows(memory: RememberedGpu, reading: HealthReading, config: HealthConfig) -> Answer:
    del memory
    rows = reading.rows_uncorrectable
    if rows is None:
        return None
    if rows < config.uncorrectable_rows:
        return WELL
    return _found((EvidenceSource.ROWS, "many"), f"{rows} rows of memory were replaced for uncorrectable errors",
                  Action.INSPECT, remedies.SPARE_ROWS, value=rows)  # fmt: skip


def _pages(memory: RememberedGpu, reading: HealthReading, config: HealthConfig) -> Answer:
    del memory
    if reading.pages_retired is None:
        return None
    if reading.pages_retired < config.retired_pages:
        return WELL
    what = f"{reading.pages_retired} memory pages are retired"
    return _found((EvidenceSource.PAGES, "many"), what, Action.REPLACE, remedies.REPLACE, value=reading.pages_retired,
                  severity=Severity.ERROR)  # fmt: skip


def _links(memory: RememberedGpu, reading: HealthReading, config: HealthConfig) -> Answer:
    expected = config.nvlink_links or memory.links
    # In MIG mode some GPUs have their links off; a card without links has nothing to miss.
    if reading.links_active is None or reading.mig or not expected:
        return None
    missing = expected - reading.links_active
    if missing <= 0:
        return WELL
    return _found((EvidenceSource.NVLINK, "down"), f"{missing} of {expected} NVLinks are down", Action.RESET_GPU,
                  remedies.RESET_LINK, value=missing, severity=Severity.ERROR)  # fmt: skip


def _rate(memory: RememberedGpu, reading: HealthReading, attr: str, span: float) -> tuple[int, float] | None:
    """(growth, seconds) of a counter over about ``span`` seconds; None while too little is known, or after a reset."""
    now = getattr(reading, attr)
    past = [one for one in memory.samples if getattr(one, attr) is not None and reading.at - one.at <= span * 1.5]
    if now is None or not past or reading.at - past[0].at < min(span, 60.0) * 0.9:
        return None
    growth = now - getattr(past[0], attr)
    return (growth, reading.at - past[0].at) if growth >= 0 else None


def _coarse(value: float) -> float:
    """A fluctuating rate, rounded to a power of two: it counts as worse only when it has doubled."""
    return math.floor(math.log2(max(1.0, value)))


def _crc(memory: RememberedGpu, reading: HealthReading, config: HealthConfig) -> Answer:
    rate = _rate(memory, reading, "nvlink_crc", 60.0)
    if rate is None:
        return None
    per_second = rate[0] / rate[1]
    if per_second < config.nvlink_crc_per_second:
        return WELL
    return _found((EvidenceSource.NVLINK, "crc"), f"{per_second:.0f} CRC errors a second on its NVLinks",
                  Action.INSPECT,
                  remedies.LINK_SIGNAL, value=_coarse(per_second))  # fmt: skip


def _link_errors(memory: RememberedGpu, reading: HealthReading, config: HealthConfig) -> Answer:
    rate = _rate(memory, reading, "nvlink_errors", 3600.0)
    if rate is None:
        return None
    if rate[0] < config.nvlink_errors_per_hour:
        return WELL
    return _found((EvidenceSource.NVLINK, "errors"), f"{rate[0]} replays and recoveries on its NVLinks in an hour",
                  Action.INSPECT, remedies.LINK_SIGNAL, value=_coarse(rate[0]))  # fmt: skip


def _replays(memory: RememberedGpu, reading: HealthReading, config: HealthConfig) -> Answer:
    rate = _rate(memory, reading, "pcie_replays", 60.0)
    lane = REPLAYS_PER_LANE.get(reading.pcie_generation or 0)
    if rate is None or lane is None or not reading.pcie_width:
        return None
    per_minute = rate[0] / rate[1] * 60
    normal = math.ceil(lane * reading.pcie_width) * config.pcie_replay_factor
    if per_minute <= normal:
        return WELL
    what = f"{per_minute:.0f} PCIe replays a minute, where up to {normal:.0f} are normal"
    return _found((EvidenceSource.PCIE, "replays"), what, Action.INSPECT, remedies.SEAT, value=_coarse(per_minute))


def _width(memory: RememberedGpu, reading: HealthReading, config: HealthConfig) -> Answer:
    del memory, config
    if not reading.pcie_width or not reading.pcie_width_max:
        return None
    if reading.pcie_width >= reading.pcie_width_max:
        return WELL
    what = f"PCIe link has {reading.pcie_width} of {reading.pcie_width_max} lanes"
    return _found(
        (EvidenceSource.PCIE, "width"),
        what,
        Action.INSPECT,
        remedies.SEAT,
        value=reading.pcie_width_max - reading.pcie_width,
    )


def _speed(memory: RememberedGpu, reading: HealthReading, config: HealthConfig) -> Answer:
    del memory, config
    # An idle GPU lowers its link's speed to save power: only a busy one tells.
    if not reading.pcie_generation or not reading.pcie_generation_max or not reading.busy:
        return None
    if reading.pcie_generation >= reading.pcie_generation_max:
        return WELL
    what = f"PCIe link runs at generation {reading.pcie_generation} of {reading.pcie_generation_max} under load"
    return _found((EvidenceSource.PCIE, "speed"), what, Action.INSPECT, remedies.SEAT,
                  value=reading.pcie_generation_max - reading.pcie_generation)  # fmt: skip


def _throttle(memory: RememberedGpu, reading: HealthReading, config: HealthConfig) -> Answer:
    if reading.slowdown is None:
        return None
    minutes = max(1.0, config.throttle_window / 60)
    first = (reading.at - config.throttle_window) // 60
    slow = sum(1 for minute in memory.slow_minutes if minute > first)
    if slow / minutes <= config.throttle_share:
        return WELL
    brake = reading.slowdown & POWER_BRAKE
    remedy_key = remedies.POWER if brake else remedies.COOLING
    return _found((EvidenceSource.THROTTLE, "hardware"),
                  f"slowed down by its hardware in {slow} of {minutes:.0f} minutes",
                  Action.INSPECT, remedy_key)  # fmt: skip


def _temperature(attr: str, place: str) -> Look:
    def look(memory: RememberedGpu, reading: HealthReading, config: HealthConfig) -> Answer:
        del memory
        margin = getattr(reading, attr)
        if margin is None:
            return None
        if margin > config.margin_c:
            return WELL
        what = f"{place} is {abs(margin):.0f} degrees {'above' if margin < 0 else 'below'} its limit"
        return _found((EvidenceSource.TEMPERATURE, attr.removesuffix("_c")), what, Action.INSPECT,
                      remedies.COOLING, value=math.floor(-margin / 5))  # fmt: skip

    return look


_FABRIC: Final = {
    "route-unhealthy": (Action.RESET_GPU, "its routes through the fabric are broken", remedies.RESET),
    "degraded-bandwidth": (Action.INSPECT, "its fabric has less bandwidth", remedies.DOWN_LINKS),
    "incorrect-configuration": (Action.INSPECT, "its fabric is set up wrongly", remedies.RESTART_FABRIC_MANAGER),
}  # fmt: skip
_PASSING: Final = frozenset({"route-recovery", "access-timeout-recovery", "healthy"})


def _fabric_state(memory: RememberedGpu, reading: HealthReading, config: HealthConfig) -> Answer:
    del memory, config
    if reading.fabric_state in {"", "not-supported"}:
        return None
    if reading.fabric_state == "completed" and not reading.fabric_error:
        return WELL
    why = f": {reading.fabric_error}" if reading.fabric_error else ""
    what = f"it has not joined the NVLink fabric ({reading.fabric_state}{why})"
    return _found((EvidenceSource.FABRIC, "state"), what, Action.INSPECT, remedies.RESTART_FABRIC_MANAGER,
                  severity=Severity.ERROR)  # fmt: skip


def _fabric_health(memory: RememberedGpu, reading: HealthReading, config: HealthConfig) -> Answer:
    del memory, config
    if reading.fabric_state != "completed":
        return None
    bad = [word for word in reading.fabric_health if word not in _PASSING]
    if not bad:
        return WELL
    usual = (Action.INSPECT, f"its fabric's health is {', '.join(bad)}", remedies.RESTART_FABRIC_MANAGER)
    action, what, remedy_key = max((_FABRIC.get(word, usual) for word in bad), key=lambda row: row[0].rank)
    return _found((EvidenceSource.FABRIC, "health"), what, action, remedy_key, value=len(bad), severity=Severity.ERROR)


CHECKS: Final = (
    ReadingCheck(EvidenceSource.RECOVERY, "recovery", Delay.NONE, _recovery),
    *(ReadingCheck(EvidenceSource.DRIVER, kind, row[2], _problem(kind)) for kind, row in _PROBLEMS.items()),
    ReadingCheck(EvidenceSource.ECC, "uncorrected", Delay.NONE, _ecc),
    ReadingCheck(EvidenceSource.ECC, "sram", Delay.NONE, _flag(
        "sram_exceeded", (EvidenceSource.ECC, "sram"), "its on-chip memory has too many errors", Action.REPLACE,
        remedies.REPLACE)),
    ReadingCheck(EvidenceSource.ECC, "unrepairable", Delay.NONE, _flag(
        "unrepairable", (EvidenceSource.ECC, "unrepairable"), "its memory can't be repaired", Action.REPLACE,
        remedies.REPLACE)),
    ReadingCheck(EvidenceSource.ROWS, "failed", Delay.NONE, _flag(
        "rows_failed", (EvidenceSource.ROWS, "failed"), "a bad row of memory could not be replaced", Action.REPLACE,
        remedies.REPLACE)),
    ReadingCheck(EvidenceSource.ROWS, "pending", Delay.NONE, _flag(
        "rows_pending", (EvidenceSource.ROWS, "pending"), "a bad row of memory waits to be replaced", Action.RESET_GPU,
        remedies.RESET_WHEN_IDLE, urgent=False)),
    ReadingCheck(EvidenceSource.ROWS, "many", Delay.NONE, _rows),
    ReadingCheck(EvidenceSource.PAGES, "pending", Delay.NONE, _flag(
        "pages_pending", (EvidenceSource.PAGES, "pending"),
        "a bad page of memory waits to be retired", Action.RESET_GPU,
        remedies.RESET_WHEN_IDLE, urgent=False)),
    ReadingCheck(EvidenceSource.PAGES, "many", Delay.NONE, _pages),
    ReadingCheck(EvidenceSource.NVLINK, "down", Delay.USUAL, _links),
    ReadingCheck(EvidenceSource.NVLINK, "crc", Delay.USUAL, _crc),
    ReadingCheck(EvidenceSource.NVLINK, "errors", Delay.USUAL, _link_errors),
    ReadingCheck(EvidenceSource.PCIE, "replays", Delay.USUAL, _replays),
    ReadingCheck(EvidenceSource.PCIE, "width", Delay.USUAL, _width),
    ReadingCheck(EvidenceSource.PCIE, "speed", Delay.USUAL, _speed),
    ReadingCheck(EvidenceSource.THROTTLE, "hardware", Delay.NONE, _throttle),
    ReadingCheck(EvidenceSource.TEMPERATURE, "margin", Delay.USUAL, _temperature("margin_c", "the GPU")),
    ReadingCheck(EvidenceSource.TEMPERATURE, "memory_margin", Delay.USUAL,
                 _temperature("memory_margin_c", "its memory")),
    ReadingCheck(EvidenceSource.FABRIC, "state", Delay.USUAL, _fabric_state),
    ReadingCheck(EvidenceSource.FABRIC, "health", Delay.USUAL, _fabric_health),
)  # fmt: skip
