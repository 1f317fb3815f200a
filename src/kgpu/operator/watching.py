"""Follows the cluster: informers in, ``ObservedCluster`` out.

Promises: nothing is observed before every kind that matters has been read once; a kind that is not installed is no
error, and one that is installed later is followed from then on; an API server that does not answer, or that has just
started and does not list all of its kinds yet, leaves the last known state in place. The operator's own writes are
known at once (``learn``), so that it never acts on outdated objects of its own.
"""

from __future__ import annotations

import asyncio
import dataclasses
import logging
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final, Protocol

from kgpu.base.advice import Advice, Severity
from kgpu.base.backoff import Backoff, BackoffPolicy
from kgpu.base.clock import Clock, SystemClock
from kgpu.base.errors import KubeError
from kgpu.base.service import end
from kgpu.formats import names
from kgpu.kube import kinds
from kgpu.kube.informer import Informer, Key, Scope
from kgpu.kube.port import (
    CONFIG_MAPS,
    EVENTS,
    NODES,
    PODS,
    KubeApi,
    KubeDiscovery,
    KubeRefusedError,
    Object,
    Resource,
    Selector,
    ServedResources,
    name_of,
    namespace_of,
)
from kgpu.kube.shared_informer import InformerView, SharedInformer
from kgpu.operator import openshift, projections
from kgpu.operator.model import ObservedCluster, OperatorSettings, OtherPresence, OtherProgram
from kgpu.operator.other_programs import LABELS, MISSING_RIGHT, SuspectProgram, suspect

log = logging.getLogger(__name__)

DISCOVER_EVERY: Final = 30.0
DISCOVER_SOON: Final = 2.0  # while the kind ClusterPolicy is not there yet
DISCOVER_AGAIN: Final = 10.0  # while kinds are missing that were there
# A kind counts as removed when it has been missing GONE_TIMES and for GONE_AFTER seconds; for FORGET_AFTER seconds
# while objects of it are known that were not seen to go. Known ClusterPolicies are never forgotten that way.
GONE_AFTER: Final = 60.0
GONE_TIMES: Final = 3
FORGET_AFTER: Final = 600.0
POLICIES: Final = "policies"
OPERATIONS: Final = "operations"
DEVICE_CONFIGS: Final = "device configs"
RELEASES, PROXIES, TOOLKITS = "cluster version", "cluster proxy", "driver toolkit"
"""What is followed of OpenShift."""
PAUSE: Final = BackoffPolicy(first=0.1, cap=3.0, factor=2.0, jitter=0.3, healthy_after=10.0)
_OURS: Final = Selector(has=(names.LABEL_OPERATOR_STATE,))


class WatchedCluster(KubeApi, KubeDiscovery, Protocol):
    """An API server that is written to and asked what it serves."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WatchedObjects:
    """A set of objects to follow. ``needed``: nothing is planned before it has been read; ``waivable``: unless the
    operator has no right to read it, which is reported with ``why``. ``optional``: its kind may be missing.
    ``program``: which other program its objects look like.
    """

    name: str
    scope: Scope
    project: Callable[[Object], Object]
    needed: bool = True
    optional: bool = False
    waivable: bool = False
    why: str = ""
    program: OtherProgram | None = None


def feeds(namespace: str) -> tuple[WatchedObjects, ...]:
    """Everything that the operator of a namespace follows."""

    def managed(resource: Resource) -> WatchedObjects:
        place = namespace if resource.namespaced else ""
        lean = dataclasses.replace(resource, metadata_only=True)
        optional = resource in (kinds.SERVICE_MONITORS, kinds.POD_MONITORS, kinds.PROMETHEUS_RULES)
        return WatchedObjects(
            name=resource.plural, scope=Scope(lean, place, _OURS), project=projections.managed, optional=optional
        )

    whole = (CONFIG_MAPS, kinds.DAEMON_SETS)
    own = Selector.named(namespace)
    return (
        WatchedObjects(name="nodes", scope=Scope(NODES), project=projections.node),
        WatchedObjects(name=POLICIES, scope=Scope(kinds.CLUSTER_POLICIES), project=projections.policy, optional=True),
        WatchedObjects(name="drivers", scope=Scope(kinds.NVIDIA_DRIVERS), project=projections.driver, optional=True),
        WatchedObjects(
            name=DEVICE_CONFIGS,
            scope=Scope(kinds.DEVICE_CONFIGS),
            project=projections.device_config,
            optional=True,
            waivable=True,
            why="nodes with AMD GPUs are served as the ClusterPolicy says",
        ),
        WatchedObjects(name="daemonsets", scope=Scope(kinds.DAEMON_SETS, namespace), project=projections.daemon_set),
        WatchedObjects(name="configmaps", scope=Scope(CONFIG_MAPS, namespace), project=projections.config_map),
        WatchedObjects(name="pods", scope=Scope(PODS, namespace), project=projections.pod),
        WatchedObjects(
            name=OPERATIONS,
            scope=Scope(kinds.NODE_OPERATIONS),
            project=projections.operation,
            optional=True,
            waivable=True,
            why="it can't be told how upgrades of drivers are",
        ),
        WatchedObjects(
            name="warnings",
            scope=Scope(EVENTS, namespace, Selector(fields=(("type", "Warning"),))),
            project=projections.warning,
            needed=False,
        ),
        *(managed(resource) for resource in kinds.MANAGED if resource not in whole),
        WatchedObjects(name="namespaces", scope=Scope(kinds.NAMESPACES, selector=own), project=projections.managed),
        *_OF_OPENSHIFT,
        *(_deployments(program, label) for program, labels in LABELS.items() for label in labels),
    )


_DRIVERS_DO_WITHOUT: Final = "drivers are installed without what it says"
_OF_OPENSHIFT: Final = tuple(
    WatchedObjects(
        name=name,
        scope=Scope(resource, place, Selector.named(only)),
        project=project,
        optional=True,
        waivable=True,
        why=_DRIVERS_DO_WITHOUT,
    )
    for name, resource, place, only, project in (
        (RELEASES, kinds.CLUSTER_VERSIONS, "", openshift.CLUSTER_VERSION, projections.cluster_version),
        (PROXIES, kinds.PROXIES, "", openshift.CLUSTER_PROXY, projections.cluster_proxy),
        (TOOLKITS, kinds.IMAGE_STREAMS, openshift.NAMESPACE, openshift.TOOLKIT_STREAM, projections.toolkit_stream),
    )
)


def _deployments(program: OtherProgram, label: tuple[str, str]) -> WatchedObjects:
    return WatchedObjects(
        name=f"{program} {'='.join(label)}",
        scope=Scope(kinds.DEPLOYMENTS, selector=Selector(labels=(label,))),
        project=projections.deployment,
        waivable=True,
        why=f"another {program} in this cluster would not be noticed",
        program=program,
    )


@dataclass(slots=True)
class _Absence:
    """A kind that is no longer listed: since when, by the clock, and how often it was missing."""

    since: float
    times: int = 0


@dataclass(slots=True)
class _Followed:
    """A feed that is being followed."""

    feed: WatchedObjects
    informer: Informer | InformerView
    tasks: tuple[asyncio.Task[None], ...]


class ClusterWatching:
    """The operator's view of the cluster. ``run`` has to run while it is used."""

    def __init__(
        self, api: WatchedCluster, settings: OperatorSettings, *, clock: Clock | None = None,
        nodes: SharedInformer | None = None,
    ) -> None:  # fmt: skip
        """``nodes`` is the watch of all Nodes if others in this process follow them as well."""
        self._api = api
        self._nodes = None if nodes is None else nodes.view(projections.node)
        self._settings = settings
        self._clock = clock or SystemClock()
        self._served: ServedResources | None = None
        self._kinds: frozenset[str] = frozenset()
        self._absent: dict[str, _Absence] = {}
        self._followed: dict[str, _Followed] = {}
        self._read_policies = False
        self._made: dict[str, str] = {}  # when a DaemonSet's last pod was made, as far as was seen
        self.news = asyncio.Event()
        """Set when something has changed; clear it before acting on it."""

    async def run(self) -> None:
        """Follow until cancelled. API errors never end it."""
        backoff = Backoff(PAUSE)
        try:
            while True:
                try:
                    self._follow(await self._api.discover())
                except KubeError as error:
                    log.log(logging.DEBUG if backoff.failures else logging.WARNING, "discovery: %s", error.one_line())
                    await self._clock.sleep(backoff.next_delay())
                    continue
                backoff.reset()
                calm = DISCOVER_AGAIN if self._absent else DISCOVER_EVERY
                await self._clock.sleep(calm if POLICIES in self._followed else DISCOVER_SOON)
        finally:
            tasks = [task for followed in self._followed.values() for task in followed.tasks]
            await end(*tasks)
            self._followed.clear()

    @property
    def ready(self) -> bool:
        """True once everything that matters has been read."""
        return self._served is not None and not self.missing()

    def missing(self) -> tuple[str, ...]:
        """The feeds that have not been read yet, with the reason where there is one."""
        if self._served is None:
            return ("which kinds the API server has",)
        unread = []
        for name, followed in self._followed.items():
            error = followed.informer.error
            if not followed.informer.synced.is_set() and (error is None or not _is_waived(followed.feed, error)):
                unread.append(name if error is None else f"{name}: {error.one_line()}")
        return tuple(unread)

    @property
    def knows_policies(self) -> bool:
        """True once all ClusterPolicies have been read; until then it is not known that there are none."""
        return self._read_policies

    def advice(self) -> tuple[Advice, ...]:
        """Warnings about what the operator has no right to read and does without."""
        return tuple(
            dict.fromkeys(
                _without_right(followed.feed, error)
                for followed in self._followed.values()
                if followed.feed.waivable
                and isinstance(error := followed.informer.error, KubeRefusedError)
                and error.code == 403
            )
        )

    def stale(self) -> tuple[str, ...]:
        """The feeds that may be out of date because the API server does not answer or refuses."""
        return tuple(
            f"{name}: {followed.informer.error.one_line()}"
            for name, followed in self._followed.items()
            if followed.informer.error is not None
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
        """Take in the server's answer to a write."""
        for followed in self._followed.values():
            scope = followed.feed.scope
            if scope.resource == resource and scope.namespace in ("", namespace_of(obj)) and _fits(scope, obj):
                await followed.informer.learn(obj)

    def suspects(self) -> tuple[SuspectProgram, ...]:
        """Deployments that look like another GPU operator or node feature discovery, as far as settings ask for it."""
        own = str((self._settings.owner or {}).get("uid") or "")
        looked_for = self._settings.looks_for
        programs = {
            suspect(feed.program, obj, own)
            for feed in feeds(self._settings.namespace)
            if feed.program is not None and feed.program in looked_for
            for obj in self.objects(feed.name).values()
        }
        return tuple(sorted(program for program in programs if program is not None))

    def observed(
        self, apply_errors: Mapping[str, str], others: frozenset[SuspectProgram] = frozenset()
    ) -> ObservedCluster:
        """The cluster now; ``others`` are the confirmed suspects."""
        daemon_sets = {name: obj for (_, name), obj in self.objects("daemonsets").items()}
        warnings = list(self.objects("warnings").values())
        pods = list(self.objects("pods").values())
        for name, created in projections.newest_pods(pods).items():
            self._made[name] = max(created, self._made.get(name, ""))
        operators = [suspect for suspect in others if suspect.program is OtherProgram.OPERATOR]
        foreign = min(
            ((f"{suspect.namespace}/{suspect.name}", suspect.version) for suspect in operators), default=("", "")
        )
        discoveries = any(suspect.program is OtherProgram.DISCOVERY for suspect in others)
        return ObservedCluster(
            kube_version=self._served.version if self._served else (0, 0),
            kinds=self._kinds,
            foreign_nfd=discoveries or self._settings.other_discovery is OtherPresence.PRESENT,
            foreign_operator=foreign[0],
            foreign_version=foreign[1],
            openshift=self._openshift(),
            policies=tuple(obj["value"] for obj in self.objects("policies").values()),
            drivers=tuple(obj["value"] for obj in self.objects("drivers").values()),
            device_configs=tuple(obj["value"] for _, obj in sorted(self.objects(DEVICE_CONFIGS).items())),
            nodes=tuple(obj["node"] for _, obj in sorted(self.objects("nodes").items())),
            daemon_sets=daemon_sets,
            config_maps={name: obj["keys"] for (_, name), obj in self.objects("configmaps").items()},
            given_maps=frozenset(
                name for (_, name), obj in self.objects("configmaps").items() if not obj[projections.OWNED]
            ),
            pods=projections.nodes_by_daemon_set(pods),
            agents=projections.agents(pods),
            driver_pods=projections.driver_pods(pods, time.time()),
            upgrades=tuple(
                obj["upgrade"] for _, obj in sorted(self.objects(OPERATIONS).items()) if obj["upgrade"] is not None
            ),
            troubles=projections.troubles(pods, warnings),
            failures=projections.failures(daemon_sets, warnings, self._made),
            apply_errors=dict(apply_errors),
        )

    def _openshift(self) -> openshift.OpenShift | None:
        """OpenShift is what has the kind ClusterVersion."""
        if not self.serves(kinds.CLUSTER_VERSIONS):
            return None
        return openshift.read(*(list(self.objects(name).values()) for name in (RELEASES, PROXIES, TOOLKITS)))

    def _follow(self, served: ServedResources) -> None:
        """Follow the kinds that are served, and those that were until they count as removed."""
        served_kinds = frozenset(kinds.plural_and_group(resource) for resource in served.resources)
        served_kinds |= self._still_there(served_kinds)
        if self._served != served or self._kinds != served_kinds:
            self._served, self._kinds = served, served_kinds
            self.news.set()
        for feed in feeds(self._settings.namespace):
            wanted = not feed.optional or self.serves(feed.scope.resource)
            wanted = wanted and (feed.name != OPERATIONS or self._settings.operations)
            wanted = wanted and (feed.name != DEVICE_CONFIGS or self._settings.device_configs)
            if wanted and feed.name not in self._followed:
                self._followed[feed.name] = self._start(feed)
            elif not wanted and feed.name in self._followed:
                log.info("%s are not followed any more: the API server does not have them", feed.name)
                for task in self._followed.pop(feed.name).tasks:
                    task.cancel()
                self.news.set()

    def _still_there(self, listed: frozenset[str]) -> frozenset[str]:
        """Return kinds that were there, are not listed and do not count as removed yet.

        A server that has just started lists the kinds of custom resources a moment later than all others.
        """
        now, missing = self._clock.monotonic(), self._kinds - listed
        self._absent = {kind: self._absent.get(kind) or _Absence(now) for kind in missing}
        for absence in self._absent.values():
            absence.times += 1
        kept = frozenset(kind for kind, absence in self._absent.items() if not self._is_gone(kind, absence, now))
        self._absent = {kind: absence for kind, absence in self._absent.items() if kind in kept}
        return kept

    def _is_gone(self, kind: str, absence: _Absence, now: float) -> bool:
        if absence.times < GONE_TIMES or now - absence.since < GONE_AFTER:
            return False
        known = [
            name
            for name, followed in self._followed.items()
            if kinds.plural_and_group(followed.feed.scope.resource) == kind and followed.informer.objects
        ]
        return not known or (POLICIES not in known and now - absence.since >= FORGET_AFTER)

    def _start(self, feed: WatchedObjects) -> _Followed:
        informer: Informer | InformerView
        if self._nodes is not None and feed.scope == Scope(NODES):
            informer = self._nodes
        else:
            informer = Informer(
                self._api, feed.scope, clock=self._clock, project=feed.project, backoff=Backoff(PAUSE)
            )  # fmt: skip
        relay = asyncio.create_task(self._relay(informer, feed.scope.resource), name=f"news of {feed.name}")
        return _Followed(feed, informer, (asyncio.create_task(informer.run(), name=f"watch {feed.name}"), relay))

    async def _relay(self, informer: Informer | InformerView, resource: Resource) -> None:
        revision = 0
        while True:
            revision = await informer.changed(revision)
            if informer.synced.is_set() and resource == kinds.CLUSTER_POLICIES:
                self._read_policies = True
            self.news.set()


def _fits(scope: Scope, obj: Object) -> bool:
    """True when the object matches the scope's selector, as far as the operator uses selectors."""
    labels: Mapping[str, Any] = (obj.get("metadata") or {}).get("labels") or {}
    named = dict(scope.selector.fields).get("metadata.name")
    return (
        named in (None, name_of(obj))
        and all(labels.get(key) == value for key, value in scope.selector.labels)
        and all(key in labels for key in scope.selector.has)
    )


def _is_waived(feed: WatchedObjects, error: KubeError) -> bool:
    """True when the operator does without a feed that could not be read because of this error."""
    if not feed.needed:
        return True
    return feed.waivable and isinstance(error, KubeRefusedError) and error.code in (403, 404)


def _without_right(feed: WatchedObjects, error: KubeRefusedError) -> Advice:
    resource = kinds.plural_and_group(feed.scope.resource)
    place = f"namespace {feed.scope.namespace}" if feed.scope.namespace else "all namespaces"
    return Advice(
        subject="",
        what=f"the operator may not list and watch {resource}, so that {feed.why}",
        why=error.what,
        severity=Severity.WARNING,
        remedy=f"grant its service account list and watch of {resource} in {place}, as the chart does",
        reason=MISSING_RIGHT,
    )
