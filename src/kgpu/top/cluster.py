"""The exporters of a cluster: found by the API server, anew every minute and when one fails, read by ``Exporters``.

When one keeps failing, they are listed again less and less often, down to once a minute: listing tells no more of it.

Anybody who may make a pod can give it an exporter's labels. So only pods of kgpu's own namespace count, and those of
namespaces that were named: no other exporter is asked, believed or sent a password.
"""

from __future__ import annotations

import asyncio
from http import HTTPStatus
from typing import Final, Protocol

from kgpu.base.errors import KubeError, UserError
from kgpu.kube.operator_namespace import operator_namespace
from kgpu.kube.port import NODES, PODS, KubeApi, KubeRefusedError, Object, PodPages, Selector
from kgpu.top.exporters import Exporters
from kgpu.top.find import SELECTORS, Via, slim_node, slim_pod, targets
from kgpu.top.model import GpuNode, NodeRoutes

FIND_AGAIN: Final = 60.0  # seconds
MISSED_AGAIN: Final = 5.0
"""Seconds after which they are found anew when one does not answer: its pod may be another one by now. Twice as many
each time that it still does not, until it has done nothing but answer from one time to the next."""


class ClusterApi(KubeApi, PodPages, Protocol):
    """The calls of an API server that this module uses."""


class ClusterSource:
    """A ``Source``. ``notes`` says what could not be read, so that something may be missing.

    ``namespaces`` are those whose exporters count; none: kgpu's own.
    """

    def __init__(
        self, api: ClusterApi, exporters: Exporters, *, via: Via, inside: bool, scheme: str = "http",
        namespaces: frozenset[str] = frozenset(),
    ) -> None:  # fmt: skip
        self._api = api
        self._exporters = exporters
        self._via = via
        self._inside = inside
        self._scheme = scheme
        self._namespaces = namespaces
        self._found: tuple[NodeRoutes, ...] | None = None
        self._found_at = 0.0
        self._missed: set[str] = set()  # nodes that have failed since they were found last, and those that answered
        self._answered: set[str] = set()
        self._waits: dict[str, float] = {}  # for how long they are not found anew for this node, if not MISSED_AGAIN
        self.notes: tuple[str, ...] = ()

    async def targets(self) -> tuple[NodeRoutes, ...]:
        """The exporters as last found. Raises KubeError when finding them has never worked."""
        now = asyncio.get_running_loop().time()
        soonest = min([FIND_AGAIN, *(self._waits.get(node, MISSED_AGAIN) for node in self._missed)])
        if self._found is None or now - self._found_at >= soonest:
            try:
                self._found = await self._find()
                self._found_at = now
                self._wait_longer(self._found)
            except KubeError as error:
                if self._found is None:
                    raise
                self.notes = (f"nodes are as of {now - self._found_at:.0f} s ago: {error.what}",)
        return self._found

    async def look(self, target: NodeRoutes) -> GpuNode:
        try:
            node = await self._exporters.look(target)
        except UserError:
            self._missed.add(target.node)
            raise
        self._answered.add(target.node)
        return node

    async def close(self) -> None:
        await self._api.close()

    def _wait_longer(self, routes: tuple[NodeRoutes, ...]) -> None:
        """Double the wait of nodes that failed again; those that neither failed nor answered keep theirs."""
        longer = {node: min(self._waits.get(node, MISSED_AGAIN) * 2, FIND_AGAIN) for node in self._missed}
        nodes = {route.node for route in routes}
        kept = {node: wait for node, wait in self._waits.items() if node in nodes and node not in self._answered}
        self._waits = kept | longer
        self._missed, self._answered = set(), set()

    async def _find(self) -> tuple[NodeRoutes, ...]:
        where = sorted(self._namespaces) or [await operator_namespace(self._api)]
        queries = [(place, namespace) for namespace in where for place in range(len(SELECTORS))]
        *pods, nodes = await asyncio.gather(*(self._pods(*query) for query in queries), self._nodes())
        candidates = [(place, pod) for (place, _), listed in zip(queries, pods, strict=True) for pod in listed or ()]
        return targets(candidates, nodes, via=self._via, inside=self._inside, scheme=self._scheme)

    async def _pods(self, place: int, namespace: str) -> tuple[Object, ...]:
        selector = Selector(labels=(SELECTORS[place],))
        try:
            return (await self._api.list(PODS, namespace=namespace, selector=selector, project=slim_pod)).items
        except KubeRefusedError as error:
            if error.code != HTTPStatus.FORBIDDEN:
                raise
            raise KubeError(
                f"the exporters can't be found: {error.what}",
                f"the right to list pods in namespace {namespace}, and to get pods/proxy there",
                "ask for it; pods of a namespace of yours, and what they wait for: kgpu status -n NAMESPACE",
            ) from error

    async def _nodes(self) -> tuple[Object, ...] | None:
        try:
            listing = await self._api.list(NODES, project=slim_node)
        except KubeRefusedError:
            self.notes = ("Nodes can't be listed with these rights: nodes without an exporter are not shown",)
            return None
        self.notes = ()
        return listing.items
