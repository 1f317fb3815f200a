"""Writes to the cluster: Nodes, Events, the kinds where they are missing; deletes NodeFeatures of nodes that are gone.

A Node that is gone or has changed meanwhile is left: the next pass sees it as it is then.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Final

from kgpu.discovery.master.model import StoredFeature, ToldProblem, node_of
from kgpu.discovery.master.plan import NodeChange, take_back
from kgpu.formats import names
from kgpu.formats.crd.definitions import nfd_crds
from kgpu.kube.events import ClusterEvents
from kgpu.kube.kinds import CUSTOM_RESOURCE_DEFINITIONS
from kgpu.kube.port import NODE_FEATURES, NODES, KubeApi, KubeRefusedError, Object, Selector, name_of, namespace_of

log = logging.getLogger(__name__)

AT_ONCE: Final = 10  # Nodes that are written at the same time
CONFLICT: Final = 409
MISSING: Final = 404
_API: Final = {"NodeFeatureRule": names.NFD_API_VERSION}
MARKED: Final = Selector(labels=((names.LABEL_FEATURE_RULES, "true"),))
OURS: Final = Selector(labels=((names.PART_OF_LABEL, names.KGPU),))


class ChangeWriter:
    """Writes changes of Nodes, some at the same time; ``learn`` takes the server's answers."""

    def __init__(self, api: KubeApi, learn: Callable[[Object], Awaitable[None]] | None = None) -> None:
        self._api = api
        self._learn = learn

    async def write(self, changes: Sequence[NodeChange]) -> None:
        """Write all. Raises KubeError for the first that failed, after those that were under way."""
        for begin in range(0, len(changes), AT_ONCE):
            some = changes[begin : begin + AT_ONCE]
            results = await asyncio.gather(*map(self._one, some), return_exceptions=True)
            for result in results:
                if isinstance(result, BaseException):
                    raise result

    async def _one(self, change: NodeChange) -> None:
        try:
            if change.body:
                await self._sent(change.node.name, change.body, "")
            if change.status:
                await self._sent(change.node.name, change.status, "status")
        except KubeRefusedError as refused:
            if refused.code not in (MISSING, CONFLICT):
                raise

    async def _sent(self, name: str, body: Object, subresource: str) -> None:
        answer = await self._api.patch(NODES, name, body, subresource=subresource)
        if self._learn is not None:
            await self._learn(answer)


class ProblemTeller:
    """Makes an Event of each problem when it appears."""

    def __init__(self, api: KubeApi) -> None:
        self._events = ClusterEvents(api, component=names.OPERATOR_COMPONENT)
        self._told: frozenset[tuple[str, str, str]] = frozenset()

    async def tell(self, problems: Iterable[ToldProblem]) -> None:
        """Raises KubeError; what was not told then is told by the next call."""
        present = {(one.kind, one.name, one.advice.one_line()): one for one in problems}
        self._told &= present.keys()
        for key, one in present.items():
            if key not in self._told:
                about = {"apiVersion": _API.get(one.kind, "v1"), "kind": one.kind, "name": one.name, "uid": one.uid}
                log.warning("%s %s: %s", one.kind, one.name, one.advice.one_line())
                await self._events.publish(one.advice, about)
                self._told |= {key}


async def install(api: KubeApi) -> None:
    """Make the kinds that the API server lacks; those that others have made are left as they are. Raises KubeError."""
    for definition in nfd_crds():
        if await api.get(CUSTOM_RESOURCE_DEFINITIONS, name_of(definition)) is None:
            try:
                await api.create(CUSTOM_RESOURCE_DEFINITIONS, definition)
            except KubeRefusedError as refused:
                if not refused.conflict:
                    raise


async def remove(api: KubeApi, features: Iterable[StoredFeature]) -> None:
    """Delete NodeFeatures. Raises KubeError."""
    for one in features:
        try:
            await api.delete(NODE_FEATURES, one.name, namespace=one.namespace, uid=one.uid)
        except KubeRefusedError as refused:
            if not refused.conflict:
                raise
        log.info("NodeFeature %s is deleted", one.name)


async def give_back(api: KubeApi, namespace: str) -> int:
    """Take from Nodes what rules gave them while kgpu carried them out, and delete the NodeFeatures that agents have
    written; returns how many Nodes. Raises KubeError.
    """
    nodes = [node_of(obj) for obj in (await api.list(NODES, selector=MARKED)).items]
    await ChangeWriter(api).write([take_back(node) for node in nodes])
    try:
        features = (await api.list(NODE_FEATURES, namespace=namespace, selector=OURS)).items
    except KubeRefusedError as refused:
        if refused.code not in (MISSING, 403):
            raise
        features = ()
    for obj in features:
        await api.delete(NODE_FEATURES, name_of(obj), namespace=namespace_of(obj))
    return len(nodes)
