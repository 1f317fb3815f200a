"""What a container runtime says of itself over the CRI: who it is, whether it is ready, its handlers, and CDI.

One question is one connection: between two of them the runtime may have been restarted. What a runtime does not tell
is None and never guessed, but for CDI, where the versions in which it can't be switched on or off are known.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Protocol

from kgpu.base.errors import KubeletError
from kgpu.kubelet.methods import CRI_CONFIG, CRI_STATUS, CRI_VERSION
from kgpu.kubelet.pb import cri_v1_pb2 as cri
from kgpu.kubelet.rpc import RpcClient, RpcError

CALL_SECONDS: Final = 5.0
API_VERSION: Final = "0.1.0"
"""What clients say in Version; no runtime looks at it."""
_CGROUP_DRIVERS: Final = {0: "systemd", 1: "cgroupfs"}
_VERSION: Final = re.compile(r"v?(\d+)\.(\d+)")


@dataclass(frozen=True, slots=True, kw_only=True)
class RuntimeStatus:
    """A container runtime as it is now.

    ``name`` and ``version`` are its own words (``containerd``, ``v2.1.4``). ``problem`` says why it is not ready, ""
    when it is; a pod network that is missing is no problem of the runtime. ``handlers`` are the names that
    RuntimeClasses can refer to, "" for the default; None where it does not tell. ``cdi`` is whether it injects CDI
    devices, and from which folders; None, and no folders, where it does not tell. ``cgroup_driver`` is "" where it does
    not tell.
    """

    name: str
    version: str
    problem: str = ""
    handlers: tuple[str, ...] | None = None
    default_handler: str = ""
    cdi: bool | None = None
    cdi_dirs: tuple[str, ...] = ()
    cgroup_driver: str = ""

    @property
    def ready(self) -> bool:
        """Whether it can run containers."""
        return not self.problem

    def __str__(self) -> str:
        return f"{self.name} {self.version.removeprefix('v')}".strip()


class ContainerRuntime(Protocol):
    """Something to ask for its status. Fake: ``kgpu.kubelet.cri_fake.FakeCriRuntime``."""

    async def status(self) -> RuntimeStatus:
        """The state now. Raises KubeletError when nobody answers."""
        ...


class CriClient:
    """A runtime behind a unix socket."""

    def __init__(self, socket: Path, *, timeout: float = CALL_SECONDS) -> None:
        self.socket = socket
        self._timeout = timeout

    async def status(self) -> RuntimeStatus:
        """The state now. Raises KubeletError when nobody answers in time, or not as a container runtime does."""
        async with RpcClient(self.socket) as client:
            version = await client.call(CRI_VERSION, cri.VersionRequest(version=API_VERSION), timeout=self._timeout)
            state = await client.call(CRI_STATUS, cri.StatusRequest(verbose=True), timeout=self._timeout)
            try:
                config = await client.call(CRI_CONFIG, cri.RuntimeConfigRequest(), timeout=self._timeout)
            except RpcError as error:
                if error.status != "UNIMPLEMENTED":  # containerd before 2.0 and CRI-O before 1.28 don't have it
                    raise
                config = None
        return read_status(version, state, config)


def read_status(version: Any, state: Any, config: Any = None) -> RuntimeStatus:
    """The answers to Version, Status (verbose) and RuntimeConfig as one value."""
    info = _parse_config(dict(state.info))
    containerd = _section(info, "containerd")
    runtimes = _section(containerd, "runtimes")
    handlers: tuple[str, ...] | None = tuple(handler.name for handler in state.runtime_handlers) or None
    if handlers is None and runtimes:
        handlers = tuple(sorted(runtimes))
    folders = info.get("cdiSpecDirs")
    return RuntimeStatus(
        name=version.runtime_name,
        version=version.runtime_version,
        problem=_problem(state),
        handlers=handlers,
        default_handler=str(containerd.get("defaultRuntimeName") or ""),
        cdi=_cdi(version.runtime_name, version.runtime_version, info),
        cdi_dirs=tuple(map(str, folders)) if isinstance(folders, list) else (),
        cgroup_driver="" if config is None else _CGROUP_DRIVERS.get(config.linux.cgroup_driver, ""),
    )


def _problem(state: Any) -> str:
    for condition in state.status.conditions:
        if condition.type == "RuntimeReady":
            return "" if condition.status else condition.message or condition.reason or "it says that it is not ready"
    return "it does not say whether it is ready"


def _parse_config(info: Mapping[str, str]) -> dict[str, Any]:
    """The runtime's configuration from a verbose status; empty when there is none that can be read."""
    try:
        config = json.loads(info.get("config", "{}"))
    except (ValueError, RecursionError):
        return {}
    return config if isinstance(config, dict) else {}


def _section(table: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    section = table.get(name)
    return section if isinstance(section, dict) else {}


@dataclass(frozen=True, slots=True)
class _Always:
    """From this version on CDI is on unless the status says otherwise; before it there is none."""

    runtime: str
    since: tuple[int, int]


# containerd 2.0 switched it on by default (1.7 tells in its status); CRI-O has no switch.
_ALWAYS: Final = (_Always("containerd", (2, 0)), _Always("cri-o", (1, 23)))


def _cdi(name: str, version: str, config: Mapping[str, Any]) -> bool | None:
    switch = config.get("enableCDI")
    if isinstance(switch, bool):
        return switch
    numbers = _VERSION.match(version)
    for row in _ALWAYS:
        if name.lower() == row.runtime and numbers is not None:
            return (int(numbers[1]), int(numbers[2])) >= row.since
    return None


def not_served(socket: Path, why: str) -> KubeletError:
    """The error for a runtime that does not answer at its socket."""
    return KubeletError(
        f"no container runtime answers at {socket}: {why}",
        "the socket of the runtime that this node's kubelet uses",
        "check that the runtime runs; name its socket in RUNTIME_SOCKET when it is elsewhere",
    )
