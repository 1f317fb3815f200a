"""The scheduling loop: follows the API, decides on one pod after another, and binds it or writes why it can't.

Only pods that name this scheduler are touched. No resource is given twice: a pod counts on its node from the decision
on, before the API server has confirmed it. A failing API server costs a pause and loses no pod. Messages, conditions
and Events are kube-scheduler's.
"""

from __future__ import annotations

import asyncio
import datetime as dt
import logging
import random
from collections.abc import Callable, Collection, Coroutine
from dataclasses import replace
from typing import Any, Final

from kgpu.base.clock import Clock, SystemClock
from kgpu.fit import ClusterSnapshot, PodView, claims, read
from kgpu.fit.checks import FilterFaultError
from kgpu.fit.cycle import Cycle
from kgpu.fit.devices.reservations import ClaimGrant, SchedulerDevices, cel
from kgpu.fit.model import ClaimView
from kgpu.fit.score import ScoreFaultError, scores
from kgpu.fit.verdict import SCHEDULER_ERROR, FitVerdict, conclude, feasible, verdict
from kgpu.kube.informer import Informer, Scope
from kgpu.kube.port import NODES, PODS, Change, KubeApi, Object, Resource, name_of, namespace_of
from kgpu.lab.embedded.controllers import kinds
from kgpu.lab.embedded.controllers.cluster import wall_clock
from kgpu.lab.embedded.controllers.pacing import PacedApi, take_turn
from kgpu.lab.embedded.controllers.recorder import Recorder
from kgpu.lab.embedded.scheduler.act import SchedulerWriter
from kgpu.lab.embedded.scheduler.binding import BindingWait
from kgpu.lab.embedded.scheduler.claim_writing import ClaimWriter, ClaimWritingError
from kgpu.lab.embedded.scheduler.queue import ClusterEvent, Queue

log = logging.getLogger(__name__)

DEFAULT_NAME: Final = "default-scheduler"

_FOLLOWED: Final[tuple[tuple[Resource, ClusterEvent], ...]] = (
    (kinds.NAMESPACES, ClusterEvent.POD_LABELS),
    (kinds.VOLUME_CLAIMS, ClusterEvent.VOLUME),
    (kinds.VOLUMES, ClusterEvent.VOLUME),
    (kinds.STORAGE_CLASSES, ClusterEvent.VOLUME),
    (kinds.DISRUPTION_BUDGETS, ClusterEvent.POD_GONE),
    (kinds.RESOURCE_SLICES, ClusterEvent.CLAIM),
    (kinds.DEVICE_CLASSES, ClusterEvent.DEVICE_CLASS),
    (kinds.RESOURCE_CLAIMS, ClusterEvent.CLAIM),
    (NODES, ClusterEvent.NODE),
)
"""All followed kinds but pods, with the event that a change of one is."""
_TAINT_RULES: Final = ((kinds.DEVICE_TAINT_RULES, ClusterEvent.CLAIM),)
_SMALL: Final = 100  # nodes: smaller clusters are searched whole, larger ones until a share fits


def enough_of(nodes: int) -> int:
    """How many fitting nodes to look for, as kube-scheduler does: below 100 nodes all, above a falling share."""
    return max(_SMALL, nodes * max(5, 50 - nodes // 125) // 100) if nodes >= _SMALL else max(nodes, 1)


class Scheduler:
    """One scheduler under one name. ``run`` it; the rest is for tests."""

    def __init__(
        self,
        api: KubeApi,
        *,
        name: str = DEFAULT_NAME,
        clock: Clock | None = None,
        now: Callable[[], dt.datetime] = wall_clock,
        dice: random.Random | None = None,
        taint_rules: bool = False,
    ) -> None:
        """``dice`` choose between nodes of equal score; ``taint_rules``: DeviceTaintRules are served."""
        self.name = name
        self.snapshot = ClusterSnapshot()
        self.snapshot.classes_offer = True
        self.queue = Queue()
        self._devices = self.snapshot.fitter = SchedulerDevices(self.snapshot, cel)
        self._clock = clock or SystemClock()
        self._dice = dice or random.Random()  # noqa: S311 - nothing secret is drawn
        self._recorder = Recorder(api, now)
        self._actions = SchedulerWriter(api, self._recorder, name, now)
        self._objects: dict[str, Object] = {}
        self._assumed: dict[str, str] = {}
        self._news = asyncio.Event()
        self._start = 0
        self._tasks: set[asyncio.Task[None]] = set()
        self._pods = Informer(api, Scope(PODS), clock=clock, on_change=self._pod_changed)
        others = {
            resource: Informer(api, Scope(resource), clock=clock, on_change=self._other(event))
            for resource, event in (*_FOLLOWED, *(_TAINT_RULES if taint_rules else ()))
        }
        self._others = list(others.values())
        self._claims = ClaimWriter(api, others[kinds.RESOURCE_CLAIMS].learn, now)
        self.snapshot.now = now
        self._attaching = BindingWait(self.snapshot)

    async def run(self) -> None:
        """Schedule until cancelled."""
        informers = (*self._others, self._pods)
        async with asyncio.TaskGroup() as group:
            group.create_task(self._recorder.run())
            for informer in informers:
                group.create_task(informer.run())
            for informer in informers:
                await informer.synced.wait()
            await self._loop()

    async def _loop(self) -> None:
        while True:
            entry = self.queue.pop(self._clock.monotonic())
            if entry is None:
                await self._rest()
                continue
            pod = self.snapshot.pods.get(entry.uid)
            if pod is None or pod.node or pod.deleting:
                self.queue.remove(entry.uid)
                continue
            try:
                await self._decide(pod)
            except Exception:
                # One pod whose scheduling fails must not keep the others waiting.
                log.exception("%s could not be scheduled", pod.id)
                self.queue.failed(entry.uid, self._clock.monotonic())
            await take_turn()

    async def _rest(self) -> None:
        self._news.clear()
        pause = self.queue.next_time(self._clock.monotonic())
        waits: list[asyncio.Task[Any]] = [asyncio.create_task(self._news.wait())]
        if pause is not None:
            waits.append(asyncio.create_task(self._clock.sleep(pause)))
        try:
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for wait in waits:
                wait.cancel()

    # Following the API

    def _pod_changed(self, change: Change, obj: Object) -> None:
        try:
            self._pod(change, obj)
        except Exception:
            log.exception("pod %s/%s could not be read", namespace_of(obj), name_of(obj))

    def _pod(self, change: Change, obj: Object) -> None:
        view = read.pod(obj)
        if view is None:
            return
        before = self.snapshot.pods.get(view.id)
        gone = change is Change.DELETED or view.terminal
        if gone:
            self._objects.pop(view.id, None)
            self._assumed.pop(view.id, None)
            self.snapshot.drop(view)
            self.queue.remove(view.id)
            if before is not None and (before.node or before.nominated):
                self._notify(ClusterEvent.POD_GONE)
            return
        self._objects[view.id] = obj
        if view.node:
            self._assumed.pop(view.id, None)
            self.snapshot.put(view)
            self.queue.remove(view.id)
            self._placed(before, view)
            return
        assumed = self._assumed.get(view.id)
        self.snapshot.put(replace(view, node=assumed) if assumed else view)
        if assumed or view.scheduler != self.name:
            return
        if view.deleting or view.gates or claims.gate(view, self.snapshot):
            self.queue.remove(view.id)
        elif before is None or _worth_a_try(before, view) or view.id not in self.queue.entries:
            self.queue.add(view.id, view.priority, self._clock.monotonic())
            self._news.set()

    def _placed(self, before: PodView | None, view: PodView) -> None:
        if before is None or not before.node:
            self._notify(ClusterEvent.POD_PLACED)
        elif before.labels != view.labels:
            self._notify(ClusterEvent.POD_LABELS)
        if before is not None and before.node and any(view.used.get(n, 0) < have for n, have in before.used.items()):
            self._notify(ClusterEvent.POD_GONE)

    def _other(self, event: ClusterEvent) -> Callable[[Change, Object], None]:
        def follow(change: Change, obj: Object) -> None:
            try:
                views = list(read.views((obj,)))
                if event in (ClusterEvent.CLAIM, ClusterEvent.DEVICE_CLASS):
                    self._devices.follow(change, obj)
            except Exception:
                log.exception("%s could not be read", name_of(obj))
                return
            helped: Collection[str] | None = None
            for view in views:
                if isinstance(view, ClaimView):
                    helped = self._helped(view, gone=change is Change.DELETED)
                if change is Change.DELETED:
                    self.snapshot.drop(view)
                else:
                    self.snapshot.put(view)
            if event in (ClusterEvent.CLAIM, ClusterEvent.DEVICE_CLASS):
                self._wait_for_claims()
                self._attaching.changed()
            self._notify(event, helped)

        return follow

    def _helped(self, claim: ClaimView, *, gone: bool) -> Collection[str] | None:
        """The pods that a change of a claim may help: those that use it; all (None) where it gives devices back."""
        before = self.snapshot.shelf.claims.get(claim.key)
        if before is not None and before.allocated and (gone or not claim.allocated):
            return None
        if before is not None and _status(before) == _status(claim):
            return ()
        return {
            pod.id
            for pod in self.snapshot.pods.values()
            if pod.namespace == claim.namespace and any(entry.claim == claim.name for entry in pod.claims)
        }

    def _wait_for_claims(self) -> None:
        """Queue pods that were not queued because a claim was missing."""
        for pod in list(self.snapshot.pods.values()):
            idle = pod.claims and not pod.node and not pod.gates and pod.scheduler == self.name
            if idle and pod.id not in self.queue.entries and not claims.gate(pod, self.snapshot):
                self.queue.add(pod.id, pod.priority, self._clock.monotonic())

    def _notify(self, event: ClusterEvent, only: Collection[str] | None = None) -> None:
        self.queue.notify(event, self._clock.monotonic(), only)
        self._news.set()

    # Deciding

    async def _decide(self, pod: PodView) -> None:
        snapshot = self.snapshot
        cycle = Cycle(pod, snapshot) if snapshot.nodes else None
        try:
            node = await self._choose(cycle) if cycle is not None and cycle.rejection is None else ""
        except FilterFaultError:
            node = ""  # the verdict says so
        except ScoreFaultError as fault:
            self._fail(pod, str(fault))
            return
        now = snapshot.pods.get(pod.id)
        if now is None or now.node or now.deleting:
            self.queue.remove(pod.id)
            return
        pod = now
        if node:
            grants = self._devices.reserve(pod, snapshot.nodes[node])
            if grants is None:
                self.queue.failed(pod.id, self._clock.monotonic())
                return
            self._assumed[pod.id] = node
            snapshot.put(replace(pod, node=node))
            self._spawn(self._bind(pod, node, grants))
            return
        fit_verdict = conclude(cycle) if cycle is not None else verdict(pod, snapshot)
        nominated = self._nominate(pod, fit_verdict)
        filters = {refusal.filter for refusal in fit_verdict.refused.values()}
        if fit_verdict.rejection is not None:
            filters.add(fit_verdict.rejection.filter)
        if fit_verdict.reason == SCHEDULER_ERROR:
            self.queue.failed(pod.id, self._clock.monotonic())
        else:
            self.queue.refused(pod.id, filters or {"NodeName"}, self._clock.monotonic())
        if obj := self._objects.get(pod.id):
            self._spawn(self._actions.refuse(obj, fit_verdict, nominated))
        if fit_verdict.preemption is not None:
            self._spawn(self._preempt(pod, fit_verdict))
        if (freed := fit_verdict.deallocates) is not None:
            self._spawn(self._claims.remove(freed) if freed.extended_for else self._claims.deallocate(freed))

    def _fail(self, pod: PodView, message: str) -> None:
        """The pod is tried again after a pause, whatever happens meanwhile."""
        self.queue.failed(pod.id, self._clock.monotonic())
        if obj := self._objects.get(pod.id):
            self._spawn(self._actions.refuse(obj, _fault(pod, message), ""))

    async def _choose(self, cycle: Cycle) -> str:
        """The best node, "" for none."""
        pod, nodes = cycle.pod, self.snapshot.nodes
        reserved = nodes.get(pod.nominated)
        if reserved is not None and cycle.judge(reserved) is None:
            return reserved.name
        names, looked = feasible(cycle, enough=enough_of(len(nodes)), start=self._start)
        self._start = (self._start + looked) % max(len(nodes), 1)
        if len(names) <= 1:
            return names[0] if names else ""
        # In a large cluster each half takes some milliseconds. Only this scheduler binds pods, so that changes in
        # between make a choice worse but not wrong.
        await take_turn()
        left = [nodes[name] for name in names if name in nodes]
        if not left:
            return ""
        points = scores(pod, left, self.snapshot)
        best = max(points.values())
        return self._dice.choice([name for name, score in points.items() if score == best])

    def _nominate(self, pod: PodView, fit_verdict: FitVerdict) -> str | None:
        """The node to nominate, "" for none, None to leave the nomination as it is."""
        if fit_verdict.preemption is not None:
            node = fit_verdict.preemption.node
            self.snapshot.put(replace(pod, nominated=node))
            return node
        waits = "not eligible due to a terminating pod" in fit_verdict.message
        if pod.nominated and not waits:
            self.snapshot.put(replace(pod, nominated=""))
        return None if waits else ""

    async def _bind(self, pod: PodView, node: str, grants: tuple[ClaimGrant, ...]) -> None:
        obj = self._objects.get(pod.id)
        if obj is not None and await self._granted(pod, obj, node, grants) and await self._actions.bind(obj, node):
            self.queue.done(pod.id)
            self._claims.bound(pod)
            return
        if grants:
            await self._claims.take_back(pod, grants)
        if self._assumed.pop(pod.id, None) is not None and pod.id in self.snapshot.pods:
            self.snapshot.put(pod)
            self.queue.failed(pod.id, self._clock.monotonic())
            self._notify(ClusterEvent.POD_GONE)
        self._news.set()

    async def _granted(self, pod: PodView, obj: Object, node: str, grants: tuple[ClaimGrant, ...]) -> bool:
        """Whether the pod has its claims now, and their devices are attached to the node."""
        try:
            await self._written(pod, grants)
            made = self._claims.made(pod)
            keys = [made.key if grant.extended is not None and made else grant.claim.key for grant in grants]
            await self._attaching.attached(keys, lambda: self._actions.waits(obj, node))
        except ClaimWritingError as error:
            await self._actions.refuse(obj, _fault(pod, str(error)), "")
            return False
        return True

    async def _written(self, pod: PodView, grants: tuple[ClaimGrant, ...]) -> None:
        try:
            await self._claims.grant(pod, grants)
        finally:
            # What was written is known by now.
            for grant in grants:
                if grant.allocation is not None:
                    self._devices.release(grant.claim.uid)

    async def _preempt(self, pod: PodView, fit_verdict: FitVerdict) -> None:
        assert fit_verdict.preemption is not None
        node = fit_verdict.preemption.node
        for victim in fit_verdict.preemption.victims:
            obj = self._objects.get(victim.id)
            if obj is not None and not victim.deleting:
                await self._actions.preempt(obj, pod, node)
        # Pods of lower priority lose their nomination to this node.
        for nominee in list(self.snapshot.nominated.get(node, {}).values()):
            if nominee.priority < pod.priority and (obj := self._objects.get(nominee.id)):
                await self._actions.withdraw(obj)

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


def _status(claim: ClaimView) -> tuple[object, ...]:
    """What of a claim's status concerns the pods that use it."""
    return claim.allocated, claim.reserved_for, claim.binding


def _fault(pod: PodView, message: str) -> FitVerdict:
    return FitVerdict(pod=pod, nodes=0, reason=SCHEDULER_ERROR, message=message)


def _worth_a_try(before: PodView, view: PodView) -> bool:
    """Whether a field of the pod changed that matters for scheduling; its status does not."""
    return (
        before.labels != view.labels
        or before.tolerations != view.tolerations
        or before.gates != view.gates
        or before.requests != view.requests
        or before.node_selector != view.node_selector
        or before.node_terms != view.node_terms
        or before.claims != view.claims
    )


async def run(api: KubeApi, *, name: str = DEFAULT_NAME, taint_rules: bool = False) -> None:
    """Schedule the pods whose ``schedulerName`` is ``name`` until cancelled."""
    await Scheduler(PacedApi(api), name=name, taint_rules=taint_rules).run()
