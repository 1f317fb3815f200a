"""Where nodes come from, as a port: exporters of a cluster, exporters by address, or this node's own driver.

``FakeSource`` beside it is for tests of whatever stands on it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from kgpu.base.errors import UserError
from kgpu.top.model import GpuNode, NodeRoutes


class GpuNodeSource(Protocol):
    """Finds nodes and reads them. Calls of ``look`` may overlap."""

    async def targets(self) -> tuple[NodeRoutes, ...]:
        """The nodes that there are. Raises UserError when that can't be told."""
        ...

    async def look(self, target: NodeRoutes) -> GpuNode:
        """The node now. Raises UserError when it can't be read."""
        ...

    async def close(self) -> None:
        """Let go of connections and the driver."""
        ...


class FakeSource:
    """Nodes that a test sets; an error in a node's place is raised."""

    def __init__(self, nodes: Mapping[str, GpuNode | UserError]) -> None:
        self.nodes = dict(nodes)
        self.closed = False
        self.looks = 0

    async def targets(self) -> tuple[NodeRoutes, ...]:
        return tuple(NodeRoutes(node=name) for name in self.nodes)

    async def look(self, target: NodeRoutes) -> GpuNode:
        self.looks += 1
        found = self.nodes[target.node]
        if isinstance(found, UserError):
            raise found
        return found

    async def close(self) -> None:
        self.closed = True
