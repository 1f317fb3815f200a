"""The exporters of a cluster: found by the API server, found anew every minute, read by ``Exporters``."""

from __future__ import annotations

import asyncio
from typing import Final, Protocol

from kgpu.base.errors import KubeError
from kgpu.kube.port import NODES, PODS, KubeApi, KubeRefusedError, Object, PodPages, Selector
from kgpu.top.exporters import Exporters
from kgpu.top.find import SELECTORS, Via, slim_node, slim_pod, targets
from kgpu.top.model import Node, Target

FIND_AGAIN: Final = 60.0  # seconds


class Api(KubeApi, PodPages, Protocol):
    """What this needs of an API server."""


class Cluster:
    """A ``Source``. ``notes`` says what could not be read, so that something may be missing."""

    def __init__(self, api: Api, exporters: Exporters, *, via: Via, inside: bool, scheme: str = "http") -> None:
        self._api = api
        self._exporters = exporters
        self._via = via
        self._inside = inside
        self._scheme = scheme
        self._found: tuple[Target, ...] | None = None
        self._found_at = 0.0
        self.notes: tuple[str, ...] = ()

    async def targets(self) -> tuple[Target, ...]:
        """As found last; raises KubeError when that never worked."""
        now = asyncio.get_running_loop().time()
        if self._found is None or now - self._found_at >= FIND_AGAIN:
            try:
                self._found = await self._find()
                self._found_at = now
            except KubeError as error:
                if self._found is None:
                    raise
                self.notes = (f"nodes are as of {now - self._found_at:.0f} s ago: {error.what}",)
        return self._found

    async def look(self, target: Target) -> Node:
        return await self._exporters.look(target)

    async def close(self) -> None:
        await self._api.close()

    async def _find(self) -> tuple[Target, ...]:
        lists = [self._api.list(PODS, selector=Selector(labels=(pair,)), project=slim_pod) for pair in SELECTORS]
        *pods, nodes = await asyncio.gather(*lists, self._nodes())
        found = [(place, pod) for place, listing in enumerate(pods) for pod in listing.items]  # type: ignore[union-attr]
        return targets(found, nodes, via=self._via, inside=self._inside, scheme=self._scheme)  # type: ignore[arg-type]

    async def _nodes(self) -> tuple[Object, ...] | None:
        try:
            listing = await self._api.list(NODES, project=slim_node)
        except KubeRefusedError:
            self.notes = ("Nodes can't be listed with these rights: nodes without an exporter are not shown",)
            return None
        self.notes = ()
        return listing.items
