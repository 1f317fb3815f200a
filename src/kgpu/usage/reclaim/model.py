"""Pure: policies as they are in force for a namespace, and idle workloads as they follow from judged devices.

A policy that can't be read is no policy: nothing is told or stopped by it. An override only ever makes a policy
gentler; where it asks for the contrary, that is told and not done.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from decimal import Decimal
from typing import Final

import msgspec

from kgpu.base.advice import Advice
from kgpu.base.errors import ConfigError
from kgpu.base.times import time_zone
from kgpu.formats.crd.decode import usage_override, usage_policy
from kgpu.formats.crd.usagepolicy import (
    LEAST,
    LEAST_AFTER,
    LEAST_GRACE,
    LEAST_KEEP,
    LONGEST_SECONDS,
    SYSTEM_NAMESPACES,
    GPUUsagePolicySpec,
    UsageBudget,
    UsageProtect,
    UsageReceiver,
    UsageRequests,
    UsageSchedule,
)
from kgpu.formats.duration import parse_duration
from kgpu.formats.usage import MILLION, UsageState
from kgpu.kube.port import Object, name_of, namespace_of
from kgpu.usage.now import DeviceNow, HolderNow
from kgpu.usage.reclaim.templates import read_template
from kgpu.usage.states import USUAL_RULES, WASTED, YOUNG, IdleRules, UsageVerdict

LONGEST_KEEP: Final = 7 * 86_400.0
RECLAIM_RULES: Final = IdleRules(idle_below=0.01, window=7200.0)
_NANO: Final = 10**9


class ReclaimMode(enum.IntEnum):
    """What a policy does, from the mildest on."""

    OBSERVE = 0
    NOTIFY = 1
    RECLAIM = 2

    @classmethod
    def of(cls, word: str) -> ReclaimMode:
        """The mode of that word in a policy."""
        return cls[word.upper()]

    def __str__(self) -> str:
        return self.name.lower()


@dataclass(frozen=True, slots=True, kw_only=True)
class ReclaimPolicy:
    """A policy in seconds and ratios. ``told_of`` are wishes of an override that are not followed."""

    name: str
    mode: ReclaimMode = ReclaimMode.OBSERVE
    namespaces: tuple[str, ...] = ()
    notice: IdleRules = USUAL_RULES
    node_after: float = 1800.0
    stop: IdleRules = RECLAIM_RULES
    grace: float = 1800.0
    bare_pods: bool = False
    longest_keep: float = LONGEST_KEEP
    """For how long tenants' annotations keep an idle workload."""
    limit_exemptions: bool = False
    """Whether annotations without an end keep it no longer than that either."""
    requests: UsageRequests = field(default_factory=UsageRequests)
    schedule: UsageSchedule = field(default_factory=UsageSchedule)
    protect: UsageProtect = field(default_factory=UsageProtect)
    budget: UsageBudget = field(default_factory=UsageBudget)
    receivers: tuple[UsageReceiver, ...] = ()
    currency: str = "USD"
    per_gpu_hour: int = 0
    """Millionths of the currency; 0 for a list."""
    prices: str = ""
    """The ConfigMap with its price list; "" for the cluster's."""
    told_of: tuple[str, ...] = ()

    @property
    def watches_requests(self) -> bool:
        """Whether workloads are asked for the requests that they serve."""
        return self.mode is ReclaimMode.RECLAIM and self.requests.watch

    def covers(self, namespace: str) -> bool:
        """Whether it is about this namespace by name."""
        return namespace in self.namespaces


OBSERVER: Final = ReclaimPolicy(name="")
"""What is in force where there is no policy."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyReading:
    """A policy, or why there is none."""

    name: str
    policy: ReclaimPolicy | None = None
    problem: Advice | None = None

    @property
    def why_not(self) -> str:
        """Why it can't be used, in a sentence."""
        return self.problem.sentence if self.problem else f"GPUUsagePolicy {self.name} can't be used"


def read_policy(obj: Object, own_namespace: str) -> PolicyReading:
    """A GPUUsagePolicy as it is in force. One with an unknown key is unreadable: that may have been a protection."""
    name, decoded = name_of(obj), usage_policy(obj)
    problem = decoded.problem
    if problem is None and decoded.warnings:
        problem = _unusable(name, decoded.warnings[0], "fields of a GPUUsagePolicy alone")
    if problem is None:
        try:
            return PolicyReading(name=name, policy=_policy(name, decoded.spec, own_namespace))
        except ConfigError as error:
            problem = _unusable(name, error.what, error.expected, error.remedy)
    return PolicyReading(name=name, problem=problem)


def _unusable(name: str, what: str, expected: str, remedy: str = "correct it") -> Advice:
    error = ConfigError(
        f"GPUUsagePolicy {name} can't be used: {what}", expected, f"{remedy} (`kubectl edit gpuusagepolicy {name}`)"
    )
    return Advice.from_error(error, reason="Unreadable")


def _policy(name: str, spec: GPUUsagePolicySpec, own_namespace: str) -> ReclaimPolicy:
    idle, stop = spec.idle, spec.reclaim
    mode = ReclaimMode.of(spec.mode)
    barred = sorted({*SYSTEM_NAMESPACES, own_namespace}.intersection(spec.namespaces))
    if barred:
        raise _wrong(f"spec.namespaces names {barred[0]}", "no namespace of the system or of kgpu itself")
    if mode is ReclaimMode.RECLAIM and not spec.namespaces:
        raise _wrong("it would reclaim in every namespace", "spec.namespaces, which names those it may act in")
    _check_zone(spec.schedule)
    for number, receiver in enumerate(spec.notify):
        read_template(receiver.template, f"spec.notify[{number}].template")
    notice = IdleRules(
        idle_below=idle.activity_percent / 100, window=seconds(idle.after, "spec.idle.after"),
        coverage=idle.coverage_percent / 100, warm_up=seconds(idle.warm_up, "spec.idle.warmUp"),
        power_margin=idle.power_margin_percent / 100,
    )  # fmt: skip
    after = seconds(stop.after, "spec.reclaim.after", LEAST_AFTER)
    per_gpu_hour = int(Decimal(spec.cost.per_gpu_hour) * MILLION)
    if per_gpu_hour and spec.cost.prices_config_map:
        raise _wrong("spec.cost has both perGpuHour and pricesConfigMap", "one of them: one price, or a list")
    return ReclaimPolicy(
        name=name, mode=mode, namespaces=spec.namespaces, notice=notice,
        node_after=seconds(idle.node_after, "spec.idle.nodeAfter"),
        stop=msgspec.structs.replace(notice, idle_below=stop.activity_percent / 100, window=after),
        grace=seconds(stop.grace, "spec.reclaim.grace", LEAST_GRACE), bare_pods=stop.bare_pods,
        longest_keep=seconds(stop.longest_keep, "spec.reclaim.longestKeep", LEAST_KEEP),
        limit_exemptions=stop.limit_exemptions,
        requests=spec.requests, schedule=spec.schedule, protect=spec.protect, budget=spec.budget, receivers=spec.notify,
        currency=spec.cost.currency, per_gpu_hour=per_gpu_hour, prices=spec.cost.prices_config_map,
    )  # fmt: skip


def _wrong(what: str, expected: str) -> ConfigError:
    return ConfigError(what, expected, "correct it")


def seconds(text: str, where: str, least: str = LEAST) -> float:
    """A duration of a policy, in seconds. Raises ConfigError."""
    value = parse_duration(text) / _NANO
    if not parse_duration(least) / _NANO <= value <= LONGEST_SECONDS:
        raise _wrong(f"{where} is {text}", f"at least {least}, and at most {LONGEST_SECONDS // 3600}h")
    return value


def _check_zone(schedule: UsageSchedule) -> None:
    begin, _, end = schedule.hours.partition("-")
    if begin >= end:
        raise _wrong(f"spec.schedule.hours is {schedule.hours}", "a begin that is before the end, on one day")
    try:
        time_zone(schedule.time_zone)
    except ValueError:
        raise _wrong(
            f"spec.schedule.timeZone is {schedule.time_zone[:64]!r}", "a time zone such as Europe/Berlin or UTC"
        ) from None


def in_force(readings: Sequence[PolicyReading], namespace: str) -> tuple[ReclaimPolicy, str]:
    """The policy for a namespace, and why nothing may be stopped by it, "" where it may.

    One that names the namespace goes before one for all others. Of two that are equal, the mildest is in force and
    stops nothing; one that can't be read, and may be meant for the namespace, stops everything, too.
    """
    known = [reading.policy for reading in readings if reading.policy is not None]
    unusable = next((reading.why_not for reading in readings if reading.policy is None), "")
    fitting = [one for one in known if one.covers(namespace)] or [one for one in known if not one.namespaces]
    if not fitting:
        return OBSERVER, unusable
    mildest = min(fitting, key=lambda one: (one.mode, one.name))
    if len(fitting) > 1:
        named = " and ".join(sorted(one.name for one in fitting)[:2])
        return mildest, f"the policies {named} are about the same namespace"
    return mildest, unusable


def with_override(policy: ReclaimPolicy, override: Object) -> ReclaimPolicy:
    """The policy with a namespace's own wishes, as far as they are gentler. An override that can't be read is taken as
    the wish that nothing happens.
    """
    decoded, name = usage_override(override), name_of(override)
    if decoded.problem is not None or decoded.warnings:
        why = decoded.problem.statement if decoded.problem else decoded.warnings[0]
        return replace(policy, mode=ReclaimMode.OBSERVE, told_of=(*policy.told_of, why))
    spec, told = decoded.spec, list(policy.told_of)

    def longer(text: str, now: float, what: str) -> float:
        if not text:
            return now
        try:
            wanted = seconds(text, what)
        except ConfigError as error:
            told.append(f"GPUUsageOverride {name}: {error.what}, expected {error.expected}")
            return now
        if wanted < now:
            told.append(f"GPUUsageOverride {name}: {what} is shorter than the policy's and not followed")
        return max(wanted, now)

    mode = policy.mode
    if spec.mode:
        wanted = ReclaimMode.of(spec.mode)
        if wanted > mode:
            told.append(f"GPUUsageOverride {name}: mode {wanted} is stronger than the policy's and not followed")
        mode = min(mode, wanted)
    notice = longer(spec.idle_after, policy.notice.window, "idleAfter")
    stop = longer(spec.reclaim_after, policy.stop.window, "reclaimAfter")
    grace = longer(spec.grace, policy.grace, "grace")
    protect = _with_labels(policy.protect, spec.protect_labels)
    return replace(
        policy, mode=mode, notice=msgspec.structs.replace(policy.notice, window=notice),
        stop=msgspec.structs.replace(policy.stop, window=stop),
        grace=grace, protect=protect, told_of=tuple(told),
    )  # fmt: skip


def _with_labels(protect: UsageProtect, labels: Mapping[str, str]) -> UsageProtect:
    """The same protections and these labels."""
    return UsageProtect(
        namespaces=protect.namespaces, labels={**protect.labels, **labels}, priority_at_least=protect.priority_at_least,
        kinds=protect.kinds, owners=protect.owners,
    )  # fmt: skip


def policy_for(
    readings: Sequence[PolicyReading], overrides: Iterable[Object], namespace: str
) -> tuple[ReclaimPolicy, str]:
    """What is in force in a namespace, its overrides included, and why nothing may be stopped."""
    policy, why = in_force(readings, namespace)
    for override in sorted(overrides, key=name_of):
        if namespace_of(override) == namespace:
            policy = with_override(policy, override)
    return policy, why


@dataclass(frozen=True, slots=True, order=True)
class WorkloadRef:
    """What holds GPUs: the top of its pods' owners, or a pod that has none."""

    namespace: str
    kind: str
    name: str

    @classmethod
    def of(cls, holder: HolderNow) -> WorkloadRef:
        """The workload of a holder."""
        kind, _, name = holder.owner.partition("/")
        return cls(holder.namespace, kind, name) if name else cls(holder.namespace, "Pod", holder.pod)

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}"

    @property
    def title(self) -> str:
        """With its kind, for people."""
        return f"{self.kind} {self.namespace}/{self.name}"


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldDevice:
    """A device, or part of one, that a pod of the workload holds, and the verdict about that."""

    device: DeviceNow
    holder: HolderNow
    verdict: UsageVerdict

    @property
    def idle_since(self) -> float | None:
        """When it was busy last, or when it was given to its pod, whichever came later; None where neither is known."""
        known = [one for one in (self.verdict.idle_since, self.holder.held_since) if one is not None]
        return max(known, default=None)


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldWorkload:
    """A workload and all that it holds, of which no reading is left out."""

    ref: WorkloadRef
    held: tuple[HeldDevice, ...]

    @property
    def state(self) -> UsageState:
        """Idle only if all that it holds is; ``unknown`` if anything is; else as the one that works."""
        states = [one.verdict.state for one in self.held]
        if UsageState.UNKNOWN in states or UsageState.DOWN in states:
            return UsageState.UNKNOWN
        working = [state for state in states if state not in WASTED]
        if working:
            return next((state for state in working if state is not UsageState.WAITING), UsageState.WAITING)
        order = (UsageState.HUNG, UsageState.HELD_IDLE, UsageState.HELD_EMPTY)
        return next(state for state in order if state in states)

    @property
    def idle(self) -> bool:
        """Whether all that it holds is idle."""
        return self.state in WASTED

    @property
    def too_young(self) -> bool:
        """Whether it does nothing, as far as it is known, and some of it is not held for long enough to be idle."""
        states = {one.verdict.state for one in self.held if one.verdict.why != YOUNG}
        return states <= WASTED and any(one.verdict.why == YOUNG for one in self.held)

    @property
    def held_since(self) -> float | None:
        """When it got the last of what it holds, None where that is not known."""
        moments = [one.holder.held_since for one in self.held]
        known = [moment for moment in moments if moment is not None]
        return max(known) if known and len(known) == len(moments) else None

    @property
    def idle_since(self) -> float | None:
        """When the last of what it holds turned idle, None where that is not known."""
        moments = [one.idle_since for one in self.held]
        known = [moment for moment in moments if moment is not None]
        return max(known) if known and len(known) == len(moments) else None

    @property
    def coverage(self) -> float:
        """The least of its devices'."""
        return min((one.verdict.coverage for one in self.held), default=0.0)

    @property
    def gpus(self) -> float:
        """How many GPUs it holds; parts count as parts."""
        return sum(one.holder.share for one in self.held) / MILLION

    @property
    def pods(self) -> tuple[str, ...]:
        """The names of its pods that hold anything."""
        return tuple(sorted({one.holder.pod for one in self.held}))

    @property
    def uids(self) -> tuple[str, ...]:
        """Those of its pods that hold anything."""
        return tuple(sorted({one.holder.uid for one in self.held}))

    @property
    def nodes(self) -> frozenset[str]:
        """Where it holds anything."""
        return frozenset(one.device.node for one in self.held)

    @property
    def kept(self) -> tuple[str, ...]:
        """Why it is not to be stopped though it is idle."""
        return tuple(dict.fromkeys(why for one in self.held for why in one.verdict.kept))


def workloads(devices: Iterable[DeviceNow]) -> Mapping[WorkloadRef, HeldWorkload]:
    """All that hold anything, sorted."""
    found: dict[WorkloadRef, list[HeldDevice]] = {}
    for device in devices:
        tenants = dict(device.tenants)
        for holder in device.holders:
            one = HeldDevice(device=device, holder=holder, verdict=tenants.get(holder.uid, device.verdict))
            found.setdefault(WorkloadRef.of(holder), []).append(one)
    return {ref: HeldWorkload(ref=ref, held=tuple(found[ref])) for ref in sorted(found)}


def idle_nodes(devices: Iterable[DeviceNow]) -> Mapping[str, tuple[DeviceNow, ...]]:
    """Nodes all of whose GPUs are idle, at least one of them held; an empty node is the autoscaler's."""
    by_node: dict[str, list[DeviceNow]] = {}
    for device in devices:
        by_node.setdefault(device.node, []).append(device)
    return {
        node: tuple(own)
        for node, own in sorted(by_node.items())
        if all(one.verdict.state in WASTED or one.verdict.state is UsageState.FREE for one in own)
        and any(one.verdict.state in WASTED for one in own)
    }
