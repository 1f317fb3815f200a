"""The operator's process: watch, plan, apply, tell; over and over, driven by what changes.

The loop knows only the present: whatever has changed, the whole plan is made anew and only what differs is written. So
it makes no difference whether news was missed, the process was killed in the middle or the API server was away. Changes
are gathered for a moment first, and longer where plans take long. Only the leader writes; one that loses the lead stops
at once and stands by.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import time
import uuid
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any, Final

from kgpu import __version__
from kgpu.base.backoff import Backoff, BackoffPolicy
from kgpu.base.clock import Clock, SystemClock
from kgpu.base.errors import KubeError
from kgpu.base.http import Address, Page, Response, StatusServer, here_only
from kgpu.base.plain import items, mapping, text
from kgpu.base.problems import describe
from kgpu.base.waking import first_of
from kgpu.formats import names
from kgpu.kube import kinds
from kgpu.kube.fence import Fenced
from kgpu.kube.lead import Lead, LeaseTimes, LostLeadError
from kgpu.kube.port import PODS, KubeApi, KubeRefusedError, KubeUnreachableError, Object, Resource
from kgpu.operator.applying import Applier
from kgpu.operator.certain import Certain
from kgpu.operator.labelling import Labeller
from kgpu.operator.leaving import Leaving
from kgpu.operator.metrics import Figures
from kgpu.operator.model import Observed, Plan, Settings
from kgpu.operator.others import Others
from kgpu.operator.pace import Pace
from kgpu.operator.plan import plan as make_plan
from kgpu.operator.statuses import Statuses
from kgpu.operator.tell import Teller
from kgpu.operator.watching import Cluster, Watching

log = logging.getLogger(__name__)

GATHER: Final = 0.05  # seconds in which changes are gathered before a plan
IN_THREAD: Final = 0.2  # seconds; plans that take longer are made in a thread
_PAUSE: Final = BackoffPolicy(first=0.1, cap=3.0, factor=2.0, jitter=0.3, healthy_after=30.0)

Planner = Callable[[Observed, Settings], Plan]


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """What the process was told beside ``Settings``. Addresses are None for nowhere."""

    elect: bool = True
    lease_namespace: str = ""
    lease_times: LeaseTimes = field(default_factory=LeaseTimes)
    identity: str = ""
    metrics: Address | None = None
    health: Address | None = None
    leave_seconds: float = 20.0


class Operator:
    """One operator. ``run`` returns when ``stop`` is set."""

    def __init__(
        self, api: Cluster, settings: Settings, options: Options | None = None, *, clock: Clock | None = None,
        planner: Planner = make_plan,
    ) -> None:  # fmt: skip
        self.api = api
        self.settings = settings
        self.options = options or Options()
        self.clock = clock or SystemClock()
        self.stop = asyncio.Event()
        self.figures = Figures()
        self.watching = Watching(api, settings, clock=self.clock)
        self.addresses: dict[str, Address] = {}
        self.last: Plan | None = None
        self.problem = ""
        """What went wrong in the last pass, "" when nothing did."""
        self.settled = asyncio.Event()
        """Set while the last pass found nothing to do and nothing is under way."""
        self._planner = planner
        self._terms: list[_Term] = []
        self._lead = Lead(
            api,
            namespace=self.options.lease_namespace or settings.namespace,
            name=names.OPERATOR_LEASE,
            identity=self.options.identity or f"kgpu-operator_{uuid.uuid4()}",
            times=self.options.lease_times,
            clock=clock,  # its own, where nobody gives one
        )
        self.guard = self._lead.guard
        """Raises LostLeadError when nothing may be written any more."""

    async def run(self) -> None:
        """Watch and lead until ``stop``. Raises HostError for an address that can't be listened on."""
        servers = await self._serve()
        watch = asyncio.create_task(self.watching.run(), name="watching")
        work = asyncio.create_task(self._work(), name="work")
        stop = asyncio.create_task(self.stop.wait(), name="stop")
        log.info(
            "kgpu %s: operator of namespace %s, layout %s", __version__, self.settings.namespace, self.settings.layout
        )
        try:
            done, _ = await asyncio.wait([watch, work, stop], return_when=asyncio.FIRST_COMPLETED)
            for task in done - {stop}:
                task.result()
        finally:
            for task in (work, watch, stop):
                task.cancel()
            await asyncio.gather(work, watch, stop, return_exceptions=True)
            for server in servers:
                await server.close()
        if self.options.elect:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(2.0):
                    await self._lead.release()
        log.info("stopped")

    async def _work(self) -> None:
        """Term after term as the leader."""
        while True:
            if not self.options.elect:
                await self._term(None)
                continue
            async with self._lead.leading() as renewing:
                await self._term(renewing)

    async def _term(self, renewing: Callable[[], asyncio.Task[None]] | None) -> None:
        """Everything that writes, until the lead is lost; a defect ends the term, too, and the next one begins."""
        term = _Term(self)
        self._terms = [term]
        tasks = [asyncio.create_task(one) for one in (term.loop(), term.labeller.run(), term.teller.run())]
        tasks += [renewing()] if renewing else []
        try:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
        except LostLeadError as error:
            log.error("%s", error.one_line())  # noqa: TRY400 - it is no defect
        except Exception as error:
            log.exception("the operator's work failed and begins anew")
            self.problem = describe(error)
            self.figures.broke()
            await self.clock.sleep(1.0)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            self._terms = []
            self.settled.clear()

    async def _serve(self) -> list[StatusServer]:
        servers = []
        pages: tuple[tuple[str, Address | None, dict[str, Page]], ...] = (
            ("metrics", self.options.metrics, {"/metrics": self.figures.page}),
            (
                "health",
                self.options.health,
                {
                    "/healthz": lambda: Response(200, "ok\n"),
                    "/readyz": self._readyz,
                    "/statusz": here_only(self._statusz),
                },
            ),
        )
        for name, address, routes in pages:
            if address is not None:
                server = StatusServer(routes)
                self.addresses[name] = await server.start(address)
                servers.append(server)
                log.info("%s at http://%s%s", name, self.addresses[name], next(iter(routes)))
        return servers

    def _readyz(self) -> Response:
        """Ready once the cluster has been read: one that stands by is ready to lead."""
        missing = self.watching.missing()
        said = "".join(f"[-] not read yet: {one}\n" for one in missing)
        return Response(503, said) if missing else Response(200, "ready\n")

    def _statusz(self) -> Response:
        term = self._terms[0] if self._terms else None
        document = {
            "version": __version__,
            "namespace": self.settings.namespace,
            "layout": str(self.settings.layout),
            "leads": self._lead.in_time or not self.options.elect,
            "leader": self._lead.holder,
            "unread": list(self.watching.missing()),
            "stale": list(self.watching.stale()),
            "problem": self.problem,
            "passes": self.figures.passes,
            "writes": self.figures.writes,
            "plan_seconds": round(self.figures.plan_seconds, 4),
            "objects": len(self.last.objects) if self.last else 0,
            "nodes_pending": term.labeller.pending if term else 0,
            "refused": {**(term.applier.errors if term else {}), **(term.labeller.errors if term else {})},
            "settled": self.settled.is_set(),
        }
        return Response(200, json.dumps(document, indent=2) + "\n", "application/json")


class _Term:
    """One term as the leader: what has been applied is not known at its start, and so all is applied once."""

    def __init__(self, operator: Operator) -> None:
        self._operator = operator
        api: KubeApi = operator.api
        watching, clock = operator.watching, operator.clock
        count, namespace = operator.figures.wrote, operator.settings.namespace
        if operator.options.elect:
            api = Fenced(api, operator.guard)
        self.certain = Certain(api, watching, clock=clock)
        self.others = Others(api, clock=clock)
        self.applier = Applier(api, watching, operator.settings, clock=clock, count=count)
        self.labeller = Labeller(api, watching, clock=clock, count=count)
        self.statuses = Statuses(api, watching, clock=clock, count=count)
        self.teller = Teller(api, watching, clock=clock, count=count, dropped=operator.figures.dropped)
        self.leaving = Leaving(api, watching, namespace=namespace, clock=clock, seconds=operator.options.leave_seconds)

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
            # To ask once more who else works here is not work under way.
            done = again_at is None or again_at == self.others.again_at
            idle = done and not news.is_set() and not self.labeller.pending
            (operator.settled.set if idle else operator.settled.clear)()
            if again_at is not None:
                await self._news_or(max(0.0, again_at - clock.monotonic()))

    async def _pass(self) -> float | None:
        """One plan, carried out; returns when to come again without news."""
        operator, clock = self._operator, self._operator.clock
        others = await self.others.believed(operator.watching.suspects())
        begin = time.perf_counter()
        observed = operator.watching.observed(self.applier.errors, others)
        spent = time.perf_counter() - begin
        try:
            await self.certain.check(observed)
        except KubeError:
            self.labeller.want(())
            raise
        begin = time.perf_counter() - spent
        if operator.figures.plan_seconds < IN_THREAD:
            plan = operator._planner(observed, operator.settings)
        else:  # beside the loop, so that probes are answered and the Lease is renewed meanwhile
            plan = await asyncio.to_thread(operator._planner, observed, operator.settings)
        operator.figures.plan_seconds = time.perf_counter() - begin
        operator.last = plan
        holds = await self.leaving.holds(plan)
        try:
            # First, because a thousand Nodes' labels would be in their way.
            if not holds and not plan.hold:
                await self.applier.converge(plan)
        finally:
            self.labeller.want(() if holds else plan.nodes)
        await self.statuses.write(plan)
        self.teller.take(
            (*plan.decisions, *operator.watching.decisions(), *self.others.decisions(), *self.statuses.decisions())
        )
        operator.figures.passed(plan.metrics)
        now = clock.monotonic()
        times = [
            self.applier.again_at,
            self.statuses.again_at,
            self.others.again_at,
            None if plan.again_after is None else now + plan.again_after,
            now + 1.0 if holds else None,
        ]
        return min((when for when in times if when is not None), default=None)

    async def _news_or(self, seconds: float) -> None:
        """Wait for news, at most so long; that the time is over is news, too."""
        news = self._operator.watching.news
        await first_of(self._operator.clock.sleep(seconds), news.wait())
        news.set()

    def _obstacle(self, error: BaseException) -> None:
        operator = self._operator
        said = error.one_line() if isinstance(error, KubeError) else describe(error)
        if said != operator.problem:
            log.warning("%s", said)
        operator.problem = said
        operator.figures.broke()


async def find_owner(api: KubeApi, namespace: str, pod: str, *, clock: Clock | None = None) -> Object | None:
    """``own_deployment``, waiting for an API server that is away; None, with a log line, when it may not be read."""
    clock, backoff, told = clock or SystemClock(), Backoff(_PAUSE), False
    while pod:
        try:
            return await own_deployment(api, namespace, pod)
        except KubeUnreachableError as error:
            log.log(logging.DEBUG if told else logging.WARNING, "%s", error.one_line())
            told = True
            await clock.sleep(backoff.next_delay())
        except KubeRefusedError as error:
            log.warning("the operator's own Deployment can't be read: %s", error.one_line())
            break
    return None


async def own_deployment(api: KubeApi, namespace: str, pod: str) -> Object | None:
    """The Deployment that this pod is of, as an owner: apiVersion, kind, name, uid. None when there is none."""
    resource: Resource = PODS
    owner: Object = {"name": pod}
    for kind, following in (("ReplicaSet", kinds.REPLICA_SETS), ("Deployment", kinds.DEPLOYMENTS)):
        obj = await api.get(resource, owner["name"], namespace=namespace) if owner["name"] else None
        owners = map(mapping, items(mapping((obj or {}).get("metadata")).get("ownerReferences")))
        found = next((one for one in owners if one.get("controller") and one.get("kind") == kind), None)
        if found is None:
            return None
        resource = following
        owner = {"apiVersion": following.api_version, "kind": kind}
        owner |= {"name": text(found.get("name")), "uid": text(found.get("uid"))}
    return owner


async def serve(make: Callable[[asyncio.Event], Coroutine[Any, Any, None]]) -> None:
    """Run until SIGTERM or SIGINT set the event that ``make`` is given."""
    import signal

    from kgpu.base.supervise import stop_on_signals

    stop = asyncio.Event()
    with stop_on_signals(stop, signal.SIGTERM, signal.SIGINT):
        await make(stop)
