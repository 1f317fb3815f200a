"""Flags and variables of dcgm-exporter that kgpu's exporter has no use for, each with the reason, as rows.

They are data of their own because both the exporter and the operator, which reads them in a ClusterPolicy's
``dcgmExporter.args``, tell their users.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class Without:
    """A flag of the replaced exporter that does nothing here, and why. With ``instead`` it is refused, because nothing
    would be as its user means it; that text says what to use.
    """

    flag: str
    envs: tuple[str, ...]
    why: str
    is_flag: bool = False
    aliases: tuple[str, ...] = ()
    instead: str = ""

    @property
    def attr(self) -> str:
        """The parameter's name."""
        return self.flag.removeprefix("--").replace("-", "_")


_P: Final = "DCGM_EXPORTER_"
_NO_DCGM: Final = "there is no DCGM behind kgpu, it reads the driver itself"
_NO_DUMP: Final = "there are no debug dumps; see `kgpu exporter --once`"
_ALWAYS: Final = "GPUs that come and go are always followed"

WITHOUT: Final = (
    Without("--remote-hostengine-info", ("DCGM_REMOTE_HOSTENGINE_INFO",), _NO_DCGM, aliases=("-r",)),
    Without("--switch-devices", (f"{_P}OTHER_DEVICES_STR",), "NVSwitches can't be read without DCGM", aliases=("-s",)),
    Without("--enable-dcgm-log", (f"{_P}ENABLE_DCGM_LOG",), _NO_DCGM, is_flag=True),
    Without("--dcgm-log-level", (f"{_P}DCGM_LOG_LEVEL",), _NO_DCGM),
    Without("--disable-startup-validate", ("DISABLE_STARTUP_VALIDATE",), _NO_DCGM, is_flag=True),
    Without("--dump-enabled", (f"{_P}DUMP_ENABLED",), _NO_DUMP, is_flag=True),
    Without("--dump-directory", (f"{_P}DUMP_DIRECTORY",), _NO_DUMP),
    Without("--dump-retention", (f"{_P}DUMP_RETENTION",), _NO_DUMP),
    Without("--dump-compression", (f"{_P}DUMP_COMPRESSION",), _NO_DUMP, is_flag=True),
    Without("--enable-gpu-bind-unbind-watch", (f"{_P}ENABLE_GPU_BIND_UNBIND_WATCH",), _ALWAYS, is_flag=True),
    Without("--gpu-bind-unbind-poll-interval", (f"{_P}GPU_BIND_UNBIND_POLL_INTERVAL",), _ALWAYS),
    Without("--enable-pprof", (f"{_P}ENABLE_PPROF",), "it is a profiler of Go programs", is_flag=True),
    Without("--container-labels", (f"{_P}CONTAINER_LABELS",), "containers are known from the kubelet", is_flag=True),
    Without("--container-runtime-socket", ("DCGM_CONTAINER_RUNTIME_SOCKET",), "containers are known from the kubelet"),
)

REFUSED: Final = (
    Without("--config-file", (f"{_P}CONFIG_FILE",), "kgpu's exporter reads no YAML configuration",
            instead="name the metrics in a counters file (-f FILE) or --configmap-data NAMESPACE:NAME, and the time "
            "between readings in --collect-interval"),
)  # fmt: skip
"""The metrics and intervals that the file asks for would not be there."""
