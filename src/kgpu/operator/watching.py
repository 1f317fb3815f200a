"""Follows the cluster and says what it is like at this moment: informers in, ``Observed`` out.

Promises: nothing is observed before every kind that matters has been read once; a kind that is not installed is no
error, and one that is installed later is followed from then on; an API server that is away leaves the last known state
in place. What the operator itself has written is known at once (``learn``), so that it never acts on its own past.
"""

from __future__ import annotations

import asyncio
import dataclasses
import logging
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final, Protocol

from kgpu.base.backoff import Backoff, BackoffPolicy
from kgpu.base.clock import Clock, SystemClock
from kgpu.base.errors import KubeError
from kgpu.formats import names
from kgpu.kube import kinds
from kgpu.kube.informer import Informer, Key, Scope
from kgpu.kube.port import (
    CONFIG_MAPS,
    EVENTS,
    NODE_FEATURES,
    NODES,
    PODS,
    KubeApi,
    KubeDiscovery,
    Object,
    Resource,
    Selector,
    Served,
    name_of,
    namespace_of,
)
from kgpu.operator import seen
from kgpu.operator.model import Observed, Settings

log = logging.getLogger(__name__)

DISCOVER_EVERY: Final = 30.0
DISCOVER_SOON: Final = 2.0  # while the kind that everything is about is not there yet
_PAUSE: Final = BackoffPolicy(first=0.1, cap=3.0, factor=2.0, jitter=0.3, healthy_after=10.0)
_OURS: Final = Selector(has=(names.LABEL_OPERATOR_STATE,))
# Labels under which node feature discovery's master and a GPU operator are deployed, by chart or by manifest.
_NFD: Final = ((names.NAME_LABEL, "node-feature-discovery"), ("app", "nfd-master"), ("app", "nfd"))
_OPERATORS: Final = (("app", "gpu-operator"), (names.COMPONENT_LABEL, "gpu-operator"))


class Cluster(KubeApi, KubeDiscovery, Protocol):
    """An API server that is written to and asked what it serves."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Feed:
    """One thing to follow. ``needed``: nothing is planned before it has been read. ``optional``: its kind may be
    missing.
    """

    name: str
    scope: Scope
    project: Callable[[Object], Object]
    needed: bool = True
    optional: bool = False


def feeds(namespace: str) -> tuple[Feed, ...]:
    """Everything that the operator of a namespace follows."""

    def managed(resource: Resource) -> Feed:
        place = namespace if resource.namespaced else ""
        lean = dataclasses.replace(resource, metadata_only=True)
        optional = resource in (kinds.SERVICE_MONITORS, kinds.PROMETHEUS_RULES)
        return Feed(name=resource.plural, scope=Scope(lean, place, _OURS), project=seen.managed, optional=optional)

    whole = (CONFIG_MAPS, kinds.DAEMON_SETS)
    own = Selector.named(namespace)
    features = dataclasses.replace(NODE_FEATURES, metadata_only=True)
    return (
        Feed(name="nodes", scope=Scope(NODES), project=seen.node),
        Feed(name="policies", scope=Scope(kinds.CLUSTER_POLICIES), project=seen.policy, optional=True),
        Feed(name="drivers", scope=Scope(kinds.NVIDIA_DRIVERS), project=seen.driver, optional=True),
        Feed(name="daemonsets", scope=Scope(kinds.DAEMON_SETS, namespace), project=seen.daemon_set),
        Feed(name="configmaps", scope=Scope(CONFIG_MAPS, namespace), project=seen.config_map),
        Feed(name="pods", scope=Scope(PODS, namespace), project=seen.pod),
        Feed(
            name="warnings",
            scope=Scope(EVENTS, namespace, Selector(fields=(("type", "Warning"),))),
            project=seen.warning,
            needed=False,
        ),
        *(managed(resource) for resource in kinds.MANAGED if resource not in whole),
        Feed(name="namespaces", scope=Scope(kinds.NAMESPACES, selector=own), project=seen.managed),
        Feed(name="nodefeatures", scope=Scope(features), project=seen.node_feature, needed=False, optional=True),
        *(_deployments(f"nfd {number}", pair) for number, pair in enumerate(_NFD)),
        *(_deployments(f"operator {number}", pair) for number, pair in enumerate(_OPERATORS)),
    )


def _deployments(name: str, label: tuple[str, str]) -> Feed:
    scope = Scope(kinds.DEPLOYMENTS, selector=Selector(labels=(label,)))
    return Feed(name=name, scope=scope, project=seen.deployment, needed=False)


@dataclass(slots=True)
class _Followed:
    """A feed that is being followed."""

    feed: Feed
    informer: Informer
    tasks: tuple[asyncio.Task[None], ...]


class Watching:
    """The operator's eyes. ``run`` must run beside those who use it."""

    def __init__(self, api: Cluster, settings: Settings, *, clock: Clock | None = None) -> None:
        self._api = api
        self._settings = settings
        self._clock = clock or SystemClock()
        self._served: Served | None = None
        self._kinds: frozenset[str] = frozenset()
        self._followed: dict[str, _Followed] = {}
        self.news = asyncio.Event()
        """Set whenever something has changed; whoever acts on it clears it first."""

    async def run(self) -> None:
        """Follow until cancelled. API errors never end it."""
        backoff = Backoff(_PAUSE)
        try:
            while True:
                try:
                    self._follow(await self._api.discover())
                except KubeError as error:
                    log.log(logging.DEBUG if backoff.failures else logging.WARNING, "discovery: %s", error.one_line())
                    await self._clock.sleep(backoff.next_delay())
                    continue
                backoff.reset()
                there = "policies" in self._followed
                await self._clock.sleep(DISCOVER_EVERY if there else DISCOVER_SOON)
        finally:
            tasks = [task for one in self._followed.values() for task in one.tasks]
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            self._followed.clear()

    @property
    def ready(self) -> bool:
        """True once everything that matters has been read."""
        return self._served is not None and not self.missing()

    def missing(self) -> tuple[str, ...]:
        """What has not been read yet, with the reason where there is one."""
        if self._served is None:
            return ("which kinds the API server has",)
        found = []
        for name, one in self._followed.items():
            unread = not one.informer.synced.is_set()
            if unread and (one.feed.needed or one.informer.error is None):
                error = one.informer.error
                found.append(name if error is None else f"{name}: {error.one_line()}")
        return tuple(found)

    def stale(self) -> tuple[str, ...]:
        """What may be out of date because the API server does not answer or refuses."""
        return tuple(
            f"{name}: {one.informer.error.one_line()}"
            for name, one in self._followed.items()
            if one.informer.error is not None
        )

    def serves(self, resource: Resource) -> bool:
        """True when the API server has the kind, whatever its version."""
        return kinds.plural_and_group(resource) in self._kinds

    def objects(self, name: str) -> Mapping[Key, Object]:
        """The reduced objects of a feed; none while it is not followed."""
        followed = self._followed.get(name)
        return {} if followed is None else followed.informer.objects

    def live(self, resource: Resource, namespace: str, name: str) -> Object | None:
        """The reduced live object of a kind that the operator manages."""
        return self.objects(resource.plural).get((namespace if resource.namespaced else "", name))

    def managed(self) -> Iterator[tuple[Resource, Object]]:
        """Every live object of the kinds that the operator manages, in the order in which they are made."""
        for resource in kinds.MANAGED:
            for obj in list(self.objects(resource.plural).values()):
                yield resource, obj

    async def learn(self, resource: Resource, obj: Object) -> None:
        """Take in what the server answered to a write."""
        for one in self._followed.values():
            scope = one.feed.scope
            if scope.resource == resource and scope.namespace in ("", namespace_of(obj)) and _fits(scope, obj):
                await one.informer.learn(obj)

    def observed(self, apply_errors: Mapping[str, str]) -> Observed:
        """The cluster now."""
        daemon_sets = {name: obj for (_, name), obj in self.objects("daemonsets").items()}
        warnings = list(self.objects("warnings").values())
        return Observed(
            kube_version=self._served.version if self._served else (0, 0),
            kinds=self._kinds,
            foreign_nfd=self._foreign_nfd(),
            foreign_operator=self._foreign_operator(),
            policies=tuple(obj["value"] for obj in self.objects("policies").values()),
            drivers=tuple(obj["value"] for obj in self.objects("drivers").values()),
            nodes=tuple(obj["node"] for _, obj in sorted(self.objects("nodes").items())),
            daemon_sets=daemon_sets,
            config_maps={name: obj["keys"] for (_, name), obj in self.objects("configmaps").items()},
            troubles=seen.troubles(self.objects("pods").values(), warnings),
            failures=seen.failures(daemon_sets, warnings),
            apply_errors=dict(apply_errors),
        )

    def _foreign_nfd(self) -> bool:
        if any(obj["foreign"] for obj in self.objects("nodefeatures").values()):
            return True
        masters = (obj for number in range(len(_NFD)) for obj in self.objects(f"nfd {number}").values())
        return any(obj["runs"] and _is_master(obj) for obj in masters)

    def _foreign_operator(self) -> str:
        own = str((self._settings.owner or {}).get("uid") or "")
        found = {
            f"{namespace_of(obj)}/{name_of(obj)}"
            for number in range(len(_OPERATORS))
            for obj in self.objects(f"operator {number}").values()
            if obj["runs"]
            and obj["metadata"].get("uid") != own
            and obj["labels"].get(names.PART_OF_LABEL) != names.KGPU
            and obj["labels"].get(names.NAME_LABEL) != names.KGPU
        }
        return min(found, default="")

    def _follow(self, served: Served) -> None:
        """Follow what is served and nothing else."""
        there = frozenset(kinds.plural_and_group(resource) for resource in served.resources)
        if self._served != served:
            self._served, self._kinds = served, there
            self.news.set()
        for feed in feeds(self._settings.namespace):
            wanted = not feed.optional or self.serves(feed.scope.resource)
            if wanted and feed.name not in self._followed:
                self._followed[feed.name] = self._start(feed)
            elif not wanted and feed.name in self._followed:
                for task in self._followed.pop(feed.name).tasks:
                    task.cancel()
                self.news.set()

    def _start(self, feed: Feed) -> _Followed:
        informer = Informer(
            self._api, feed.scope, clock=self._clock, project=feed.project, backoff=Backoff(_PAUSE)
        )  # fmt: skip
        relay = asyncio.create_task(self._relay(informer), name=f"news of {feed.name}")
        return _Followed(feed, informer, (asyncio.create_task(informer.run(), name=f"watch {feed.name}"), relay))

    async def _relay(self, informer: Informer) -> None:
        revision = 0
        while True:
            revision = await informer.changed(revision)
            self.news.set()


def _fits(scope: Scope, obj: Object) -> bool:
    """True when the object is one that the scope's selector lets through, as far as operators' selectors go."""
    labels: Mapping[str, Any] = (obj.get("metadata") or {}).get("labels") or {}
    named = dict(scope.selector.fields).get("metadata.name")
    return (
        named in (None, name_of(obj))
        and all(labels.get(key) == value for key, value in scope.selector.labels)
        and all(key in labels for key in scope.selector.has)
    )


def _is_master(obj: Object) -> bool:
    return "master" in name_of(obj) or obj["labels"].get("role") == seen.NFD_MASTER
