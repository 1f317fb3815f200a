"""Which namespaces' pods a viewer may see: the API server is asked, and its answer holds for a minute.

Nobody is let in by an error: what can't be asked may not be seen.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable
from typing import Final

from kgpu.base.errors import UserError
from kgpu.overview.model import Sees
from kgpu.overview.port import OverviewWorld

HOLDS: Final = 60.0  # seconds
MOST: Final = 500
"""Namespaces that are asked about; further ones may not be seen."""
AT_ONCE: Final = 8


class SeenNamespaces:
    """Asks and remembers."""

    def __init__(self, world: OverviewWorld, now: Callable[[], float] = time.monotonic) -> None:
        self._world = world
        self._now = now
        self._known: dict[str, tuple[bool, float]] = {}
        self._room = asyncio.Semaphore(AT_ONCE)

    async def of(self, namespaces: Iterable[str]) -> Sees:
        """Those of ``namespaces`` that may be seen, None where all of the cluster may."""
        if await self._may(""):
            return None
        wanted = sorted(set(namespaces) - {""})[:MOST]
        answers = await asyncio.gather(*(self._may(name) for name in wanted))
        self._known = {name: said for name, said in self._known.items() if name in {"", *wanted}}
        return frozenset(name for name, allowed in zip(wanted, answers, strict=True) if allowed)

    async def _may(self, namespace: str) -> bool:
        said = self._known.get(namespace)
        if said is not None and self._now() - said[1] < HOLDS:
            return said[0]
        try:
            async with self._room:
                allowed = await self._world.may_see(namespace)
        except UserError:
            allowed = False
        self._known[namespace] = (allowed, self._now())
        return allowed
