"""What a role gets from the agent on this node: shared objects, folders, addresses, the driver's place and a way to
report its state. A role of ``kgpu.agent.roles`` is one ``Role``, and gets a ``Host``.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from kgpu.agent.host_files import HostFiles
from kgpu.agent.options import AgentOptions, LabelsSink
from kgpu.agent.remembered_config import FollowedConfig
from kgpu.agent.shared_reader import SharedReader
from kgpu.base.advice import AdviceSink
from kgpu.base.boot import uptime
from kgpu.base.errors import UserError
from kgpu.base.http import Page
from kgpu.base.supervise import RoleHandle
from kgpu.formats.config_choice import ConfigClashError, ConfigText
from kgpu.formats.names import ENV_KERNEL_LOG, ENV_LAB_POD_ADDRESS, KERNEL_LOG, VALIDATIONS_DIR
from kgpu.formats.simulated import state_file
from kgpu.host.root import DriverRoot
from kgpu.hw.port import Reader
from kgpu.hw.verdicts import VerdictFile, verdicts_path
from kgpu.kube.port import KubeApi

if TYPE_CHECKING:
    from kgpu.agent.ordered import OrderedGpus


class OwnWork:
    """What roles run on devices, so that a role that watches these does not take it for the work of who holds them.

    ``now`` is in seconds of a clock that never jumps.
    """

    def __init__(self, now: Callable[[], float] = uptime) -> None:
        self._now = now
        self._running: set[str] = set()
        self._ended: dict[str, float] = {}

    @contextlib.contextmanager
    def on(self, device: str) -> Iterator[None]:
        """The block works on the device of that uuid, and no other block does."""
        self._running.add(device)
        try:
            yield
        finally:
            self._running.discard(device)
            self._ended[device] = self._now()

    def since(self, device: str, moment: float) -> bool:
        """Whether there was any on the device from that moment on."""
        return device in self._running or self._ended.get(device, float("-inf")) >= moment


@dataclass(frozen=True, slots=True, kw_only=True)
class Host:
    """What the agent shares among its roles. ``api`` connects on first use and raises KubeError when it can't.

    ``files`` lists what a role writes on the host outside ``state_dir``, for the uninstall. ``pages`` are served beside
    the status pages, by path. ``offered`` is what the device plugin offers, healthy devices by resource, empty while it
    offers nothing. ``stopped(role)`` returns why a role does not run on this node, "" if it does or nothing is known;
    ``off(role)`` does the same for reasons of the policy or node labels only. ``lost(labels)`` returns once the Node
    has had all of these labels and then lost one; it is None if nobody follows the Node. ``ordered`` is what the
    operator has ordered of the GPUs, ``own_work`` what roles run on them.
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
    ordered: OrderedGpus | None = None
    own_work: OwnWork = field(default_factory=OwnWork)


RoleStart: TypeAlias = Callable[[Host, RoleHandle], Awaitable[None]]
Withdraw: TypeAlias = Callable[[KubeApi, AgentOptions], Awaitable[None]]
WasReset: TypeAlias = Callable[[AgentOptions, tuple[str, ...]], None]
Agree: TypeAlias = Callable[[AgentOptions, ConfigText], None]
HandOver: TypeAlias = Callable[[LabelsSink, KubeApi, AgentOptions], Awaitable[bool]]

DEVICE_PLUGIN: Final = "deviceplugin"
"""The role that offers accelerators as counted resources."""
DRIVER_PLACE: Final = DEVICE_PLUGIN
"""The role whose flags say where the driver is, for the other roles too."""


@dataclass(frozen=True, slots=True)
class Role:
    """One role: its name, its other names, and how it runs.

    With ``hardware`` it reads accelerators through ``Host.reader``: it restarts when the driver's place changes, and
    the hardware child runs only while such a role does. ``flags`` returns the rows of the flags that it takes in
    ``RoleConfig.args``. ``orders`` are the fields of ``AgentOptions`` that it takes from the operator's document beside
    what every role takes: a change of one restarts it. ``withdraw`` removes what the role has published in the cluster,
    when the policy disables it on all nodes; ``finish`` is how many seconds that may take if the process has to end.
    ``hand_over`` removes what it has published in a place where it publishes no longer, once that is elsewhere; False
    while it is not.
    ``was_reset`` tells it that an act has reset these GPUs just now; it may block, and raises HostError.
    A ``configured`` role reads the device plugin's configuration from ``Host.config``. A role that ``cuts`` a vendor's
    GPUs makes the changes of their slices or modes that are ordered (``OrderedGpus.change``), and answers them.
    ``agree`` raises ConfigError if its options can't be used with that configuration: with new ones that can't it goes
    on as it was told before.
    ``lingers`` is why a role that is not wanted on this node any more has to go on for a while, "" if it has not: what
    it has given to pods, only it can take back. It knows by ``Host.off`` that it gives no more. Not when kgpu leaves.
    """

    name: str
    start: RoleStart
    aliases: tuple[str, ...] = ()
    hardware: bool = True
    flags: Callable[[], tuple[Any, ...]] | None = None
    orders: tuple[str, ...] = ()
    withdraw: Withdraw | None = None
    finish: float = 3.0
    hand_over: HandOver | None = None
    configured: bool = False
    was_reset: WasReset | None = None
    cuts: str = ""
    agree: Agree | None = None
    lingers: Callable[[AgentOptions], str] | None = None


def check_agreement(role: Role, before: AgentOptions | None, options: AgentOptions, config: ConfigText | None) -> None:
    """Raise ConfigClashError if a role that runs with the options of ``before`` would lose by new ``options`` what its
    configuration gives it now. One that does not run, or that the configuration refuses anyway, says so itself.
    """
    if role.agree is None or before in (None, options) or config is None or config.problem is not None:
        return
    try:
        role.agree(before, config)
    except UserError:
        return
    try:
        role.agree(options, config)
    except UserError as error:
        raise ConfigClashError(error.what, error.expected, error.remedy) from error


def validations_dir(options: AgentOptions) -> Path:
    """The folder of the validator's results."""
    return options.validations_dir or Path(VALIDATIONS_DIR)


def driver_root(options: AgentOptions) -> DriverRoot:
    """The driver's place here and on the host, from the device plugin's settings. Raises ConfigError."""
    from kgpu.deviceplugin.config import resolve
    from kgpu.formats.plugin_config import PluginConfig

    settings = resolve(PluginConfig(), overrides=options.overrides_of(DRIVER_PLACE), env=options.env)
    seen = options.root or Path("/")
    return DriverRoot.at(seen, driver_host=settings.driver_root, dev_host=settings.dev_root)


async def configured(host: Host, handle: RoleHandle) -> None:
    """Return once there is a configuration; report the role as waiting until then."""
    if host.config.current() is None:
        error = host.config.error
        handle.waiting("its configuration is not known yet" + (f": {error.one_line()}" if error else ""))
        await host.config.next(None)


@dataclass(frozen=True, slots=True)
class ProvenGpus:
    """A reader of those GPUs that the validator has proven, and the wait for the first of them (``Gate.opened``)."""

    reader: Reader
    opened: Callable[[Callable[[str], None]], Awaitable[None]]


@contextlib.asynccontextmanager
async def behind_gate(host: Host, reader: Reader) -> AsyncIterator[ProvenGpus]:
    """The reader of a role that hands out GPUs, behind the validator's gate. Where the options name no folder of
    results, it is the reader as it is.
    """
    folder = host.options.validations_dir
    if folder is None:
        yield ProvenGpus(reader, _at_once)
        return
    from kgpu.agent.gate import Gate, GatedReader
    from kgpu.base.boot import boot_id

    gate = Gate(folder, boot=boot_id(), stopped=partial(host.stopped, "validator"))
    async with gate.following():
        through = GatedReader(reader, gate)
        try:
            yield ProvenGpus(through, partial(gate.opened, reader))
        finally:
            await through.close()


async def _at_once(_waiting: Callable[[str], None]) -> None:
    """Nothing is waited for."""


def kernel_log(options: AgentOptions) -> Path | None:
    """The path of the kernel log, None if it is not to be read. A simulated driver has its own."""
    path = options.env.get(ENV_KERNEL_LOG)
    if path is not None:
        return Path(path) if path else None
    root = options.root if options.root and state_file(str(options.root)) else options.host_root
    return root / KERNEL_LOG.lstrip("/")


def verdicts(options: AgentOptions) -> VerdictFile:
    """The node's verdict file."""
    return VerdictFile(verdicts_path(options.host_root, options.env))


def own_address(options: AgentOptions) -> str:
    """The host part of a listening address: "" for every address, or the pod's own address on a simulated node."""
    return options.env.get(ENV_LAB_POD_ADDRESS, "")


class Closing:
    """Adds ``aclose`` to an object that has ``close``."""

    def __init__(self, resource: Any) -> None:
        self._resource = resource

    async def aclose(self) -> None:
        await self._resource.close()
