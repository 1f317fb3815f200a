"""Writes to the cluster: Nodes, Events, the kinds where they are missing; deletes NodeFeatures of nodes that are gone.

A Node that is gone or has changed meanwhile is left: the next pass sees it as it is then.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from typing import Final, TypeAlias

from kgpu.base.errors import KubeError
from kgpu.base.service import end
from kgpu.discovery.master.metrics import DELETED, FAILURES, NOT_DELETED, UPDATES
from kgpu.discovery.master.model import StoredFeature, ToldProblem, TrackingLists, node_of
from kgpu.discovery.master.plan import NodeChange, take_back
from kgpu.formats import names
from kgpu.formats.crd.definitions import nfd_crds
from kgpu.kube.definitions import define
from kgpu.kube.events import ClusterEvents
from kgpu.kube.port import NODE_FEATURES, NODES, KubeApi, KubeRefusedError, Object, Selector, name_of, namespace_of

log = logging.getLogger(__name__)

Count: TypeAlias = Callable[[str], None]
"""Takes the name of a metric that goes up by one."""
AT_ONCE: Final = 10  # Nodes that are written at the same time
CONFLICT: Final = 409
MISSING: Final = 404
_API: Final = {"NodeFeatureRule": names.NFD_API_VERSION, "NodeFeatureGroup": names.NFD_API_VERSION}
MARKED: Final = Selector(has=(names.LABEL_FEATURE_RULES,))
OURS: Final = Selector(labels=((names.PART_OF_LABEL, names.KGPU),))


class ChangeWriter:
    """Writes changes of Nodes, some at the same time; ``learn`` takes the server's answers, ``count`` what came."""

    def __init__(
        self, api: KubeApi, learn: Callable[[Object], Awaitable[None]] | None = None, count: Count = lambda _name: None
    ) -> None:
        self._api = api
        self._learn = learn
        self._count = count

    async def write_all(self, batches: AsyncIterator[Sequence[NodeChange]]) -> None:
        """Write each batch while the next is being made. Raises as ``write`` does, after all where one is refused."""
        refused: KubeRefusedError | None = None
        writing: asyncio.Task[None] | None = None
        try:
            async for changes in batches:
                refused = await refusal(writing) or refused
                writing = asyncio.create_task(self.write(changes))
            refused = await refusal(writing) or refused
        finally:
            if writing is not None:
                await end(writing)
        if refused is not None:
            raise refused

    async def write(self, changes: Sequence[NodeChange]) -> None:
        """Write all. Raises KubeRefusedError for one that was refused, after all others, and any other error at once:
        one Node that nobody may change must not keep the rest from what they should have.
        """
        refused: KubeRefusedError | None = None
        for begin in range(0, len(changes), AT_ONCE):
            some = changes[begin : begin + AT_ONCE]
            results = await asyncio.gather(*map(self._one, some), return_exceptions=True)
            for result in results:
                if isinstance(result, KubeRefusedError):
                    refused = refused or result
                elif isinstance(result, BaseException):
                    raise result
        if refused is not None:
            raise refused

    async def _one(self, change: NodeChange) -> None:
        try:
            if change.body:
                await self._sent(change.node.name, change.body, "")
            if change.status:
                await self._sent(change.node.name, change.status, "status")
            self._count(UPDATES)
        except KubeError as error:
            self._count(FAILURES)
            if not isinstance(error, KubeRefusedError) or error.code not in (MISSING, CONFLICT):
                raise

    async def _sent(self, name: str, body: Object, subresource: str) -> None:
        answer = await self._api.patch(NODES, name, body, subresource=subresource)
        if self._learn is not None:
            await self._learn(answer)


async def refusal(job: Awaitable[None] | None) -> KubeRefusedError | None:
    """Wait for a job; returns why it was refused something. Raises whatever else it raises."""
    if job is not None:
        try:
            await job
        except KubeRefusedError as refused:
            return refused
    return None


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
    await define(api, nfd_crds())


async def remove(api: KubeApi, features: Iterable[StoredFeature]) -> None:
    """Delete NodeFeatures. Raises KubeError."""
    for one in features:
        try:
            await api.delete(NODE_FEATURES, one.name, namespace=one.namespace, uid=one.uid)
        except KubeRefusedError as refused:
            if not refused.conflict:
                raise
        log.info("NodeFeature %s is deleted", one.name)


async def collect(api: KubeApi, features: Iterable[StoredFeature], count: Count) -> None:
    """Delete NodeFeatures of nodes that the API server, asked once more, does not have: the copy that says so may be
    older than the NodeFeature of a new node. Raises KubeError for the first that failed, after all others.
    """
    failed: KubeError | None = None
    for one in features:
        try:
            if await api.get(NODES, one.node) is None:
                await remove(api, [one])
                count(DELETED)
        except KubeError as error:
            count(NOT_DELETED)
            failed = failed or error
    if failed is not None:
        raise failed


async def prune(api: KubeApi, instance: str, *, dry_run: bool = False) -> list[NodeChange]:
    """Take from all Nodes what is on an instance's lists, and the lists; returns the changes. Raises KubeError."""
    lists = TrackingLists.of(instance)
    nodes = [node_of(obj) for obj in (await api.list(NODES)).items]
    changes = [take_back(node, instance) for node in nodes if node.annotations.keys() & set(lists.keys)]
    if not dry_run:
        await ChangeWriter(api).write(changes)
    return changes


async def give_back(api: KubeApi, namespace: str) -> int:
    """Take from Nodes what rules gave them while kgpu carried them out, and delete the NodeFeatures that agents have
    written; returns how many Nodes. Raises KubeError.
    """
    nodes = [node_of(obj) for obj in (await api.list(NODES, selector=MARKED)).items]
    await ChangeWriter(api).write([take_back(node, node.instance) for node in nodes])
    try:
        features = (await api.list(NODE_FEATURES, namespace=namespace, selector=OURS)).items
    except KubeRefusedError as refused:
        if refused.code not in (MISSING, 403):
            raise
        features = ()
    for obj in features:
        await api.delete(NODE_FEATURES, name_of(obj), namespace=namespace_of(obj))
    return len(nodes)
