"""For a cluster with operations switched off: gives back nodes that are still held, and does nothing else.

The records stay as they are. Once operations are on again, each begun one ends, as its node was uncordoned meanwhile.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection, Coroutine, Mapping, Sequence
from typing import Any, Final

from kgpu.base.backoff import Backoff, BackoffPolicy
from kgpu.base.clock import Clock, SystemClock
from kgpu.base.errors import KubeError
from kgpu.base.problems import describe
from kgpu.kube.leader_election import LostLeadError
from kgpu.kube.port import NODES, KubeApi
from kgpu.operations import writing
from kgpu.operations.leftovers import leftovers
from kgpu.operations.model import read_node

log = logging.getLogger(__name__)

_AGAIN: Final = BackoffPolicy(first=1.0, cap=60.0, factor=2.0, jitter=0.3)


class OperationsOff:
    """Stands in for ``OperationsController``: it follows nothing, and gives nodes back once in each term."""

    name = "operations"

    def __init__(self, *, clock: Clock | None = None) -> None:
        self._clock = clock or SystemClock()
        self._problem = ""

    async def watch(self) -> None:
        """Wait until cancelled: there is nothing to follow."""
        await asyncio.Event().wait()

    def missing(self) -> Collection[str]:
        """Empty: it waits for nothing."""
        return ()

    def term(self, api: KubeApi) -> Sequence[Coroutine[Any, Any, None]]:
        """The work of a term: give back the nodes that are held."""
        return (self._release(api),)

    def ended(self) -> None:
        """Called when the term is over."""

    def failed(self, error: Exception) -> None:
        """Called when the work died of a defect."""
        self._problem = describe(error)

    def metrics(self) -> str:
        """Empty: there are no metrics."""
        return ""

    def status(self) -> Mapping[str, object]:
        """What the status page shows."""
        return {"operations": {"kind": "off", "problem": self._problem}}

    async def _release(self, api: KubeApi) -> None:
        backoff = Backoff(_AGAIN)
        while not await self._released(api):
            await self._clock.sleep(backoff.next_delay())
        await asyncio.Event().wait()

    async def _released(self, api: KubeApi) -> bool:
        """Give back all held nodes; return False, with a log line, if that failed and must be tried again."""
        try:
            listing = await api.list(NODES)
            for write in leftovers([read_node(obj) for obj in listing.items], frozenset()):
                await writing.hold(api, write)
                log.info("%s is given back: operations are switched off", write.node.name)
        except LostLeadError:
            raise
        except KubeError as error:
            self._problem = error.one_line()
            log.warning("held nodes are not given back yet: %s", self._problem)
            return False
        self._problem = ""
        return True
