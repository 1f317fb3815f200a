"""Serves the page in the cluster, to whoever the API server knows, until it is told to end.

One gathering by the page's own account serves all who look; what each is shown of it is what the API server lets him
see.
"""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable
from typing import Final

from kgpu.base.http import Address, Response, StatusServer
from kgpu.base.service import first_end, running
from kgpu.base.supervise import stop_on_signals
from kgpu.overview.gather import ClusterGatherer
from kgpu.overview.port import OverviewWorld
from kgpu.overview.reviews import Reviews
from kgpu.overview.run import DEADLINE, PATIENCE
from kgpu.overview.serve import OverviewRoutes
from kgpu.overview.sign_in import TokenAccess
from kgpu.overview.views import LiveViews
from kgpu.top.run import NodeWatch
from kgpu.top.source import GpuNodeSource

MOST_VIEWERS: Final = 40
MOST_OF_ONE: Final = 6
"""Streams of one person: a few windows, which a browser closes where they are hidden."""
ROOM: Final = (128, 64, 64)
"""Connections: behind an ingress or the API server's proxy everybody comes from one address."""


async def host(
    source: GpuNodeSource, world: OverviewWorld, reviews: Reviews, *, address: Address, health: Address | None,
    opened: Callable[[Address], object] = lambda _: None, stop: asyncio.Event | None = None,
) -> None:  # fmt: skip
    """Serve until SIGTERM or SIGINT, or until ``stop`` is set; ``opened`` is given the page's address. Raises HostError
    where an address is not to be had.
    """
    stop = stop or asyncio.Event()
    watch = NodeWatch(source)
    gatherer = ClusterGatherer(watch, world)
    views = LiveViews(gatherer, most=MOST_VIEWERS, most_of_one=MOST_OF_ONE)
    access = TokenAccess(reviews)
    routes = {**OverviewRoutes(gatherer, views, who=access.who).routes(), **access.routes()}
    server = StatusServer(routes, deadline=DEADLINE, patience=PATIENCE, access=access, room=ROOM)
    probes = StatusServer({"/healthz": _ok, "/readyz": _ok})
    try:
        found = await server.start(address)
        if health is not None:
            await probes.start(health)
        with stop_on_signals(stop, signal.SIGTERM, signal.SIGINT):
            async with running(gather=gatherer.run(), views=views.run()) as tasks:
                opened(found)
                await first_end(tasks, stop=stop)
    finally:
        await server.close()
        await probes.close()
        await watch.close()
        await source.close()


def _ok() -> Response:
    """It answers: what it can't read it tells on the page."""
    return Response(200, "ok\n")
