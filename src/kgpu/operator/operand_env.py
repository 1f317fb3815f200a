"""The environment of a role: what the replaced operator would give the program of the same name, then the policy's own
variables, which win.

Variables that only tell a container runtime what to inject into the replaced programs' containers have no row: kgpu's
pods open the driver themselves.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from kgpu.formats.crd.clusterpolicy import ClusterPolicySpec
from kgpu.formats.crd.fields import rows
from kgpu.formats.operands import Operand
from kgpu.operator.objects.common import Scene
from kgpu.operator.objects.variables import check_names, valid_env
from kgpu.operator.operand_spec import OperandSpec, Variable


def role_env(operand: OperandSpec, scene: Scene) -> dict[str, str]:
    """All variables of a role, the policy's own last; without those that ``check_env`` refuses."""
    env = variables(operand.env, scene)
    for name, value in _user_env(operand, scene).items():
        env.pop(name, None)
        env[name] = value
    return env


def variables(variable_rows: Iterable[Variable], scene: Scene) -> dict[str, str]:
    """Name and value of the rows in this scene, without those that have no value."""
    values = ((row.name, row.value if isinstance(row.value, str) else row.value(scene)) for row in variable_rows)
    return {name: value for name, value in values if value is not None}


def _user_env(operand: OperandSpec, scene: Scene) -> dict[str, str]:
    """The policy's variables of a role.

    The validator's checks were containers of their own with an environment each; here a check's variables are those
    with its name before a dot: ``cuda.WITH_WORKLOAD``.
    """
    settings = section(operand.operand, scene.policy.spec)
    if settings is None:
        return {}
    env = valid_env(settings.env, scene)
    for part in operand.env_blocks:
        block = getattr(settings, part)
        env |= {f"{part}.{name}": value for name, value in valid_env(block.env if block else (), scene).items()}
    return env


def check_env(operand: OperandSpec, scene: Scene) -> None:
    """Check the policy's variables of a role. Raises ConfigError for the first name that no container could have."""
    settings = section(operand.operand, scene.policy.spec)
    if settings is None:
        return
    path = next(row.name for row in rows(ClusterPolicySpec) if row.attribute == operand.operand.section)
    check_names(f"{path}.env", settings.env, scene)
    for part in operand.env_blocks:
        if block := getattr(settings, part):
            check_names(f"{path}.{part}.env", block.env, scene)


def section(operand: Operand, spec: ClusterPolicySpec) -> Any:
    """The policy's section of an operand that is a role, None where it has none."""
    return getattr(spec, operand.section) if operand.role and operand.section else None
