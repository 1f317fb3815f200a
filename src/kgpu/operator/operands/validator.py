"""The validator: its role has to run, and its checks have to pass."""

from __future__ import annotations

import dataclasses
from typing import Final

from kgpu.formats import names
from kgpu.formats.operands import BY_ROLE, Operand
from kgpu.operator.causes import Cause, CauseView, word
from kgpu.operator.checks import own_pod_cause, pause_cause, role_cause
from kgpu.operator.injection import mig_strategy
from kgpu.operator.labels import TRUE, deploy
from kgpu.operator.model import ClusterNode, NodeCondition, NodeLayout
from kgpu.operator.objects.common import Scene
from kgpu.operator.objects.containers import CUDA_RESOURCES, DRIVER_VOLUMES, NODE_STATE
from kgpu.operator.objects.rbac import NODE_STATUS, NODES
from kgpu.operator.operand_spec import OperandPod, OperandSpec, Variable, section_enabled

TOOLKIT: Final = BY_ROLE["toolkit"]
MAX_SAID: Final = 600


def _check(view: CauseView, operand: Operand, node: ClusterNode) -> Cause | None:
    stopped = pause_cause(operand, node)
    if stopped is not None:
        return stopped
    agent = view.agent_cause(node) if view.settings.layout is NodeLayout.AGENT else own_pod_cause(view, operand, node)
    condition = node.conditions.get(names.VALIDATED_CONDITION)
    if agent is not None and not (agent.passing and condition is not None and condition.status == "False"):
        return agent
    if condition is not None and condition.status == "True":
        return None
    cause = _invalid(node, condition) if condition is not None else None
    off = _toolkit_off(node, cause) if cause is not None else None
    if condition is not None and condition.status == "False":
        return off or cause
    if off is not None:
        return dataclasses.replace(off, passing=True)  # another program may still write a spec
    waiting = role_cause(view, operand, node)
    return waiting or Cause(reason="NotValidatedYet", what="its GPUs have not been validated yet", passing=True)


def _invalid(node: ClusterNode, condition: NodeCondition) -> Cause:
    """The validator's failure as a cause; only the condition's text if its report can't be read."""
    reason = word(condition.reason, "ValidationFailed")
    failed = node.validation.failed if node.validation is not None else None
    if failed is None:
        return Cause(reason=reason, what=" ".join(condition.message.split())[:MAX_SAID])
    if failed.trouble is not None:
        troubles = [("", failed.trouble)]
    else:
        troubles = [(f"{device.name}: ", device.trouble) for device in failed.devices]
    more = f" and {failed.more} more" if failed.more else ""
    text = f"{failed.check}: {'; '.join(f'{name}{trouble.said()}' for name, trouble in troubles)}{more}"
    remedies = dict.fromkeys(trouble.remedy for _, trouble in troubles if trouble.remedy)
    return Cause(reason=reason, what=text[:MAX_SAID], quoted="; ".join(remedies)[:MAX_SAID])


def _toolkit_off(node: ClusterNode, cause: Cause) -> Cause | None:
    """The cause if a toolkit check fails because somebody has switched the toolkit off, else None."""
    key = deploy(TOOLKIT.deploy)
    value = node.labels.get(key, TRUE)
    if value == TRUE or not cause.reason.startswith("Toolkit"):
        return None
    return Cause(
        reason="ToolkitSwitchedOff",
        what=f'the node label {key} is "{value}", so that nothing writes CDI specs there; {cause.what}',
        remedy=f"kubectl label node {node.name} {key}-",
    )


def _without_toolkit(scene: Scene) -> str | None:
    return None if section_enabled(TOOLKIT, scene.policy) else "false"


def _without_rechecks(scene: Scene) -> str | None:
    """In a pod of its own nobody who watches usage knows its tests: repeated, they would be somebody's work."""
    return "0" if scene.settings.usage and scene.settings.layout is NodeLayout.OPERANDS else None


SPEC: Final = OperandSpec(
    operand=BY_ROLE["validator"],
    enabled=lambda _policy, _settings: True,  # it has no switch
    env=(Variable("MIG_STRATEGY", mig_strategy), Variable(names.ENV_CUDA_RECHECK, _without_rechecks)),
    env_blocks=("driver", "toolkit", "cuda", "plugin"),
    instead_of_args="settings of one check go into its env, such as validator.cuda.env",
    pod=OperandPod(
        container="nvidia-operator-validator",
        volumes=(*DRIVER_VOLUMES, "cdi", NODE_STATE),
        env=(Variable(names.ENV_KGPU_TOOLKIT, _without_toolkit),),
        labels=((names.PART_OF_LABEL, "gpu-operator"),),
        resources=CUDA_RESOURCES,
    ),
    rules=lambda _: (NODES, NODE_STATUS),
    check=_check,
)
