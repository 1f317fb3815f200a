"""One round: what is idle by each policy, who is told, which workloads take steps, and what policies say of it.

Promises: nothing is stopped while the data as a whole is in doubt (too much idle at once, clocks that jump, a record
that can't be read, a policy that can't), and each doubt is told; what can't be read ends the round and no other.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

import msgspec

from kgpu.base.advice import Advice, AdviceSink
from kgpu.base.clock import Clock
from kgpu.base.errors import ConfigError, KubeError
from kgpu.formats.crd.usagepolicy import MAX_FROZEN_NODES, UsageReceiver
from kgpu.formats.usage import MILLION, UsageState
from kgpu.formats.usage_reclaim import MAX_WHY, MOST_WORKLOADS, WorkloadSaid
from kgpu.kube.port import NODES, KubeRefusedError, name_of
from kgpu.usage.now import DeviceNow, IdleSource
from kgpu.usage.price_maps import PriceMaps
from kgpu.usage.reclaim import notices
from kgpu.usage.reclaim.acting import ActingPorts, LadderCase, climb, refusal
from kgpu.usage.reclaim.asking import PodMetrics, ask
from kgpu.usage.reclaim.budget import brake
from kgpu.usage.reclaim.delivery import NoticeDelivery
from kgpu.usage.reclaim.doubts import REMEMBERED, SeenAtWork
from kgpu.usage.reclaim.guards import span
from kgpu.usage.reclaim.keep_count import Watched, count_keeps, keep_ends
from kgpu.usage.reclaim.keeps import wants_no_notice
from kgpu.usage.reclaim.ladder import LadderStep, NextStep, same_episode
from kgpu.usage.reclaim.messages import key_of
from kgpu.usage.reclaim.model import (
    OBSERVER,
    HeldWorkload,
    PolicyReading,
    ReclaimMode,
    ReclaimPolicy,
    WorkloadRef,
    idle_nodes,
    workloads,
)
from kgpu.usage.reclaim.reading import ClusterLook
from kgpu.usage.reclaim.record import ActionState, DataFreeze, EpisodeEntry, NoticeKind, ReclaimNotice, ReclaimRecord
from kgpu.usage.reclaim.status import BROUGHT_BACK, PolicySummary, write_status
from kgpu.usage.reclaim.traffic import MetricsPlace, RequestWatch, place_of
from kgpu.usage.states import NOT_IDLE, USUAL_RULES, WASTED, IdleRules, MassIdle, nodes_turned_idle

JUMP: Final = 120.0
"""Seconds by which the wall clock may differ from the steady one between two rounds."""
AFTER_A_JUMP: Final = 1800.0
LOOKED_EVERY: Final = 600.0
"""Seconds after which the time of the last look is written down by itself."""
WATCHED: Final = 86_400.0
"""Seconds for which it is watched whether somebody brings a workload back."""
_Place = tuple[str, str, MetricsPlace | str | None]


@dataclass(slots=True)
class RoundMemory:
    """What is remembered from round to round, and lost with the process."""

    at_work: SeenAtWork | None = None
    """None before the first look of a term: what is on record counts then."""
    wall: float | None = None
    steady: float = 0.0
    jumped: float | None = None
    done: Counter[str] = field(default_factory=Counter)
    idle: Counter[UsageState] = field(default_factory=Counter)
    problems: dict[str, str] = field(default_factory=dict)
    requests: RequestWatch = field(default_factory=RequestWatch)
    looked: float | None = None
    """When the last round was over, in seconds since 1970."""
    said: tuple[WorkloadSaid, ...] = ()
    """What it has found of workloads."""
    steps: dict[WorkloadRef, NextStep] = field(default_factory=dict)
    settled: bool = False
    """There was no policy, and nothing was under way."""


class RoundVerdicts:
    """What devices do at one moment; by each rules they are judged once, which looks at a day of readings."""

    def __init__(self, source: IdleSource, now: float) -> None:
        self._source = source
        self._now = now
        self._devices: dict[IdleRules, Sequence[DeviceNow]] = {}
        self._workloads: dict[IdleRules, Mapping[WorkloadRef, HeldWorkload]] = {}

    def devices(self, rules: IdleRules) -> Sequence[DeviceNow]:
        """All devices that are known."""
        if rules not in self._devices:
            self._devices[rules] = self._source.devices(rules, self._now)
        return self._devices[rules]

    def workloads(self, rules: IdleRules) -> Mapping[WorkloadRef, HeldWorkload]:
        """All that hold any."""
        if rules not in self._workloads:
            self._workloads[rules] = workloads(self.devices(rules))
        return self._workloads[rules]


class ReclaimRound:
    """``once`` is one round. Raises KubeError where the cluster can't be read or the record not be written."""

    def __init__(
        self, ports: ActingPorts, source: IdleSource, delivery: NoticeDelivery, *, clock: Clock,
        now: Callable[[], float], report: AdviceSink, price_maps: PriceMaps | None = None,
        metrics: PodMetrics | None = None, clocks_ahead: Callable[[], float] = lambda: 0.0,
    ) -> None:  # fmt: skip
        self._metrics = metrics
        self._ports = ports
        self._price_maps = price_maps
        self._source = source
        self._delivery = delivery
        self._clock = clock
        self._now = now
        self._report = report
        self._clocks_ahead = clocks_ahead
        self.memory = RoundMemory()

    async def once(self) -> None:
        """Look, tell, act, and say so."""
        try:
            await self._once()
        except BaseException:
            self.memory.at_work = None  # what was seen may not be on record: it is seen again from there
            self.memory.looked = None
            raise

    async def _once(self) -> None:
        now = self._now()
        self.memory.steps = {}
        look = ClusterLook(self._ports.api, self._ports.own_namespace)
        readings = await look.policies()
        if not readings and self.memory.settled:
            self._remember((), now)
            return
        summary = PolicySummary()
        try:
            record = await self._ports.store.load()
        except ConfigError as error:
            self._report(Advice.from_error(error, reason="RecordUnreadable"))
            summary.frozen[""] = ("RecordUnreadable", error.one_line())
            await write_status(self._ports.api, readings, summary, now)
            self.memory.looked = None
            return
        self.memory.settled = not (readings or _begun(record, now))
        if self.memory.settled:
            self._remember((), now)
            return
        self.memory.problems = {}
        await self._follow_prices(usable(readings), summary)
        judged = RoundVerdicts(self._source, now)
        devices = judged.devices(USUAL_RULES)
        summary.see(devices)
        clock = self._clock_doubt(record, now)
        record = self._with_freeze(record, devices, now, usable(readings))
        if record.freeze is not None:
            record = _without_nodes_that_are_gone(record, {name_of(one) for one in await look.listed(NODES)})
        if not clock and now - record.looked >= LOOKED_EVERY:
            record = msgspec.structs.replace(record, looked=now)
        if clock or record.freeze:
            why = clock or (record.freeze.why if record.freeze else "")
            summary.frozen[""] = ("ClockJumped" if clock else "MassIdle", why)
            summary.frozen_nodes = () if clock or record.freeze is None else record.freeze.nodes
        if not clock:
            record = await self._count_keeps(look, record, judged, now)
        record = await self._tell(look, record, judged, now)
        await self._ports.store.save(record)
        await self._watch_requests(look, judged, now)
        record = await self._climb(look, record, judged, clock=clock, now=now, summary=summary)
        receivers = _receivers(usable(readings))
        record = await self._delivery.deliver(record, receivers)
        await self._ports.store.save(record)
        summary.actions, summary.trouble, summary.problems = (
            record.actions,
            self._delivery.trouble,
            self.memory.problems,
        )
        summary.dropped = record.dropped
        for policy in usable(readings):
            if why := brake(record.actions, policy.name, policy.budget, now):
                summary.frozen[policy.name] = (BROUGHT_BACK, why)
        await write_status(self._ports.api, readings, summary, now)
        self._remember([await self._said(look, record, judged, ref, now) for ref in judged.workloads(USUAL_RULES)], now)

    # What it says of workloads to whoever asks

    def _remember(self, said: Sequence[WorkloadSaid], now: float) -> None:
        self.memory.said, self.memory.looked = tuple(said[:MOST_WORKLOADS]), now

    async def _said(
        self, look: ClusterLook, record: ReclaimRecord, judged: RoundVerdicts, ref: WorkloadRef, now: float
    ) -> WorkloadSaid:
        policy, _ = await look.policy(ref.namespace)
        step, entry = self.memory.steps.get(ref), record.keep(ref)
        problem = self.memory.problems.get(ref.title, "")
        return WorkloadSaid(
            namespace=ref.namespace, kind=ref.kind, name=ref.name, watched=policy.watches_requests,
            requests=self._requests(judged.workloads(policy.stop).get(ref), policy, now)[:MAX_WHY],
            kept_since=None if entry is None else entry.since, step="" if step is None else str(step.step),
            why=(problem or (step.why if step is not None else ""))[:MAX_WHY],
        )  # fmt: skip

    async def _count_keeps(
        self, look: ClusterLook, record: ReclaimRecord, judged: RoundVerdicts, now: float
    ) -> ReclaimRecord:
        """Whom annotations keep, as the policy in force judges what is idle."""
        found: list[Watched] = []
        for ref in judged.workloads(USUAL_RULES):
            policy, _ = await look.policy(ref.namespace)
            rules = policy.stop if policy.mode is ReclaimMode.RECLAIM else policy.notice
            if policy.mode is not ReclaimMode.OBSERVE and (workload := judged.workloads(rules).get(ref)) is not None:
                found.append((workload, policy))
        record, refused = await count_keeps(look, self._ports.events, record, found, now)
        self.memory.problems |= {ref.title: refusal(error) for ref, error in refused.items()}
        return record

    async def _follow_prices(self, policies: Sequence[ReclaimPolicy], summary: PolicySummary) -> None:
        """Take the price lists that policies name as they are now."""
        if self._price_maps is not None:
            await self._price_maps.follow({one.prices for one in policies})
            summary.prices = {one.name: self._price_maps.problem(one.prices) for one in policies}

    # Doubts

    def _clock_doubt(self, record: ReclaimRecord, now: float) -> str:
        """Why times can't be trusted now, "" where they can."""
        memory, steady = self.memory, self._clock.monotonic()
        if memory.wall is not None and abs((now - memory.wall) - (steady - memory.steady)) > JUMP:
            memory.jumped = steady
        memory.wall, memory.steady = now, steady
        if now < record.looked - JUMP:
            return "the clock is before the time of the last look: it was set back"
        if abs(ahead := self._clocks_ahead()) > JUMP:
            return f"most nodes' clocks are {span(abs(ahead))} {'ahead of' if ahead > 0 else 'behind'} this one"
        if memory.jumped is not None and steady - memory.jumped < AFTER_A_JUMP:
            return "the clock has jumped: nothing is stopped for half an hour"
        return ""

    def _with_freeze(
        self, record: ReclaimRecord, devices: Iterable[DeviceNow], now: float, policies: Iterable[ReclaimPolicy]
    ) -> ReclaimRecord:
        """The record with the doubt whether a counter is broken, until each device has worked since or is not held."""
        states = {(one.node, f"{one.device}/{one.partition}"): one.verdict.state for one in devices}
        steady, memory = self._clock.monotonic(), self.memory
        if memory.at_work is None:
            fresh = now - record.looked < REMEMBERED
            memory.at_work = SeenAtWork.restored(record.worked if fresh else (), steady)
        doubt, turned = memory.at_work.look(states, steady)
        freeze = record.freeze
        if doubt is not None:
            freeze = frozen_by(doubt, turned, freeze, now)
            what = freeze.why if freeze.everywhere else f"{freeze.why}: nothing is stopped there"
            told = (
                notices.plain_notice(NoticeKind.FROZEN, one, WorkloadRef("", "", ""), what, now)
                for one in policies
                if one.mode is ReclaimMode.RECLAIM
            )
            record = record.with_notices(one for one in told if one.waiting)
        if freeze is not None:
            left = tuple(
                key for key in freeze.devices if states.get(key, UsageState.UNKNOWN) in {*WASTED, UsageState.UNKNOWN}
            )
            freeze = msgspec.structs.replace(freeze, devices=left) if left else None
        return msgspec.structs.replace(record, freeze=freeze, worked=memory.at_work.prints)

    # Notices

    async def _tell(self, look: ClusterLook, record: ReclaimRecord, judged: RoundVerdicts, now: float) -> ReclaimRecord:
        spaces = sorted({holder.namespace for one in judged.devices(USUAL_RULES) for holder in one.holders})
        in_force = {space: (await look.policy(space))[0] for space in spaces}
        working: set[WorkloadRef] = set()
        for rules in {policy.notice for policy in in_force.values()}:
            for ref, workload in judged.workloads(rules).items():
                policy = in_force[ref.namespace]
                if policy.notice != rules or policy.mode is ReclaimMode.OBSERVE or not policy.receivers:
                    continue
                working |= {ref} if workload.state in NOT_IDLE else set()
                record = await self._tell_workload(look, record, workload, policy, now)
        for policy in usable(await look.policies()):
            if policy.mode is not ReclaimMode.OBSERVE and policy.receivers:
                rules = msgspec.structs.replace(policy.notice, window=policy.node_after)
                own = _of_policy(judged.devices(rules), in_force, policy)
                record = self._tell_nodes(record, own, policy, now)
                working |= {WorkloadRef("", "Node", one.node) for one in own if one.verdict.state in NOT_IDLE}
        return _resolved(record, working, in_force, now)

    async def _tell_workload(
        self, look: ClusterLook, record: ReclaimRecord, workload: HeldWorkload, policy: ReclaimPolicy, now: float
    ) -> ReclaimRecord:
        since, ref = workload.idle_since, workload.ref
        if not workload.idle or since is None or now - since < policy.notice.window:
            return record
        if not _is_news(record.episode(ref), since, now):
            return record
        try:
            facts = await look.facts(workload, policy, now)
        except KubeRefusedError as error:
            self.memory.problems[ref.title] = refusal(error)
            return record
        if wants_no_notice(facts.objects, policy, now, keep_ends(record, ref, policy)):
            return record  # somebody wants to hear nothing of it now
        number = f"{since:.0f}/{now // notices.TOLD_AGAIN:.0f}"
        notice = notices.idle_notice(
            NoticeKind.IDLE, workload, policy, self._ports.prices, now, key=f"{NoticeKind.IDLE}/{ref.title}/{number}",
            since=since,
        )  # fmt: skip
        return _told(record, ref, since, notice, now)

    def _tell_nodes(
        self, record: ReclaimRecord, devices: list[DeviceNow], policy: ReclaimPolicy, now: float
    ) -> ReclaimRecord:
        for node, own in idle_nodes(devices).items():
            moments = [_since(one) for one in own if one.verdict.state in WASTED]
            if None in moments:
                continue
            ref, since = WorkloadRef("", "Node", node), max(moment for moment in moments if moment is not None)
            if now - since >= policy.node_after and _is_news(record.episode(ref), since, now):
                notice = notices.node_notice(node, own, policy, self._ports.prices, now=now, since=since)
                record = _told(record, ref, since, notice, now)
        return record

    # Acts

    async def _watch_requests(self, look: ClusterLook, judged: RoundVerdicts, now: float) -> None:
        """Ask the pods of policies that watch requests, and forget all others."""
        asked: list[tuple[MetricsPlace, frozenset[str]]] = []
        watched: set[str] = set()
        for ref, workload in judged.workloads(USUAL_RULES).items():
            policy, _ = await look.policy(ref.namespace)
            if not policy.watches_requests:
                continue
            for uid, name, place in await _metrics_places(look, workload):
                if isinstance(place, str):
                    self.memory.requests.take(uid, name, place, now)
                elif place is not None:
                    asked.append((place, frozenset(policy.requests.metrics)))
                watched |= {uid} if place is not None else set()
        self.memory.requests.keep(watched)
        if self._metrics is not None:
            await ask(self._metrics, asked, self.memory.requests, now)

    def _requests(self, workload: HeldWorkload | None, policy: ReclaimPolicy, now: float) -> str:
        """Why requests keep a workload."""
        if workload is None or not policy.watches_requests:
            return ""
        if self._metrics is None:
            return "this process can't ask pods for their requests"
        return self.memory.requests.kept(workload.uids, now, policy.stop.window)

    async def _climb(
        self, look: ClusterLook, record: ReclaimRecord, judged: RoundVerdicts, *, clock: str, now: float,
        summary: PolicySummary,
    ) -> ReclaimRecord:  # fmt: skip
        devices = judged.devices(USUAL_RULES)
        held = sum(holder.share for one in devices for holder in one.holders) / MILLION
        begun = _begun(record, now)
        refs = {WorkloadRef.of(holder) for one in devices for holder in one.holders} | begun
        self.memory.idle = Counter(one.verdict.state for one in devices)
        for ref in sorted(refs):
            policy, unsure = await look.policy(ref.namespace)
            summary.count(policy.name, judged.workloads(policy.notice).get(ref))
            workload = judged.workloads(policy.stop).get(ref)
            idle = workload is not None and workload.idle and policy.mode is ReclaimMode.RECLAIM
            if not idle and ref not in begun:
                continue
            case = LadderCase(
                ref=ref,
                workload=workload,
                policy=policy,
                frozen=unsure or clock or _doubted(record, workload),
                held=held,
                now=now,
                requests=self._requests(workload, policy, now),
            )
            try:
                record, step = await climb(self._ports, case, record)
            except KubeError as error:
                self.memory.problems[ref.title] = refusal(error) if isinstance(error, KubeRefusedError) else error.what
                record = await self._ports.store.load()
                continue
            self.memory.done[str(step.step)] += 1
            self.memory.steps[ref] = step
            if step.step is LadderStep.WAIT:
                summary.warned[policy.name] += 1
        return record


async def _metrics_places(look: ClusterLook, workload: HeldWorkload) -> list[_Place]:
    """Of its pods: uid, name, and where their metrics are, None where they have none, or why that is not known."""
    try:
        by_name = {name_of(pod): pod for pod in await look.pods(workload.ref.namespace)}
    except KubeError as error:
        return [(one.holder.uid, one.holder.pod, f"the pod can't be read: {error.what}") for one in workload.held]
    found: list[_Place] = []
    for name, uid in {(one.holder.pod, one.holder.uid) for one in workload.held}:
        try:
            found.append((uid, name, place_of(by_name[name]) if name in by_name else None))
        except ConfigError as error:
            found.append((uid, name, error.what))
    return found


def frozen_by(doubt: MassIdle, turned: frozenset[tuple[str, str]], before: DataFreeze | None, now: float) -> DataFreeze:
    """What is in doubt now, besides what was before."""
    devices = {*turned, *(before.devices if before is not None else ())}
    nodes = {node for node, _ in devices}
    why = doubt.why if not doubt.nodes else nodes_turned_idle(nodes)
    if doubt.nodes and before is not None and before.everywhere:
        why = before.why
    everywhere = not doubt.nodes or (before is not None and before.everywhere) or len(nodes) > MAX_FROZEN_NODES
    return DataFreeze(why=why, since=now, devices=tuple(sorted(devices)), everywhere=everywhere)


def _doubted(record: ReclaimRecord, workload: HeldWorkload | None) -> str:
    """Why what is said of a workload's devices is in doubt; "" where it is not, or it holds none."""
    freeze = record.freeze
    if freeze is None or workload is None:
        return ""
    return freeze.why if freeze.everywhere or workload.nodes.intersection(freeze.nodes) else ""


def usable(readings: Iterable[PolicyReading]) -> list[ReclaimPolicy]:
    """The policies that can be used."""
    return [one.policy for one in readings if one.policy is not None]


def _receivers(policies: Iterable[ReclaimPolicy]) -> list[UsageReceiver]:
    by_key = {key_of(one): one for policy in policies for one in policy.receivers}
    return list(by_key.values())


def _of_policy(
    devices: Sequence[DeviceNow], in_force: Mapping[str, ReclaimPolicy], policy: ReclaimPolicy
) -> list[DeviceNow]:
    """Those of nodes that are held under this policy alone, by namespaces that want to hear of it."""
    others = {
        one.node
        for one in devices
        for holder in one.holders
        if (found := in_force.get(holder.namespace, OBSERVER)).name != policy.name or found.mode is ReclaimMode.OBSERVE
    }
    return [one for one in devices if one.node not in others]


def _since(device: DeviceNow) -> float | None:
    moments = (device.verdict.idle_since, *(holder.held_since for holder in device.holders))
    return max((moment for moment in moments if moment is not None), default=None)


def _is_news(entry: EpisodeEntry | None, since: float, now: float) -> bool:
    return entry is None or not same_episode(entry.since, since) or now - entry.told >= notices.TOLD_AGAIN


def _told(record: ReclaimRecord, ref: WorkloadRef, since: float, notice: ReclaimNotice, now: float) -> ReclaimRecord:
    if not notice.waiting:
        return record  # it has not wasted enough for anybody yet
    entry = EpisodeEntry(kind=ref.kind, namespace=ref.namespace, name=ref.name, since=since, told=now)
    return record.with_episode(entry).with_notices([notice])


def _resolved(
    record: ReclaimRecord, working: set[WorkloadRef], in_force: Mapping[str, ReclaimPolicy], now: float
) -> ReclaimRecord:
    """The record without stretches of idleness that are over: whoever was told is told so, where it was seen to work.
    What is not seen any more may only not be heard, and is forgotten after a day.
    """
    for entry in record.episodes:
        if entry.ref in working:
            record = record.without_episode(entry.ref)
            policy = in_force.get(entry.namespace)
            if policy is not None and policy.receivers:
                what = "its GPUs are in use again"
                record = record.with_notices([notices.plain_notice(NoticeKind.RESOLVED, policy, entry.ref, what, now)])
        elif now - entry.told >= 2 * notices.TOLD_AGAIN:
            record = record.without_episode(entry.ref)
    return record


def _without_nodes_that_are_gone(record: ReclaimRecord, nodes: set[str]) -> ReclaimRecord:
    freeze = record.freeze
    left = tuple(key for key in freeze.devices if key[0] in nodes) if freeze is not None else ()
    kept = msgspec.structs.replace(freeze, devices=left) if freeze is not None and left else None
    return msgspec.structs.replace(record, freeze=kept)


def _begun(record: ReclaimRecord, now: float) -> set[WorkloadRef]:
    """Workloads with a deadline, with an act under way, or stopped not long ago."""
    acts = {
        one.ref
        for one in record.actions
        if one.state is ActionState.INTENDED or (one.state is ActionState.DONE and now - one.at < WATCHED)
    }
    return acts | {one.ref for one in record.warnings}
