"""The environment of each role, as rows: what the replaced operator would give the program of the same name.

The policy's own variables come last and win. Variables that only tell a container runtime what to inject into the
replaced programs' containers have no row: kgpu's pods open the driver themselves.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

from kgpu.base.errors import ConfigError
from kgpu.formats import names
from kgpu.formats.crd.clusterpolicy import ClusterPolicySpec, Validator
from kgpu.formats.crd.common import EnvVar
from kgpu.formats.crd.fields import rows
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


def _runtime_name(spec: ClusterPolicySpec) -> str | None:
    name = spec.operator.runtime_class
    return name if name and name != names.RUNTIME_CLASS else None


def _mps_root(spec: ClusterPolicySpec) -> str:
    return (spec.device_plugin.mps.root if spec.device_plugin.mps else "") or names.MPS_ROOT


def _allowed_labels(spec: ClusterPolicySpec) -> str | None:
    told = spec.dcgm_exporter
    return ",".join(told.pod_label_allowlist_regex) or None if told.enable_pod_labels else None


JOBS_DIR: Final = "/var/lib/dcgm-exporter/job-mapping"


def _jobs(spec: ClusterPolicySpec) -> str | None:
    """The folder on the host, as pods see it."""
    told = spec.dcgm_exporter.hpc_job_mapping
    return names.HOST_ROOT + (told.directory or JOBS_DIR) if told and told.enabled else None


def _counters(scene: Scene) -> str | None:
    """The ConfigMap is followed through the API server: a change of it restarts nothing."""
    config = scene.policy.spec.dcgm_exporter.config
    return f"{scene.settings.namespace}:{config.name}" if config and config.name else None


OF_SCENE: Final[tuple[tuple[str, str, Callable[[Scene], str | None]], ...]] = (
    ("exporter", "DCGM_EXPORTER_CONFIGMAP_DATA", _counters),
    ("health", names.ENV_HEALTH_CONFIG, lambda scene: scene.settings.health_config or None),
)
"""Role, variable and value of what the policy alone does not say."""

ROWS: Final = (
    Row("toolkit", "ROOT", lambda spec: spec.toolkit.install_dir),
    Row("toolkit", "CDI_ENABLED", _with_cdi("true")),
    Row("toolkit", "NVIDIA_RUNTIME_SET_AS_DEFAULT", _with_cdi("false")),
    Row("toolkit", "NVIDIA_CONTAINER_RUNTIME_MODE", _with_cdi("cdi")),
    Row("toolkit", "CRIO_CONFIG_MODE", _with_cdi("config", "hook")),
    Row("toolkit", names.ENV_NRI_ENABLED, _if(nri_on)),
    Row("toolkit", "NVIDIA_RUNTIME_NAME", _runtime_name),
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
    Row("exporter", "DCGM_EXPORTER_LISTEN", f":{names.EXPORTER_PORT}"),
    Row("exporter", "DCGM_EXPORTER_KUBERNETES", "true"),
    Row(
        "exporter", "DCGM_EXPORTER_KUBERNETES_ENABLE_POD_LABELS", _if(lambda spec: spec.dcgm_exporter.enable_pod_labels)
    ),
    Row("exporter", "DCGM_EXPORTER_KUBERNETES_ENABLE_POD_UID", _if(lambda spec: spec.dcgm_exporter.enable_pod_uid)),
    Row("exporter", "DCGM_EXPORTER_KUBERNETES_POD_LABEL_ALLOWLIST_REGEX", _allowed_labels),
    Row("exporter", "DCGM_HPC_JOB_MAPPING_DIR", _jobs),
    Row("node-status", names.ENV_METRICS_PORT, str(names.NODE_STATUS_PORT)),
)


def role_env(role: str, scene: Scene) -> dict[str, str]:
    """All variables of a role, the policy's own last; without those that ``check_role`` refuses."""
    spec = scene.policy.spec
    env = {row.name: value for row in ROWS if row.role == role and (value := _value(row.value, spec)) is not None}
    env |= {name: found for of, name, value in OF_SCENE if of == role and (found := value(scene)) is not None}
    for name, value in user_env(role, scene).items():
        env.pop(name, None)
        env[name] = value
    return env


VALIDATOR_PARTS: Final = ("driver", "toolkit", "cuda", "plugin")


def user_env(role: str, scene: Scene) -> dict[str, str]:
    """The policy's variables of a role.

    The validator's checks were containers of their own with an environment each; here a check's variables are those
    with its name before a dot: ``cuda.WITH_WORKLOAD``.
    """
    told = section(role, scene.policy.spec)
    if told is None:
        return {}
    env = _given(told.env, scene)
    if isinstance(told, Validator):
        for part in VALIDATOR_PARTS:
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


def check_role(role: str, scene: Scene) -> None:
    """The same of all variables of a role."""
    told = section(role, scene.policy.spec)
    if told is None:
        return
    path = next(row.name for row in rows(ClusterPolicySpec) if row.attribute == _SECTIONS[role])
    check_names(f"{path}.env", told.env, scene)
    if isinstance(told, Validator):
        for part in VALIDATOR_PARTS:
            if block := getattr(told, part):
                check_names(f"{path}.{part}.env", block.env, scene)


def _given(told: Iterable[EnvVar], scene: Scene) -> dict[str, str]:
    return given_env(row for row in told if _named(row, scene))


def _named(row: EnvVar, scene: Scene) -> bool:
    form = _ANY_NAME if scene.observed.kube_version >= _ANY_SINCE else _OLD_NAME
    return form.fullmatch(row.name) is not None


_SECTIONS: Final = {
    "toolkit": "toolkit",
    "validator": "validator",
    "deviceplugin": "device_plugin",
    "labels": "gfd",
    "exporter": "dcgm_exporter",
    "node-status": "node_status_exporter",
}


def section(role: str, spec: ClusterPolicySpec) -> Any:
    """The policy's section of a role, None where it has none."""
    return getattr(spec, _SECTIONS[role]) if role in _SECTIONS else None


def _value(value: Value, spec: ClusterPolicySpec) -> str | None:
    return value if isinstance(value, str) else value(spec)
