"""Where nodes come from, as a port: exporters of a cluster, exporters by address, or this node's own driver.

``FakeSource`` is for tests of the code that uses the port.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from kgpu.base.errors import UserError
from kgpu.top.model import GpuNode, NodeRoutes


class GpuNodeSource(Protocol):
    """Finds nodes and reads them. Calls of ``look`` may overlap."""

    async def targets(self) -> tuple[NodeRoutes, ...]:
        """The existing nodes. Raises UserError when they can't be listed."""
        ...

    async def look(self, target: NodeRoutes) -> GpuNode:
        """The node now. Raises UserError when it can't be read."""
        ...

    async def close(self) -> None:
        """Release connections and the driver."""
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
        node = self.nodes[target.node]
        if isinstance(node, UserError):
            raise node
        return node

    async def close(self) -> None:
        self.closed = True
