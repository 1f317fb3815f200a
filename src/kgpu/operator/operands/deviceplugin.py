"""The device plugin: its configuration has to exist, and the kubelet has to offer every device."""

from __future__ import annotations

from typing import Final

from kgpu.base.suggest import did_you_mean
from kgpu.formats import names
from kgpu.formats.crd.clusterpolicy import ClusterPolicySpec
from kgpu.formats.operands import BY_ROLE, Operand
from kgpu.operator.allocation import DEPLOYED, LEAVING
from kgpu.operator.causes import Cause, CauseView
from kgpu.operator.checks import role_cause
from kgpu.operator.injection import mig_strategy, when, with_cdi
from kgpu.operator.labels import TRUE, deploy, serves
from kgpu.operator.model import Allocation, ClusterNode
from kgpu.operator.objects.common import Scene
from kgpu.operator.objects.containers import DRA_FOLDERS, DRIVER_VOLUMES, MPS, NODE_STATE
from kgpu.operator.operand_spec import OperandPod, OperandSpec, Variable

VALIDATOR: Final = BY_ROLE["validator"]


def _check(view: CauseView, operand: Operand, node: ClusterNode) -> Cause | None:
    cause = config_key(view, node) or role_cause(view, operand, node)
    if cause is not None or _has_claims(node):
        return cause
    short = [
        f"{name}: {node.allocatable.get(name, 0)} of {count} allocatable"
        for name, count in sorted(node.capacity.items())
        if node.allocatable.get(name, 0) < count
    ]
    if short and not any(node.allocatable.values()) and _is_being_checked(node):
        return Cause(
            reason="NotOfferedYet",
            what=f"{', '.join(short)}; the kubelet has not been told of them yet, or the validator will say why not",
            passing=True,
        )
    if short:
        return Cause(
            reason="DevicesUnhealthy",
            symptom=True,
            what=", ".join(short),
            remedy=f"see the node's Events for the device and the reason: kubectl describe node {node.name}",
        )
    if not any(node.allocatable.values()):
        return Cause(reason="NotOfferedYet", what="the kubelet offers no GPU yet", passing=True)
    return None


def _has_claims(node: ClusterNode) -> bool:
    """Whether pods still have GPUs of this node by claims, from before: these are withdrawn, and well."""
    return node.labels.get(deploy(DEPLOYED[Allocation.DRA])) == LEAVING


def _is_being_checked(node: ClusterNode) -> bool:
    """Whether a running validator may still report that no device is allocatable."""
    if node.labels.get(deploy(VALIDATOR.deploy)) != TRUE or not serves(VALIDATOR, node):
        return False
    report = node.report.roles.get(VALIDATOR.role) if node.report else None
    condition = node.conditions.get(names.VALIDATED_CONDITION)
    return report is not None and report.state != "failed" and (condition is None or condition.status != "False")


def config_map(view: CauseView) -> Cause | None:
    """The cause if the policy's ConfigMap of configurations is missing or lacks the default, else None."""
    config = view.policy.spec.device_plugin.config
    if not config.name:
        return None
    keys = view.observed.config_maps.get(config.name)
    where = f"ConfigMap {view.settings.namespace}/{config.name}"
    if keys is None:
        hint = did_you_mean(config.name, view.observed.config_maps)
        return Cause(
            reason="ConfigMapMissing",
            what=f"devicePlugin.config names {where}, which does not exist{'; ' if hint else ''}{hint}",
            remedy=f"make it: kubectl -n {view.settings.namespace} create configmap {config.name} --from-file=DIR",
            cluster=True,
        )
    if config.default and config.default not in keys:
        return _no_key(where, "devicePlugin.config.default", config.default, keys, cluster=True)
    return None


def config_key(view: CauseView, node: ClusterNode) -> Cause | None:
    """The cause if the node's label chooses a configuration that the ConfigMap lacks, else None."""
    config = view.policy.spec.device_plugin.config
    chosen = node.labels.get(names.DEVICE_PLUGIN_CONFIG_LABEL)
    keys = view.observed.config_maps.get(config.name) if config.name else None
    if not chosen or keys is None or chosen in keys:
        return None
    where = f"ConfigMap {view.settings.namespace}/{config.name}"
    return _no_key(where, f"the node label {names.DEVICE_PLUGIN_CONFIG_LABEL}", chosen, keys)


def _no_key(where: str, by: str, key: str, keys: frozenset[str], *, cluster: bool = False) -> Cause:
    known = ", ".join(sorted(keys)[:20]) or "none at all"
    hint = did_you_mean(key, sorted(keys))
    return Cause(
        reason="ConfigKeyMissing",
        what=f'{by} chooses "{key[:63]}", which {where} has not got; it has: {known}{"; " if hint else ""}{hint}',
        remedy="choose one of these, or add it to the ConfigMap",
        cluster=cluster,
    )


def config_maps(scene: Scene) -> tuple[str, ...]:
    """The ConfigMap of configurations that the policy names, which feature discovery reads too."""
    name = scene.policy.spec.device_plugin.config.name
    return (name,) if name else ()


def mps_root(scene: Scene) -> str:
    """The folder of MPS on the host."""
    mps = scene.policy.spec.device_plugin.mps
    return (mps.root if mps else "") or names.MPS_ROOT


def _with_gds(spec: ClusterPolicySpec) -> object:
    return spec.gds and spec.gds.enabled


SPEC: Final = OperandSpec(
    operand=BY_ROLE["deviceplugin"],
    per_node=True,
    env=(
        Variable("PASS_DEVICE_SPECS", "true"),
        Variable("FAIL_ON_INIT_ERROR", "true"),
        Variable("DEVICE_LIST_STRATEGY", with_cdi("cdi-annotations,cdi-cri", "envvar")),
        Variable("CDI_ANNOTATION_PREFIX", with_cdi(names.CDI_ANNOTATION_PREFIX)),
        Variable("CDI_ENABLED", with_cdi("true")),
        Variable("DEVICE_ID_STRATEGY", "uuid"),
        Variable("MPS_ROOT", mps_root),
        Variable("MIG_STRATEGY", mig_strategy),
        Variable("GDS_ENABLED", when(_with_gds)),
        Variable("MOFED_ENABLED", when(_with_gds)),
        Variable("GDRCOPY_ENABLED", when(lambda spec: spec.gdrcopy and spec.gdrcopy.enabled)),
    ),
    pod=OperandPod(
        container="nvidia-device-plugin",
        volumes=(*DRIVER_VOLUMES, "device-plugins", "cdi", NODE_STATE, MPS, *DRA_FOLDERS),
        env=(Variable(names.ENV_WAIT_FOR_VALIDATION, names.VALIDATIONS_DIR),),
    ),
    config_maps=config_maps,
    check=_check,
    general=config_map,
)
