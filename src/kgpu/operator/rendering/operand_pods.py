"""The DaemonSets of single operands, with the replaced operator's names where it has them and kgpu's image: every
operand in the layout ``operands``, and in both layouts the finder, which looks for PCI devices without privileges.

Each runs ``kgpu agent --auto`` for its role alone: it takes the same orders and chooses the same driver root as the
whole agent, and writes a report of its own. Pods start at once and wait inside for what they need, so that their logs
and readiness show it; the device plugin waits for the validator's files. They open the driver through the host's
folders and never through a container runtime. Without ``runtimeClassName``, no pod fails to start because a runtime is
not set up yet.
"""

from __future__ import annotations

from kgpu.base.advice import Advice, Severity
from kgpu.formats import names
from kgpu.formats.crd.common import Component, OperandContainer
from kgpu.formats.operands import Operand
from kgpu.operator.allocation import LEAVING
from kgpu.operator.model import NodeLayout, Object, Policy
from kgpu.operator.objects import finder, images, openshift, shape
from kgpu.operator.objects.common import Scene, env_list, manifest_of, mount
from kgpu.operator.objects.containers import affinity, agent_container, host_access, required_nodes
from kgpu.operator.objects.rbac import account
from kgpu.operator.operand_args import role_args
from kgpu.operator.operand_env import check_env, role_env, section, variables
from kgpu.operator.operand_spec import OperandPod, OperandSpec
from kgpu.operator.operands import SPECS


def objects(scene: Scene, spec: OperandSpec, pod: OperandPod) -> list[Object]:
    """The ServiceAccount, permissions and DaemonSet of one operand. Raises ConfigError."""
    check_env(spec, scene)
    operand = spec.operand
    daemon_set = _daemon_set(scene, spec, pod)
    if _account_of(operand) is not spec:
        return [*spec.objects(scene), daemon_set]
    admitted = openshift.admits(scene, openshift.FOR_AGENTS if pod.privileged else openshift.FOR_FINDER)
    namespaced = (*spec.namespace_rules(scene), *admitted)
    return [
        *account(scene, operand.account, operand.state, cluster=spec.rules(scene), namespaced=namespaced),
        *spec.objects(scene),
        daemon_set,
    ]


def _account_of(operand: Operand) -> OperandSpec:
    """The operand that makes an account which several have: the first of them."""
    return next(spec for spec in SPECS.values() if spec.pod is not None and spec.operand.account == operand.account)


def _daemon_set(scene: Scene, spec: OperandSpec, pod: OperandPod) -> Object:
    policy, operand = scene.policy, spec.operand
    settings: OperandContainer | None = section(operand, policy.spec)
    paths = shape.paths(policy)
    volumes, mounts = (
        host_access(paths, operand.name, claims=scene.settings.dra) if pod.privileged else finder.host_access(paths)
    )
    folders = pod.config_folders(scene)
    mounts = [one for one in mounts if one["name"] in pod.volumes]
    mounts += [mount(folder.volume, folder.folder, read_only=True) for folder in folders]
    container = _container(scene, spec, pod, mounts)
    pod_spec = shape.pod_spec(policy.spec.daemonsets, account=operand.account) | {
        "nodeSelector": _selector(spec, policy),
        "containers": [container],
        "volumes": [
            *(volume for volume in volumes if volume["name"] in pod.volumes),
            *(folder.as_volume for folder in folders),
        ],
    }
    if pod.tolerations:
        pod_spec["tolerations"] = shape.tolerations(policy.spec.daemonsets, *pod.tolerations)
    if not operand.deploy:
        pod_spec |= _everywhere(scene)
    if spec.lingers:
        pod_spec |= {"affinity": required_nodes(f"{names.LABEL_DEPLOY_PREFIX}{operand.deploy}", "In", "true", LEAVING)}
    if not pod.privileged:
        pod_spec["securityContext"] = pod_spec.get("securityContext", {}) | finder.POD_SECURITY
    secrets = dict.fromkeys(scene.settings.image_pull_secrets)
    if settings is not None and images.is_own(settings):
        secrets |= dict.fromkeys(settings.image_pull_secrets)
    if secrets:
        pod_spec["imagePullSecrets"] = [{"name": name} for name in secrets]
    if pod.host_pid(policy):
        pod_spec["hostPID"] = True
    shape.host_network(pod_spec, wanted=settings.host_network if settings else None)
    return shape.daemon_set(
        scene,
        operand.daemon_set,
        state=operand.state,
        app={"app": operand.daemon_set, **dict(pod.labels)},
        spec=pod_spec,
        annotations=pod.annotations(policy),
    )


def _container(scene: Scene, spec: OperandSpec, pod: OperandPod, mounts: list[Object]) -> Object:
    settings: OperandContainer | None = section(spec.operand, scene.policy.spec)
    arguments = role_args(spec, scene.policy)
    container = agent_container(
        scene,
        name=pod.container,
        args=["--roles", _roles(scene, spec), *(["--", *arguments] if arguments else [])],
        env=env_list(variables(pod.env, scene) | role_env(spec, scene)),
        mounts=mounts,
        readiness="/readyz",
        resources=manifest_of(settings.resources) if settings and settings.resources else pod.resources,
    )
    if not pod.privileged:
        container["securityContext"] = dict(finder.CONTAINER_SECURITY)
    if settings is not None and images.is_own(settings):
        container["image"] = images.policy_image(spec.operand.section, settings, "", {})
        container["imagePullPolicy"] = settings.image_pull_policy or "IfNotPresent"
    if pod.port:
        container["ports"].append({"name": pod.port[0], "containerPort": pod.port[1], "protocol": "TCP"})
    return container


def _everywhere(scene: Scene) -> Object:
    """The fields that let a pod onto every node, or only onto those without an agent."""
    daemonsets = scene.policy.spec.daemonsets
    tolerations = shape.tolerations(daemonsets, *shape.ON_EVERY_NODE)
    apart = affinity("DoesNotExist") if scene.settings.layout is NodeLayout.AGENT else {}
    return {"tolerations": tolerations, **apart}


def _roles(scene: Scene, spec: OperandSpec) -> str:
    """The operand's role, and those of operands that run in its pod."""
    guests = (
        other.operand.role
        for other in SPECS.values()
        if other.operand.within == spec.operand.name and other.is_enabled(scene.policy, scene.settings)
    )
    return ",".join((spec.operand.role, *guests))


def _selector(spec: OperandSpec, policy: Policy) -> dict[str, str]:
    where = spec.where(policy)
    needed = {where: "true"} if where else {}
    if spec.operand.deploy and not spec.lingers:
        return {f"{names.LABEL_DEPLOY_PREFIX}{spec.operand.deploy}": "true", **needed}
    return {names.OS_LABEL: "linux", **needed}


def ignored_image(scene: Scene, operand: Operand) -> Advice | None:
    """The advice on an image of the replaced program, which kgpu's pods must not run; None without one."""
    settings = section(operand, scene.policy.spec)
    if not isinstance(settings, (Component, OperandContainer)) or not images.names_image(settings):
        return None
    if images.is_own(settings) and scene.settings.layout is NodeLayout.OPERANDS:
        return None
    return Advice(
        subject=f"ClusterPolicy/{scene.policy.name}",
        what=f"image, repository and version of {operand.section} are ignored",
        why="one image of kgpu does the work of all operands",
        evidence=tuple(value for value in (settings.repository, settings.image, settings.version) if value),
        severity=Severity.INFO,
        remedy="remove them; the chart's value image says which build of kgpu runs",
        reason="ImageIgnored",
    )
