"""Translates the policy into the agents' document: ``agent_config``."""

from __future__ import annotations

from kgpu.base.errors import ConfigError
from kgpu.base.plain import items, mapping, text
from kgpu.formats import names
from kgpu.formats.agent_config import AgentConfig, ConfigRef, RoleConfig
from kgpu.formats.operands import OPERANDS
from kgpu.kube.port import NODE_FEATURES
from kgpu.operator.model import NodeLayout, ObservedCluster, OperatorSettings, OtherPresence, Policy
from kgpu.operator.objects import shape
from kgpu.operator.objects.common import Scene, has_kind
from kgpu.operator.operand_args import role_args
from kgpu.operator.operand_env import role_env
from kgpu.operator.operands import OF_ROLE


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
        roles={
            role: RoleConfig(
                enabled=spec.is_enabled(policy, settings),
                label=f"{names.LABEL_DEPLOY_PREFIX}{spec.operand.deploy}" if spec.operand.deploy else "",
                where=spec.where(policy),
                env=role_env(spec, scene) if in_agent else {},
                files=dict(spec.files(scene)) if in_agent else {},
                args=role_args(spec, policy) if in_agent else (),
            )
            for role, spec in OF_ROLE.items()
        },
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
