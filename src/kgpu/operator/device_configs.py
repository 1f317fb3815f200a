"""AMD's DeviceConfigs: which one a node has, what it switches off there, and what is wrong with one. Pure.

A node with AMD GPUs has the one DeviceConfig whose selector names it. Two that select the same node change nothing on
it. One that can't be read keeps the nodes that it has. Nodes without one are served as the ClusterPolicy says. Only
those of the operator's namespace count: whoever may write elsewhere must not say how nodes are served.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

from kgpu.base.advice import Advice
from kgpu.base.suggest import did_you_mean
from kgpu.formats import names
from kgpu.formats.device_config_flags import PROFILES, PROFILES_KEY
from kgpu.formats.operands import BY_NAME
from kgpu.operator.allocation import ROLES
from kgpu.operator.labels import vendor_of
from kgpu.operator.model import Allocation, ClusterNode, DeviceConfig, NodeLayout, ObservedCluster, OperatorSettings

NAMING: Final = "resource_naming_strategy"
STRATEGIES: Final = ("single", "mixed")
MAX_NAME: Final = 63
"""Characters of a label's value."""
VALIDATION: Final = "ValidationError"
FAILED: Final = "Error"
PLUGIN, CLAIMS = ROLES[Allocation.DEVICE_PLUGIN], ROLES[Allocation.DRA]
LABELLER, EXPORTER, PARTITIONS = (BY_NAME[name].role for name in ("gfd", "dcgm-exporter", "config-manager"))
"""The roles that a DeviceConfig switches."""
METRICS_KEY: Final = "config.json"
"""The key of a ConfigMap with AMD's configuration of the exporter."""
PROFILES_VARIABLE: Final = PROFILES.envs[0]
"""Says where the file of partition profiles is."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """``of`` has the DeviceConfig by node name, ``problems`` are by key (``DeviceConfig.key``), ``selected`` are the
    names of the nodes that each selects, by key.
    """

    of: Mapping[str, DeviceConfig] = field(default_factory=dict)
    problems: Mapping[str, Advice] = field(default_factory=dict)
    selected: Mapping[str, tuple[str, ...]] = field(default_factory=dict)


def select(
    configs: Iterable[DeviceConfig], nodes: Iterable[ClusterNode], settings: OperatorSettings, *, claims: bool
) -> Selection:
    """Give every node with AMD GPUs its DeviceConfig. ``claims``: they are served in this cluster."""
    staying = [config for config in configs if not config.deleting]
    own = {config.key: _own_problem(config, settings, claims=claims) for config in staying}
    problems = {key: problem for key, problem in own.items() if problem is not None}
    usable = [config for config in staying if config.key not in problems]
    last = {config.name: config for config in staying if config.namespace == settings.namespace}
    of: dict[str, DeviceConfig] = {}
    selected: dict[str, list[str]] = {config.key: [] for config in staying}
    clashes: dict[tuple[str, ...], list[str]] = {}
    for node in nodes:
        if vendor_of(node) != names.AMD:
            continue
        hits = [config for config in usable if config.spec.selector.items() <= node.labels.items()]
        for config in hits:
            selected[config.key].append(node.name)
        had = last.get(node.labels.get(names.LABEL_DEVICE_CONFIG, "")) if _is_ours(node) else None
        if len(hits) == 1:
            of[node.name] = hits[0]
        elif hits:
            clashes.setdefault(tuple(sorted(config.name for config in hits)), []).append(node.name)
            if had in hits:
                of[node.name] = had
        elif had is not None and had.key in problems:
            of[node.name] = had
    for group, clashing in sorted(clashes.items()):
        for name in group:
            problems.setdefault(f"{settings.namespace}/{name}", _clash(name, group, clashing))
    return Selection(of=of, problems=problems, selected={key: tuple(found) for key, found in selected.items()})


def switched_off(config: DeviceConfig, node: ClusterNode) -> frozenset[str]:
    """The roles that a DeviceConfig does not want on a node."""
    plugin, exporter, parted = config.spec.device_plugin, config.spec.metrics_exporter, config.spec.config_manager
    rows = (
        (PLUGIN, plugin.enable_device_plugin),
        (LABELLER, plugin.enable_node_labeller),
        (EXPORTER, exporter.enable and exporter.selector.items() <= node.labels.items()),
        (PARTITIONS, parted.enable and parted.selector.items() <= node.labels.items()),
    )
    return frozenset(role for role, wanted in rows if not wanted)


def by_claims(config: DeviceConfig, node: ClusterNode) -> bool:
    """Whether a DeviceConfig has a node's GPUs handed out by claims."""
    driver = config.spec.dra_driver
    return driver is not None and driver.enable and driver.selector.items() <= node.labels.items()


def in_use(observed: ObservedCluster, settings: OperatorSettings) -> tuple[DeviceConfig, ...]:
    """The DeviceConfigs that nodes have."""
    used = {node.device_config for node in observed.nodes} - {""}
    return tuple(
        config
        for config in observed.device_configs
        if config.name in used and config.namespace == settings.namespace and not config.deleting
    )


def of_node(observed: ObservedCluster, settings: OperatorSettings, node: ClusterNode) -> DeviceConfig | None:
    """The DeviceConfig that a node has, None without one."""
    return next((config for config in in_use(observed, settings) if config.name == node.device_config), None)


def profiles_map(config: DeviceConfig) -> str:
    """The ConfigMap of partition profiles that a DeviceConfig names, "" for none."""
    named = config.spec.config_manager.config
    return (named.name if named is not None else "") or ""


def metrics_map(config: DeviceConfig) -> str:
    """The ConfigMap of the exporter that a DeviceConfig names, "" for none."""
    named = config.spec.metrics_exporter.config
    return (named.name if named is not None else "") or ""


def named_maps(config: DeviceConfig) -> dict[str, frozenset[str]]:
    """The ConfigMaps that a DeviceConfig names, with the keys that they are to have."""
    rows = ((metrics_map(config), METRICS_KEY), (profiles_map(config), PROFILES_KEY))
    return {name: frozenset(key for other, key in rows if other == name) for name, _ in rows if name}


def released(observed: ObservedCluster, settings: OperatorSettings) -> tuple[DeviceConfig, ...]:
    """The DeviceConfigs whose deletion AMD's finalizer still holds up, and that no node has any more. kgpu sets no
    finalizer: the plan takes back what a DeviceConfig that is gone had asked for.
    """
    had = {node.labels.get(names.LABEL_DEVICE_CONFIG) for node in observed.nodes if _is_ours(node)}
    return tuple(
        config
        for config in observed.device_configs
        if config.deleting and names.AMD_DEVICECONFIG_FINALIZER in config.finalizers
        if config.namespace == settings.namespace and config.name not in had
    )


def _is_ours(node: ClusterNode) -> bool:
    return names.LABEL_DEVICE_CONFIG in node.owned


def _own_problem(config: DeviceConfig, settings: OperatorSettings, *, claims: bool) -> Advice | None:
    if config.namespace != settings.namespace:
        return Advice(
            reason=VALIDATION,
            what=f"it is not in the operator's namespace {settings.namespace}, so that nothing follows it",
            remedy=f"make it there: kubectl -n {settings.namespace} apply -f FILE",
        )
    if len(config.name) > MAX_NAME:
        return Advice(
            reason=VALIDATION,
            what=f"its name has {len(config.name)} characters, and nodes tell it in a label, which has {MAX_NAME}",
            remedy="give it a shorter name",
        )
    if names.AMD not in settings.vendors:
        return Advice(
            reason=FAILED,
            what="AMD is not among the vendors that are served",
            remedy="add amd to the Helm value vendors",
        )
    if settings.layout is not NodeLayout.AGENT:
        return Advice(
            reason=FAILED,
            what="DeviceConfigs are followed in the layout agent alone",
            remedy="install the chart with layout=agent, or set the same in the ClusterPolicy",
        )
    if config.problem is not None:
        return Advice(reason=VALIDATION, what=config.problem.statement, remedy=config.problem.remedy)
    return _arguments(config) or _passthrough(config) or _claims(config, served=claims)


def _arguments(config: DeviceConfig) -> Advice | None:
    given = config.spec.device_plugin.device_plugin_arguments
    strange = next((key for key in sorted(given) if key != NAMING), "")
    if strange:
        hint = did_you_mean(strange, [NAMING])
        return Advice(
            reason=VALIDATION,
            what=f'devicePlugin.devicePluginArguments has "{strange[:63]}", which is none{"; " if hint else ""}{hint}',
            remedy=f"leave {NAMING} alone there",
        )
    strategy = given.get(NAMING, STRATEGIES[0])
    if strategy not in STRATEGIES:
        return Advice(
            reason=VALIDATION,
            what=f'devicePlugin.devicePluginArguments.{NAMING} is "{strategy[:63]}"',
            remedy=f"set one of {', '.join(STRATEGIES)}",
        )
    return None


def _passthrough(config: DeviceConfig) -> Advice | None:
    kind = config.spec.driver.driver_type
    if kind == "container":
        return None
    return Advice(
        reason=VALIDATION,
        what=f"driver.driverType is {kind}, and kgpu gives AMD GPUs to no virtual machine",
        remedy="set driver.driverType: container, or leave these nodes to AMD's operator",
    )


def _claims(config: DeviceConfig, *, served: bool) -> Advice | None:
    """Of AMD's operator, too, a node has the one or the other."""
    driver = config.spec.dra_driver
    if driver is None or not driver.enable:
        return None
    if config.spec.device_plugin.enable_device_plugin:
        return Advice(
            reason=VALIDATION,
            what="draDriver.enable and devicePlugin.enableDevicePlugin are both true, and either hands out the GPUs",
            remedy="set one of them to false",
        )
    if not served:
        return Advice(
            reason=FAILED,
            what="draDriver.enable is true, and claims are not served in this cluster",
            remedy="set the Helm value dra.enabled; the API server has to have resource.k8s.io",
        )
    return None


def _clash(name: str, group: tuple[str, ...], nodes: list[str]) -> Advice:
    others = ", ".join(other for other in group if other != name)
    more = f" (+{len(nodes) - 5} more)" if len(nodes) > 5 else ""
    return Advice(
        reason=FAILED,
        what=f"it selects nodes that {others} selects, too: {', '.join(sorted(nodes)[:5])}{more}; these stay as they "
        "are",
        remedy="make their selectors disjoint",
    )
