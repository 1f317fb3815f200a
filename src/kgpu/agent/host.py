"""What roles are fitted to this node with: what they share, folders, addresses, the driver's place, and how a role says
how it is. A role of ``kgpu.agent.roles`` is one ``Role``, and gets a ``Host``.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias

from kgpu.agent.host_files import HostFiles
from kgpu.agent.options import AgentOptions
from kgpu.agent.remembered_config import FollowedConfig
from kgpu.agent.shared_reader import SharedReader
from kgpu.base.advice import AdviceSink
from kgpu.base.errors import Reason
from kgpu.base.http import Page
from kgpu.base.supervise import RoleHandle
from kgpu.formats.names import ENV_KERNEL_LOG, ENV_LAB_POD_ADDRESS, KERNEL_LOG, VALIDATIONS_DIR
from kgpu.formats.simulated import state_file
from kgpu.host.root import DriverRoot
from kgpu.hw.verdicts import VerdictFile, verdicts_path
from kgpu.kube.port import KubeApi


@dataclass(frozen=True, slots=True, kw_only=True)
class Host:
    """What the agent shares among its roles. ``api`` connects on first use and raises KubeError when it can't.

    ``files`` takes down what a role writes on the host outside ``state_dir``, for the day kgpu leaves. ``pages`` are
    served beside the status pages, by path. ``offered`` is what the device plugin offers, healthy devices by resource,
    empty while it does not. ``stopped(role)`` is why a role does not run on this node, "" when it does or nothing is
    known of it; ``off(role)`` the same where the policy or a node label says so. ``lost(labels)`` returns once one of
    these labels has been on the Node and is there no more; None where nobody follows the Node.
    """

    options: AgentOptions
    reader: SharedReader
    config: FollowedConfig
    decide: AdviceSink
    api: Callable[[], KubeApi]
    files: HostFiles | None = None
    pages: dict[str, Page] = field(default_factory=dict)
    offered: dict[str, int] = field(default_factory=dict)
    stopped: Callable[[str], str] = lambda _: ""
    off: Callable[[str], str] = lambda _: ""
    lost: Callable[[Mapping[str, str]], Awaitable[None]] | None = None


RoleStart: TypeAlias = Callable[[Host, RoleHandle], Awaitable[None]]
Withdraw: TypeAlias = Callable[[KubeApi, AgentOptions], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class Role:
    """One row: what it is called, other names people know it by, and how it is run.

    ``hardware``: it reads accelerators through ``Host.reader``, so it starts again when the driver's place changes, and
    the hardware child runs only while such a role does. ``flags`` gives the rows of the flags that it can be told in
    ``RoleConfig.args``, by the name of the field of ``AgentOptions`` that takes them. ``withdraw`` takes away what the
    role has published in the cluster, when the policy wants it on no node any more; ``finish`` is how many seconds
    that may take when the process is told to end meanwhile.
    """

    name: str
    start: RoleStart
    aliases: tuple[str, ...] = ()
    hardware: bool = True
    flags: Callable[[], tuple[str, tuple[Any, ...]]] | None = None
    withdraw: Withdraw | None = None
    finish: float = 3.0


def validations_dir(options: AgentOptions) -> Path:
    """The folder of the validator's results."""
    return options.validations_dir or Path(VALIDATIONS_DIR)


def driver_root(options: AgentOptions) -> DriverRoot:
    """Where the driver is, here and on the host, as the device plugin is told it. Raises ConfigError."""
    from kgpu.deviceplugin.config import resolve
    from kgpu.formats.plugin_config import PluginConfig

    settings = resolve(PluginConfig(), overrides=options.plugin_overrides, env=options.env)
    seen = options.root or Path("/")
    return DriverRoot.at(seen, driver_host=settings.driver_root, dev_host=settings.dev_root)


def on_state(handle: RoleHandle, ready: bool, reason: Reason, why: str = "") -> None:
    """Tell the supervisor how a role is."""
    (handle.running if ready else handle.waiting)(reason, why)


async def configured(host: Host, handle: RoleHandle) -> None:
    """Return once there is a configuration; say so while there is none."""
    if host.config.current() is None:
        error = host.config.error
        handle.waiting("its configuration is not known yet" + (f": {error.one_line()}" if error else ""))
        await host.config.next(None)


def kernel_log(options: AgentOptions) -> Path | None:
    """Where the kernel log of the GPUs' machine is: a simulated driver has one of its own. None: it is not read."""
    path = options.env.get(ENV_KERNEL_LOG)
    if path is not None:
        return Path(path) if path else None
    root = options.root if options.root and state_file(str(options.root)) else options.host_root
    return root / KERNEL_LOG.lstrip("/")


def verdicts(options: AgentOptions) -> VerdictFile:
    """The node's verdict file."""
    return VerdictFile(verdicts_path(options.host_root, options.env))


def own_address(options: AgentOptions) -> str:
    """What "every address" is here: "", or the one that a simulated node's pod has on a machine of many nodes."""
    return options.env.get(ENV_LAB_POD_ADDRESS, "")


class Closing:
    """``aclose`` for what has ``close``."""

    def __init__(self, resource: Any) -> None:
        self._resource = resource

    async def aclose(self) -> None:
        await self._resource.close()
