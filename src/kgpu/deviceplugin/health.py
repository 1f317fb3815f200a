"""Which devices are unhealthy, and when they recover. Pure: events, readings and the time in, a new state out.

Where the health role gives verdicts, they decide about Xids; what the driver says is broken counts in any case.
Where it does not, Xid rules are the replaced program's but for 94 (an error of the program) and 109 (ends with a
reset). The two environment variables mean what is documented, for both. One Xid marks every replica and slice of its
GPU (or just the slice that the event names) and nothing else, and health comes back: at once when a verdict, a pending
recovery action or a finding is over, else after a quiet time without another Xid in which it can be
read.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from kgpu.base.advice import Advice, Severity
from kgpu.deviceplugin.model import GpuUnit
from kgpu.formats.names import ENV_DISABLE_HEALTHCHECKS, ENV_ENABLE_HEALTHCHECKS
from kgpu.hw.port import Accelerator, EventKind, HardwareEvent, Problem
from kgpu.hw.verdicts import GpuVerdict

APPLICATION_XIDS = frozenset({13, 31, 43, 45, 68, 94})
"""Errors of the program rather than of the GPU; ignored unless enabled."""
QUIET_SECONDS = 30.0
"""How long a GPU that looks well must stay without a critical Xid before it is offered again."""
NO_ACTION = frozenset({"none", "unknown", ""})
_ALL = frozenset({"all", "xids"})
_XID = re.compile(r"[0-9]{1,9}")
_XID_CAUSE = re.compile(r"xid:([0-9]{1,9})(@.*)?")


@dataclass(frozen=True, slots=True, kw_only=True)
class XidRules:
    """Which Xids make a device unhealthy. ``findings`` is False when every health check is off."""

    ignored: frozenset[int] = APPLICATION_XIDS
    disabled: frozenset[int] = frozenset()  # by name
    enabled: frozenset[int] = frozenset()
    all_ignored: bool = False
    all_enabled: bool = False
    findings: bool = True

    def critical(self, xid: int) -> bool:
        """Naming an Xid as enabled beats every way of disabling it, and enabling all beats disabling."""
        if self.all_enabled or xid in self.enabled:
            return True
        return not self.all_ignored and xid not in self.ignored

    def demanded(self, xid: int) -> bool:
        """Somebody wants this one to count, whatever a verdict says of it."""
        return self.all_enabled or xid in self.enabled

    def obeys(self, verdict: GpuVerdict) -> bool:
        """Whether a verdict takes the GPU away: for something else than Xids that somebody has switched off."""
        off = bool(verdict.causes) and all(self._is_off(cause) for cause in verdict.causes)
        return verdict.withdraws and self.findings and not off

    def _is_off(self, cause: str) -> bool:
        match = _XID_CAUSE.fullmatch(cause)
        if match is None:
            return False
        code = int(match[1])
        return not self.demanded(code) and (self.all_ignored or code in self.disabled)


def rules_from_env(env: Mapping[str, str]) -> tuple[XidRules, list[Advice]]:
    """The rules that the two environment variables ask for; words that mean nothing are told and skipped."""
    decisions: list[Advice] = []
    disabled, disabled_words = _codes(ENV_DISABLE_HEALTHCHECKS, env, decisions)
    enabled, enabled_words = _codes(ENV_ENABLE_HEALTHCHECKS, env, decisions)
    return (
        XidRules(
            ignored=APPLICATION_XIDS | disabled,
            disabled=disabled,
            enabled=enabled,
            all_ignored=bool(disabled_words),
            all_enabled=bool(enabled_words),
            findings="all" not in disabled_words or bool(enabled_words),
        ),
        decisions,
    )


def _codes(name: str, env: Mapping[str, str], decisions: list[Advice]) -> tuple[frozenset[int], frozenset[str]]:
    words = [word for item in env.get(name, "").lower().split(",") if (word := item.strip())]
    codes = frozenset(int(word) for word in words if _XID.fullmatch(word))
    decisions += [
        Advice(
            subject=name,
            what=f"{word!r} is skipped",
            why="it is neither an Xid number nor all nor xids",
            severity=Severity.WARNING,
            remedy=f"correct {name}, e.g. 79,94",
            reason="BadXidList",
        )
        for word in words
        if word not in _ALL and not _XID.fullmatch(word)
    ]
    return codes, frozenset(words) & _ALL


@dataclass(frozen=True, slots=True, kw_only=True)
class Illness:
    """A critical Xid that was not yet recovered from. ``pending`` once the driver asked for a recovery action."""

    gpu_uuid: str
    code: int
    gpu_instance: int | None = None
    compute_instance: int | None = None
    last: float = 0.0  # monotonic second of the newest sign of it
    pending: bool = False
    demanded: bool = False  # somebody has named the Xid

    def touches(self, unit: GpuUnit) -> bool:
        """True when ``unit`` is on the GPU, and is or contains or belongs to the slice, that the Xid was about."""
        return (
            unit.gpu_uuid == self.gpu_uuid
            and (None in {unit.gpu_instance, self.gpu_instance} or unit.gpu_instance == self.gpu_instance)
            and (None in {unit.compute_instance, self.compute_instance}
                 or unit.compute_instance == self.compute_instance)
        )  # fmt: skip

    @property
    def reason(self) -> str:
        """For people."""
        where = "" if self.gpu_instance is None else f" in GPU instance {self.gpu_instance}"
        return f"Xid {self.code}{where}"


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceHealth:
    """Everything that makes devices unhealthy now. ``broken`` maps a GPU's uuid to what was found.

    ``judged`` are the GPUs of which the health role gives verdicts, ``withdrawn`` those that it takes away, and why.
    """

    illnesses: tuple[Illness, ...] = ()
    broken: Mapping[str, str] = field(default_factory=dict)
    ignored: frozenset[tuple[str, int]] = frozenset()  # told once each
    judged: frozenset[str] = frozenset()
    withdrawn: Mapping[str, str] = field(default_factory=dict)

    def reason(self, unit: GpuUnit) -> str:
        """Why ``unit`` is unhealthy; "" when it is healthy."""
        reasons = [self.broken[unit.gpu_uuid]] if unit.gpu_uuid in self.broken else []
        reasons += [self.withdrawn[unit.gpu_uuid]] if unit.gpu_uuid in self.withdrawn else []
        reasons += [illness.reason for illness in self.illnesses if self.counts(illness) and illness.touches(unit)]
        return "; ".join(dict.fromkeys(reasons))

    def counts(self, illness: Illness) -> bool:
        """Whether an Xid is judged here."""
        return illness.demanded or illness.gpu_uuid not in self.judged


def on_event(
    health: DeviceHealth, event: HardwareEvent, rules: XidRules, now: float, accelerators: Sequence[Accelerator] = ()
) -> tuple[DeviceHealth, list[Advice]]:
    """The state after an event. Only Xids change it; ECC events alone do not, as with the replaced program."""
    if event.kind is not EventKind.XID:
        return health, []
    if event.uuid is None:
        # Whoever hosts the state reads the inventory again: what is really broken shows there.
        return health, [
            Advice(
                subject="",
                what=f"Xid {event.code} marks no device by itself",
                why="the driver could not say which device it is about; all are looked at again",
                severity=Severity.WARNING,
                reason="XidWithoutDevice",
            )
        ]
    if event.uuid in health.judged and not rules.demanded(event.code):
        return health, []  # the verdict says what it means
    if not rules.critical(event.code):
        key = (event.uuid, event.code)
        if key in health.ignored:
            return health, []
        decision = Advice(
            subject=event.uuid,
            what=f"Xid {event.code} is ignored",
            why="it is an error of the program that used the GPU"
            if event.code in APPLICATION_XIDS
            else f"{ENV_DISABLE_HEALTHCHECKS} says so",
            remedy=f"{ENV_ENABLE_HEALTHCHECKS}={event.code} makes it count",
            reason="XidIgnored",
        )
        return replace(health, ignored=health.ignored | {key}), [decision]
    new = Illness(
        gpu_uuid=event.uuid,
        code=event.code,
        gpu_instance=event.gpu_instance,
        compute_instance=event.compute_instance,
        last=now,
        demanded=rules.demanded(event.code),
    )
    others = tuple(old for old in health.illnesses if _key(old) != _key(new))
    if len(others) < len(health.illnesses):
        again = next(old for old in health.illnesses if _key(old) == _key(new))
        return replace(health, illnesses=(*others, replace(again, last=now))), []
    decision = Advice(
        subject=event.uuid,
        what=f"device marked unhealthy: {event.uuid}",
        why=f"critical {new.reason}",
        evidence=tuple(f"GPU {gpu.index}" for gpu in accelerators if gpu.uuid == event.uuid),
        # What was found about the whole GPU was told already, with its own remedy.
        severity=Severity.INFO if event.uuid in health.broken else Severity.ERROR,
        remedy="none at first: it is offered again by itself once the driver says it is well; if that does not come,"
        " reset the GPU or reboot the node. Running pods are left alone",
        reason="DeviceUnhealthy",
    )
    return replace(health, illnesses=(*others, new)), [decision]


def _key(illness: Illness) -> tuple[str, int, int | None, int | None]:
    return illness.gpu_uuid, illness.code, illness.gpu_instance, illness.compute_instance


def on_reading(
    health: DeviceHealth,
    accelerators: Sequence[Accelerator],
    rules: XidRules,
    now: float,
    *,
    quiet_seconds: float = QUIET_SECONDS,
) -> tuple[DeviceHealth, list[Advice]]:
    """The state after the accelerators were read: findings come and go, illnesses end."""
    decisions: list[Advice] = []
    by_uuid = {gpu.uuid: gpu for gpu in accelerators}
    broken = {gpu.uuid: reason for gpu in accelerators if (reason := _found(gpu, rules))}
    announced = {illness.gpu_uuid for illness in health.illnesses if illness.gpu_instance is None}
    decisions += [
        Advice(
            subject=uuid,
            what=f"device marked unhealthy: {uuid}",
            why=broken[uuid],
            evidence=(f"GPU {by_uuid[uuid].index}",),
            # One Event per cause: an Xid of the whole GPU was told already, with what to do.
            severity=Severity.INFO if uuid in announced else Severity.ERROR,
            remedy=next((finding.remedy for finding in by_uuid[uuid].findings), ""),
            reason="DeviceUnhealthy",
        )
        for uuid in broken
        if uuid not in health.broken
    ]
    kept: list[Illness] = []
    ended: dict[str, list[str]] = {uuid: [text] for uuid, text in health.broken.items() if uuid not in broken}
    for illness in health.illnesses:
        after = _still_ill(illness, by_uuid.get(illness.gpu_uuid), now, quiet_seconds)
        if after is not None:
            kept.append(after)
        else:
            ended.setdefault(illness.gpu_uuid, []).append(illness.reason)
    ill = broken.keys() | {illness.gpu_uuid for illness in kept}
    decisions += [
        _recovered(by_uuid[uuid], reasons) for uuid, reasons in ended.items() if uuid in by_uuid and uuid not in ill
    ]
    return replace(health, illnesses=tuple(kept), broken=broken), decisions


def on_verdicts(
    health: DeviceHealth, verdicts: Mapping[str, GpuVerdict] | None, rules: XidRules
) -> tuple[DeviceHealth, list[Advice]]:
    """The state after new verdicts, by uuid; None: nobody gives any. The health role tells of them with an Event."""
    known = verdicts or {}
    withdrawn = {uuid: f"{verdict.what} ({verdict.action})" for uuid, verdict in known.items() if rules.obeys(verdict)}
    news = [
        Advice(
            subject=uuid,
            what=f"device marked unhealthy: {uuid}",
            why=f"the health role says: {why}",
            evidence=known[uuid].evidence,
            remedy=known[uuid].remedy,
            reason="DeviceUnhealthy",
        )
        for uuid, why in withdrawn.items()
        if uuid not in health.withdrawn
    ]
    news += [
        Advice(
            subject=uuid,
            what=f"the verdict about {uuid} is over",
            why="the health role says that it is well" if uuid in known else "nobody gives verdicts any more",
            reason="VerdictOver",
        )
        for uuid in health.withdrawn
        if uuid not in withdrawn
    ]
    return replace(health, judged=frozenset(known), withdrawn=withdrawn), news


def _found(gpu: Accelerator, rules: XidRules) -> str:
    """What makes a whole GPU unhealthy, "" when nothing does."""
    if gpu.usable:
        return ""
    blocking = [finding for finding in gpu.findings if finding.problem is not Problem.UNREADABLE]
    if not rules.findings:
        blocking = [finding for finding in blocking if finding.problem is Problem.MISSING]
    return "; ".join(dict.fromkeys(f"{finding.problem}: {finding.what}" for finding in blocking))


def _still_ill(illness: Illness, gpu: Accelerator | None, now: float, quiet_seconds: float) -> Illness | None:
    if gpu is None:
        return None
    if not gpu.usable or gpu.recovery_action not in NO_ACTION:
        return replace(illness, last=now, pending=True)
    if gpu.recovery_action == "unknown" and any(finding.problem is Problem.UNREADABLE for finding in gpu.findings):
        # It can't be read: nothing says that it is well, and its quiet time begins when it answers.
        return replace(illness, last=now)
    if illness.gpu_instance is not None and not any(_is_slice(part_ids, illness) for part_ids in _slice_ids(gpu)):
        return None  # the slice was taken down; whatever is made in its place is new
    if illness.pending and gpu.recovery_action == "none":
        return None
    return None if now - illness.last >= quiet_seconds else illness


def _slice_ids(gpu: Accelerator) -> list[tuple[int, int]]:
    return [(part.gpu_instance, part.compute_instance) for part in gpu.partitions]


def _is_slice(ids: tuple[int, int], illness: Illness) -> bool:
    return ids[0] == illness.gpu_instance and illness.compute_instance in {None, ids[1]}


def _recovered(gpu: Accelerator, reasons: Sequence[str]) -> Advice:
    return Advice(
        subject=gpu.uuid,
        what=f"device is healthy again: {gpu.uuid}",
        why=f"{' and '.join(dict.fromkeys(reasons))}: over",
        evidence=("the driver reads it without trouble", f"recovery action: {gpu.recovery_action}"),
        reason="DeviceRecovered",
    )
