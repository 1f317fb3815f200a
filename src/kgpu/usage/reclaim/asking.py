"""Asks pods for their metrics pages, many at once, each with a deadline and a size; what they say goes to the watch."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Final, Protocol

from kgpu.base.errors import UserError
from kgpu.base.printable import one_line
from kgpu.base.threads import beside
from kgpu.kube.port import PodPages
from kgpu.kube.wire import WireError
from kgpu.usage.pod_text import PodPort, pod_text
from kgpu.usage.reclaim.traffic import MetricsPlace, RequestFigures, RequestWatch, read_page

AT_ONCE: Final = 16
DEADLINE: Final = 5.0
"""Seconds for a page."""
ALTOGETHER: Final = 40.0
"""Seconds for all pages of a round."""
MOST_BYTES: Final = 2 << 20
MOST_PODS: Final = 2000


class PodMetrics(Protocol):
    """Where metrics pages come from."""

    async def page(self, place: MetricsPlace) -> str:
        """A pod's page. Raises UserError, WireError and OSError."""
        ...


class PodMetricsPages:
    """``direct``: pods are asked at their addresses, else through the API server."""

    def __init__(self, api: PodPages, *, direct: bool) -> None:
        self._api = api
        self._direct = direct

    async def page(self, place: MetricsPlace) -> str:
        where = PodPort(place.namespace, place.pod, place.address, place.port)
        return await pod_text(self._api, where, place.path, direct=self._direct, limit=MOST_BYTES)


async def ask(
    pages: PodMetrics, asked: Sequence[tuple[MetricsPlace, frozenset[str]]], watch: RequestWatch, now: float
) -> None:
    """Ask each pod, and take what it says or why it does not; the second of a pair are further names of counters."""
    room = asyncio.Semaphore(AT_ONCE)
    left = {place.uid: place.pod for place, _ in asked}

    async def one(place: MetricsPlace, counters: frozenset[str]) -> None:
        async with room:
            watch.take(place.uid, place.pod, await _seen(pages, place, counters), now)
            left.pop(place.uid, None)

    try:
        async with asyncio.timeout(ALTOGETHER):
            await asyncio.gather(*(one(place, counters) for place, counters in asked[:MOST_PODS]))
    except TimeoutError:
        pass  # Of whom nothing is known is told below.
    for uid, pod in left.items():
        watch.take(uid, pod, "there were too many pods to ask in time", now)


async def _seen(pages: PodMetrics, place: MetricsPlace, counters: frozenset[str]) -> RequestFigures | str:
    try:
        async with asyncio.timeout(DEADLINE):
            text = await pages.page(place)
        return await beside(read_page, text, counters)
    except TimeoutError:
        return f"its metrics page does not answer within {DEADLINE:g} s"
    except UserError as error:
        return one_line(error.what, 200)
    except (WireError, OSError) as error:
        return one_line(str(error), 200)
