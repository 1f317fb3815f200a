"""What random orders of operations are played with: a cluster that watches its budget, and processes that follow each other."""

from __future__ import annotations

from collections.abc import Callable

from kgpu.kube.kinds import NODE_OPERATIONS
from kgpu.kube.port import NODES
from kgpu.operations.config import OperationBudget
from tests.operations.world import Cluster, Engine


class Watched(Cluster):
    """Checks after each write that no more nodes are held than may be."""

    most = 0
    most_held = 0

    async def _counted(self, write: Callable[[], object]) -> object:
        try:
            return await super()._counted(write)
        finally:
            held = sum(1 for name in self.names if (NODES, "", name) in self._objects and self.owners(name))
            begun = sum(1 for name in self.every_operation() if self._is_at_work(name))
            self.most, self.most_held = max(self.most, begun), max(self.most_held, held)

    def _is_at_work(self, name: str) -> bool:
        """Whether it takes a slot: one that waits for a machine does not, nor while it gives its node back."""
        phase = self.status(name).get("phase")
        waits = phase in {"Acting", "Restoring"} and self.object(NODE_OPERATIONS, name)["spec"]["type"] == "Replace"
        return phase in BEGUN and not waits

    def every_operation(self) -> list[str]:
        """Also those that the engine has made: of nodes that ask for MIG slices."""
        return [name for (kind, _, name) in list(self._objects) if kind == NODE_OPERATIONS]

    names: tuple[str, ...] = ()
    operations: tuple[str, ...] = ()


BEGUN = {"Cordoning", "Draining", "Acting", "Verifying", "Restoring"}


class Processes:
    """One process of the engine after the other: a killed one is followed by the next."""

    def __init__(self, cluster: Cluster, budget: OperationBudget) -> None:
        self.kills = 0
        self._cluster = cluster
        self._budget = budget
        self.engine = Engine(cluster, budget)

    async def go_on(self, seconds: float, *, step: float = 0.5) -> None:
        await self.engine.run_for(seconds, step=step)
        if self.engine.killed:
            self.kills += 1
            await self.engine.stop()
            self.engine = Engine(self._cluster, self._budget, clock=self.engine.clock)
            await self.engine.start()
