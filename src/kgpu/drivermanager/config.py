"""The driver manager's settings, by the variables that the replaced one has."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from kgpu.base.errors import ConfigError
from kgpu.formats import names
from kgpu.formats.duration import parse_duration
from kgpu.formats.go_flags import read_bool
from kgpu.formats.settings import Setting, resolve

STATE_FILE: Final = "nvidia-driver.state"
"""In ``/run/nvidia``: the digest of the driver that is loaded, written by the driver's container."""
PID_FILE: Final = "nvidia-driver.pid"
NVIDIA_RUN: Final = "/run/nvidia"


def read_seconds(value: Any, where: str) -> float:
    """Seconds of a Go duration that is not negative. Raises ConfigError."""
    try:
        found = parse_duration(str(value)) / 10**9
    except ConfigError as error:
        raise ConfigError(f"{where}: {error.what}", error.expected, error.remedy) from error
    if found < 0:
        raise ConfigError(f"{where} is negative: {value}", "a duration such as 300s", f"correct {where}")
    return found


def _switch(attr: str, variable: str, default: bool, help_text: str) -> Setting:
    return Setting(attr=attr, envs=(variable,), default=default, read=read_bool, help=help_text)


SETTINGS: Final = (
    Setting(attr="node", envs=("NODE_NAME",), help="This node's name."),
    _switch("evict_gpu_pods", "ENABLE_GPU_POD_EVICTION", True, "Evict pods with GPUs before the driver is unloaded."),
    _switch("auto_drain", "ENABLE_AUTO_DRAIN", True,
            "Evict all other pods as well if the driver is still in use without those with GPUs."),
    _switch("force", "DRAIN_USE_FORCE", False, "Evict pods too that nothing would make anew."),
    _switch("delete_empty_dir", "DRAIN_DELETE_EMPTYDIR_DATA", False, "Evict pods too that lose data in an emptyDir."),
    Setting(attr="selector", envs=("DRAIN_POD_SELECTOR_LABEL",),
            help="The pods that a drain evicts, as a label selector. Default: all."),
    Setting(attr="timeout", envs=("DRAIN_TIMEOUT_SECONDS",), default="0s", read=read_seconds, reads_default=True,
            help="How long evictions may take, as a Go duration. 0 is for ever."),
    Setting(attr="extra_label", envs=("NODE_LABEL_FOR_GPU_POD_EVICTION",),
            help="One more label of the node that is paused with those of the operands."),
    _switch("rdma", "GPU_DIRECT_RDMA_ENABLED", False, "Wait for the network cards' driver."),
    _switch("host_mofed", "USE_HOST_MOFED", False, "That driver is the host's, and no container's."),
    _switch("reinstall", "FORCE_REINSTALL", False, "Unload the driver even if it is the wanted one."),
    Setting(attr="unload_timeout", envs=("KGPU_UNLOAD_TIMEOUT_SECONDS",), default="60s", read=read_seconds,
            reads_default=True, help="How long the driver may stay in use before that is a failure, as a Go duration."),
    Setting(attr="digest", envs=(names.ENV_DRIVER_CONFIG_DIGEST,), help="What identifies the wanted driver."),
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class ManagerSettings:
    """``timeout`` and ``unload_timeout`` in seconds; 0 is for ever of the former. See ``SETTINGS``."""

    node: str
    evict_gpu_pods: bool = True
    auto_drain: bool = True
    force: bool = False
    delete_empty_dir: bool = False
    selector: str = ""
    timeout: float = 0.0
    extra_label: str = ""
    rdma: bool = False
    host_mofed: bool = False
    reinstall: bool = False
    unload_timeout: float = 60.0
    digest: str = ""


def of_environment(env: Mapping[str, str]) -> ManagerSettings:
    """The settings in the environment. Raises ConfigError."""
    settings = ManagerSettings(**resolve(SETTINGS, flags={}, env=env).values)
    if not settings.node:
        raise ConfigError(
            "NODE_NAME is not set", "the name of the node that this pod is on",
            "set NODE_NAME from the pod's spec.nodeName",
        )  # fmt: skip
    return settings
