"""The optional process beside the operator that knows usage: it hosts the loops that need history, a row for each.

It is no part of the operator, whose memory has to stay small. One process a cluster; what only reads works without
election, and a loop that writes is fenced by a Lease of its own name.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Final

from kgpu.base.advice import AdviceSink
from kgpu.base.clock import Clock
from kgpu.base.daemon_executor import wait_for_no_thread
from kgpu.base.http import Address, Page, Response
from kgpu.base.log import log_advice
from kgpu.base.service import end, first_end
from kgpu.base.supervise import stop_on_signals
from kgpu.base.threads import beside
from kgpu.formats import names
from kgpu.formats.usage_prices import PRICES_PATH, encode
from kgpu.formats.usage_reclaim import RECLAIM_PATH
from kgpu.manager.controller import LeaderController
from kgpu.manager.run import ManagerProcess, Options
from kgpu.usage.agents import AgentsApi, UsageAgents, UsagePod
from kgpu.usage.history import UsageHistory
from kgpu.usage.hour_prices import HourPrices
from kgpu.usage.listening import UsageListener
from kgpu.usage.price_maps import PriceMaps
from kgpu.usage.store import UsageStore

log = logging.getLogger(__name__)


WINDOW_SECONDS: Final = 24 * 3600.0
"""What is asked of agents for judging: any window of up to a day."""


@dataclass(frozen=True, slots=True, kw_only=True)
class UsageScene:
    """What the loops share. ``listener.heard`` is the ``IdleSource``, as new as the last minute's round. ``price_maps``
    are the lists that ``prices`` goes by; ``direct`` is as in the options. A loop adds its pages to ``pages``.
    """

    api: AgentsApi
    namespace: str
    listener: UsageListener
    report: AdviceSink
    prices: HourPrices = field(default_factory=HourPrices)
    price_maps: PriceMaps | None = None
    direct: bool = True
    env: Mapping[str, str] = field(default_factory=dict)
    pages: dict[str, Page] = field(default_factory=dict)
    clock: Clock | None = None


@dataclass(frozen=True, slots=True)
class UsageLoop:
    """A loop: how it is made, None where it is not wanted; ``writes``: it needs the lead."""

    name: str
    make: Callable[[UsageScene], LeaderController | None]
    writes: bool = False


def _reclaim(scene: UsageScene) -> LeaderController | None:
    """What follows GPUUsagePolicies, where the chart has given it its rights."""
    if scene.env.get(names.ENV_RECLAIM) != "true":
        return None
    from kgpu.notifications.webhook import Webhook
    from kgpu.operations.writing import evict
    from kgpu.usage.reclaim.asking import PodMetricsPages
    from kgpu.usage.reclaim.run import ReclaimController

    controller = ReclaimController(
        scene.listener.heard, namespace=scene.namespace, opened=Webhook, evict=evict, report=scene.report,
        prices=scene.prices, price_maps=scene.price_maps, clock=scene.clock,
        metrics=PodMetricsPages(scene.api, direct=scene.direct), cluster=scene.env.get(names.ENV_CLUSTER_NAME, ""),
        clocks_ahead=scene.listener.heard.clocks_ahead, news=scene.listener.asked_again,
    )  # fmt: skip
    scene.pages[RECLAIM_PATH] = controller.page
    return controller


LOOPS: Final[tuple[UsageLoop, ...]] = (
    UsageLoop("listening", lambda scene: scene.listener),
    UsageLoop("reclaim", _reclaim, writes=True),
)  # fmt: skip
"""Another loop over usage is a row here."""


@dataclass(frozen=True, slots=True, kw_only=True)
class UsageHostOptions:
    """``direct``: agents are reached at their pods' addresses; else through the API server. ``prices``: the ConfigMap
    with the cluster's price list, "" for kgpu's own.
    """

    namespace: str
    folder: Path
    days: float = 400.0
    max_bytes: int = 2 << 30
    prices: str = ""
    pages: Address | None = None
    health: Address | None = None
    direct: bool = True


def host(scene: UsageScene, options: Options, loops: Sequence[UsageLoop] = LOOPS) -> ManagerProcess:
    """The process with the loops that are wanted. It leads only where one of them writes."""
    made = [(loop, controller) for loop in loops if (controller := loop.make(scene)) is not None]
    wanted = replace(options, elect=any(loop.writes for loop, _ in made))
    return ManagerProcess(scene.api, [controller for _, controller in made], wanted, clock=scene.clock)


CLOSING: Final = 3.0
"""Seconds for closing the history. It is whole without that, too: a disk that hangs holds up nobody."""


async def keep(
    api: AgentsApi, options: UsageHostOptions, *, loops: Sequence[UsageLoop] = LOOPS,
    started: Callable[[ManagerProcess], object] = lambda _: None,
) -> None:  # fmt: skip
    """Run the process until SIGTERM. Raises HostError where the history can't be kept, or an address not be used.

    It ends within seconds whatever hangs: the disk, name resolution, the API server or a receiver.
    """
    wait_for_no_thread()
    stop = asyncio.Event()
    # From the beginning: the first process of a container has no other way to end.
    with stop_on_signals(stop, signal.SIGTERM, signal.SIGINT):
        store = UsageStore(options.folder / "history.sqlite", days=options.days, max_bytes=options.max_bytes)
        opening = asyncio.create_task(beside(store.open))
        try:
            await first_end([opening], stop=stop)
            if not opening.done():
                return
            for advice in opening.result():
                log_advice(log, advice)
            process = _process(api, options, store, loops)
            process.stop = stop
            started(process)
            await process.run()
        finally:
            await end(opening)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(CLOSING):
                    await beside(store.close)


def _process(
    api: AgentsApi, options: UsageHostOptions, store: UsageStore, loops: Sequence[UsageLoop]
) -> ManagerProcess:
    """The process over a store that is open."""
    report = partial(log_advice, log)
    agents = UsageAgents(api, namespace=options.namespace, direct=options.direct)
    maps = PriceMaps(api, options.namespace, usual=options.prices, memory=store, report=report)
    prices = HourPrices(maps.book)
    history = UsageHistory(agents, store, report=report, prices=prices)

    async def each_round(found: Sequence[UsagePod]) -> None:
        await maps.look()
        for agent in listener.heard.by_node.values():
            prices.nodes.count(agent.said.node, (one.device for one in agent.said.devices))
        await history.round(found)

    listener = UsageListener(
        agents, seconds=WINDOW_SECONDS, report=report, each_round=each_round, figures=history.metrics
    )
    pages: dict[str, Page] = {
        **history.pages(), PRICES_PATH: lambda: Response(200, encode(maps.said()), "application/json"),
    }  # fmt: skip
    scene = UsageScene(
        api=api, namespace=options.namespace, listener=listener, report=report, env=dict(os.environ), prices=prices,
        price_maps=maps, direct=options.direct, pages=pages,
    )  # fmt: skip
    return host(
        scene,
        Options(
            lease_namespace=options.namespace, lease_name=names.USAGE_DEPLOYMENT, metrics=options.pages,
            health=options.health,
            pages=pages,
        ),
        loops,
    )  # fmt: skip
