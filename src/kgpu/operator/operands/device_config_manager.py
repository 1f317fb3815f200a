"""The device config manager, on nodes with AMD GPUs: its profiles in a ConfigMap, and what has become of nodes' labels.

A node's profiles are those of the ConfigMap that its DeviceConfig names, else of ``default-dcm-config``. That has the
replaced operator's, and is made where there are AMD GPUs; one that somebody else has made is read, and stays as it is.
"""

from __future__ import annotations

import json
import posixpath
from typing import Final

from kgpu.formats import names
from kgpu.formats.agent_config import ConfigKey
from kgpu.formats.device_config_flags import PROFILES_FILE, PROFILES_KEY
from kgpu.formats.operands import BY_ROLE, Operand
from kgpu.formats.partition_profiles import default_profiles
from kgpu.operator.causes import Cause, CauseView
from kgpu.operator.checks import device_config_map_cause, layout_cause, role_cause
from kgpu.operator.device_configs import PROFILES_VARIABLE, of_node, profiles_map
from kgpu.operator.injection import by_operations
from kgpu.operator.labels import vendor_of
from kgpu.operator.model import ClusterNode, NodeLayout, Object, ObservedCluster
from kgpu.operator.objects.common import Scene
from kgpu.operator.objects.containers import DRIVER_VOLUMES, NODE_STATE
from kgpu.operator.operand_spec import ConfigFolder, OperandPod, OperandSpec, Variable
from kgpu.operator.vendors import PARTITION_TOLERATION

OPERAND: Final = BY_ROLE["device-config-manager"]
FOLDER: Final = posixpath.dirname(PROFILES_FILE)


def _has_amd(observed: ObservedCluster) -> bool:
    return any(vendor_of(node) == names.AMD for node in observed.nodes)


def _has_pods(scene: Scene) -> bool:
    return scene.settings.layout is NodeLayout.OPERANDS and _has_amd(scene.observed)


def _files(scene: Scene) -> dict[str, ConfigKey]:
    if scene.vendor != names.AMD:
        return {}
    return {PROFILES_VARIABLE: ConfigKey(config_map=names.AMD_PROFILES_MAP, key=PROFILES_KEY)}


def _followed(scene: Scene) -> tuple[str, ...]:
    """The ConfigMap that the agent reads; a pod of its own has it mounted. Those of DeviceConfigs come to it."""
    in_agent = scene.settings.layout is NodeLayout.AGENT
    return (names.AMD_PROFILES_MAP,) if in_agent and _has_amd(scene.observed) else ()


def _folders(_scene: Scene) -> tuple[ConfigFolder, ...]:
    return (ConfigFolder(volume="config-manager", config_map=names.AMD_PROFILES_MAP, folder=FOLDER),)


def _config_maps(scene: Scene) -> list[Object]:
    if not _has_amd(scene.observed) or names.AMD_PROFILES_MAP in scene.observed.given_maps:
        return []
    data = {PROFILES_KEY: json.dumps(default_profiles(), indent=2) + "\n"}
    labels = {"app": OPERAND.daemon_set}
    return [scene.new_object("ConfigMap", names.AMD_PROFILES_MAP, state=OPERAND.state, labels=labels, data=data)]


def _check(view: CauseView, operand: Operand, node: ClusterNode) -> Cause | None:
    told = layout_cause(
        node, names.AMD_PROFILE_LABEL, node.partition, failed="PartitionFailed", pending="PartitionPending"
    )
    return role_cause(view, operand, node) or _named_map(view, node) or told


def _named_map(view: CauseView, node: ClusterNode) -> Cause | None:
    """The cause if the ConfigMap that the node's DeviceConfig names is missing."""
    config = of_node(view.observed, view.settings, node)
    if config is None or profiles_map(config) == names.AMD_PROFILES_MAP:
        return None
    return device_config_map_cause(view, config, "configManager", profiles_map(config), PROFILES_KEY)


SPEC: Final = OperandSpec(
    operand=OPERAND,
    enabled=lambda _, settings: names.AMD in settings.vendors,
    env=(Variable(names.ENV_MIG_OPERATIONS, by_operations),),
    files=_files,
    pod=OperandPod(
        container="device-config-manager",
        volumes=(*DRIVER_VOLUMES, NODE_STATE),
        env=(Variable(PROFILES_VARIABLE, PROFILES_FILE),),
        config_folders=_folders,
        tolerations=(PARTITION_TOLERATION,),
        host_pid=lambda _: True,
    ),
    has_pods=_has_pods,
    config_maps=_followed,
    shared=_config_maps,
    check=_check,
    why_off=lambda _: "AMD is not among the vendors of the Helm value vendors",
)
