"""Serves the page of one cluster on this machine until it is told to end."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from kgpu.base.http import Address, Request, StatusServer
from kgpu.base.service import first_end, running
from kgpu.base.supervise import stop_on_signals
from kgpu.overview.access import LocalViewer
from kgpu.overview.gather import ClusterGatherer
from kgpu.overview.model import LabButtons
from kgpu.overview.port import OverviewWorld
from kgpu.overview.serve import OverviewRoutes
from kgpu.overview.session import LocalSession
from kgpu.overview.views import LiveViews
from kgpu.top.run import NodeWatch
from kgpu.top.source import GpuNodeSource

if TYPE_CHECKING:
    from kgpu.overview.lab_actions import LabGpus

LOOPBACK: Final = "127.0.0.1"
DEADLINE: Final = 30.0
"""Seconds for a request to arrive and its page to be made, which takes long where a laptop has much else to do."""
PATIENCE: Final = 10.0
"""Seconds that a browser has to take an answer, or a piece of its updates."""


async def serve(
    source: GpuNodeSource, world: OverviewWorld, *, port: int, opened: Callable[[str], None],
    lab: LabGpus | None = None, stop: asyncio.Event | None = None,
) -> None:  # fmt: skip
    """Serve until SIGTERM or SIGINT, or until ``stop`` is set; ``opened`` is given the link. Raises HostError where the
    port is not to be had.
    """
    stop = stop or asyncio.Event()
    session = LocalSession()
    watch = NodeWatch(source)
    gatherer = ClusterGatherer(watch, world)

    def buttons() -> LabButtons | None:
        return LabButtons(secret=session.secret, nodes=lab.nodes, actions=lab.actions) if lab else None

    viewer = LocalViewer(world)

    async def who(_: Request) -> LocalViewer:
        return viewer

    views = LiveViews(gatherer, buttons)
    routes = OverviewRoutes(gatherer, views, who=who, secret=session.secret, lab=lab).routes()
    server = StatusServer(routes, deadline=DEADLINE, patience=PATIENCE, access=session)
    try:
        address = await server.start(Address(LOOPBACK, port))
        gatherer.look()
        with stop_on_signals(stop, signal.SIGTERM, signal.SIGINT):
            async with running(gather=gatherer.run(), views=views.run()) as tasks:
                opened(session.opened(LOOPBACK, address.port))
                await first_end(tasks, stop=stop)
    finally:
        await server.close()
        await watch.close()
        await source.close()
