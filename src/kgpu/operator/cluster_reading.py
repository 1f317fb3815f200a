"""Reads a cluster once, for ``kgpu status``: the operator's own feeds, listed instead of followed.

What can't be read is named and assumed to be fine, and everything else is still shown. Nodes and ClusterPolicies are
needed.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from kgpu.base.clock import SystemClock
from kgpu.base.errors import ConfigError, KubeError
from kgpu.base.plain import items, mapping, number, strings, text
from kgpu.base.printable import one_line
from kgpu.formats import names, yaml
from kgpu.formats.operands import OPERANDS
from kgpu.kube import kinds
from kgpu.kube.informer import Key
from kgpu.kube.operator_namespace import operator_namespace
from kgpu.kube.port import KubeRefusedError, Object, Selector, ServedResources, name_of, namespace_of
from kgpu.operator.device_configs import named_maps
from kgpu.operator.model import AgentNodes, Allocation, NodeLayout, ObservedCluster, OperatorSettings, OtherPresence
from kgpu.operator.other_programs import OtherPrograms
from kgpu.operator.overview import OperatorState
from kgpu.operator.vendors import SERVED, VENDORS
from kgpu.operator.watching import DEVICE_CONFIGS, TOOLKITS, ClusterWatching, WatchedCluster, WatchedObjects, feeds

_MAX_IMAGE: Final = 300
_NEEDED: Final = frozenset({"nodes", "policies"})
_FOR_STATUS: Final = (
    "nodes", "policies", "drivers", DEVICE_CONFIGS, "daemonsets", "configmaps", "pods", "operations", "warnings",
    TOOLKITS,
)  # fmt: skip
_OWN: Final = Selector(labels=((names.NAME_LABEL, names.KGPU),))
_IMAGE_SUFFIX: Final = "_IMAGE"
_ALL_WELL: Final[Object] = {"status": {"observedGeneration": 0}}


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterReading:
    """The cluster, its operator's settings and state, and what could not be read."""

    observed: ObservedCluster
    settings: OperatorSettings
    operator: OperatorState
    unread: tuple[str, ...] = ()


class _Listed(ClusterWatching):
    """A ``ClusterWatching`` over lists that were read once."""

    def __init__(
        self,
        api: WatchedCluster,
        settings: OperatorSettings,
        served: ServedResources,
        lists: Mapping[str, list[Object]],
    ) -> None:
        super().__init__(api, settings)
        self._served = served
        self._kinds = frozenset(kinds.plural_and_group(resource) for resource in served.resources)
        self._lists = {
            name: {(namespace_of(obj), name_of(obj)): obj for obj in objects} for name, objects in lists.items()
        }

    def objects(self, name: str) -> Mapping[Key, Object]:
        return self._lists.get(name, {})


async def read_cluster(api: WatchedCluster, namespace: str = "") -> ClusterReading:
    """Read once. ``namespace`` is the operator's, "" to find it.

    Raises KubeError when Nodes can't be read, ConfigError when the operator is in another namespace.
    """
    unread: dict[str, str] = {}
    served = await api.discover()
    served_kinds = frozenset(kinds.plural_and_group(resource) for resource in served.resources)
    deployments = await _own_deployments(api, namespace)
    where = namespace or await _namespace(api, deployments, served_kinds)
    own = next((deployment for deployment in deployments if namespace_of(deployment) == where), None)
    if own is None and namespace:
        await _look_elsewhere(api, namespace)
    settings = _settings(where, own)
    wanted = [feed for feed in feeds(where) if _is_wanted(feed, served_kinds)]
    if not settings.device_configs:  # they are another operator's
        wanted = [feed for feed in wanted if feed.name != DEVICE_CONFIGS]
    read = await asyncio.gather(*(_list(api, feed, unread) for feed in wanted))
    lists = {feed.name: objects for feed, objects in zip(wanted, read, strict=True)}
    if own is None:
        agents = any(name_of(daemon_set) == names.AGENT_DAEMON_SET for daemon_set in lists["daemonsets"])
        layout = NodeLayout.AGENT if agents or not lists["daemonsets"] else NodeLayout.OPERANDS
        settings = dataclasses.replace(settings, layout=layout)
    listed, others = _Listed(api, settings, served, lists), OtherPrograms(api, clock=SystemClock())
    believed = await others.confirmed(listed.suspects())
    unread |= {f"others {number}": advice.one_line() for number, advice in enumerate(others.advice())}
    observed = _assumed(listed.observed({}, believed), unread)
    return ClusterReading(
        observed=observed,
        settings=settings,
        operator=_operator(own, where),
        unread=tuple(sorted(unread.values())),
    )


async def operations_on(api: WatchedCluster, namespace: str) -> bool:
    """Whether there is an operator of kgpu that carries out NodeOperations. Raises KubeError."""
    return any(
        names.ENV_OPERATIONS in env and _on(env, names.ENV_OPERATIONS)
        for env in (dict(_env(deployment)) for deployment in await _own_deployments(api, namespace))
    )


def _assumed(observed: ObservedCluster, unread: Mapping[str, str]) -> ObservedCluster:
    """Fill in what could not be read as if it were fine, so that nothing unread is reported as missing."""
    if "configmaps" in unread:
        labels = (node.labels.get(names.DEVICE_PLUGIN_CONFIG_LABEL) for node in observed.nodes)
        configs = [policy.spec.device_plugin.config for policy in observed.policies]
        keys = frozenset(filter(None, (*labels, *(config.default for config in configs))))
        maps = {config.name: keys for config in configs if config.name}
        of_devices = [named for config in observed.device_configs for named in named_maps(config).items()]
        for name, wanted in of_devices:
            maps[name] = maps.get(name, frozenset()) | wanted
        observed = dataclasses.replace(observed, config_maps=maps)
    if "pods" in unread:
        observed = dataclasses.replace(observed, pods=None)
    if "daemonsets" in unread:
        named = (names.AGENT_DAEMON_SET, *(operand.daemon_set for operand in OPERANDS))
        observed = dataclasses.replace(observed, daemon_sets=dict.fromkeys(named, _ALL_WELL))
    return observed


def _is_wanted(feed: WatchedObjects, served_kinds: frozenset[str]) -> bool:
    if feed.name not in _FOR_STATUS and feed.program is None:
        return False
    return not feed.optional or kinds.plural_and_group(feed.scope.resource) in served_kinds


async def _list(api: WatchedCluster, feed: WatchedObjects, unread: dict[str, str]) -> list[Object]:
    scope = feed.scope
    try:
        listing = await api.list(
            scope.resource, namespace=scope.namespace, selector=scope.selector, project=feed.project
        )
    except KubeRefusedError as error:
        if feed.name in _NEEDED:
            raise
        place = f" in namespace {scope.namespace}" if scope.namespace else ""
        unread[feed.name] = f"{scope.resource.plural}{place}: {error.what}"
        return []
    return list(listing.items)


async def _own_deployments(api: WatchedCluster, namespace: str) -> list[Object]:
    """The Deployments of kgpu's operator; none where they can't be read."""
    try:
        listing = await api.list(kinds.DEPLOYMENTS, namespace=namespace, selector=_OWN)
    except KubeRefusedError:
        return []
    return [
        deployment
        for deployment in listing.items
        if text(_labels(deployment).get(names.COMPONENT_LABEL)) == names.GPU_OPERATOR_NAMESPACE
    ]


async def _look_elsewhere(api: WatchedCluster, namespace: str) -> None:
    """Raises ConfigError where the operator is in another namespace than the one that was named."""
    namespaces = sorted({namespace_of(deployment) for deployment in await _own_deployments(api, "")})
    if namespaces:
        raise ConfigError(
            f"there is no operator in namespace {namespace}",
            f"the namespace of the operator's Deployment: {', '.join(namespaces)}",
            f"kgpu status -n {namespaces[0]}, or leave -n out",
        )


async def _namespace(api: WatchedCluster, deployments: list[Object], served_kinds: frozenset[str]) -> str:
    """Where the operator is: its Deployment's namespace, else the one that a ClusterPolicy's status names."""
    if deployments:
        return namespace_of(deployments[0])
    if kinds.plural_and_group(kinds.CLUSTER_POLICIES) in served_kinds:
        with contextlib.suppress(KubeError):
            return await operator_namespace(api)
    return names.GPU_OPERATOR_NAMESPACE


def _settings(namespace: str, deployment: Object | None) -> OperatorSettings:
    env = dict(_env(deployment))
    layout = NodeLayout.OPERANDS if env.get("KGPU_LAYOUT") == NodeLayout.OPERANDS else NodeLayout.AGENT
    return OperatorSettings(
        namespace=namespace,
        image=env.get("OPERATOR_IMAGE", ""),
        layout=layout,
        agent_nodes=AgentNodes.ALL if env.get("KGPU_AGENT_NODES") == AgentNodes.ALL else AgentNodes.GPU,
        vendors=frozenset(env.get("KGPU_VENDORS", "").split(",")) & VENDORS.keys() or SERVED,
        device_configs=_on({"KGPU_DEVICE_CONFIGS": "false", **env}, "KGPU_DEVICE_CONFIGS"),
        agent_selector=_selector(env.get("KGPU_AGENT_NODE_SELECTOR", "")),
        allocation=Allocation.DRA if env.get("KGPU_ALLOCATION") == Allocation.DRA else Allocation.DEVICE_PLUGIN,
        dra=_on({"KGPU_DRA": "false", **env}, "KGPU_DRA"),
        dra_gates=env.get("KGPU_DRA_FEATURE_GATES", ""),
        discovery=_on(env, "KGPU_DISCOVERY"),
        other_discovery=_other(env, "KGPU_OTHER_DISCOVERY"),
        feature_rules=_on({names.ENV_FEATURE_RULES: "false", **env}, names.ENV_FEATURE_RULES),
        features_config=env.get(names.ENV_FEATURES_CONFIG, ""),
        other_operator=_other(env, "KGPU_OTHER_OPERATOR"),
        operations=_on(env, names.ENV_OPERATIONS),
        health=_on(env, "KGPU_HEALTH"),
        usage=_on({names.ENV_USAGE: "false", **env}, names.ENV_USAGE),
        usage_labels=tuple(filter(None, env.get(names.ENV_USAGE_LABELS, "").split(","))),
        host_facts=_on(env, "KGPU_HOST_FACTS"),
        images={name: value for name, value in env.items() if name.endswith(_IMAGE_SUFFIX)},
        owner=None if deployment is None else {"uid": mapping(deployment.get("metadata")).get("uid", "")},
    )


def _selector(yaml_text: str) -> Mapping[str, str]:
    """The mapping in the text, empty for anything else: the operator itself refuses to start with that."""
    with contextlib.suppress(ConfigError):
        return strings(yaml.load(yaml_text) if yaml_text.strip() else {})
    return {}


def _on(env: Mapping[str, str], name: str) -> bool:
    return env.get(name, "true").lower() not in ("false", "0", "f")


def _other(env: Mapping[str, str], name: str) -> OtherPresence:
    value = env.get(name, OtherPresence.DETECT)
    return OtherPresence(value) if value in list(OtherPresence) else OtherPresence.DETECT


def _containers(deployment: Object | None) -> Iterator[Mapping[str, Any]]:
    template = mapping(mapping(mapping(deployment).get("spec")).get("template"))
    return map(mapping, items(mapping(template.get("spec")).get("containers")))


def _env(deployment: Object | None) -> Iterator[tuple[str, str]]:
    for container in _containers(deployment):
        for row in map(mapping, items(container.get("env"))):
            yield text(row.get("name")), text(row.get("value"))


def _operator(deployment: Object | None, namespace: str) -> OperatorState:
    if deployment is None:
        return OperatorState(said=f"no operator found in namespace {namespace}")
    name, ready = name_of(deployment), _ready(deployment)
    wanted = number(mapping(deployment.get("spec")).get("replicas"), 1)
    annotations = mapping(mapping(deployment.get("metadata")).get("annotations"))
    return OperatorState(
        said=f"operator {namespace}/{name}: {ready} of {wanted} ready{_late(deployment, ready)}",
        down=not ready,
        name=name,
        idle=wanted == 0,
        release=text(annotations.get(names.HELM_RELEASE_ANNOTATION)),
        image=next((one_line(text(one.get("image")), _MAX_IMAGE) for one in _containers(deployment)), ""),
    )


def _late(deployment: Object, ready: int) -> str:
    """What there is to say where pods of an update are not ready, beside the ones that they are to replace."""
    status, wanted = mapping(deployment.get("status")), number(mapping(deployment.get("spec")).get("replicas"), 1)
    late = number(status.get("replicas")) - ready
    return f", {late} of an update not" if wanted and ready >= wanted and late > 0 else ""


def _ready(deployment: Object) -> int:
    return number(mapping(deployment.get("status")).get("readyReplicas"))


def _labels(obj: Object) -> Mapping[str, Any]:
    return mapping(mapping(obj.get("metadata")).get("labels"))
