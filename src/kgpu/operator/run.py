"""The operator's loop: watch, plan, apply, report; driven by changes.

The loop is level-triggered: whatever has changed, it makes the whole plan anew and writes only what differs. So it
makes no difference whether a change was missed, the process was killed in the middle or the API server was away.
Changes are gathered for a moment first, and longer where plans take long. ``kgpu.manager`` hosts it.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Collection, Coroutine, Mapping, Sequence
from typing import Any, Final

from kgpu import __version__
from kgpu.base.backoff import Backoff, BackoffPolicy
from kgpu.base.clock import Clock, SystemClock
from kgpu.base.errors import KubeError
from kgpu.base.plain import items, mapping, text
from kgpu.base.problems import describe
from kgpu.base.waits import first_of
from kgpu.kube import kinds
from kgpu.kube.port import PODS, KubeApi, KubeRefusedError, KubeUnreachableError, Object, Resource
from kgpu.kube.shared_informer import SharedInformer
from kgpu.operator.amd_kind import AmdKind
from kgpu.operator.applying import Applier
from kgpu.operator.endpoints import Endpoints
from kgpu.operator.event_recorder import EventRecorder
from kgpu.operator.labelling import NodeLabeller
from kgpu.operator.leaving import Leaving
from kgpu.operator.metrics import OperatorFigures
from kgpu.operator.model import ClusterPlan, ObservedCluster, OperatorSettings
from kgpu.operator.other_programs import OtherPrograms
from kgpu.operator.pace import Pace
from kgpu.operator.plan import plan as make_plan
from kgpu.operator.policy_absence import PolicyAbsence
from kgpu.operator.statuses import Statuses
from kgpu.operator.upgrading import Upgrading
from kgpu.operator.watching import ClusterWatching, WatchedCluster

log = logging.getLogger(__name__)

GATHER: Final = 0.05  # seconds in which changes are gathered before a plan
LEAVE_SECONDS: Final = 20.0
IN_THREAD: Final = 0.2  # seconds; plans that take longer are made in a thread
_PAUSE: Final = BackoffPolicy(first=0.1, cap=3.0, factor=2.0, jitter=0.3, healthy_after=30.0)

Planner = Callable[[ObservedCluster, OperatorSettings], ClusterPlan]


class OperatorController:
    """The operator, as a controller of ``kgpu.manager``: ``watch`` runs always, ``term`` while this process leads."""

    name = "operator"

    def __init__(
        self, api: WatchedCluster, settings: OperatorSettings, *, clock: Clock | None = None,
        leave_seconds: float = LEAVE_SECONDS, planner: Planner = make_plan, nodes: SharedInformer | None = None,
        stopwatch: Callable[[], float] = time.perf_counter,
    ) -> None:  # fmt: skip
        """``leave_seconds`` is how long agents get to clean up their hosts before they are removed.

        ``stopwatch`` measures how long plans take; slow ones are made in a thread, and less often.
        """
        self.settings = settings
        self.leave_seconds = leave_seconds
        self.clock = clock or SystemClock()
        self.figures = OperatorFigures()
        self.watching = ClusterWatching(api, settings, clock=self.clock, nodes=nodes)
        self.last: ClusterPlan | None = None
        self.problem = ""
        """What went wrong in the last pass, "" when nothing did."""
        self.settled = asyncio.Event()
        """Set while the last pass found nothing to do and nothing is under way."""
        self.planner = planner
        self.stopwatch = stopwatch
        self.working: _Term | None = None
        self.other_discovery: bool | None = None
        """Whether another node feature discovery works in this cluster; None before the first pass."""

    async def watch(self) -> None:
        """Follow the cluster until cancelled."""
        log.info(
            "kgpu %s: operator of namespace %s, layout %s", __version__, self.settings.namespace, self.settings.layout
        )
        await self.watching.run()

    def missing(self) -> Collection[str]:
        """Kinds that have not been read yet."""
        return self.watching.missing()

    def term(self, api: KubeApi) -> Sequence[Coroutine[Any, Any, None]]:
        """Plan and carry out, label Nodes, write Events."""
        self.working = term = _Term(self, api)
        return term.loop(), term.labeller.run(), term.recorder.run()

    def ended(self) -> None:
        """The term is over."""
        self.working = None
        self.settled.clear()

    def failed(self, error: Exception) -> None:
        """The work died of a defect."""
        self.problem = describe(error)
        self.figures.broke()

    def metrics(self) -> str:
        """The replaced operator's figures, and kgpu's own."""
        return self.figures.text()

    def status(self) -> Mapping[str, object]:
        """What was read and done, and what went wrong, for the status page."""
        term = self.working
        return {
            "namespace": self.settings.namespace,
            "layout": str(self.settings.layout),
            "unread": list(self.watching.missing()),
            "stale": list(self.watching.stale()),
            "problem": self.problem,
            "passes": self.figures.passes,
            "writes": self.figures.writes,
            "plan_seconds": round(self.figures.plan_seconds, 4),
            "objects": len(self.last.objects) if self.last else 0,
            "nodes_pending": term.labeller.pending if term else 0,
            "refused": {**term.applier.errors, **term.upgrading.errors, **term.labeller.errors} if term else {},
            "settled": self.settled.is_set(),
        }


class _Term:
    """One term as the leader. At its start nothing is known to be applied, so everything is applied once."""

    def __init__(self, operator: OperatorController, api: KubeApi) -> None:
        self._operator = operator
        watching, clock = operator.watching, operator.clock
        count, namespace = operator.figures.wrote, operator.settings.namespace
        self.policy_absence = PolicyAbsence(api, watching, clock=clock)
        self.others = OtherPrograms(api, clock=clock)
        self.applier = Applier(api, watching, operator.settings, clock=clock, count=count)
        self.labeller = NodeLabeller(api, watching, clock=clock, count=count)
        self.upgrading = Upgrading(api, watching, clock=clock, count=count)
        self.statuses = Statuses(api, watching, clock=clock, count=count)
        self.recorder = EventRecorder(api, watching, clock=clock, count=count, dropped=operator.figures.dropped)
        self.amd = AmdKind(api, watching, wanted=operator.settings.device_configs)
        self.endpoints = Endpoints(api, namespace=namespace, wanted=operator.settings.device_configs, clock=clock)
        self.leaving = Leaving(api, watching, namespace=namespace, clock=clock, seconds=operator.leave_seconds)

    async def loop(self) -> None:
        """Pass after pass."""
        operator, clock = self._operator, self._operator.clock
        news = operator.watching.news
        backoff = Backoff(_PAUSE)
        pace = Pace(clock.monotonic())
        news.set()
        while True:
            await news.wait()
            operator.settled.clear()
            rest = pace.rest(clock.monotonic(), busy=self.labeller.pending > 0)
            await clock.sleep(max(GATHER, rest))
            news.clear()
            if not operator.watching.ready:
                continue
            began = clock.monotonic()
            try:
                again_at = await self._pass()
            except* KubeError as errors:
                error = errors.exceptions[0]
                self._obstacle(error)
                again_at = began + backoff.next_delay()
            else:
                backoff.reset()
                operator.problem = ""
            pace.spent(clock.monotonic(), operator.figures.plan_seconds)
            # Asking again later which other operators work here does not count as work under way.
            done = again_at is None or again_at == self.others.again_at
            idle = done and not news.is_set() and not self.labeller.pending
            (operator.settled.set if idle else operator.settled.clear)()
            if again_at is not None:
                await self._news_or(max(0.0, again_at - clock.monotonic()))

    async def _pass(self) -> float | None:
        """Make one plan and carry it out; return when to run again without changes."""
        operator, clock = self._operator, self._operator.clock
        others = await self.others.confirmed(operator.watching.suspects())
        begin = operator.stopwatch()
        observed = operator.watching.observed({**self.applier.errors, **self.upgrading.errors}, others)
        spent = operator.stopwatch() - begin
        operator.other_discovery = observed.foreign_nfd
        try:
            await self.policy_absence.check(observed)
        except KubeError:
            self.labeller.want(())
            raise
        begin = operator.stopwatch() - spent
        if operator.figures.plan_seconds < IN_THREAD:
            plan = operator.planner(observed, operator.settings)
        else:  # beside the loop, so that probes are answered and the Lease is renewed meanwhile
            plan = await asyncio.to_thread(operator.planner, observed, operator.settings)
        operator.figures.plan_seconds = operator.stopwatch() - begin
        operator.last = plan
        await self.statuses.take_back(plan)
        holds = await self.leaving.holds(plan)
        try:
            # Before the Nodes, because the labels of a thousand would delay them.
            if not holds and not plan.hold:
                await self.applier.converge(plan)
                await self.endpoints.converge(plan.endpoint_slices)
                await self.upgrading.converge(plan.upgrades)
        finally:
            self.labeller.want(() if holds else plan.nodes)
        await self.statuses.write(plan)
        await self.amd.converge(plan.released)
        self.recorder.record(
            (*plan.advice, *operator.watching.advice(), *self.others.advice(), *self.statuses.advice())
        )
        operator.figures.passed(plan.metrics)
        now = clock.monotonic()
        times = [
            self.applier.again_at,
            self.endpoints.again_at,
            self.upgrading.again_at,
            self.statuses.again_at,
            self.others.again_at,
            None if plan.again_after is None else now + plan.again_after,
            now + 1.0 if holds else None,
        ]
        return min((when for when in times if when is not None), default=None)

    async def _news_or(self, seconds: float) -> None:
        """Wait for changes, at most ``seconds``; then run as if there were one."""
        news = self._operator.watching.news
        await first_of(self._operator.clock.sleep(seconds), news.wait())
        news.set()

    def _obstacle(self, error: BaseException) -> None:
        operator = self._operator
        message = error.one_line() if isinstance(error, KubeError) else describe(error)
        if message != operator.problem:
            log.warning("%s", message)
        operator.problem = message
        operator.figures.broke()


async def find_owner(api: KubeApi, namespace: str, pod: str, *, clock: Clock | None = None) -> Object | None:
    """``own_deployment``, waiting for an API server that is away; None, with a log line, when it may not be read."""
    clock, backoff, warned = clock or SystemClock(), Backoff(_PAUSE), False
    while pod:
        try:
            return await own_deployment(api, namespace, pod)
        except KubeUnreachableError as error:
            log.log(logging.DEBUG if warned else logging.WARNING, "%s", error.one_line())
            warned = True
            await clock.sleep(backoff.next_delay())
        except KubeRefusedError as error:
            log.warning("the operator's own Deployment can't be read: %s", error.one_line())
            break
    return None


async def own_deployment(api: KubeApi, namespace: str, pod: str) -> Object | None:
    """The Deployment that owns this pod, as an owner reference (apiVersion, kind, name, uid). None without one."""
    resource: Resource = PODS
    owner: Object = {"name": pod}
    for kind, following in (("ReplicaSet", kinds.REPLICA_SETS), ("Deployment", kinds.DEPLOYMENTS)):
        obj = await api.get(resource, owner["name"], namespace=namespace) if owner["name"] else None
        owners = map(mapping, items(mapping((obj or {}).get("metadata")).get("ownerReferences")))
        controller = next(
            (reference for reference in owners if reference.get("controller") and reference.get("kind") == kind), None
        )
        if controller is None:
            return None
        resource = following
        owner = {"apiVersion": following.api_version, "kind": kind}
        owner |= {"name": text(controller.get("name")), "uid": text(controller.get("uid"))}
    return owner
