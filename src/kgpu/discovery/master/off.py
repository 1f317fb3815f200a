"""For a cluster with rules of node features switched off: takes back what they gave Nodes, and does nothing else."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection, Coroutine, Mapping, Sequence
from typing import Any, Final

from kgpu.base.backoff import Backoff, BackoffPolicy
from kgpu.base.clock import Clock, SystemClock
from kgpu.base.errors import KubeError
from kgpu.base.problems import describe
from kgpu.discovery.master.writing import give_back
from kgpu.kube.leader_election import LostLeadError
from kgpu.kube.port import KubeApi

log = logging.getLogger(__name__)

SETTLE: Final = 120.0
"""Seconds until it looks once more: until agents know that rules are off, they write their NodeFeatures again."""
_AGAIN: Final = BackoffPolicy(first=1.0, cap=60.0, factor=2.0, jitter=0.3)


class FeatureRulesOff:
    """Stands in for ``FeatureRulesController``: it follows nothing, and takes back at the begin of each term."""

    name = "feature rules"

    def __init__(self, namespace: str, *, clock: Clock | None = None) -> None:
        self._namespace = namespace
        self._clock = clock or SystemClock()
        self._problem = ""

    async def watch(self) -> None:
        """Wait until cancelled: there is nothing to follow."""
        await asyncio.Event().wait()

    def missing(self) -> Collection[str]:
        """Empty: it waits for nothing."""
        return ()

    def term(self, api: KubeApi) -> Sequence[Coroutine[Any, Any, None]]:
        """Take back, until that has succeeded."""
        return (self._take_back(api),)

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
        return {"feature_rules": {"state": "off", "problem": self._problem}}

    async def _take_back(self, api: KubeApi) -> None:
        backoff = Backoff(_AGAIN)
        settled = False
        while True:
            try:
                nodes = await give_back(api, self._namespace)
            except LostLeadError:
                raise
            except KubeError as error:
                self._problem = error.one_line()
                log.warning("what rules gave Nodes is not taken back yet: %s", self._problem)
                await self._clock.sleep(backoff.next_delay())
                continue
            self._problem = ""
            if nodes:
                log.info("what rules gave %d Nodes is taken back: they are switched off", nodes)
            if settled:
                await asyncio.Event().wait()
            settled = True
            await self._clock.sleep(SETTLE)
