"""From what was seen of a GPU to one verdict. Pure: memory and news in, new memory out; ``judge`` says what follows.

Order of trust: the driver's own verdict, then NVIDIA's bucket for the Xid, then kgpu's checks. An error of a program
never calls for a reset or reboot. What calls for a reset is over when the GPU was reset (the driver's verdict goes, the
ECC counter starts anew, or it is back on the bus) or the node was booted; nothing is "cured" by waiting, but for errors
of programs and what a person was told to look at. What comes back after its remedy calls for the next stronger one.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Final

from msgspec import structs

from kgpu.base.advice import Severity
from kgpu.formats import gpu_remedies as remedies
from kgpu.formats.xid.action import CURED_BY_RESET, Action
from kgpu.formats.xid.buckets import RECOVERY
from kgpu.formats.xid.catalogue import reports_recovery
from kgpu.health import checks
from kgpu.health.checks import CHECKS, SLOW, WELL, Delay, ReadingCheck
from kgpu.health.config import HealthConfig
from kgpu.health.faults import evidence_of
from kgpu.health.model import (
    FOREVER,
    CheckState,
    CounterSample,
    EvidenceSource,
    Fault,
    GpuEvidence,
    HealthReading,
    HealthVerdict,
    RememberedGpu,
)

MAX_EVENTS: Final = 64
MAX_EPISODES: Final = 128
MAX_SAMPLES: Final = 61
MAX_XIDS: Final = 256
SAMPLE_SECONDS: Final = 60.0
RECOVERY_XID: Final = 154
DOUBLE_BIT: Final = "48"
LOST: Final = "79"
LOST_CHECK: Final = "driver:lost"
CONTAINED: Final = "94"
WORSE: Final = frozenset({"64", "95"})
_SEVERITIES: Final = {severity: rank for rank, severity in enumerate(Severity)}


def on_fault(memory: RememberedGpu, fault: Fault, config: HealthConfig) -> RememberedGpu:
    """The memory after an error. Older than the last boot it only counts as an episode."""
    if fault.code == RECOVERY_XID and not fault.sxid:
        return _on_recovery_line(memory, fault, config)
    evidence = evidence_of(fault, config)
    if evidence is None or fault.at <= memory.accepted_at or _in_maintenance(memory, config, fault.at):
        return memory
    known = next((event for event in memory.events if event.name == evidence.name), None)
    if fault.at < memory.booted_at:
        return _begun(memory, evidence, config)
    if known is None:
        memory = _begun(memory, evidence, config)
        events = (*memory.events, evidence)
    else:
        # The log and the driver's events tell of the same Xid; only the log has a text.
        twice = abs(fault.at - known.last) <= config.settle and bool(known.text) != bool(fault.text)
        stronger = evidence if evidence.action.rank >= known.action.rank else known
        merged = structs.replace(
            stronger,
            first=min(known.first, fault.at),
            last=max(known.last, fault.at),
            count=known.count + (0 if twice else 1),
            text=evidence.text or known.text,
        )
        events = (*(event for event in memory.events if event is not known), merged)
    return replace(memory, events=events[-MAX_EVENTS:])


def counted(memory: RememberedGpu, fault: Fault) -> RememberedGpu:
    """The memory with one more of this Xid, whatever it is worth; not with one from before the boot."""
    key = str(fault.code) if fault.gpu_instance is None else f"{fault.code}@{fault.gpu_instance}"
    if (
        fault.sxid
        or fault.key
        or fault.at < memory.booted_at
        or (key not in memory.xids and len(memory.xids) >= MAX_XIDS)
    ):
        return memory
    return replace(memory, xids={**memory.xids, key: memory.xids.get(key, 0) + 1})


def on_reading(memory: RememberedGpu, reading: HealthReading, config: HealthConfig) -> RememberedGpu:
    """The memory after a reading: checks begin and end, resets are noticed."""
    if _was_reset(memory, reading):
        memory = on_reset(memory, reading.at)
    if _came_back(memory, reading):
        memory = on_reset(memory, reading.at)
        memory = replace(
            memory, events=tuple(event for event in memory.events if event.key != LOST or event.last > reading.at)
        )
    minute = int(reading.at // 60)
    slow = memory.slow_minutes
    if reading.slowdown is not None and reading.slowdown & SLOW and minute not in slow:
        slow = (*slow, minute)
    oldest = (reading.at - config.throttle_window) // 60
    memory = replace(
        memory,
        slow_minutes=tuple(slow_minute for slow_minute in slow if oldest < slow_minute <= minute),
        links=max(memory.links, reading.links_active or 0),
    )
    conditions: list[CheckState] = []
    accepted = dict(memory.accepted)
    held = {condition.evidence.name: condition for condition in memory.conditions}
    for check in CHECKS:
        old = held.pop(check.name, None)
        new = None
        if check.source not in config.ignore_checks:
            new = _condition(check, old, check.look(memory, reading, config), reading.at, config)
        if new is None:
            accepted.pop(check.name, None)
        else:
            conditions.append(new)
        if new is not None and new.raised and not (old and old.raised):
            memory = _begun(memory, new.evidence, config)
    answered = reading.recovery not in {"unknown", ""}
    return replace(
        memory,
        conditions=tuple(conditions),
        accepted=accepted,
        samples=_sampled(memory, reading),
        recovery=reading.recovery if answered else memory.recovery,
        recovery_at=reading.at if answered else memory.recovery_at,
        ecc=reading.ecc_uncorrected if reading.ecc_uncorrected is not None else memory.ecc,
        read_at=reading.at,
    )


def on_reset(memory: RememberedGpu, at: float) -> RememberedGpu:
    """The GPU was reset at ``at``: what a reset cures is over."""
    return replace(
        memory,
        events=tuple(one for one in memory.events if one.last >= at or one.action not in CURED_BY_RESET),
        samples=(),
        recovery="none" if memory.recovery in RECOVERY else memory.recovery,
    )


def on_boot(memory: RememberedGpu, booted_at: float) -> RememberedGpu:
    """The node was booted: every Xid from before is over, but how often it came is kept."""
    if booted_at <= memory.booted_at:
        return memory
    return replace(
        memory,
        events=tuple(event for event in memory.events if event.last >= booted_at),
        conditions=(),
        samples=(),
        slow_minutes=(),
        xids={},
        accepted={},
        recovery="unknown",
        ecc=None,
        booted_at=booted_at,
    )


def set_healthy(memory: RememberedGpu, at: float) -> RememberedGpu:
    """The memory after a person called the GPU well at ``at``: it is, until new evidence comes or a known fact gets
    worse. What came after their word, and before it was read, is new evidence.
    """
    return replace(
        memory,
        events=tuple(one for one in memory.events if one.last > at),
        episodes=tuple((name, when) for name, when in memory.episodes if when > at),
        accepted={one.evidence.name: one.evidence.value for one in memory.conditions if one.since <= at},
        accepted_at=max(at, memory.accepted_at),
    )


def set_maintenance(memory: RememberedGpu, *, until: float = FOREVER) -> RememberedGpu:
    """The memory with maintenance until then: evidence is not acted on meanwhile, and Xids of that time never count."""
    return replace(memory, maintenance_until=until)


def judge(memory: RememberedGpu, config: HealthConfig, now: float) -> tuple[RememberedGpu, HealthVerdict]:
    """The verdict at ``now``, and the memory without what is over."""
    effective_events = [_in_context(event, memory, config) for event in memory.events]
    kept = tuple(
        event
        for event, effective in zip(memory.events, effective_events, strict=True)
        if not _is_over(event, effective, memory, config, now)
    )
    memory = replace(memory, events=kept, episodes=_recent(memory.episodes, config, now))
    evidence = [
        *(_in_context(event, memory, config) for event in kept),
        *(
            _escalated(condition.evidence, memory, config)
            for condition in memory.conditions
            if _counts(condition, memory)
        ),
    ]
    evidence.sort(key=lambda item: (item.action.rank, item.urgent, _SEVERITIES[item.severity], item.last), reverse=True)
    if _in_maintenance(memory, config, now):
        return memory, HealthVerdict(
            gpu=memory.gpu, evidence=tuple(evidence), since=memory.since, muted="in maintenance"
        )
    action = evidence[0].action if evidence else Action.IGNORE
    since = memory.since if action is memory.action and memory.since else now
    memory = replace(memory, action=action, since=since)
    return memory, HealthVerdict(
        gpu=memory.gpu,
        action=action,
        healthy=not any(fact.urgent and fact.action.withdraws for fact in evidence),
        severity=evidence[0].severity if action is not Action.IGNORE else Severity.INFO,
        evidence=tuple(evidence),
        remedy_key=evidence[0].remedy_key if action is not Action.IGNORE else "",
        since=since,
    )


def _on_recovery_line(memory: RememberedGpu, fault: Fault, config: HealthConfig) -> RememberedGpu:
    """Xid 154 is no error but the driver's verdict, a moment before NVML gives the same."""
    if fault.at < max(memory.booted_at, memory.accepted_at) or EvidenceSource.RECOVERY in config.ignore_checks:
        return memory
    word = fault.recovery
    if word in {"", "unknown"} or fault.at < memory.read_at or _in_maintenance(memory, config, fault.at):
        return memory
    check = CHECKS[0]
    answer = check.look(memory, HealthReading(at=fault.at, recovery=word), config)
    old = next((condition for condition in memory.conditions if condition.evidence.name == check.name), None)
    new = _condition(check, old, answer, fault.at, config)
    if new is not None and not old:
        memory = _begun(memory, new.evidence, config)
    if word == "none" and memory.recovery in RECOVERY:
        memory = on_reset(memory, fault.at)
    others = tuple(condition for condition in memory.conditions if condition.evidence.name != check.name)
    conditions = (*others, *((new,) if new else ()))
    return replace(memory, conditions=conditions, recovery=word, recovery_at=fault.at, read_at=fault.at)


def _condition(
    check: ReadingCheck, old: CheckState | None, answer: checks.Answer, at: float, config: HealthConfig
) -> CheckState | None:
    """The next state of a check: it counts after it has held for a time, and ends after it was gone for a time."""
    at = max(at, old.last) if old else at
    if answer is None:
        return old
    if answer is WELL:
        clear = 0.0 if check.delay is Delay.NONE else config.clear_after
        return old if old and old.raised and at - old.last < clear else None
    delay = {Delay.NONE: 0.0, Delay.HUNG: config.hung_after, Delay.USUAL: config.raise_after}[check.delay]
    since = old.since if old else at
    evidence = structs.replace(answer, first=since, last=at)
    return CheckState(
        evidence=evidence, since=since, last=at, raised=bool(old and old.raised) or at - since >= delay
    )  # fmt: skip


def _counts(condition: CheckState, memory: RememberedGpu) -> bool:
    accepted = memory.accepted.get(condition.evidence.name)
    return condition.raised and (accepted is None or condition.evidence.value > accepted)


def _in_context(event: GpuEvidence, memory: RememberedGpu, config: HealthConfig) -> GpuEvidence:
    """What an event calls for beside everything else that is known."""
    told = config.sxid_actions if event.source is EvidenceSource.SXID else config.xid_actions
    if event.number in told:
        return event
    if event.source is EvidenceSource.XID:
        event = _double_bit(event, memory, config)
        event = _driver_first(event, memory, config)
    return _escalated(event, memory, config)


def _double_bit(event: GpuEvidence, memory: RememberedGpu, config: HealthConfig) -> GpuEvidence:
    """Xid 48 asks for a reset at once, unless Xid 94 says that the error was contained: then when the GPU is idle."""
    if event.key != DOUBLE_BIT:
        return event
    beside = {one.key for one in memory.events if abs(one.last - event.last) <= config.burst and one is not event}
    if CONTAINED not in beside or beside & WORSE:
        return event
    return structs.replace(
        event, action=Action.RESET_GPU, urgent=False, severity=Severity.WARNING, remedy_key=remedies.RESET_WHEN_IDLE
    )


def _driver_first(event: GpuEvidence, memory: RememberedGpu, config: HealthConfig) -> GpuEvidence:
    """Where the driver follows this Xid with a verdict of its own, that one counts, also when it asks for nothing."""
    if not (config.driver_first and event.action.withdraws and reports_recovery(int(event.key), memory.driver)):
        return event
    if memory.recovery == "unknown" or memory.recovery_at < event.last + config.settle:
        return event
    asked = RECOVERY.get(memory.recovery)
    if asked is None:
        return structs.replace(event, action=Action.IGNORE, severity=Severity.INFO, remedy_key=remedies.NOTHING)
    return structs.replace(event, action=asked.action, severity=asked.severity, remedy_key=asked.key)


def _escalated(evidence: GpuEvidence, memory: RememberedGpu, config: HealthConfig) -> GpuEvidence:
    """The next stronger action for what has come back too often after its own. The driver's verdict stays as it is."""
    if not evidence.urgent or evidence.source is EvidenceSource.RECOVERY:
        return evidence
    times = [at for name, at in memory.episodes if name == evidence.name]
    lately = sum(1 for at in times if evidence.last - at <= config.reset_window)
    action = evidence.action
    if action is Action.RESET_GPU and lately > config.reset_repeats:
        action = Action.REBOOT
    if action is Action.REBOOT and len(times) > config.reboot_repeats:
        action = Action.REPLACE
    if action is evidence.action:
        return evidence
    remedy_key = remedies.REPLACE if action is Action.REPLACE else remedies.REBOOT
    return structs.replace(
        evidence,
        action=action,
        remedy_key=remedy_key,
        severity=Severity.ERROR,
        what=f"{evidence.what}; it came {len(times)} times",
    )


def _is_over(
    event: GpuEvidence, effective: GpuEvidence, memory: RememberedGpu, config: HealthConfig, now: float
) -> bool:
    if event.last <= memory.accepted_at:
        return True
    if effective.action in {Action.IGNORE, Action.RESTART_APP}:
        return now - event.last > config.app_forget
    return effective.action is Action.INSPECT and now - event.last > config.inspect_forget


def _begun(memory: RememberedGpu, evidence: GpuEvidence, config: HealthConfig) -> RememberedGpu:
    """Record that an episode began; faults of one burst are one episode."""
    at = evidence.last
    if any(name == evidence.name and abs(at - when) <= config.burst for name, when in memory.episodes):
        return memory
    episodes = _recent(((evidence.name, at), *memory.episodes), config, at)
    return replace(memory, episodes=tuple(sorted(episodes, key=lambda one: one[1]))[-MAX_EPISODES:])


def _recent(episodes: Iterable[tuple[str, float]], config: HealthConfig, now: float) -> tuple[tuple[str, float], ...]:
    return tuple(one for one in episodes if now - one[1] <= config.repeat_window)


def _was_reset(memory: RememberedGpu, reading: HealthReading) -> bool:
    if memory.recovery in RECOVERY and reading.recovery == "none":
        return True
    return memory.ecc is not None and reading.ecc_uncorrected is not None and reading.ecc_uncorrected < memory.ecc


def _came_back(memory: RememberedGpu, reading: HealthReading) -> bool:
    """A GPU that was off the bus answers again: only a reset of its slot or a boot does that."""
    was_lost = any(one.raised and one.evidence.name == LOST_CHECK for one in memory.conditions)
    return was_lost and not reading.problems


def _sampled(memory: RememberedGpu, reading: HealthReading) -> tuple[CounterSample, ...]:
    last = memory.samples[-1] if memory.samples else None
    if last is not None and 0 <= reading.at - last.at < SAMPLE_SECONDS:
        return memory.samples
    new = CounterSample(
        at=reading.at,
        pcie_replays=reading.pcie_replays,
        nvlink_crc=reading.nvlink_crc,
        nvlink_errors=reading.nvlink_errors,
    )
    past = tuple(sample for sample in memory.samples if sample.at < reading.at)
    return (*past, new)[-MAX_SAMPLES:]


def _in_maintenance(memory: RememberedGpu, config: HealthConfig, at: float) -> bool:
    return at < memory.maintenance_until or config.in_maintenance(memory.gpu, memory.index)
