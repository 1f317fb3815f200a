"""The MIG manager: its layouts and the host's GPU services in ConfigMaps, and what has become of nodes' labels.

The two ConfigMaps are the replaced operator's: ``default-mig-parted-config`` and ``default-gpu-clients``, each made
unless the policy names another. A pod of its own has them as folders; the agent follows them through the API server.
"""

from __future__ import annotations

from typing import Final

from kgpu.formats import names, yaml_text
from kgpu.formats.agent_config import ConfigKey
from kgpu.formats.mig_default_configs import default_configs
from kgpu.formats.operands import BY_ROLE, Operand
from kgpu.operator.causes import Cause, CauseView
from kgpu.operator.checks import layout_cause, named_map_cause, role_cause
from kgpu.operator.injection import by_operations
from kgpu.operator.model import ClusterNode, NodeLayout, Object, Policy
from kgpu.operator.objects.common import Scene
from kgpu.operator.objects.containers import DRIVER_VOLUMES, NODE_STATE
from kgpu.operator.operand_spec import ConfigFolder, OperandPod, OperandSpec, Variable

OPERAND: Final = BY_ROLE["mig-manager"]
LAYOUTS: Final = names.MIG_LAYOUTS_MAP
CLIENTS: Final = "default-gpu-clients"
CLIENTS_KEY: Final = "clients.yaml"
LAYOUTS_FOLDER: Final = "/mig-parted-config"
CLIENTS_FOLDER: Final = "/gpu-clients"
SERVICES: Final = (
    "nvsm.service", "nvsm-mqtt.service", "nvsm-core.service", "nvsm-api-gateway.service", "nvsm-notifier.service",
    "nv_peer_mem.service", "nvidia-dcgm.service", "dcgm.service", "dcgm-exporter.service",
)  # fmt: skip
"""The host's services that the replaced operator stops while GPUs are cut."""


def _layouts(policy: Policy) -> str:
    return policy.spec.mig_manager.config.name or LAYOUTS


def _clients(policy: Policy) -> str:
    named = policy.spec.mig_manager.gpu_clients_config
    return (named.name if named else "") or CLIENTS


def _key(scene: Scene) -> str:
    """The key that the ConfigMap of layouts has: published guides have two."""
    there = scene.observed.config_maps.get(_layouts(scene.policy), frozenset())
    return next((key for key in names.MIG_LAYOUTS_KEYS if key in there), names.MIG_LAYOUTS_KEYS[0])


def _files(scene: Scene) -> dict[str, ConfigKey]:
    """The variables that name files, and what is in these; built-in layouts give way to those of the node's GPUs."""
    policy = scene.policy
    variable = "DEFAULT_CONFIG_FILE" if _layouts(policy) == LAYOUTS else "CONFIG_FILE"
    return {
        variable: ConfigKey(config_map=_layouts(policy), key=_key(scene)),
        "GPU_CLIENTS_FILE": ConfigKey(config_map=_clients(policy), key=CLIENTS_KEY),
    }


def _in_own_pod(variable: str, folder: str) -> Variable:
    """The variable with the file's path in a pod of its own; None, and so left out, for another variable."""

    def value(scene: Scene) -> str | None:
        file = _files(scene).get(variable)
        return f"{folder}/{file.key}" if file is not None else None

    return Variable(variable, value)


def _folders(scene: Scene) -> tuple[ConfigFolder, ...]:
    return (
        ConfigFolder(volume="mig-parted-config", config_map=_layouts(scene.policy), folder=LAYOUTS_FOLDER),
        ConfigFolder(volume="gpu-clients", config_map=_clients(scene.policy), folder=CLIENTS_FOLDER),
    )


def _followed(scene: Scene) -> tuple[str, ...]:
    """The ConfigMaps that the agent reads; a pod of its own has them mounted."""
    in_agent = scene.settings.layout is NodeLayout.AGENT
    return tuple(file.config_map for file in _files(scene).values()) if in_agent else ()


def _config_maps(scene: Scene) -> list[Object]:
    """The ConfigMaps for which the policy names no other."""
    layouts, clients = _layouts(scene.policy), _clients(scene.policy)
    made = []
    if layouts == LAYOUTS:
        made.append(_config_map(scene, LAYOUTS, names.MIG_LAYOUTS_KEYS[0], default_configs()))
    if clients == CLIENTS:
        content = {"version": "v1", "systemd-services": list(SERVICES)}
        made.append(_config_map(scene, CLIENTS, CLIENTS_KEY, content))
    return made


def _config_map(scene: Scene, name: str, key: str, content: Object) -> Object:
    labels = {"app": OPERAND.daemon_set}
    return scene.new_object("ConfigMap", name, state=OPERAND.state, labels=labels, data={key: yaml_text.write(content)})


def config_map(view: CauseView) -> Cause | None:
    """The cause if a ConfigMap that the policy names is missing or has no key that is read, else None."""
    config, clients = view.policy.spec.mig_manager.config, view.policy.spec.mig_manager.gpu_clients_config
    rows = (
        ("migManager.config", config.name, LAYOUTS, names.MIG_LAYOUTS_KEYS),
        ("migManager.gpuClientsConfig", (clients.name if clients else "") or "", CLIENTS, (CLIENTS_KEY,)),
    )
    for field, name, own, keys in rows:
        if name and name != own and (cause := named_map_cause(view, field, name, keys)) is not None:
            return cause
    return None


def _check(view: CauseView, operand: Operand, node: ClusterNode) -> Cause | None:
    told = layout_cause(node, names.MIG_CONFIG_LABEL, node.mig, failed="MIGConfigFailed", pending="MIGConfigPending")
    return role_cause(view, operand, node) or told


SPEC: Final = OperandSpec(
    operand=OPERAND,
    per_node=True,
    env=(
        Variable(names.ENV_MIG_OPERATIONS, by_operations),
        Variable("DEFAULT_GPU_CLIENTS_NAMESPACE", lambda scene: scene.settings.namespace),
        Variable("POD_NAMESPACE", lambda scene: scene.settings.namespace),
    ),
    files=_files,
    pod=OperandPod(
        container="nvidia-mig-manager",
        volumes=(*DRIVER_VOLUMES, NODE_STATE),
        env=(
            _in_own_pod("CONFIG_FILE", LAYOUTS_FOLDER),
            _in_own_pod("DEFAULT_CONFIG_FILE", LAYOUTS_FOLDER),
            _in_own_pod("GPU_CLIENTS_FILE", CLIENTS_FOLDER),
        ),
        config_folders=_folders,
        host_pid=lambda _: True,
    ),
    config_maps=_followed,
    shared=_config_maps,
    check=_check,
    general=config_map,
)
