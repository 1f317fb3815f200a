"""What the controller follows of the cluster: Nodes, NodeFeatures, rules, and groups where they are to be filled.

Of a namespace that is not used no more than its name is kept, so that no tenant fills this process's memory. When
others are used, because the administrator has chosen them by labels, objects are read anew.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Coroutine, Iterator
from typing import Any, Final

from kgpu.base.backoff import Backoff, BackoffPolicy
from kgpu.base.clock import Clock
from kgpu.base.plain import mapping, strings
from kgpu.base.service import end, first_end
from kgpu.base.waits import first_of
from kgpu.discovery.master.model import (
    PART,
    MasterSettings,
    StoredFeature,
    StoredGroup,
    StoredRules,
    TrackedNode,
    feature_of,
    group_of,
    node_of,
    reduced,
    rules_of,
)
from kgpu.discovery.master.sharing import FeatureShare
from kgpu.kube.informer import Informer, ObjectCopy, Scope
from kgpu.kube.kinds import NAMESPACES, NODE_FEATURE_GROUPS, NODE_FEATURE_RULES
from kgpu.kube.port import NODE_FEATURES, Change, KubeApi, Object, Resource, name_of, namespace_of
from kgpu.kube.shared_informer import SharedInformer

PAUSE: Final = BackoffPolicy(first=0.2, cap=30.0)


class ClusterCopy:
    """Copies of all that, as data. Objects are there in any order."""

    def __init__(
        self, api: KubeApi, settings: MasterSettings, nodes: SharedInformer, clock: Clock | None = None
    ) -> None:
        self._api = api
        self._settings = settings
        self._clock = clock
        self._nodes = nodes.view(lambda obj: reduced(obj, node_of(obj)))
        share = FeatureShare()
        self._namespaces = self._informer(NAMESPACES, _labels_of) if settings.namespaces is not None else None
        self._features = self._informer(
            NODE_FEATURES,
            lambda obj: feature_of(obj, settings, share, used=self.uses(namespace_of(obj))),
            on_change=self._feature_changed,
        )
        self._rules = self._informer(NODE_FEATURE_RULES, rules_of)
        self._groups = (
            self._informer(NODE_FEATURE_GROUPS, lambda obj: group_of(obj, used=self.uses(namespace_of(obj))))
            if settings.groups
            else None
        )
        self._seen: set[str] = set()
        optional = (self._namespaces, self._groups)
        self.copies: tuple[ObjectCopy, ...] = (
            self._nodes, self._features, self._rules, *(one for one in optional if one is not None)
        )  # fmt: skip
        """Whose changes are news."""

    def _informer(
        self, kind: Resource, part: Callable[[Object], object],
        on_change: Callable[[Change, Object], None] | None = None,
    ) -> Informer:  # fmt: skip
        return Informer(
            self._api, Scope(kind), clock=self._clock, backoff=Backoff(PAUSE),
            project=lambda obj: reduced(obj, part(obj)), on_change=on_change,
        )  # fmt: skip

    async def watch(self) -> None:
        """Follow the cluster until cancelled."""
        jobs: list[Coroutine[Any, Any, None]] = [self._nodes.run(), self._rules.run()]
        by_namespace = [one for one in (self._features, self._groups) if one is not None]
        if self._namespaces is None:
            jobs += [one.run() for one in by_namespace]
        else:
            jobs += [self._namespaces.run(), *(self._follow(one, self._namespaces) for one in by_namespace)]
        tasks = [asyncio.create_task(job) for job in jobs]
        try:
            await first_end(tasks)
        finally:
            await end(*tasks)

    async def _follow(self, copy: Informer, namespaces: Informer) -> None:
        await namespaces.synced.wait()
        while True:
            used = frozenset(self._used())
            await first_of(copy.run(), self._differs(namespaces, used))
            copy.forget()

    async def _differs(self, namespaces: Informer, used: frozenset[str]) -> None:
        revision = namespaces.revision
        while frozenset(self._used()) == used:
            revision = await namespaces.changed(revision)

    def uses(self, namespace: str) -> bool:
        """Whether objects of the namespace count."""
        if namespace == self._settings.namespace:
            return True
        known = self._namespaces.objects.get(("", namespace)) if self._namespaces is not None else None
        selector = self._settings.namespaces
        return known is not None and selector is not None and selector.matches(known[PART])

    def _used(self) -> Iterator[str]:
        if self._namespaces is not None:
            yield from (name for _, name in self._namespaces.objects if self.uses(name))

    @property
    def read(self) -> bool:
        """Whether all has been read once."""
        informers = (one for one in self.copies if isinstance(one, Informer))
        return self._nodes.synced.is_set() and all(one.synced.is_set() for one in informers)

    def was_seen(self, node: str) -> bool:
        """Whether a NodeFeature of the node was ever read: that it has none is known then."""
        return node in self._seen

    def forget_seen(self, nodes: Collection[str]) -> None:
        """Forget nodes that are gone, with their NodeFeatures."""
        self._seen &= {*nodes, *(one.node for one in self.features())}

    def nodes(self) -> dict[str, TrackedNode]:
        """By name."""
        return {name: obj[PART] for (_, name), obj in self._nodes.objects.items()}

    def features(self) -> list[StoredFeature]:
        """Those of namespaces that are not used, too."""
        return [obj[PART] for obj in self._features.objects.values()]

    def rules(self) -> list[StoredRules]:
        """The cluster's."""
        return [obj[PART] for obj in self._rules.objects.values()]

    def groups(self) -> list[StoredGroup]:
        """Those of namespaces that are not used, too."""
        return [obj[PART] for obj in self._groups.objects.values()] if self._groups is not None else []

    async def learn(self, node: Object) -> None:
        """Store the server's answer to a change of a Node."""
        await self._nodes.learn(node)

    def _feature_changed(self, _happened: Change, obj: Object) -> None:
        if obj[PART].used:
            self._seen.add(obj[PART].node)


def _labels_of(obj: Object) -> dict[str, str]:
    """A namespace's labels, its name among them, as on servers that don't set it."""
    return {"kubernetes.io/metadata.name": name_of(obj), **strings(mapping(obj.get("metadata")).get("labels"))}
