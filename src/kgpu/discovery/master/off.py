"""For a cluster with rules of node features switched off: takes back what they gave Nodes, and does nothing else."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Final

from kgpu.base.clock import Clock
from kgpu.discovery.master.writing import give_back
from kgpu.kube.off_controller import OffController
from kgpu.kube.port import KubeApi

log = logging.getLogger(__name__)

SETTLE: Final = 120.0
"""Seconds until it looks once more: until agents know that rules are off, they write their NodeFeatures again."""


class FeatureRulesOff(OffController):
    """Stands in for ``FeatureRulesController``: it follows nothing, and takes back at the begin of each term."""

    name = "feature rules"
    LEFT = "what rules gave Nodes is not taken back yet"
    PAUSES = (SETTLE,)

    def __init__(self, namespace: str, *, clock: Clock | None = None) -> None:
        super().__init__(clock=clock)
        self._namespace = namespace

    def status(self) -> Mapping[str, object]:
        """What the status page shows."""
        return {"feature_rules": {"state": "off", "problem": self.problem}}

    async def take_back(self, api: KubeApi) -> None:
        """Take back all that rules gave Nodes. Raises KubeError."""
        nodes = await give_back(api, self._namespace)
        if nodes:
            log.info("what rules gave %d Nodes is taken back: they are switched off", nodes)
