"""The environment of a role: what the replaced operator would give the program of the same name, then the policy's own
variables, which win.

Variables that only tell a container runtime what to inject into the replaced programs' containers have no row: kgpu's
pods open the driver themselves.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any, Final

from kgpu.base.errors import ConfigError
from kgpu.formats.crd.clusterpolicy import ClusterPolicySpec
from kgpu.formats.crd.common import EnvVar
from kgpu.formats.crd.fields import rows
from kgpu.formats.operands import Operand
from kgpu.operator.objects.common import Scene, given_env
from kgpu.operator.operand_spec import OperandSpec, Variable


def role_env(operand: OperandSpec, scene: Scene) -> dict[str, str]:
    """All variables of a role, the policy's own last; without those that ``check_env`` refuses."""
    env = variables(operand.env, scene)
    for name, value in _user_env(operand, scene).items():
        env.pop(name, None)
        env[name] = value
    return env


def variables(rows: Iterable[Variable], scene: Scene) -> dict[str, str]:
    """What the rows give."""
    values = ((row.name, row.value if isinstance(row.value, str) else row.value(scene)) for row in rows)
    return {name: value for name, value in values if value is not None}


def _user_env(operand: OperandSpec, scene: Scene) -> dict[str, str]:
    """The policy's variables of a role.

    The validator's checks were containers of their own with an environment each; here a check's variables are those
    with its name before a dot: ``cuda.WITH_WORKLOAD``.
    """
    told = section(operand.operand, scene.policy.spec)
    if told is None:
        return {}
    env = _given(told.env, scene)
    for part in operand.env_blocks:
        block = getattr(told, part)
        env |= {f"{part}.{name}": value for name, value in _given(block.env if block else (), scene).items()}
    return env


# How Kubernetes checks names: any printable ASCII but "=" from 1.32 on, before that those of shells and a few more.
_ANY_NAME: Final = re.compile("[ -<>-~]+")
_OLD_NAME: Final = re.compile(r"(?!\.\.)(?!\.$)[-._a-zA-Z][-._a-zA-Z0-9]*")
_ANY_SINCE: Final = (1, 32)


def check_names(path: str, told: Iterable[EnvVar], scene: Scene) -> None:
    """Raises ConfigError for the first name that no container could have in this cluster. ``path`` is the list's."""
    for number, row in enumerate(told):
        if not _named(row, scene):
            raise ConfigError(
                f'{path}[{number}].name is "{row.name}"',
                "the name of an environment variable without `=`, such as LOG_LEVEL",
                f"correct the name in {path}; a value goes into value",
            )


def check_env(operand: OperandSpec, scene: Scene) -> None:
    """The same of all variables of a role."""
    told = section(operand.operand, scene.policy.spec)
    if told is None:
        return
    path = next(row.name for row in rows(ClusterPolicySpec) if row.attribute == operand.operand.section)
    check_names(f"{path}.env", told.env, scene)
    for part in operand.env_blocks:
        if block := getattr(told, part):
            check_names(f"{path}.{part}.env", block.env, scene)


def _given(told: Iterable[EnvVar], scene: Scene) -> dict[str, str]:
    return given_env(row for row in told if _named(row, scene))


def _named(row: EnvVar, scene: Scene) -> bool:
    form = _ANY_NAME if scene.observed.kube_version >= _ANY_SINCE else _OLD_NAME
    return form.fullmatch(row.name) is not None


def section(operand: Operand, spec: ClusterPolicySpec) -> Any:
    """The policy's section of what an agent hosts, None where it has none."""
    return getattr(spec, operand.section) if operand.role and operand.section else None
