"""DaemonSets of one operand each, under the replaced operator's names where it has them, all with kgpu's image: every
operand in the layout ``operands``; in both layouts the finder, which looks for PCI devices and has no privilege.

Each runs ``kgpu agent --auto`` for its role alone: it takes the same orders and chooses the same driver root as the
whole agent, and reports in an annotation of its own. Pods start at once and wait inside for what they need, so that
their logs and readiness say what it is; the device plugin waits for the validator's files. They open the driver by the
host's folders and never through a container runtime: no ``runtimeClassName``, hence no pod that can't start because a
runtime is not set up yet.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from kgpu.base.advice import Advice, Severity
from kgpu.formats import names
from kgpu.formats.crd.clusterpolicy import DcgmExporter
from kgpu.formats.crd.common import Component, Container
from kgpu.formats.operands import BY_ROLE, OPERANDS, Operand
from kgpu.operator.model import Layout, Object
from kgpu.operator.objects import finder, images, shape
from kgpu.operator.objects.agent import CUDA_RESOURCES, RESOURCES, RUN, affinity, agent_container, host_access
from kgpu.operator.objects.args import role_args
from kgpu.operator.objects.common import Scene, builtins, env_list
from kgpu.operator.objects.enabled import is_enabled
from kgpu.operator.objects.env import check_role, nri_on, role_env, section
from kgpu.operator.objects.rbac import CLUSTER_RULES, NAMESPACE_RULES, NRI_RULES, account, features


@dataclass(frozen=True, slots=True, kw_only=True)
class Pod:
    """What differs per role: the container's name as users know it, volumes and mounts, environment, a port.

    ``volumes`` are names of ``host_access``; ``labels`` are further labels of pods that live selectors have. With
    ``host_pid`` the pod sees the host's processes, unless the policy's section says otherwise.
    """

    container: str
    volumes: tuple[str, ...]
    env: tuple[tuple[str, str], ...] = ()
    labels: tuple[tuple[str, str], ...] = ()
    port: tuple[str, int] | None = None
    host_pid: bool = False
    privileged: bool = True
    resources: Object = field(default_factory=lambda: RESOURCES)


_DRIVER: Final = ("host-root", "dev", "run-nvidia", "driver-install-dir", "state")

PODS: Final = {
    "features": Pod(
        container="kgpu-node-features", volumes=finder.VOLUMES, privileged=False, resources=finder.RESOURCES
    ),
    "toolkit": Pod(
        container="nvidia-container-toolkit-ctr",
        volumes=(*_DRIVER, "cdi", "engines", "pod-resources"),
        host_pid=True,
    ),
    "validator": Pod(
        container="nvidia-operator-validator",
        volumes=(*_DRIVER, "cdi"),
        labels=((names.PART_OF_LABEL, "gpu-operator"),),
        resources=CUDA_RESOURCES,
    ),
    "deviceplugin": Pod(
        container="nvidia-device-plugin",
        volumes=(*_DRIVER, "device-plugins", "pod-resources", "cdi", RUN),
        env=((names.ENV_WAIT_FOR_VALIDATION, names.VALIDATIONS_DIR),),
    ),
    # Without the host's processes the driver does not say who uses how much of a GPU.
    "exporter": Pod(
        container="nvidia-dcgm-exporter",
        volumes=(*_DRIVER, "pod-resources", RUN),
        port=("metrics", names.EXPORTER_PORT),
        host_pid=True,
    ),
    "health": Pod(container="kgpu-gpu-health", volumes=(*_DRIVER, RUN)),
    "labels": Pod(
        container="gpu-feature-discovery",
        volumes=_DRIVER,
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
    check_role(operand.role, scene)
    daemon_set = _daemon_set(scene, operand)
    cluster: tuple[Object, ...] = CLUSTER_RULES.get(operand.role, ())
    if operand.role == "toolkit" and nri_on(scene.policy.spec):
        cluster += NRI_RULES
    namespaced = NAMESPACE_RULES.get(operand.role, ())
    return [
        *account(scene, operand.account, operand.state, cluster=cluster, namespaced=namespaced),
        *(features(scene, operand.state, operand.account) if operand.role == "labels" else ()),
        daemon_set,
    ]


def _daemon_set(scene: Scene, operand: Operand) -> Object:
    policy = scene.policy
    daemonsets = policy.spec.daemonsets
    pod = PODS[operand.role]
    told: Container | None = section(operand.role, policy.spec)
    paths = shape.paths(policy)
    volumes, mounts = host_access(paths, operand.name) if pod.privileged else finder.host_access(paths)
    own = {"app": operand.daemon_set, **dict(pod.labels)}
    given = role_args(operand.role, policy)
    container = agent_container(
        scene,
        name=pod.container,
        args=["--roles", _roles(scene, operand), *(["--", *given] if given else [])],
        env=env_list(dict(pod.env) | _surroundings(scene, operand.role) | role_env(operand.role, scene)),
        mounts=[one for one in mounts if one["name"] in pod.volumes],
        readiness="/readyz",
        resources=builtins(told.resources) if told and told.resources else pod.resources,
    )
    if not pod.privileged:
        container["securityContext"] = dict(finder.CONTAINER_SECURITY)
    secrets = dict.fromkeys(scene.settings.image_pull_secrets)
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
        if scene.settings.layout is Layout.AGENT:
            spec |= affinity("DoesNotExist")
    if not pod.privileged:
        spec["securityContext"] = spec.get("securityContext", {}) | finder.POD_SECURITY
    if secrets:
        spec["imagePullSecrets"] = [{"name": name} for name in secrets]
    exporter = told if isinstance(told, DcgmExporter) else DcgmExporter()
    if pod.host_pid if exporter.host_pid is None else exporter.host_pid:
        spec["hostPID"] = True
    shape.host_network(spec, wanted=told.host_network if told else None)
    return shape.daemon_set(
        scene, operand.daemon_set, state=operand.state, app=own, spec=spec, annotations=exporter.annotations
    )


def _roles(scene: Scene, operand: Operand) -> str:
    """Its own, and those of operands that have no pods of their own."""
    guests = (
        one.role for one in OPERANDS if one.within == operand.name and is_enabled(one, scene.policy, scene.settings)
    )
    return ",".join((operand.role, *guests))


def _selector(operand: Operand) -> dict[str, str]:
    if operand.deploy:
        return {f"{names.LABEL_DEPLOY_PREFIX}{operand.deploy}": "true"}
    return {names.OS_LABEL: "linux"}


def _surroundings(scene: Scene, role: str) -> dict[str, str]:
    """What a pod has to know of its neighbours."""
    if role != "validator" or is_enabled(BY_ROLE["toolkit"], scene.policy, scene.settings):
        return {}
    return {names.ENV_KGPU_TOOLKIT: "false"}


def ignored_image(scene: Scene, operand: Operand) -> Advice | None:
    """What is told of an image of the replaced program, which kgpu's pods must not run; None where there is none."""
    told = section(operand.role, scene.policy.spec) if operand.role else None
    if not isinstance(told, (Component, Container)) or not images.names_image(told):
        return None
    if images.is_own(told) and scene.settings.layout is Layout.OPERANDS:
        return None
    return Advice(
        subject=f"ClusterPolicy/{scene.policy.name}",
        what=f"image, repository and version of {operand.section} are ignored",
        why="one image of kgpu does the work of all operands",
        evidence=tuple(value for value in (told.repository, told.image, told.version) if value),
        severity=Severity.INFO,
        remedy="remove them; the chart's value image says which build of kgpu runs",
        reason="ImageIgnored",
    )
