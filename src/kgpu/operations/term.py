"""One term as the leader: repeated passes that turn what is seen into writes."""

from __future__ import annotations

import asyncio
import logging
import random
from collections import deque
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Final

from kgpu.base.advice import Advice
from kgpu.base.backoff import Backoff, BackoffPolicy
from kgpu.base.clock import Clock
from kgpu.base.errors import KubeError
from kgpu.base.log import log_advice
from kgpu.base.problems import describe
from kgpu.base.waits import first_of
from kgpu.formats import names
from kgpu.formats.crd.nodeoperation import OperationPhase
from kgpu.kube.events import ClusterEvents, about_node
from kgpu.kube.kinds import NODE_OPERATIONS
from kgpu.kube.leader_election import LostLeadError
from kgpu.kube.port import NODES, KubeApi, KubeRefusedError, KubeUnreachableError
from kgpu.notifications.payload import EventDetails
from kgpu.operations import writing
from kgpu.operations.admission import admit
from kgpu.operations.collecting import EvidenceCollector
from kgpu.operations.config import MigPolicy, OperationBudget, RemediationPolicy
from kgpu.operations.drain import Evicted
from kgpu.operations.driver_pods import DriverPod
from kgpu.operations.evidence import EvidenceWork
from kgpu.operations.leftovers import ended_acts, leftovers, outdated
from kgpu.operations.mig_asking import MigAsking
from kgpu.operations.model import (
    CollectEvidence,
    Delete,
    DeleteDriverPod,
    EndAct,
    Evict,
    Forget,
    HoldNode,
    Operation,
    Record,
    StartAct,
    TargetNode,
    Write,
)
from kgpu.operations.notices import details, details_of_repairs, notice
from kgpu.operations.plan import step
from kgpu.operations.pods import DrainedPods
from kgpu.operations.repairs import Repairs
from kgpu.operations.watching import OperationsWatching
from kgpu.operations.world import AdmissionVerdict, World
from kgpu.operations.writing import ActSettings

log = logging.getLogger(__name__)

GATHER: Final = 0.05
"""Seconds for which changes are collected before a pass."""
PROGRESS_EVERY: Final = 5.0
"""Seconds between two writes of an operation's progress."""
MOST_WRITES: Final = 100
"""About how many writes one pass makes at most."""
MOST_SILENT: Final = 5
"""How many operations may get no answer to their writes before the whole pass is given up."""
LONGEST: Final = 60.0
"""The most seconds without a pass: time alone may have made something due."""
AT_ONCE: Final = 8
"""The most steps of one operation in one pass."""
MAX_EVENTS: Final = 200
_REPAIR: Final = "remediation"
_MIG: Final = "MIG requests"
_AGAIN: Final = BackoffPolicy(first=5.0, cap=60.0, factor=2.0, jitter=0.3, healthy_after=60.0)
_PAUSE: Final = BackoffPolicy(first=0.1, cap=5.0, factor=2.0, jitter=0.3, healthy_after=30.0)


@dataclass(slots=True, kw_only=True)
class TermState:
    """What a term remembers; the next one begins with nothing."""

    unsure: set[str] = field(default_factory=set)
    """Operations whose last write may or may not have arrived."""
    told: dict[str, float] = field(default_factory=dict)
    """When the progress of an operation was last written, by uid."""
    errors: dict[str, str] = field(default_factory=dict)
    """Why an operation or a clean-up is stuck, by its name."""
    later: dict[str, float] = field(default_factory=dict)
    """The earliest monotonic time to try again, by an operation's uid or a clean-up's key."""
    waiting: dict[str, _Waiting] = field(default_factory=dict)
    """Operations that wait and whose record says so already, by uid."""
    pauses: dict[str, Backoff] = field(default_factory=dict)
    silent: set[str] = field(default_factory=set)
    """The uids of operations whose last write had no answer."""
    writes: int = 0
    events: deque[Advice] = field(default_factory=lambda: deque(maxlen=MAX_EVENTS))


class Term:
    """The work of one term: ``loop`` and ``tell`` run until they are cancelled."""

    def __init__(
        self, api: KubeApi, watching: OperationsWatching, budget: Callable[[], OperationBudget], *, clock: Clock,
        acts: ActSettings, remediation: RemediationPolicy, mig: MigPolicy, now: Callable[[], float],
        collector: EvidenceCollector,
        own_pod: tuple[str, str] = ("", ""), count: Callable[[str], None] = lambda _: None,
        notify: Callable[[Advice, EventDetails], None] | None = None,
        uniform: Callable[[], float] = random.random,
    ) -> None:  # fmt: skip
        """``now`` is in seconds since 1970; ``own_pod`` is this process's, as (namespace, name); ``notify`` gets what
        is told, and must not wait.
        """
        self._notify = notify
        self._api = api
        self._watching = watching
        self._budget = budget
        self._acts = acts
        self._clock = clock
        self._now = now
        self._count = count
        self._uniform = uniform
        self._events = ClusterEvents(api, component=names.OPERATIONS_COMPONENT, now=now)
        self._written = asyncio.Event()
        self._pods = DrainedPods(api, watching.news, clock=clock, own_pod=own_pod)
        self._evidence = EvidenceWork(api, collector, namespace=acts.namespace, news=watching.news)
        self.state = TermState()
        self._repairs = Repairs(
            api, watching, remediation, namespace=acts.namespace, now=now, tell=self._say
        )  # fmt: skip
        self._mig = MigAsking(api, watching, mig, now=now, count=count)

    async def loop(self) -> None:
        """Make passes until cancelled, after changes and when something is due."""
        backoff, fresh = Backoff(_PAUSE), False
        try:
            while True:
                await self._clock.sleep(GATHER)
                self._watching.news.clear()
                try:
                    if self._watching.ready and not fresh:
                        fresh = await self._read_anew()
                    again_at = await self._pass()
                except LostLeadError:
                    raise
                except KubeError as error:
                    log.log(logging.DEBUG if backoff.failures else logging.WARNING, "%s", error.one_line())
                    await self._clock.sleep(backoff.next_delay())
                    continue
                backoff.reset()
                wait = LONGEST if again_at is None else max(0.0, min(LONGEST, again_at - self._now()))
                await first_of(self._watching.news.wait(), self._clock.sleep(wait))
        finally:
            await self._evidence.close()
            await self._pods.close()

    async def tell(self) -> None:
        """Write Events; one that can't be written is dropped."""
        while True:
            await self._written.wait()
            self._written.clear()
            while self.state.events:
                advice = self.state.events.popleft()
                try:
                    await self._events.publish(advice, about_node(advice.subject))
                except LostLeadError:
                    raise
                except KubeError as error:
                    log.warning("an Event was not written: %s", error.one_line())

    async def look_for_daemon_sets(self) -> None:
        """Look up which DaemonSets of the followed pods exist, until cancelled."""
        await self._pods.look_for_daemon_sets()

    async def _pass(self) -> float | None:
        """Take every step that is due; return when to look again if nothing changes. Raises KubeError."""
        watching = self._watching
        watching.look()
        if not watching.ready:
            return self._now() + 1.0
        await self._look_up()
        # First: what is withdrawn must not begin.
        times: list[float | None] = [await self._look(_REPAIR, self._repairs.look)]
        times.append(await self._look(_MIG, self._mig.look))
        seen = _PassView(watching.nodes(), self._live(watching.operations()), self.state.writes)
        known = [each for each in watching.operations() if each.uid not in self._repairs.withdrawn]
        operations = sorted((each for each in known if not each.ended), key=_giving_back_first)
        # Those that have ended count, too: towards maxPerHour, and as failures of their rollout.
        verdicts = admit(known, seen.nodes, self._budget(), self._now(), self._unreadable())
        await self._pods.follow({operation.node for operation in operations if operation.phase in _DRAINS})
        for operation in operations:
            verdict = verdicts.get(operation.uid, AdmissionVerdict())
            if verdict.admitted and self.state.unsure:
                verdict = AdmissionVerdict()  # an unanswered write may have taken the slot
            waiting = self.state.waiting.get(operation.uid)
            driver = self._watching.driver_of(operation)
            if waiting is not None and waiting.still(operation, verdict, seen, self._now(), driver):
                times.append(waiting.again_at)
                continue
            times.append(await self._take(operation, verdict, seen))
            if self.state.writes - seen.writes >= MOST_WRITES or len(self.state.silent) >= MOST_SILENT:
                times.append(self._now())  # at once: those that give back come first again
                break
        times += [await self._clean_up(write) for write in self._leftovers()]
        await self._evidence.forget(self._live(watching.operations()))
        self._forget()
        if len(self.state.silent) >= MOST_SILENT:
            self.state.silent.clear()
            raise KubeUnreachableError(
                "several writes had no answer", "an API server that answers", "wait; kgpu keeps trying"
            )
        return min((moment for moment in times if moment is not None), default=None)

    def _live(self, operations: tuple[Operation, ...]) -> frozenset[str]:
        """The uids that may hold a node: operations that have begun, and those that can't be read."""
        begun = {operation.uid for operation in operations if operation.begun}
        return frozenset(begun | {unreadable.uid for unreadable in self._watching.unreadable()})

    def _unreadable(self) -> dict[str, str]:
        """The operations that can't be read, by node."""
        return {unreadable.node: unreadable.name for unreadable in self._watching.unreadable()}

    def _leftovers(self) -> list[Write]:
        watching = self._watching
        held = leftovers(watching.nodes().values(), self._live(watching.operations()))
        acts = ended_acts(watching.acts(), watching.operations()) if watching.acts_known else ()
        return [*held, *acts, *outdated(watching.operations(), self._now(), watching.nodes())[:AT_ONCE]]

    async def _read_anew(self) -> bool:
        """Read operations and the nodes that they hold, as watches may not have delivered the last leader's writes: a
        node that was just cordoned would look as if a person had uncordoned it. Raises KubeError.
        """
        try:
            listing = await self._api.list(NODE_OPERATIONS)
        except KubeRefusedError as refused:
            if refused.code != 404:
                raise
            return True
        for obj in listing.items:
            await self._watching.learn_operation(obj)
        for name in {operation.node for operation in self._watching.operations() if operation.begun}:
            node = await self._api.get(NODES, name)
            if node is not None:
                await self._watching.learn_node(node)
        return True

    async def _look_up(self) -> None:
        """Read the operations again whose last write may have arrived. Raises KubeError."""
        for name in tuple(self.state.unsure):
            obj = await self._api.get(NODE_OPERATIONS, name)
            if obj is not None:
                await self._watching.learn_operation(obj)
            self.state.unsure.discard(name)

    async def _take(self, operation: Operation, verdict: AdmissionVerdict, seen: _PassView) -> float | None:
        """Take one operation as far as it goes now; return when to look at it again. Its failure affects no other."""
        until = self.state.later.get(operation.uid, 0.0)
        if self._clock.monotonic() < until:
            return self._now() + until - self._clock.monotonic()
        try:
            again_at = await self._steps(operation, verdict, seen)
        except LostLeadError:
            raise
        except KubeUnreachableError as error:
            self.state.silent.add(operation.uid)
            return self._put_off(operation.uid, operation.name, error.one_line())
        except KubeRefusedError as refused:
            if refused.conflict or refused.code == 404:
                return self._now() + 1.0  # it has changed or is gone: the watch will show which
            return self._put_off(operation.uid, operation.name, refused.one_line())
        except Exception as error:
            log.exception("%s: a defect of kgpu; its node stays as it is", operation.name)
            return self._put_off(operation.uid, operation.name, describe(error))
        self.state.silent.discard(operation.uid)
        self.state.errors.pop(operation.name, None)
        self.state.pauses.pop(operation.uid, None)
        return again_at

    def _put_off(self, key: str, name: str, why: str) -> float:
        """Note the error and return when to try again, later each time."""
        if name not in self.state.errors:
            log.warning("%s: %s", name, why)
        self.state.errors[name] = why
        pause = self.state.pauses.setdefault(key, Backoff(_AGAIN)).next_delay()
        self.state.later[key] = self._clock.monotonic() + pause
        return self._now() + pause

    async def _steps(self, operation: Operation, verdict: AdmissionVerdict, seen: _PassView) -> float | None:
        for _ in range(AT_ONCE):
            result = step(operation, self._world(operation, verdict, seen))
            if not result.writes:
                self._note_waiting(operation, verdict, seen, result.again_at)
                return result.again_at
            for write in result.writes:
                await self._write(write)
            if not isinstance(result.writes[0], Record):
                return result.again_at
            fresh = self._watching.operation(operation.name)
            if fresh is None or fresh.uid != operation.uid or fresh.version == operation.version:
                return None
            operation = fresh
        return self._now()

    def _note_waiting(
        self, operation: Operation, verdict: AdmissionVerdict, seen: _PassView, again_at: float | None
    ) -> None:
        """Remember an operation that has not begun and has nothing to write: of a thousand that wait, few change."""
        if operation.phase is OperationPhase.PENDING:
            node = seen.nodes.get(operation.node)
            driver = self._watching.driver_of(operation)
            self.state.waiting[operation.uid] = _Waiting(operation.version, verdict, node, again_at, driver)

    def _world(self, operation: Operation, verdict: AdmissionVerdict, seen: _PassView) -> World:
        node = self._watching.node(operation.node)
        told = self.state.told.get(operation.uid)
        return World(
            now=self._now(), node=node, admission=verdict, pods=self._pods.on(operation.node),
            evicted=self._pods.evicted(node) if node is not None else Evicted(), live=seen.live,
            monotonic=self._clock.monotonic(), acts_known=self._watching.acts_known,
            act=self._watching.act(operation.status.act.id) if operation.status.act is not None else None,
            tell_progress=told is None or self._clock.monotonic() - told >= PROGRESS_EVERY,
            evidence=self._evidence.of(operation.uid),
            allow_force=self._budget().allow_force, driver=self._watching.driver_of(operation),
            drivers_known=self._watching.drivers_known,
        )  # fmt: skip

    async def _clean_up(self, write: Write) -> float | None:
        """Make one clean-up write; return when to try again, None if it succeeded."""
        name = _about(write)
        key = f"left {name}"
        until = self.state.later.get(key, 0.0)
        if self._clock.monotonic() < until:
            return self._now() + until - self._clock.monotonic()
        try:
            await self._write(write)
        except LostLeadError:
            raise
        except KubeError as error:
            return self._put_off(key, name, error.one_line())
        self.state.errors.pop(name, None)
        self.state.pauses.pop(key, None)
        return None

    async def _look(self, name: str, look: Callable[[], Awaitable[float | None]]) -> float | None:
        """Create what verdicts or nodes call for; return when to look again, None if only changes matter."""
        until = self.state.later.get(name, 0.0)
        if self._clock.monotonic() < until:
            return self._now() + until - self._clock.monotonic()
        try:
            again_at = await look()
        except LostLeadError:
            raise
        except KubeError as error:
            return self._put_off(name, name, error.one_line())
        self.state.errors.pop(name, None)
        self.state.pauses.pop(name, None)
        return again_at

    def _say(self, advice: Advice, about: EventDetails | None = None) -> None:
        log_advice(log, advice)
        if self._notify is not None:
            self._notify(advice, about or details_of_repairs(advice))
        self.state.events.append(advice)
        self._written.set()

    async def _write(self, write: Write) -> None:
        self.state.writes += 1
        match write:
            case Record():
                await self._record(write)
            case HoldNode():
                self._count("hold")
                await self._watching.learn_node(await writing.hold(self._api, write))
            case Forget():
                self._count("delete")
                await self._api.delete(NODE_OPERATIONS, write.operation.name, uid=write.operation.uid)
            case StartAct():
                self._count("act")
                made = await writing.start_act(self._api, write, self._acts)
                if made is not None:
                    await self._watching.learn_act(made)
            case CollectEvidence():
                self._count("evidence")
                self._evidence.start(write.operation)
            case DeleteDriverPod():
                self._count("driver")
                await writing.delete_driver_pod(self._api, write)
            case EndAct():
                self._count("delete")
                await writing.end_act(self._api, write, self._acts)
            case Evict() | Delete():
                self._count("evict" if isinstance(write, Evict) else "force")
                await self._send_away(write)

    async def _send_away(self, write: Evict | Delete) -> None:
        node, now = write.pod.node, self._clock.monotonic()
        former = self._pods.answer(node, write.pod)
        answer = await writing.send_away(self._api, write, former, now=now, uniform=self._uniform)
        self._pods.answered(node, write.pod, answer)

    async def _record(self, write: Record) -> None:
        operation = write.operation
        self._count("record")
        self.state.unsure.add(operation.name)
        try:
            obj = await writing.record(self._api, write)
        except KubeRefusedError:
            self.state.unsure.discard(operation.name)
            raise
        self.state.unsure.discard(operation.name)
        await self._watching.learn_operation(obj)
        if write.status.phase == operation.status.phase:
            self.state.told[operation.uid] = self._clock.monotonic()
        advice = notice(operation, write.status)
        if advice is not None:
            self._say(advice, details(operation, write.status))

    def _forget(self) -> None:
        """Forget what was remembered about operations that no longer exist."""
        operations = self._watching.operations()
        uids = {operation.uid for operation in operations}
        known = {operation.name for operation in operations} | {
            key for key in self.state.errors if key in self._watching.nodes()
        }
        state = self.state
        self._repairs.withdrawn &= uids
        state.waiting = {uid: waiting for uid, waiting in state.waiting.items() if uid in uids}
        state.told = {uid: at for uid, at in state.told.items() if uid in uids}
        state.errors = {name: why for name, why in state.errors.items() if name in known}
        now = self._clock.monotonic()
        state.later = {key: at for key, at in state.later.items() if at > now}


def _giving_back_first(operation: Operation) -> tuple[int, float, str]:
    """The sort key: operations that give a node back, or are told to, come first."""
    spec = operation.spec
    told = operation.begun and (spec.cancel or spec.resume)
    rank = 0 if operation.phase is OperationPhase.RESTORING else 1 if told else 2 if operation.begun else 3
    return rank, operation.created, operation.name


@dataclass(frozen=True, slots=True)
class _Waiting:
    """What an operation's wait follows from: as long as none of it changes, its next step is the same."""

    version: str
    verdict: AdmissionVerdict
    node: TargetNode | None
    again_at: float | None
    driver: DriverPod | None

    def still(
        self, operation: Operation, verdict: AdmissionVerdict, seen: _PassView, now: float, driver: DriverPod | None
    ) -> bool:
        """Whether it would wait again."""
        same = self.version == operation.version and self.driver is driver
        same = same and self.node is seen.nodes.get(operation.node)
        return same and self.verdict == verdict and (self.again_at is None or now < self.again_at)


@dataclass(frozen=True, slots=True)
class _PassView:
    """The cluster at the beginning of a pass; ``writes`` is the number of writes before it."""

    nodes: Mapping[str, TargetNode]
    live: frozenset[str]
    writes: int


_DRAINS: Final = frozenset({OperationPhase.CORDONING, OperationPhase.DRAINING})


def _about(write: Write) -> str:
    """The name of what a clean-up write is about."""
    match write:
        case HoldNode():
            return write.node.name
        case EndAct():
            return write.pod.name
        case Forget():
            return write.operation.name
    return ""
