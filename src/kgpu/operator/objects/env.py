"""The environment of each role, as rows: what the replaced operator would give the program of the same name.

The policy's own variables come last and win. Variables that only tell a container runtime what to inject into the
replaced programs' containers have no row: kgpu's pods open the driver themselves.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

from kgpu.formats import names
from kgpu.formats.crd.clusterpolicy import ClusterPolicySpec, Validator
from kgpu.formats.crd.common import EnvVar
from kgpu.operator.model import Policy
from kgpu.operator.objects.common import Scene, given_env

Value: TypeAlias = str | Callable[[ClusterPolicySpec], str | None]


@dataclass(frozen=True, slots=True)
class Row:
    """One variable of one role. ``value`` is the text, or gives it from the policy; None leaves the variable out."""

    role: str
    name: str
    value: Value


def cdi_on(spec: ClusterPolicySpec) -> bool:
    """CDI is on unless it is switched off."""
    return spec.cdi is None or spec.cdi.enabled


def nri_on(spec: ClusterPolicySpec) -> bool:
    """The NRI plugin is off unless it is switched on."""
    return spec.cdi is not None and spec.cdi.nri_plugin_enabled


def _with_cdi(value: str, otherwise: str | None = None) -> Value:
    return lambda spec: value if cdi_on(spec) else otherwise


def _mig(spec: ClusterPolicySpec) -> str | None:
    return (spec.mig.strategy if spec.mig else None) or None


def _if(on: Callable[[ClusterPolicySpec], object]) -> Value:
    return lambda spec: "true" if on(spec) else None


def _mps_root(spec: ClusterPolicySpec) -> str:
    return (spec.device_plugin.mps.root if spec.device_plugin.mps else "") or names.MPS_ROOT


ROWS: Final = (
    Row("toolkit", "ROOT", lambda spec: spec.toolkit.install_dir),
    Row("toolkit", "CDI_ENABLED", _with_cdi("true")),
    Row("toolkit", "NVIDIA_RUNTIME_SET_AS_DEFAULT", _with_cdi("false")),
    Row("toolkit", "NVIDIA_CONTAINER_RUNTIME_MODE", _with_cdi("cdi")),
    Row("toolkit", "CRIO_CONFIG_MODE", _with_cdi("config", "hook")),
    Row("toolkit", "ENABLE_NRI_PLUGIN", _if(nri_on)),
    Row("deviceplugin", "PASS_DEVICE_SPECS", "true"),
    Row("deviceplugin", "FAIL_ON_INIT_ERROR", "true"),
    Row("deviceplugin", "DEVICE_LIST_STRATEGY", _with_cdi("cdi-annotations,cdi-cri", "envvar")),
    Row("deviceplugin", "CDI_ANNOTATION_PREFIX", _with_cdi(names.CDI_ANNOTATION_PREFIX)),
    Row("deviceplugin", "CDI_ENABLED", _with_cdi("true")),
    Row("deviceplugin", "DEVICE_ID_STRATEGY", "uuid"),
    Row("deviceplugin", "MPS_ROOT", _mps_root),
    Row("deviceplugin", "MIG_STRATEGY", _mig),
    Row("deviceplugin", "GDS_ENABLED", _if(lambda spec: spec.gds and spec.gds.enabled)),
    Row("deviceplugin", "MOFED_ENABLED", _if(lambda spec: spec.gds and spec.gds.enabled)),
    Row("deviceplugin", "GDRCOPY_ENABLED", _if(lambda spec: spec.gdrcopy and spec.gdrcopy.enabled)),
    Row("labels", "GFD_SLEEP_INTERVAL", "60s"),
    Row("labels", "GFD_FAIL_ON_INIT_ERROR", "true"),
    Row("labels", "MIG_STRATEGY", _mig),
    Row("validator", "MIG_STRATEGY", _mig),
    Row("node-status", names.ENV_METRICS_PORT, str(names.NODE_STATUS_PORT)),
)


def role_env(role: str, scene: Scene) -> dict[str, str]:
    """All variables of a role, the policy's own last."""
    spec = scene.policy.spec
    env = {row.name: value for row in ROWS if row.role == role and (value := _value(row.value, spec)) is not None}
    for name, value in user_env(role, scene.policy).items():
        env.pop(name, None)
        env[name] = value
    return env


def role_args(role: str, policy: Policy) -> tuple[str, ...]:
    """The arguments that the policy adds."""
    told = section(role, policy.spec)
    args: tuple[str, ...] = told.args if told is not None else ()
    return args


VALIDATOR_PARTS: Final = ("driver", "toolkit", "cuda", "plugin")


def user_env(role: str, policy: Policy) -> dict[str, str]:
    """The policy's variables of a role.

    The validator's checks were containers of their own with an environment each; here a check's variables are those
    with its name before a dot: ``cuda.WITH_WORKLOAD``.
    """
    told = section(role, policy.spec)
    if told is None:
        return {}
    rows: tuple[EnvVar, ...] = told.env
    env = given_env(rows)
    if isinstance(told, Validator):
        for part in VALIDATOR_PARTS:
            block = getattr(told, part)
            env |= {f"{part}.{name}": value for name, value in given_env(block.env if block else ()).items()}
    return env


_SECTIONS: Final = {
    "toolkit": "toolkit",
    "validator": "validator",
    "deviceplugin": "device_plugin",
    "labels": "gfd",
    "node-status": "node_status_exporter",
}


def section(role: str, spec: ClusterPolicySpec) -> Any:
    """The policy's section of a role, None where it has none."""
    return getattr(spec, _SECTIONS[role]) if role in _SECTIONS else None


def _value(value: Value, spec: ClusterPolicySpec) -> str | None:
    return value if isinstance(value, str) else value(spec)
