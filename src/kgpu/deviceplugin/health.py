"""Decides which devices are unhealthy and when they recover, from events, readings and the time. Pure.

If the health role gives verdicts, they decide about Xids; what the driver reports as broken always counts. Without
verdicts, the Xid rules are the replaced program's except for 94 (an application error) and 109 (ends with a reset). The
two environment variables have their documented meaning in both cases. One Xid marks every replica and partition of its
GPU (or just the partition that the event names) and nothing else. A device recovers at once when a verdict, a pending
recovery action or a finding ends, otherwise after a quiet time in which it can be read and no Xid comes.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from kgpu.base.advice import Advice, Severity
from kgpu.deviceplugin.model import GpuUnit
from kgpu.formats.names import ENV_DISABLE_HEALTHCHECKS, ENV_ENABLE_HEALTHCHECKS
from kgpu.formats.xid import xid_of
from kgpu.hw.port import Accelerator, EventKind, HardwareEvent, Problem
from kgpu.hw.verdicts import GpuVerdict

APPLICATION_XIDS = frozenset({13, 31, 43, 45, 68, 94})
"""Application errors rather than GPU errors; ignored unless enabled."""
QUIET_SECONDS = 30.0
"""How long a GPU that looks healthy must have no critical Xid before it is offered again."""
NO_ACTION = frozenset({"none", "unknown", ""})
_ALL = frozenset({"all", "xids"})
_XID = re.compile(r"[0-9]{1,9}")


@dataclass(frozen=True, slots=True, kw_only=True)
class XidRules:
    """Which Xids make a device unhealthy. ``findings`` is False if every health check is off."""

    ignored: frozenset[int] = APPLICATION_XIDS
    disabled: frozenset[int] = frozenset()  # by name
    enabled: frozenset[int] = frozenset()
    all_ignored: bool = False
    all_enabled: bool = False
    findings: bool = True

    def critical(self, xid: int) -> bool:
        """Whether an Xid makes a device unhealthy. Enabling it, or all, beats every way of disabling it."""
        if self.all_enabled or xid in self.enabled:
            return True
        return not self.all_ignored and xid not in self.ignored

    def demanded(self, xid: int) -> bool:
        """Whether the settings make this Xid count whatever its verdict says."""
        return self.all_enabled or xid in self.enabled

    def obeys(self, verdict: GpuVerdict) -> bool:
        """Whether a verdict withdraws the GPU for a cause other than disabled Xids."""
        off = bool(verdict.causes) and all(self._is_off(cause) for cause in verdict.causes)
        return verdict.withdraws and self.findings and not off

    def _is_off(self, cause: str) -> bool:
        code = xid_of(cause)
        return code is not None and not self.demanded(code) and (self.all_ignored or code in self.disabled)


def rules_from_env(env: Mapping[str, str]) -> tuple[XidRules, list[Advice]]:
    """The rules from the two environment variables, and advice on words that are invalid and skipped."""
    advice: list[Advice] = []
    disabled, disabled_words = _codes(ENV_DISABLE_HEALTHCHECKS, env, advice)
    enabled, enabled_words = _codes(ENV_ENABLE_HEALTHCHECKS, env, advice)
    return (
        XidRules(
            ignored=APPLICATION_XIDS | disabled,
            disabled=disabled,
            enabled=enabled,
            all_ignored=bool(disabled_words),
            all_enabled=bool(enabled_words),
            findings="all" not in disabled_words or bool(enabled_words),
        ),
        advice,
    )


def _codes(name: str, env: Mapping[str, str], advice: list[Advice]) -> tuple[frozenset[int], frozenset[str]]:
    words = [word for item in env.get(name, "").lower().split(",") if (word := item.strip())]
    codes = frozenset(int(word) for word in words if _XID.fullmatch(word))
    advice += [
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
    """A critical Xid without recovery yet. ``pending`` is True once the driver has asked for a recovery action."""

    gpu_uuid: str
    code: int
    gpu_instance: int | None = None
    compute_instance: int | None = None
    last: float = 0.0  # monotonic time of its latest sign, in seconds
    pending: bool = False
    demanded: bool = False  # the settings enable this Xid

    def touches(self, unit: GpuUnit) -> bool:
        """True if ``unit`` is the GPU or partition of the Xid, contains it or belongs to it."""
        return (
            unit.gpu_uuid == self.gpu_uuid
            and (None in {unit.gpu_instance, self.gpu_instance} or unit.gpu_instance == self.gpu_instance)
            and (None in {unit.compute_instance, self.compute_instance}
                 or unit.compute_instance == self.compute_instance)
        )  # fmt: skip

    @property
    def reason(self) -> str:
        """The reason for people, such as "Xid 79"."""
        where = "" if self.gpu_instance is None else f" in GPU instance {self.gpu_instance}"
        return f"Xid {self.code}{where}"


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceHealth:
    """Everything that makes devices unhealthy now. ``broken`` maps a GPU's uuid to what was found.

    ``judged`` are the GPUs with verdicts from the health role; ``withdrawn`` maps those that it withdraws to the
    reason, ``elsewhere`` those that the vendor's own exporter calls unhealthy.
    """

    illnesses: tuple[Illness, ...] = ()
    broken: Mapping[str, str] = field(default_factory=dict)
    ignored: frozenset[tuple[str, int]] = frozenset()  # reported once each
    judged: frozenset[str] = frozenset()
    withdrawn: Mapping[str, str] = field(default_factory=dict)
    elsewhere: Mapping[str, str] = field(default_factory=dict)

    def reason(self, unit: GpuUnit) -> str:
        """Why ``unit`` is unhealthy; "" if it is healthy."""
        reasons = [self.broken[unit.gpu_uuid]] if unit.gpu_uuid in self.broken else []
        reasons += [said[unit.gpu_uuid] for said in (self.withdrawn, self.elsewhere) if unit.gpu_uuid in said]
        reasons += [illness.reason for illness in self.illnesses if self.counts(illness) and illness.touches(unit)]
        return "; ".join(dict.fromkeys(reasons))

    def counts(self, illness: Illness) -> bool:
        """Whether an Xid counts here, not in a verdict of the health role."""
        return illness.demanded or illness.gpu_uuid not in self.judged


def on_event(
    health: DeviceHealth, event: HardwareEvent, rules: XidRules, now: float, accelerators: Sequence[Accelerator] = ()
) -> tuple[DeviceHealth, list[Advice]]:
    """The state after an event. Only Xids change it; ECC events alone do not, as with the replaced program."""
    if event.kind is not EventKind.XID:
        return health, []
    if event.uuid is None:
        # The caller reads the inventory again, which shows what is really broken.
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
        return health, []  # its verdict decides
    if not rules.critical(event.code):
        key = (event.uuid, event.code)
        if key in health.ignored:
            return health, []
        advice = Advice(
            subject=event.uuid,
            what=f"Xid {event.code} is ignored",
            why="it is an error of the program that used the GPU"
            if event.code in APPLICATION_XIDS
            else f"{ENV_DISABLE_HEALTHCHECKS} says so",
            remedy=f"{ENV_ENABLE_HEALTHCHECKS}={event.code} makes it count",
            reason="XidIgnored",
        )
        return replace(health, ignored=health.ignored | {key}), [advice]
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
    advice = Advice(
        subject=event.uuid,
        what=f"device marked unhealthy: {event.uuid}",
        why=f"critical {new.reason}",
        evidence=tuple(f"GPU {gpu.index}" for gpu in accelerators if gpu.uuid == event.uuid),
        # The finding on the whole GPU was reported already, with its own remedy.
        severity=Severity.INFO if event.uuid in health.broken else Severity.ERROR,
        remedy="none at first: it is offered again by itself once the driver says it is well; if that does not come,"
        " reset the GPU or reboot the node. Running pods are left alone",
        reason="DeviceUnhealthy",
    )
    return replace(health, illnesses=(*others, new)), [advice]


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
    """The state after a reading: findings come and go, and illnesses end."""
    advice: list[Advice] = []
    by_uuid = {gpu.uuid: gpu for gpu in accelerators}
    broken = {gpu.uuid: reason for gpu in accelerators if (reason := _found(gpu, rules))}
    announced = {illness.gpu_uuid for illness in health.illnesses if illness.gpu_instance is None}
    advice += [
        Advice(
            subject=uuid,
            what=f"device marked unhealthy: {uuid}",
            why=broken[uuid],
            evidence=(f"GPU {by_uuid[uuid].index}",),
            # One Event per cause: the Xid of the whole GPU was reported already, with its remedy.
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
    advice += [
        _recovered(by_uuid[uuid], reasons) for uuid, reasons in ended.items() if uuid in by_uuid and uuid not in ill
    ]
    return replace(health, illnesses=tuple(kept), broken=broken), advice


def remembered(health: DeviceHealth, accelerators: Sequence[Accelerator], rules: XidRules) -> DeviceHealth:
    """The state before anything is read: what was found in an earlier run's last reading."""
    return replace(health, broken={gpu.uuid: reason for gpu in accelerators if (reason := _found(gpu, rules))})


def on_verdicts(
    health: DeviceHealth, verdicts: Mapping[str, GpuVerdict] | None, rules: XidRules
) -> tuple[DeviceHealth, list[Advice]]:
    """The state after new verdicts by uuid, None if nobody gives any. The health role writes the Events about them."""
    known = verdicts or {}
    withdrawn = {uuid: f"{verdict.what} ({verdict.action})" for uuid, verdict in known.items() if rules.obeys(verdict)}
    news = [
        Advice(
            subject=uuid,
            what=f"device marked unhealthy: {uuid}",
            why=f"the health role says: {why}",
            evidence=known[uuid].evidence,
            remedy=_remedy(known[uuid]),
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


def on_exporter(
    health: DeviceHealth, unhealthy: Mapping[str, str], rules: XidRules
) -> tuple[DeviceHealth, list[Advice]]:
    """The state after the vendor's own exporter has called these GPUs unhealthy, by uuid, with its words."""
    said = {uuid: f"the vendor's exporter says: {words}" for uuid, words in unhealthy.items()} if rules.findings else {}
    news = [
        Advice(
            subject=uuid,
            what=f"device marked unhealthy: {uuid}",
            why=why,
            severity=Severity.WARNING,
            remedy="look at that exporter's log: it goes by thresholds of its own. It is offered again when that ends",
            reason="DeviceUnhealthy",
        )
        for uuid, why in said.items()
        if uuid not in health.elsewhere
    ]
    news += [
        Advice(
            subject=uuid,
            what=f"the vendor's exporter no longer calls {uuid} unhealthy",
            why="it says so, or says nothing any more",
            reason="VerdictOver",
        )
        for uuid in health.elsewhere
        if uuid not in said
    ]
    return replace(health, elsewhere=said), news


def _remedy(verdict: GpuVerdict) -> str:
    """The words that kgpu's own table has for the verdict's key: those in the file are whoever's who wrote it."""
    from kgpu.formats.gpu_remedies import words  # for a GPU that is ill alone, with the whole catalogue

    return words(verdict.remedy_key)


def _found(gpu: Accelerator, rules: XidRules) -> str:
    """What makes a whole GPU unhealthy, "" if nothing does."""
    if gpu.usable:
        return ""
    blocking = [finding for finding in gpu.findings if finding.problem is not Problem.UNREADABLE]
    if not rules.findings:
        blocking = [finding for finding in blocking if finding.problem is Problem.MISSING]
    return "; ".join(dict.fromkeys(f"{finding.problem}: {finding.sentence}" for finding in blocking))


def _still_ill(illness: Illness, gpu: Accelerator | None, now: float, quiet_seconds: float) -> Illness | None:
    if gpu is None:
        return None
    if not gpu.usable or gpu.recovery_action not in NO_ACTION:
        return replace(illness, last=now, pending=True)
    if gpu.recovery_action == "unknown" and any(finding.problem is Problem.UNREADABLE for finding in gpu.findings):
        # It can't be read, so nothing shows that it is healthy: the quiet time begins when it answers.
        return replace(illness, last=now)
    if illness.gpu_instance is not None and not any(_is_slice(part_ids, illness) for part_ids in _slice_ids(gpu)):
        return None  # the partition was destroyed; one that replaces it is new
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
