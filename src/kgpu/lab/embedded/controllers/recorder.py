"""Events as client-go's recorder writes them: counted up when repeated, combined when similar, dropped when too many.

``run`` writes them, apart from the controllers: an API server that refuses Events delays nothing.
"""

from __future__ import annotations

import asyncio
import datetime as dt
import logging
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from kgpu.base.errors import KubeError
from kgpu.kube.port import EVENTS, KubeApi, KubeRefusedError, Object, name_of, namespace_of
from kgpu.lab.embedded.controllers.meta import stamp, uid_of

log = logging.getLogger(__name__)

# client-go's event correlator.
_SIMILAR: Final = 10  # different messages of one reason about one object ...
_WITHIN: Final = 600.0  # ... in so many seconds are combined
_BURST: Final = 25.0  # Events of one source about one object,
_REFILL: Final = 1 / 300.0  # and so many more each second
_REMEMBERED: Final = 4096
_WAITING: Final = 2000  # Events; more are dropped, as an API server that is down must not fill the memory


@dataclass(frozen=True, slots=True)
class RecordedEvent:
    """One Event to write."""

    component: str
    about: Object
    type: str
    reason: str
    message: str


@dataclass(slots=True)
class _Similar:
    since: float
    messages: set[str]


@dataclass(slots=True)
class _Budget:
    tokens: float
    at: float


@dataclass(slots=True)
class _Written:
    name: str
    count: int


def reference(about: Object) -> Object:
    """An ObjectReference to the object."""
    fields = {
        "kind": about.get("kind"),
        "namespace": namespace_of(about),
        "name": name_of(about),
        "uid": uid_of(about),
        "apiVersion": about.get("apiVersion"),
        "resourceVersion": about["metadata"].get("resourceVersion"),
    }
    return {key: value for key, value in fields.items() if value}


class Correlator:
    """Decides which Events are written, and how. Pure but for its memory."""

    def __init__(self) -> None:
        self._similar: OrderedDict[tuple[str, ...], _Similar] = OrderedDict()
        self._budgets: OrderedDict[tuple[str, str], _Budget] = OrderedDict()
        self._written: OrderedDict[tuple[str, ...], _Written] = OrderedDict()

    def admit(self, event: RecordedEvent, now: float) -> tuple[tuple[str, ...], str] | None:
        """The Event's identity and message; None when there were too many. ``now`` in seconds."""
        about = (event.component, uid_of(event.about) or name_of(event.about))
        group = (*about, event.type, event.reason)
        similar = self._similar.get(group)
        if similar is None or now - similar.since > _WITHIN:
            similar = _Similar(now, set())
        similar.messages.add(event.message)
        similar.since = now
        _remember(self._similar, group, similar)
        message = event.message
        identity: tuple[str, ...] = (*group, event.message)
        if len(similar.messages) >= _SIMILAR:
            similar.messages.pop()
            message, identity = f"(combined from similar events): {event.message}", group
        budget = self._budgets.get(about) or _Budget(_BURST, now)
        budget.tokens = min(_BURST, budget.tokens + (now - budget.at) * _REFILL)
        budget.at = now
        _remember(self._budgets, about, budget)
        if budget.tokens < 1:
            return None
        budget.tokens -= 1
        return identity, message

    def written(self, identity: tuple[str, ...]) -> _Written | None:
        return self._written.get(identity)

    def remember(self, identity: tuple[str, ...], name: str, count: int) -> None:
        _remember(self._written, identity, _Written(name, count))


def _remember(memory: OrderedDict, key: object, value: object) -> None:  # type: ignore[type-arg]
    memory[key] = value
    memory.move_to_end(key)
    if len(memory) > _REMEMBERED:
        memory.popitem(last=False)


class Recorder:
    """Queues Events about objects and writes them."""

    def __init__(self, api: KubeApi, now: Callable[[], dt.datetime]) -> None:
        self._api = api
        self._now = now
        self._queue: asyncio.Queue[RecordedEvent] = asyncio.Queue(_WAITING)
        self._correlator = Correlator()

    def emit(self, component: str, about: Object, type_: str, reason: str, message: str) -> None:
        """Queue an Event; never waits."""
        try:
            self._queue.put_nowait(RecordedEvent(component, about, type_, reason, message))
        except asyncio.QueueFull:
            log.debug("too many events waiting, dropped: %s %s", reason, message)

    async def run(self) -> None:
        """Write until cancelled."""
        while True:
            event = await self._queue.get()
            try:
                await self._write(event)
            except KubeError as error:
                # A namespace that is going away takes no Events, and nothing depends on one.
                log.debug("event not written: %s", error.one_line())
            finally:
                self._queue.task_done()

    async def flush(self) -> None:
        """Wait until all Events so far are written or dropped."""
        await self._queue.join()

    async def _write(self, event: RecordedEvent) -> None:
        admitted = self._correlator.admit(event, self._now().timestamp())
        if admitted is None:
            return
        identity, message = admitted
        at = stamp(self._now())
        namespace = namespace_of(event.about) or "default"
        known = self._correlator.written(identity)
        if known is not None:
            change = {"count": known.count + 1, "lastTimestamp": at, "message": message}
            try:
                await self._api.patch(EVENTS, known.name, change, namespace=namespace)
            except KubeRefusedError as refused:
                if refused.code != 404:
                    raise
            else:
                self._correlator.remember(identity, known.name, known.count + 1)
                return
        name = f"{name_of(event.about)}.{time.time_ns():x}"
        body = {
            "metadata": {"name": name, "namespace": namespace},
            "involvedObject": reference(event.about),
            "reason": event.reason,
            "message": message,
            "source": {"component": event.component},
            "firstTimestamp": at,
            "lastTimestamp": at,
            "count": 1,
            "type": event.type,
            "eventTime": None,
            "reportingComponent": event.component,
            "reportingInstance": "",
        }
        await self._api.create(EVENTS, body)
        self._correlator.remember(identity, name, 1)
