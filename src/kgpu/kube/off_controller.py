"""A controller that is switched off: it takes back what it has done to the cluster, and does nothing else."""

from __future__ import annotations

import abc
import asyncio
import logging
from collections.abc import Collection, Coroutine, Mapping, Sequence
from typing import Any, Final

from kgpu.base.backoff import Backoff, BackoffPolicy
from kgpu.base.clock import Clock, SystemClock
from kgpu.base.errors import KubeError
from kgpu.base.problems import describe
from kgpu.kube.leader_election import LostLeadError
from kgpu.kube.port import KubeApi

log = logging.getLogger(__name__)

_AGAIN: Final = BackoffPolicy(first=1.0, cap=60.0, factor=2.0, jitter=0.3)


class OffController(abc.ABC):
    """Stands in for a controller of ``kgpu.manager``: it follows nothing, and takes back in each term."""

    LEFT = ""
    """What is not done as long as taking back fails, for the log."""
    PAUSES: tuple[float, ...] = ()
    """Seconds after each of which it takes back once more."""

    def __init__(self, *, clock: Clock | None = None) -> None:
        self._clock = clock or SystemClock()
        self.problem = ""

    @abc.abstractmethod
    async def take_back(self, api: KubeApi) -> None:
        """Undo all that is left. Raises KubeError, and is called again then."""

    async def watch(self) -> None:
        """Wait until cancelled: there is nothing to follow."""
        await asyncio.Event().wait()

    def missing(self) -> Collection[str]:
        """Empty: it waits for nothing."""
        return ()

    def term(self, api: KubeApi) -> Sequence[Coroutine[Any, Any, None]]:
        """Take back, until that has succeeded."""
        return (self._term(api),)

    def ended(self) -> None:  # noqa: B027 - nothing is to be done
        """Called when the term is over."""

    def failed(self, error: Exception) -> None:
        """Called when the work died of a defect."""
        self.problem = describe(error)

    def metrics(self) -> str:
        """Empty: there are no metrics."""
        return ""

    @abc.abstractmethod
    def status(self) -> Mapping[str, object]:
        """What the status page shows."""

    async def _term(self, api: KubeApi) -> None:
        await self._until_taken_back(api)
        for pause in self.PAUSES:
            await self._clock.sleep(pause)
            await self._until_taken_back(api)
        await asyncio.Event().wait()

    async def _until_taken_back(self, api: KubeApi) -> None:
        backoff = Backoff(_AGAIN)
        while True:
            try:
                await self.take_back(api)
            except LostLeadError:
                raise
            except KubeError as error:
                self.problem = error.one_line()
                log.warning("%s: %s", self.LEFT, self.problem)
                await self._clock.sleep(backoff.next_delay())
            else:
                self.problem = ""
                return
