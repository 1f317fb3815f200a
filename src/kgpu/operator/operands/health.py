"""GPU health: an operator setting, for which the policy has no section."""

from __future__ import annotations

from typing import Final

from kgpu.formats import names
from kgpu.formats.operands import BY_ROLE
from kgpu.operator.objects.containers import DRIVER_VOLUMES
from kgpu.operator.objects.rbac import NODE_STATUS, NODES
from kgpu.operator.operand_spec import OperandPod, OperandSpec, Variable

SPEC: Final = OperandSpec(
    operand=BY_ROLE["health"],
    enabled=lambda _, settings: settings.health,
    env=(Variable(names.ENV_HEALTH_CONFIG, lambda scene: scene.settings.health_config or None),),
    pod=OperandPod(container="kgpu-gpu-health", volumes=DRIVER_VOLUMES),
    rules=lambda _: (NODES, NODE_STATUS),
)
