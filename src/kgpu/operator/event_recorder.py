"""Reports advice: each record becomes a log line and, when a person should see it, an Event.

Advice that stays true is not reported again; the Event of one that comes back is counted up.
"""

from __future__ import annotations

import asyncio
import dataclasses
import logging
from collections.abc import Callable, Iterable
from typing import Final

from kgpu.base.advice import Advice
from kgpu.base.backoff import Backoff, BackoffPolicy
from kgpu.base.clock import Clock
from kgpu.base.errors import KubeError
from kgpu.base.log import log_advice
from kgpu.base.waits import first_of
from kgpu.formats import names
from kgpu.kube import kinds
from kgpu.kube.events import ClusterEvents, about_node
from kgpu.kube.port import KubeApi, KubeUnreachableError, Object, Resource
from kgpu.operator.budget import Budget
from kgpu.operator.statuses import STATUSES
from kgpu.operator.watching import ClusterWatching

log = logging.getLogger(__name__)

REPEAT_AFTER: Final = 600.0  # seconds until the same advice may become an Event again
_PAUSE: Final = BackoffPolicy(first=0.2, cap=3.0, factor=2.0, jitter=0.3, healthy_after=60.0)


class EventRecorder:
    """Logs advice and records it as Events. ``run`` writes the Events."""

    def __init__(
        self, api: KubeApi, watching: ClusterWatching, *, clock: Clock, count: Callable[[str], None],
        dropped: Callable[[int], None] = lambda _: None,
    ) -> None:  # fmt: skip
        """``dropped`` is called with the number of records that became no Event because there were too many."""
        self._events = ClusterEvents(api, component=names.OPERATOR_COMPONENT)
        self._watching = watching
        self._clock = clock
        self._count = count
        self._true: frozenset[Advice] = frozenset()
        self._told: dict[Advice, float] = {}
        self._budget = Budget(clock)
        self._dropped = dropped
        self._work = asyncio.Event()

    def record(self, records: Iterable[Advice]) -> None:
        """Take all advice that is true now, and report what was not true before."""
        true, now, before = frozenset(records), self._clock.monotonic(), self._budget.dropped
        for record in sorted(true - self._true, key=lambda advice: (advice.subject, advice.reason, advice.what)):
            log_advice(log, record)
            if _is_told(record) and now - self._told.get(record, -REPEAT_AFTER) >= REPEAT_AFTER:
                self._told[record] = now
                self._budget.add(record)
                self._work.set()
        self._true = true
        if self._budget.dropped > before:
            self._dropped(self._budget.dropped - before)
            log.warning("%d Events are not written: too many at once", self._budget.dropped - before)
        self._told = {record: at for record, at in self._told.items() if record in true or now - at < REPEAT_AFTER}

    async def run(self) -> None:
        """Write Events until cancelled, as many as the budget allows; waits for an API server that does not answer."""
        backoff = Backoff(_PAUSE)
        while True:
            while not len(self._budget):
                self._work.clear()
                await self._work.wait()
            advice, wait = self._budget.next()
            if advice is None:
                await self._sleep(wait)
                continue
            while True:
                try:
                    await self._publish(advice)
                    break
                except KubeUnreachableError:
                    await self._clock.sleep(backoff.next_delay())
                except KubeError as error:
                    log.warning("an Event was not written: %s", error.one_line())
                    break
            backoff.reset()

    async def _sleep(self, seconds: float) -> None:
        """Sleep until there is budget, or advice on another subject."""
        self._work.clear()
        await first_of(self._clock.sleep(seconds), self._work.wait())

    async def _publish(self, advice: Advice) -> None:
        about = self._about(advice.subject)
        if about is not None:
            self._count("Event")
            await self._events.publish(dataclasses.replace(advice, subject=""), about)

    def _about(self, subject: str) -> Object | None:
        """The object of a subject (``Node/<name>``, ``ClusterPolicy/<name>``, ``NVIDIADriver/<name>``), else the
        policy.
        """
        kind, _, name = subject.partition("/")
        if kind == "Node" and name:
            return about_node(name)
        for feed, resource, _ in STATUSES:
            if resource.kind == kind and not resource.namespaced:  # Events about others would need more rights
                known = self._watching.objects(feed).get(("", name))
                return known and _reference(resource, known)
        policies = sorted(self._watching.objects("policies").items())
        return _reference(kinds.CLUSTER_POLICIES, policies[0][1]) if policies else None


def _is_told(advice: Advice) -> bool:
    """Whether a record becomes an Event: what a person should see, and the steps of a driver's upgrade."""
    return advice.severity.notable or advice.reason == names.DRIVER_UPGRADE_EVENT


def _reference(resource: Resource, obj: Object) -> Object:
    metadata = obj["metadata"]
    return {
        "apiVersion": resource.api_version, "kind": resource.kind, "name": metadata["name"], "uid": metadata["uid"],
    }  # fmt: skip
