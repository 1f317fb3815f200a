"""Annotates nodes with the time that their kubelet may cache Secrets and ConfigMaps: longer in bigger clusters.

From kube-controller-manager's ttl-controller: steps of cluster sizes that overlap, so that a node more or less at an
edge does not have every node written again and again.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from kgpu.kube.port import NODES, Object, Resource, annotations_of, name_of
from kgpu.lab.embedded.controllers.cluster import ControllerContext
from kgpu.lab.embedded.controllers.controller import KeysOf, ObjectController
from kgpu.lab.embedded.controllers.meta import key_of

TTL: Final = "node.alpha.kubernetes.io/ttl"
# (least nodes of the step, most nodes of it, seconds)
STEPS: Final = ((0, 100, 0), (90, 500, 15), (450, 1000, 30), (900, 2000, 60), (1800, 1 << 31, 300))


def next_step(step: int, nodes: int) -> int:
    """The index in STEPS for so many nodes, coming from ``step``: it is kept as long as it covers them."""
    while nodes > STEPS[step][1]:
        step += 1
    while nodes < STEPS[step][0]:
        step -= 1
    return step


class NodeTtlController(ObjectController):
    name = "ttl-controller"
    workers = 1

    def __init__(self, cluster: ControllerContext) -> None:
        super().__init__(cluster)
        self._nodes = cluster.cache(NODES)
        self._step = 0

    def sources(self) -> Mapping[Resource, KeysOf]:
        return {NODES: self._keys}

    def _keys(self, old: Object | None, new: Object | None) -> list[str]:
        if old is None or new is None:
            step = next_step(self._step, len(self._nodes))
            if step != self._step:
                self._step = step
                return [name_of(node) for node in self._nodes]
        return [] if new is None or self._is_current(new) else [name_of(new)]

    def _is_current(self, node: Object) -> bool:
        return annotations_of(node).get(TTL) == self._wanted()

    def _wanted(self) -> str:
        return str(STEPS[self._step][2])

    async def sync(self, key: str) -> None:
        node = self._nodes.get(("", key))
        if node is not None and not self._is_current(node):
            await self.cluster.patch(NODES, key_of(node), {"metadata": {"annotations": {TTL: self._wanted()}}})
