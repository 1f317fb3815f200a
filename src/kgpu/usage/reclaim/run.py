"""The loop as a controller of ``kgpu.manager``: a round after each of the agents' answers, while this process leads.

Promises: without a GPUUsagePolicy nothing but their list is asked for; an API server that does not answer ends a round
and loses nothing.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Collection, Coroutine, Mapping, Sequence
from typing import Any, Final

from kgpu.base.advice import AdviceSink
from kgpu.base.clock import Clock, SystemClock
from kgpu.base.errors import KubeError
from kgpu.base.http import Response
from kgpu.base.metric_text import head, page
from kgpu.base.problems import describe
from kgpu.base.service import Complaint
from kgpu.formats import names
from kgpu.formats.usage_reclaim import VERSION, ReclaimSaid, encode
from kgpu.kube.events import ClusterEvents
from kgpu.kube.leader_election import LostLeadError
from kgpu.kube.port import KubeApi
from kgpu.usage.hour_prices import HourPrices
from kgpu.usage.now import IdleSource
from kgpu.usage.price_maps import PriceMaps
from kgpu.usage.reclaim.acting import ActingPorts
from kgpu.usage.reclaim.asking import PodMetrics
from kgpu.usage.reclaim.delivery import NoticeDelivery, OpenWebhook
from kgpu.usage.reclaim.record_store import RecordStore
from kgpu.usage.reclaim.rounds import ReclaimRound, RoundMemory
from kgpu.usage.reclaim.writing import EvictPod

EVERY: Final = 60.0
"""Seconds between two rounds, where nothing says when there is news."""


class ReclaimController:
    """The controller. ``source`` says what devices do; ``opened`` opens a webhook, ``evict`` evicts a pod.
    ``price_maps`` are the lists that policies name, which ``prices`` goes by; ``metrics`` are pods' metrics pages.
    ``clocks_ahead``: by how many seconds other machines' clocks are ahead of this one's. ``news`` waits until the
    source knows more; without it a round comes every minute.
    """

    name = "reclaim"

    def __init__(
        self, source: IdleSource, *, namespace: str, opened: OpenWebhook, evict: EvictPod, report: AdviceSink,
        prices: HourPrices | None = None, price_maps: PriceMaps | None = None, metrics: PodMetrics | None = None,
        cluster: str = "", clock: Clock | None = None, now: Callable[[], float] = time.time,
        clocks_ahead: Callable[[], float] = lambda: 0.0, news: Callable[[], Awaitable[None]] | None = None,
    ) -> None:  # fmt: skip
        self._source = source
        self._namespace = namespace
        self._opened = opened
        self._evict = evict
        self._report = report
        self._prices = prices or HourPrices()
        self._price_maps = price_maps
        self._metrics = metrics
        self._cluster = cluster
        self._clock = clock or SystemClock()
        self._now = now
        self._clocks_ahead = clocks_ahead
        self._news = news or (lambda: self._clock.sleep(EVERY))
        self._memory = RoundMemory()
        self._delivery: NoticeDelivery | None = None
        self._problem = ""
        self._complaint = Complaint(report, reason="ReclaimRoundFailed")

    async def watch(self) -> None:
        """Nothing is followed: each round reads what it needs."""
        while True:
            await self._clock.sleep(EVERY)

    def missing(self) -> Collection[str]:
        """Nothing has to be read before the first round."""
        return ()

    def term(self, api: KubeApi) -> Sequence[Coroutine[Any, Any, None]]:
        """The rounds of a term."""
        return (self.rounds(api),)

    def round(self, api: KubeApi) -> ReclaimRound:
        """One that writes by ``api``."""
        ports = ActingPorts(
            api=api, store=RecordStore(api, self._namespace), own_namespace=self._namespace, prices=self._prices,
            events=ClusterEvents(api, component=names.RECLAIM_COMPONENT, now=self._now), evict=self._evict,
        )  # fmt: skip
        self._delivery = NoticeDelivery(
            api, self._namespace, self._opened, clock=self._clock, now=self._now, cluster=self._cluster
        )
        made = ReclaimRound(
            ports, self._source, self._delivery, clock=self._clock, now=self._now, report=self._report,
            price_maps=self._price_maps, metrics=self._metrics, clocks_ahead=self._clocks_ahead,
        )  # fmt: skip
        self._memory.at_work = None  # another process may have led since
        made.memory = self._memory
        return made

    async def rounds(self, api: KubeApi) -> None:
        """Round after round, until cancelled."""
        own = self.round(api)
        while True:
            try:
                await own.once()
            except LostLeadError:
                raise
            except KubeError as error:
                self._problem = error.one_line()
                self._complaint.of(error)
            else:
                self._problem = ""
                self._complaint.over()
            await self._news()

    def ended(self) -> None:
        """The term is over; what waits is on record, and another process knows more from now on."""
        self._memory.looked = None

    def failed(self, error: Exception) -> None:
        """The work died of a defect."""
        self._problem = describe(error)

    def metrics(self) -> str:
        """What is idle, what was done, what was sent."""
        memory, delivery = self._memory, self._delivery
        idle = [f'kgpu_idle_devices{{state="{state}"}} {count}' for state, count in sorted(memory.idle.items())]
        steps = [f'kgpu_reclaim_steps_total{{step="{step}"}} {count}' for step, count in sorted(memory.done.items())]
        sent = (("sent", delivery.sent if delivery else 0), ("failed", delivery.failed if delivery else 0))
        told = [f'kgpu_reclaim_messages_total{{result="{word}"}} {count}' for word, count in sent]
        return page(
            (
                *head("kgpu_idle_devices", "gauge", "GPUs and partitions by what they are doing."), *idle,
                *head("kgpu_reclaim_steps_total", "counter", "Steps that rounds of reclaiming ended with."), *steps,
                *head("kgpu_reclaim_messages_total", "counter", "Messages about idle GPUs, by what came of them."),
                *told,
            )
        )  # fmt: skip

    def page(self) -> Response:
        """What it knows of workloads, for ``kgpu idle``."""
        memory = self._memory
        leads = memory.looked is not None
        said = ReclaimSaid(
            version=VERSION, at=memory.looked, problem=self._problem[:1024], workloads=memory.said if leads else ()
        )
        return Response(200, encode(said), "application/json")

    def status(self) -> Mapping[str, object]:
        """What the status page shows."""
        memory, delivery = self._memory, self._delivery
        return {
            "reclaim": {
                "idle": {str(state): count for state, count in sorted(memory.idle.items())},
                "problems": dict(memory.problems),
                "receivers": dict(delivery.trouble) if delivery else {},
                "problem": self._problem,
            }
        }
