"""Keeps asking the agents what their devices do, every minute: what is idle is judged by it.

Promises: a cluster that can't be read, and an agent that does not answer, end nothing; what was not heard becomes
unknown by itself. The API server is asked for pods only.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Collection, Coroutine, Mapping, Sequence
from typing import Any, Final

from kgpu.base.advice import Advice, AdviceSink
from kgpu.base.clock import Clock, SystemClock
from kgpu.base.errors import KubeError
from kgpu.base.metric_text import head, page
from kgpu.base.service import Complaint
from kgpu.formats.usage_now import UsageNow
from kgpu.kube.port import KubeApi
from kgpu.usage.agents import DEADLINE, UsageAgents, UsagePod
from kgpu.usage.live import HeardAgents

log = logging.getLogger(__name__)

EVERY: Final = 60.0


class UsageListener:
    """A controller that only reads. ``heard`` is the ``IdleSource``; ``each_round`` is called with the agents that were
    found, after they were asked; ``figures`` are more lines for the metrics page.
    """

    name = "usage"

    def __init__(
        self, agents: UsageAgents, *, seconds: float, report: AdviceSink, clock: Clock | None = None,
        each_round: Callable[[Sequence[UsagePod]], Awaitable[None]] | None = None,
        figures: Callable[[], Sequence[str]] = tuple,
    ) -> None:  # fmt: skip
        self.heard = HeardAgents()
        self._agents = agents
        self._seconds = seconds
        self._each_round = each_round
        self._figures = figures
        self._clock = clock or SystemClock()
        self._complaint = Complaint(report)
        self._found: tuple[UsagePod, ...] | None = None
        self._asked = asyncio.Event()

    async def watch(self) -> None:
        """Ask, until cancelled."""
        while True:
            await self.once()
            await self._clock.sleep(EVERY)

    async def asked_again(self) -> None:
        """Wait until all agents have been asked once more, or could not be: what is judged then is as new as it can be.
        A minute later it would be too old for the verdict that something is idle.
        """
        await self._asked.wait()

    async def once(self) -> None:
        """One round."""
        try:
            found = await self._ask()
        finally:
            asked, self._asked = self._asked, asyncio.Event()
            asked.set()
        if self._each_round is not None and found is not None:
            await self._each_round(found)

    async def _ask(self) -> Sequence[UsagePod] | None:
        """Ask all; None where it is not known whom."""
        try:
            found = await self._agents.find()
        except KubeError as error:
            self._complaint.tell(Advice.from_error(error, reason="UsageNotRead"))
            return None
        self._complaint.over()
        self._found = found
        self.heard.keep(agent.node for agent in found)
        began = time.time()

        def take(said: UsageNow) -> None:
            answered = time.time()
            self.heard.heard(said, max(began, answered - DEADLINE), answered)

        await self._agents.all_now(found, self._seconds, take)
        return found

    def missing(self) -> Collection[str]:
        return () if self._found is not None else ("the agents",)

    def term(self, api: KubeApi) -> Sequence[Coroutine[Any, Any, None]]:  # noqa: ARG002 - it writes nothing
        return (_for_ever(),)

    def ended(self) -> None:
        """Nothing was begun."""

    def failed(self, error: Exception) -> None:
        """Nothing of it can fail."""

    def metrics(self) -> str:
        name = "kgpu_usage_agents"
        silent = sum(agent.node in self._agents.silent for agent in self._found or ())
        return page(
            (
                *head(name, "gauge", "Agents that were asked for usage, by whether they answered."),
                f'{name}{{answered="true"}} {len(self._found or ()) - silent}',
                f'{name}{{answered="false"}} {silent}',
                *self._figures(),
            )
        )

    def status(self) -> Mapping[str, object]:
        return {"agents": len(self._found or ()), "silent": dict(self._agents.silent)}


async def _for_ever() -> None:
    await asyncio.Event().wait()
