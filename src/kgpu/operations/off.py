"""For a cluster with operations switched off: gives back nodes that are still held, and does nothing else.

The records stay as they are. Once operations are on again, each begun one ends, as its node was uncordoned meanwhile.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping

from kgpu.kube.off_controller import OffController
from kgpu.kube.port import NODES, KubeApi
from kgpu.operations import writing
from kgpu.operations.leftovers import leftovers
from kgpu.operations.model import read_node

log = logging.getLogger(__name__)


class OperationsOff(OffController):
    """Stands in for ``OperationsController``: it follows nothing, and gives nodes back once in each term."""

    name = "operations"
    LEFT = "held nodes are not given back yet"

    def status(self) -> Mapping[str, object]:
        """What the status page shows."""
        return {"operations": {"kind": "off", "problem": self.problem}}

    async def take_back(self, api: KubeApi) -> None:
        """Give back all held nodes. Raises KubeError."""
        listing = await api.list(NODES)
        for write in leftovers([read_node(obj) for obj in listing.items], frozenset()):
            await writing.hold(api, write)
            log.info("%s is given back: operations are switched off", write.node.name)
