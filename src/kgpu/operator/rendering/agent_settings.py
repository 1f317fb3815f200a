"""Translates the policy into the agents' document: ``agent_config``."""

from __future__ import annotations

import dataclasses
from typing import Final

import msgspec

from kgpu.base.errors import ConfigError
from kgpu.base.plain import items, mapping, text
from kgpu.formats import names
from kgpu.formats.agent_config import AgentConfig, ConfigKey, ConfigRef, NodeKind, RoleConfig, kind_name
from kgpu.formats.device_config_flags import PROFILES_KEY
from kgpu.formats.operands import OPERANDS, roles_on
from kgpu.kube.port import NODE_FEATURES
from kgpu.operator.device_configs import (
    EXPORTER,
    LABELLER,
    METRICS_KEY,
    NAMING,
    PARTITIONS,
    PLUGIN,
    PROFILES_VARIABLE,
    STRATEGIES,
    in_use,
    metrics_map,
    named_maps,
    profiles_map,
)
from kgpu.operator.model import DeviceConfig, NodeLayout, ObservedCluster, OperatorSettings, OtherPresence, Policy
from kgpu.operator.objects import shape
from kgpu.operator.objects.common import Scene, has_kind
from kgpu.operator.operand_args import role_args
from kgpu.operator.operand_env import role_env
from kgpu.operator.operand_spec import OperandSpec
from kgpu.operator.operands import OF_ROLE
from kgpu.operator.vendors import VENDORS

AMD_METRICS_CONFIG: Final = "KGPU_EXPORTER_AMD_METRICS_CONFIG"
_NAMED: Final = (
    (EXPORTER, AMD_METRICS_CONFIG, metrics_map, METRICS_KEY),
    (PARTITIONS, PROFILES_VARIABLE, profiles_map, PROFILES_KEY),
)
"""Which role has which variable for the path of a key of the ConfigMap that a DeviceConfig names for it."""


def agent_config(policy: Policy, settings: OperatorSettings, observed: ObservedCluster) -> AgentConfig:
    """One document for all nodes. It never raises: for an invalid path, which ``render`` reports, it has the paths of
    the live pods.

    Operands in separate pods have environment and arguments in their containers, as with the replaced operator, and not
    here: a change is one rollout by the policy's strategy.
    """
    scene = Scene(policy, settings, observed)
    try:
        paths = shape.paths(policy)
    except ConfigError:
        paths = _live_paths(observed)
    config = policy.spec.device_plugin.config
    in_agent = settings.layout is NodeLayout.AGENT
    return AgentConfig(
        roles={role: _role(spec, scene) for role, spec in OF_ROLE.items()},
        kinds=_kinds(scene),
        device_plugin_config=ConfigRef(name=config.name or "", default=config.default or ""),
        node_feature_api=uses_node_features(observed),
        other_discovery=observed.foreign_nfd,
        take_over_features=settings.other_discovery is OtherPresence.IGNORE,
        feature_rules=settings.feature_rules and not observed.foreign_nfd and has_kind(observed, NODE_FEATURES),
        leaving=policy.deleting,
        own_pods=not in_agent,
        driver_install_dir=paths.driver_install_dir,
        host_root=paths.root_fs,
        generation=policy.generation,
    )


def _role(spec: OperandSpec, scene: Scene) -> RoleConfig:
    policy, in_agent = scene.policy, scene.settings.layout is NodeLayout.AGENT
    return RoleConfig(
        enabled=spec.is_enabled(policy, scene.settings),
        label=f"{names.LABEL_DEPLOY_PREFIX}{spec.operand.deploy}" if spec.operand.deploy else "",
        where=spec.where(policy),
        env=role_env(spec, scene) if in_agent else {},
        files=dict(spec.files(scene)) if in_agent else {},
        args=role_args(spec, policy) if in_agent else (),
    )


def _kinds(scene: Scene) -> dict[str, NodeKind]:
    """How nodes of other vendors are served, where this cluster has some, and those with a DeviceConfig."""
    found = {node.labels.get(names.LABEL_VENDOR, "") for node in scene.observed.nodes}
    kinds = {vendor: _kind(vendor, scene) for vendor in sorted(VENDORS.keys() & found)}
    for config in in_use(scene.observed, scene.settings):
        kinds[kind_name(names.AMD, config.name)] = _with_config(_kind(names.AMD, scene), config)
    return kinds


def maps_of_device_configs(scene: Scene) -> list[str]:
    """The ConfigMaps that DeviceConfigs name for roles, of those that nodes have."""
    return [name for config in in_use(scene.observed, scene.settings) for name in named_maps(config)]


def _kind(vendor: str, scene: Scene) -> NodeKind:
    """How a vendor's nodes are served."""
    row, there = VENDORS[vendor], dataclasses.replace(scene, vendor=vendor)
    roles = {}
    for role, spec in OF_ROLE.items():
        if role in roles_on(vendor):
            told = _role(spec, there)
            own_pods = scene.settings.layout is NodeLayout.OPERANDS  # their containers have what NVIDIA's nodes need
            roles[role] = msgspec.structs.replace(told, env=_differing(spec, scene, there)) if own_pods else told
    return NodeKind(title=row.title, roles=roles)


def _differing(spec: OperandSpec, scene: Scene, there: Scene) -> dict[str, str]:
    usual = role_env(spec, scene)
    return {name: value for name, value in role_env(spec, there).items() if usual.get(name) != value}


def _with_config(kind: NodeKind, config: DeviceConfig) -> NodeKind:
    """The same for nodes with a DeviceConfig: what that switches on runs, whatever the policy says of NVIDIA's."""
    plugin = config.spec.device_plugin
    env = {
        PLUGIN: {"RESOURCE_NAMING_STRATEGY": plugin.device_plugin_arguments.get(NAMING, STRATEGIES[0])},
        LABELLER: {},
        EXPORTER: {},
        PARTITIONS: {},
    }
    files = {
        role: {variable: ConfigKey(config_map=name, key=key)}
        for role, variable, named, key in _NAMED
        if (name := named(config))
    }
    roles = {
        role: msgspec.structs.replace(
            kind.roles[role],
            enabled=True,
            env={**kind.roles[role].env, **told},
            files={**kind.roles[role].files, **files.get(role, {})},
        )
        for role, told in env.items()
    }
    return NodeKind(title=kind.title, roles={**kind.roles, **roles})


def uses_node_features(observed: ObservedCluster) -> bool:
    """True if labels go into NodeFeature objects, because a discovery in the cluster turns those into labels. That of
    OpenShift may have the kind and leave it alone, so that labels there go to the Nodes.
    """
    return observed.foreign_nfd and observed.openshift is None and has_kind(observed, NODE_FEATURES)


def _live_paths(observed: ObservedCluster) -> shape.HostFolders:
    """The paths that a live DaemonSet mounts; the default paths without one."""
    ours = (names.AGENT_DAEMON_SET, *(operand.daemon_set for operand in OPERANDS if operand.role))
    live = mapping(next(filter(None, map(observed.daemon_sets.get, ours)), {}))
    spec = mapping(mapping(mapping(live.get("spec")).get("template")).get("spec"))
    paths = {
        text(mapping(volume).get("name")): text(mapping(mapping(volume).get("hostPath")).get("path"))
        for volume in items(spec.get("volumes"))
    }
    usual = shape.HostFolders()
    return shape.HostFolders(
        root_fs=paths.get("host-root") or usual.root_fs,
        driver_install_dir=paths.get("driver-install-dir") or usual.driver_install_dir,
    )
