"""The operands layout: one DaemonSet per operand under the replaced operator's names, all with kgpu's image.

Pods start at once and wait inside for what they need, so that their logs and readiness say what it is; the device
plugin waits for the validator's files. They open the driver by the host's folders and never through a container
runtime: no ``runtimeClassName``, hence no pod that can't start because a runtime is not set up yet.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from kgpu.base.decision import Decision, Severity
from kgpu.formats import names
from kgpu.formats.crd.common import Component, Container
from kgpu.operator.model import Layout, Object
from kgpu.operator.objects import images, shape
from kgpu.operator.objects.agent import RESOURCES, agent_container, host_access
from kgpu.operator.objects.agent_settings import uses_node_features
from kgpu.operator.objects.common import Scene, builtins, env_list
from kgpu.operator.objects.enabled import is_enabled
from kgpu.operator.objects.env import role_args, role_env, section
from kgpu.operator.objects.rbac import CLUSTER_RULES, NAMESPACE_RULES, account
from kgpu.operator.tables import BY_ROLE, Operand


@dataclass(frozen=True, slots=True, kw_only=True)
class Pod:
    """What differs per role: the container's name as users know it, flags, volumes and mounts, a port.

    ``volumes`` are names of ``host_access``; ``labels`` are further labels of pods that live selectors have.
    """

    container: str
    volumes: tuple[str, ...]
    flags: tuple[str, ...] = ()
    configs: bool = False
    labels: tuple[tuple[str, str], ...] = ()
    port: tuple[str, int] | None = None


_DRIVER: Final = ("host-root", "dev", "run-nvidia", "driver-install-dir", "state")

PODS: Final = {
    "features": Pod(container="kgpu-node-features", volumes=("host-root", "run-nvidia", "driver-install-dir", "state")),
    "toolkit": Pod(container="nvidia-container-toolkit-ctr", volumes=(*_DRIVER, "cdi")),
    "validator": Pod(
        container="nvidia-operator-validator",
        volumes=(*_DRIVER, "cdi"),
        labels=((names.PART_OF_LABEL, "gpu-operator"),),
    ),
    "deviceplugin": Pod(
        container="nvidia-device-plugin",
        volumes=(*_DRIVER, "device-plugins", "pod-resources", "cdi"),
        flags=("--wait-for-validation", names.VALIDATIONS_DIR),
        configs=True,
    ),
    "labels": Pod(
        container="gpu-feature-discovery",
        volumes=_DRIVER,
        configs=True,
        labels=((names.PART_OF_LABEL, "nvidia-gpu"),),
    ),
    "node-status": Pod(
        container="nvidia-node-status-exporter",
        volumes=("host-root", "run-nvidia", "driver-install-dir", "state"),
        port=("node-status", names.NODE_STATUS_PORT),
    ),
}
"""By role."""


def objects(scene: Scene, operand: Operand) -> list[Object]:
    """ServiceAccount, rights and DaemonSet of one operand. Raises ConfigError."""
    daemon_set = _daemon_set(scene, operand)
    cluster = CLUSTER_RULES.get(operand.role, ())
    namespaced = NAMESPACE_RULES.get(operand.role, ())
    return [
        *account(scene, operand.account, operand.state, cluster=cluster, namespaced=namespaced),
        daemon_set,
    ]


def _daemon_set(scene: Scene, operand: Operand) -> Object:
    policy = scene.policy
    daemonsets = policy.spec.daemonsets
    pod = PODS[operand.role]
    told: Container | None = section(operand.role, policy.spec)
    volumes, mounts = host_access(shape.paths(policy), operand.name)
    own = {"app": operand.daemon_set, **dict(pod.labels)}
    container = agent_container(
        scene,
        name=pod.container,
        args=["--roles", operand.role, *pod.flags, *role_args(operand.role, policy)],
        env=env_list(
            _surroundings(scene, operand.role)
            | (_configs(scene) if pod.configs else {})
            | role_env(operand.role, scene)
        ),
        mounts=[one for one in mounts if one["name"] in pod.volumes],
        readiness="/readyz",
    )
    secrets = dict.fromkeys(scene.settings.image_pull_secrets)
    container["resources"] = builtins(told.resources) if told and told.resources else RESOURCES
    if told is not None and images.is_own(told):
        container["image"] = images.policy_image(operand.section, told, "", {})
        container["imagePullPolicy"] = told.image_pull_policy or "IfNotPresent"
        secrets |= dict.fromkeys(told.image_pull_secrets)
    if pod.port:
        container["ports"].append({"name": pod.port[0], "containerPort": pod.port[1], "protocol": "TCP"})
    spec = shape.pod_spec(daemonsets, account=operand.account) | {
        "nodeSelector": _selector(operand),
        "containers": [container],
        "volumes": [one for one in volumes if one["name"] in pod.volumes],
    }
    if not operand.deploy:
        spec["tolerations"] = shape.tolerations(daemonsets, shape.GPU_TOLERATION, shape.CONTROL_PLANE_TOLERATION)
    if secrets:
        spec["imagePullSecrets"] = [{"name": name} for name in secrets]
    shape.host_network(spec, wanted=told.host_network if told else None)
    metadata: Object = {"labels": shape.pod_labels(daemonsets, own)}
    if annotations := shape.pod_annotations(daemonsets):
        metadata["annotations"] = annotations
    return scene.made(
        "DaemonSet",
        operand.daemon_set,
        state=operand.state,
        labels={**shape.object_labels(daemonsets), **own},
        spec={
            "selector": {"matchLabels": own},
            "updateStrategy": shape.update_strategy(daemonsets),
            "template": {"metadata": metadata, "spec": spec},
        },
    )


def _selector(operand: Operand) -> dict[str, str]:
    if operand.deploy:
        return {f"{names.LABEL_DEPLOY_PREFIX}{operand.deploy}": "true"}
    return {names.OS_LABEL: "linux"}


def _surroundings(scene: Scene, role: str) -> dict[str, str]:
    """What a pod has to know of its place: where the driver is, what else runs."""
    paths = shape.paths(scene.policy)
    found = {"DRIVER_INSTALL_DIR": paths.driver_install_dir}
    if role != "features":
        told = scene.policy.spec.driver
        installed = told.enabled is not False or paths.driver_install_dir != names.DRIVER_INSTALL_DIR
        found["NVIDIA_DRIVER_ROOT"] = paths.driver_install_dir if installed else paths.root_fs
        found["DRIVER_ROOT_CTR_PATH"] = paths.driver_install_dir if installed else names.HOST_ROOT
    if role == "labels":
        found["LABELS_SINK"] = "nodefeature" if uses_node_features(scene.observed) else "node"
    if role == "validator":
        toolkit = is_enabled(BY_ROLE["toolkit"], scene.policy, scene.settings, scene.observed)
        found[names.ENV_TOOLKIT] = str(toolkit).lower()
    return found


def _configs(scene: Scene) -> dict[str, str]:
    """The device plugin's configurations by name, as the replaced config manager got them."""
    config = scene.policy.spec.device_plugin.config
    if not config.name:
        return {}
    found = {"CONFIG_MAP": f"{scene.settings.namespace}/{config.name}", "FALLBACK_STRATEGIES": "empty"}
    return found | ({"DEFAULT_CONFIG": config.default} if config.default else {})


def ignored_image(scene: Scene, operand: Operand) -> Decision | None:
    """What is told of an image of the replaced program, which kgpu's pods must not run; None where there is none."""
    told = section(operand.role, scene.policy.spec) if operand.role else None
    if not isinstance(told, (Component, Container)) or not images.names_image(told):
        return None
    if images.is_own(told) and scene.settings.layout is Layout.OPERANDS:
        return None
    return Decision(
        subject=f"ClusterPolicy/{scene.policy.name}",
        what=f"image, repository and version of {operand.section} are ignored",
        why="one image of kgpu does the work of all operands",
        evidence=tuple(value for value in (told.repository, told.image, told.version) if value),
        severity=Severity.INFO,
        remedy="remove them; the chart's value image says which build of kgpu runs",
        reason="ImageIgnored",
    )
