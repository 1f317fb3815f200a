"""Flags and variables of dcgm-exporter that kgpu's exporter has no use for, each with the reason, as rows.

They are data of their own because both the exporter and the operator, which reads them in a ClusterPolicy's
``dcgmExporter.args``, tell their users.
"""

from __future__ import annotations

from typing import Final

from kgpu.formats.settings import FlagShape, Setting


def _without(
    flag: str, envs: tuple[str, ...], why: str, *, alone: bool = False, aliases: tuple[str, ...] = (), instead: str = ""
) -> Setting:
    return Setting(
        attr=flag.removeprefix("--").replace("-", "_"),
        flag=flag,
        envs=envs,
        aliases=aliases,
        shape=FlagShape.SWITCH if alone else FlagShape.TEXT,
        empty_counts=not instead,
        idle=why,
        instead=instead,
    )


_P: Final = "DCGM_EXPORTER_"
_NO_DCGM: Final = "there is no DCGM behind kgpu, it reads the driver itself"
_NO_DUMP: Final = "there are no debug dumps; see `kgpu exporter --once`"
_ALWAYS: Final = "GPUs that come and go are always followed"

WITHOUT: Final = (
    _without("--remote-hostengine-info", ("DCGM_REMOTE_HOSTENGINE_INFO",), _NO_DCGM, aliases=("-r",)),
    _without("--switch-devices", (f"{_P}OTHER_DEVICES_STR",), "NVSwitches can't be read without DCGM", aliases=("-s",)),
    _without("--enable-dcgm-log", (f"{_P}ENABLE_DCGM_LOG",), _NO_DCGM, alone=True),
    _without("--dcgm-log-level", (f"{_P}DCGM_LOG_LEVEL",), _NO_DCGM),
    _without("--disable-startup-validate", ("DISABLE_STARTUP_VALIDATE",), _NO_DCGM, alone=True),
    _without("--dump-enabled", (f"{_P}DUMP_ENABLED",), _NO_DUMP, alone=True),
    _without("--dump-directory", (f"{_P}DUMP_DIRECTORY",), _NO_DUMP),
    _without("--dump-retention", (f"{_P}DUMP_RETENTION",), _NO_DUMP),
    _without("--dump-compression", (f"{_P}DUMP_COMPRESSION",), _NO_DUMP, alone=True),
    _without("--enable-gpu-bind-unbind-watch", (f"{_P}ENABLE_GPU_BIND_UNBIND_WATCH",), _ALWAYS, alone=True),
    _without("--gpu-bind-unbind-poll-interval", (f"{_P}GPU_BIND_UNBIND_POLL_INTERVAL",), _ALWAYS),
    _without("--enable-pprof", (f"{_P}ENABLE_PPROF",), "it is a profiler of Go programs", alone=True),
    _without("--container-labels", (f"{_P}CONTAINER_LABELS",), "containers are known from the kubelet", alone=True),
    _without("--container-runtime-socket", ("DCGM_CONTAINER_RUNTIME_SOCKET",), "containers are known from the kubelet"),
)

REFUSED: Final = (
    _without("--config-file", (f"{_P}CONFIG_FILE",), "kgpu's exporter reads no YAML configuration",
            instead="name the metrics in a counters file (-f FILE) or --configmap-data NAMESPACE:NAME, and the time "
            "between readings in --collect-interval"),
)  # fmt: skip
"""The metrics and intervals that the file asks for would not be there."""
