"""GPU feature discovery. It shares the device plugin's configuration, and the check of that."""

from __future__ import annotations

from typing import Final

from kgpu.formats import names
from kgpu.formats.operands import BY_ROLE, Operand
from kgpu.operator.causes import Cause, CauseView
from kgpu.operator.checks import role_cause
from kgpu.operator.injection import mig_strategy
from kgpu.operator.model import ClusterNode, Object
from kgpu.operator.objects.common import Scene
from kgpu.operator.objects.containers import DRIVER_VOLUMES
from kgpu.operator.objects.rbac import features
from kgpu.operator.operand_spec import OperandPod, OperandSpec, Variable
from kgpu.operator.operands.deviceplugin import config_key, config_maps

OPERAND: Final = BY_ROLE["labels"]


def _check(view: CauseView, operand: Operand, node: ClusterNode) -> Cause | None:
    return config_key(view, node) or role_cause(view, operand, node)


def _publishes_features(scene: Scene) -> list[Object]:
    return features(scene, OPERAND.state, OPERAND.account)


SPEC: Final = OperandSpec(
    operand=OPERAND,
    env=(
        Variable("GFD_SLEEP_INTERVAL", "60s"),
        Variable("GFD_FAIL_ON_INIT_ERROR", "true"),
        Variable("MIG_STRATEGY", mig_strategy),
    ),
    pod=OperandPod(
        container="gpu-feature-discovery", volumes=DRIVER_VOLUMES, labels=((names.PART_OF_LABEL, "nvidia-gpu"),)
    ),
    config_maps=config_maps,
    objects=_publishes_features,
    check=_check,
)
