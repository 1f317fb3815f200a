"""Which namespaces' pods a viewer may see: the API server is asked, and its answer holds for a while.

Nobody is let in by an error: what can't be asked may not be seen.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterable
from typing import Final, Protocol

from kgpu.base.errors import UserError
from kgpu.overview.model import Sees, ViewerRights
from kgpu.overview.port import OverviewWorld

HOLDS: Final = 60.0  # seconds
FAILED_HOLDS: Final = 5.0
"""Seconds after a question without an answer in which the same is not asked again."""
MOST: Final = 500
"""Namespaces that are asked about; further ones may not be seen."""
AT_ONCE: Final = 8


class RememberedAnswers:
    """Asks about something by its name, and remembers for ``holds`` seconds."""

    def __init__(
        self, ask: Callable[[str], Awaitable[bool]], now: Callable[[], float] = time.monotonic, *, holds: float = HOLDS,
        room: asyncio.Semaphore | None = None,
    ) -> None:  # fmt: skip
        self._ask = ask
        self._now = now
        self._holds = holds
        self._known: dict[str, tuple[bool, float]] = {}
        self._room = room or asyncio.Semaphore(AT_ONCE)

    async def may(self, name: str) -> bool:
        """The answer of the API server, no where there is none."""
        said = self._known.get(name)
        if said is not None and self._now() - said[1] < self._holds:
            return said[0]
        at = self._now()  # an answer may be as old as its question
        try:
            async with self._room:
                allowed = await self._ask(name)
        except UserError:
            allowed, at = False, self._now() - self._holds + FAILED_HOLDS
        self._known[name] = (allowed, at)
        return allowed

    def forget_others(self, names: Iterable[str]) -> None:
        """Keep what is known of these alone."""
        kept = frozenset(names)
        self._known = {name: said for name, said in self._known.items() if name in kept}


class SeenNamespaces:
    """Which namespaces somebody sees, by what is remembered of the answers."""

    def __init__(self, answers: RememberedAnswers) -> None:
        self._answers = answers

    async def of(self, namespaces: Iterable[str]) -> Sees:
        """Those of ``namespaces`` that may be seen, None where all of the cluster may."""
        if await self._answers.may(""):
            return None
        wanted = sorted(set(namespaces) - {""})[:MOST]
        answers = await asyncio.gather(*map(self._answers.may, wanted))
        self._answers.forget_others({"", *wanted})
        return frozenset(name for name, allowed in zip(wanted, answers, strict=True) if allowed)


class OverviewViewer(Protocol):
    """Somebody who looks. ``name`` is what others count his streams by, and ``leaves`` whether he can sign out."""

    name: str
    leaves: bool

    async def rights(self, namespaces: Iterable[str]) -> ViewerRights:
        """What he may see now, of these namespaces."""
        ...

    async def stays(self) -> bool:
        """Whether he is still let in."""
        ...


class LocalViewer:
    """Whoever has the page on his own machine, read with his own kubeconfig: nodes that he sees he may name."""

    name = ""
    leaves = False

    def __init__(self, world: OverviewWorld) -> None:
        self._seen = SeenNamespaces(RememberedAnswers(world.may_see))

    async def rights(self, namespaces: Iterable[str]) -> ViewerRights:
        return ViewerRights(await self._seen.of(namespaces), nodes=True)

    async def stays(self) -> bool:
        return True
