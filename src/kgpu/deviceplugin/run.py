"""The device plugin's loop over injected ports: reader, kubelet folder, configuration, clock.

Promises: a kubelet that restarts finds every resource again at once; a change of devices, health or configuration
reaches every open stream without a restart; a bad configuration leaves the last good one in force; one resource that
can't be served does not disturb the others; answers to the kubelet never touch the hardware.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, ParamSpec, Protocol, TypeAlias, TypeVar

from kgpu.base.advice import Advice, AdviceSink, Severity
from kgpu.base.boot import boot_id
from kgpu.base.clock import Clock, SystemClock
from kgpu.base.errors import HwError, Reason, UserError, first_of_several, line_of
from kgpu.base.inotify import ENTRIES
from kgpu.base.inotify import folder_changes as folder_changes_of
from kgpu.base.service import Complaint, StateSink, first_end, ignore_state, running
from kgpu.base.threads import beside
from kgpu.base.waits import first_of
from kgpu.deviceplugin import roster
from kgpu.deviceplugin.allocate import shown_name
from kgpu.deviceplugin.config import PluginSettings, printable
from kgpu.deviceplugin.core import PluginCore, refused
from kgpu.deviceplugin.host_facts import mps_folders, mps_marks, mps_resources, read_host_facts
from kgpu.deviceplugin.model import HostDevices, PluginResource
from kgpu.deviceplugin.offer import LOOK_SECONDS, Offer
from kgpu.deviceplugin.source import PluginConfigSource
from kgpu.formats.config_choice import REFUSED, ConfigText
from kgpu.formats.names import CDI_DIR, ENV_HW_STATE, KUBELET_SOCKET
from kgpu.hw.follow import follow_events
from kgpu.hw.port import DriverExchangedError, DriverReleasedError, EventKind, HardwareEvent, Inventory, Reader
from kgpu.hw.verdicts import Verdicts, VerdictSource
from kgpu.kubelet.socket_watch import SocketIdentity, SocketWatch

if TYPE_CHECKING:
    from kgpu.deviceplugin.exporter_health import ExporterHealth

log = logging.getLogger(__name__)

P = ParamSpec("P")
T = TypeVar("T")

REREAD_SECONDS = 10.0
"""How often the inventory is read without an event, as a fallback."""
REREAD_SICK_SECONDS = 2.0
"""The same while a device is unhealthy or none was found."""
LOOK_PAUSE_SECONDS = 0.25
"""The least time between readings that events ask for: a program can raise Xids faster than a driver can be read."""
EXPORTER_LOOK_SECONDS = 10.0
"""How often a vendor's own exporter is asked how well the devices are."""
MPS_LOOK_SECONDS = 1.0
"""How often the marks of MPS control daemons are looked at without an event."""
LAST_SAVE_SECONDS = 2.0
"""How long the plugin waits at its end for the last write of its memory."""
SAVE_RETRY_SECONDS = 30.0
"""How long after a failed write the next one is tried."""
FAILURES_BEFORE_UNHEALTHY = 3
"""How many readings in a row, a second apart, must fail before every device is unhealthy: a restart of the driver
library is not a fault of the devices.
"""


def folder_changes(socket: Path) -> AsyncIterator[SocketIdentity | None]:
    """Changes of the kubelet's socket and its folder, from kernel events."""
    return SocketWatch(socket).folder_changes()


class WithdrawnGpus(Protocol):
    """The GPUs that are ordered to be offered to no pod, by UUID, and why; ``changed`` waits for another order."""

    @property
    def withdrawn(self) -> Mapping[str, str]: ...
    @property
    def revision(self) -> int: ...

    async def changed(self, after: int) -> int: ...


CdiWriter: TypeAlias = Callable[[Inventory, PluginSettings], None]
CdiChanges: TypeAlias = Callable[[], AsyncIterator[None]]


# Reasons for which existing devices are not offered.
_HELD_BACK: Final = frozenset({"MpsDaemonMissing", "ImexMissing"})


def _ignore_offer(healthy: Mapping[str, int]) -> None:
    del healthy


@dataclass(frozen=True, slots=True, kw_only=True)
class DevicePluginContext:
    """Everything that the device plugin gets from outside.

    ``state_dir`` keeps ``devices.json`` (the last known devices). ``overrides`` are command line flags that were given,
    by the attribute names of ``deviceplugin.config.PluginSettings``; they beat ``env``, which beats the config file.
    ``cdi_writer(inventory, settings)`` updates the CDI specs that ``cdi-*`` answers refer to. It is called in a thread
    before a changed inventory is offered, and devices that only CDI can name are held back until it has succeeded once;
    None leaves spec files to others. ``cdi_changes()`` yields when something that the specs mount has changed, such as
    a daemon's socket that is gone: no container would start with it. ``kubelet_changes(socket)`` yields the identity of
    the kubelet's socket, now and whenever it may have changed. ``reread_seconds`` and ``look_seconds`` are how often
    the inventory and the sockets are checked without an event. With ``wait=False`` a missing driver or usable
    configuration at the start is raised instead of waited for. ``on_state(ready, reason, why)`` is called with whether
    the plugin does its job, and if not, what it waits for; ``why`` is ``REFUSED`` while its configuration can't be
    used, ``MpsDaemonMissing`` while those are missing, the reason of a ``SharingRefusal`` while something is offered
    unshared that should be shared, "" otherwise. ``on_offer(healthy)`` is called with the number of
    healthy devices of each resource. ``verdicts`` are the health role's, None if nobody gives any; ``orders`` None:
    no GPU is ever ordered to be withdrawn. ``host_root`` is the host's ``/`` as this process sees it.
    """

    reader: Reader
    config: PluginConfigSource
    report: AdviceSink
    state_dir: Path
    kubelet_socket: Path = Path(KUBELET_SOCKET)
    cdi_dir: Path = Path(CDI_DIR)
    clock: Clock = field(default_factory=SystemClock)
    overrides: Mapping[str, Any] = field(default_factory=dict)
    env: Mapping[str, str] = field(default_factory=lambda: dict(os.environ))
    cdi_writer: CdiWriter | None = None
    cdi_changes: CdiChanges | None = None
    verdicts: VerdictSource | None = None
    orders: WithdrawnGpus | None = None
    host_root: Path = Path("/")
    host_facts: Callable[[PluginSettings], HostDevices] | None = None
    kubelet_changes: Callable[[Path], AsyncIterator[SocketIdentity | None]] = folder_changes
    reread_seconds: float = REREAD_SECONDS
    look_seconds: float = LOOK_SECONDS
    wait: bool = True
    on_state: StateSink = ignore_state
    on_offer: Callable[[Mapping[str, int]], None] = _ignore_offer


async def run(ctx: DevicePluginContext) -> None:
    """Serve until cancelled. If ``ctx.wait`` is False, raises the first ConfigError or HwError of the start."""
    await _DevicePlugin(ctx).run()


class _DevicePlugin:
    def __init__(self, ctx: DevicePluginContext) -> None:
        self._ctx = ctx
        self._boot = boot_id()
        memory, advice = roster.load(ctx.state_dir, source=ctx.env.get(ENV_HW_STATE, "driver"), boot=self._boot)
        for record in advice:
            ctx.report(record)
        self._saved = memory
        self._core = PluginCore(
            overrides=ctx.overrides,
            env=ctx.env,
            report=ctx.report,
            facts=ctx.host_facts or self._host_facts,
            memory=memory,
            withdrawn=(lambda: ctx.orders.withdrawn if ctx.orders is not None else {}),
        )
        if ctx.verdicts is not None:  # before anything is offered
            self._judge(ctx.verdicts.read())
        self._former = set(memory.resources)  # offered by an earlier run
        self._identity: SocketIdentity | None = None
        self._offers: dict[str, tuple[Offer, asyncio.Task[None]]] = {}
        self._changed = asyncio.Event()
        self._configured = asyncio.Event()
        self._look = asyncio.Event()
        self._looked_at = float("-inf")
        self._unsaved = asyncio.Event()
        self._driver_problem: HwError | None = None
        self._config_problem: UserError | None = None
        self._inventory: Inventory | None = None
        self._cdi_names: set[str] = set()
        self._cdi_problem: UserError | None = None
        self._state: tuple[bool, Reason, str] | None = None
        self._writing: set[asyncio.Task[Any]] = set()

    def _host_facts(self, settings: PluginSettings) -> HostDevices:
        return read_host_facts(settings, vendors=self._core.vendors, simulated=ENV_HW_STATE in self._ctx.env)

    async def run(self) -> None:
        first = await self._ctx.config.next(None)
        self._configure(first, at_start=True)
        # Listen before the first reading, so that no event is lost between the two.
        events = follow_events(
            # A new reading finds what missed events were about.
            self._ctx.reader, self._hear, clock=self._ctx.clock, missed=self._look.set
        )  # fmt: skip
        try:
            async with running(device_plugin_events=events) as beside_it:
                await self._read_inventory(at_start=True)
                async with asyncio.TaskGroup() as group:
                    loops = (self._follow_config(first), self._reread(), self._follow_kubelet(), self._remember())
                    more = (self._follow_verdicts(), self._follow_specs(), self._apply(group), first_end(beside_it))
                    others = (self._follow_withdrawals(), self._follow_mps(), self._follow_exporter())
                    for loop in (*loops, *more, *others):
                        group.create_task(loop)
        finally:
            await self._remember_last()

    # --- configuration ---

    def _configure(self, config: ConfigText, *, at_start: bool = False) -> None:
        try:
            self._core.configure(config)
        except UserError as problem:
            if at_start and not self._ctx.wait:
                raise
            kept = self._core.settings is not None or self._core.configure_from_memory()
            self._ctx.report(refused(config, problem, kept=kept))
            self._config_problem = problem
        else:
            self._config_problem = None
            assert self._core.settings is not None
            log.info("Running with config:\n%s", json.dumps(printable(self._core.settings), indent=2))
            if not at_start:
                self._ctx.report(
                    Advice(
                        subject=config.name,
                        what="the configuration was taken over",
                        why="it changed and is valid",
                        reason="ConfigApplied",
                    )
                )
        self._changed.set()
        self._configured.set()

    async def _follow_config(self, current: ConfigText) -> None:
        while True:
            current = await self._ctx.config.next(current)
            self._configure(current)

    async def _follow_specs(self) -> None:
        """Let ``_apply`` update the specs when what they mount has changed."""
        if self._ctx.cdi_changes is not None:
            async for _ in self._ctx.cdi_changes():
                self._changed.set()

    async def _follow_mps(self) -> None:
        """Look at the daemons anew when one has come or gone."""
        while True:
            self._configured.clear()
            settings = self._core.settings
            if settings is None or not mps_resources(settings):
                await self._configured.wait()
                continue
            await first_of(self._watch_mps(settings), self._configured.wait())

    async def _watch_mps(self, settings: PluginSettings) -> None:
        """A look at files alone, until what they say is another: each connection would be a line in a daemon's log."""
        marks: object = None
        changes = folder_changes_of(partial(mps_folders, settings), seconds=MPS_LOOK_SECONDS, mask=ENTRIES)
        async with contextlib.aclosing(changes):
            async for _ in changes:
                before, marks = marks, mps_marks(settings)
                if marks != before and self._core.daemons():
                    self._changed.set()

    # --- hardware ---

    async def _read_inventory(self, *, at_start: bool = False) -> bool:
        now = self._ctx.clock.monotonic
        try:
            inventory = await self._ctx.reader.inventory()
            links = await self._ctx.reader.links()
        except DriverReleasedError as released:
            if at_start:
                self._core.unread()
                self._changed.set()
            if isinstance(released, DriverExchangedError) and self._core.exchanged(released.what):
                self._changed.set()
            self._driver_problem = None if self._core.plan.resources else released
            return True
        except HwError as problem:
            if at_start and not self._ctx.wait:
                raise
            if self._driver_problem is None or str(self._driver_problem) != str(problem):
                self._ctx.report(Advice.from_error(problem, reason="DriverUnreadable", severity=Severity.ERROR))
            self._driver_problem = problem
            if at_start:
                self._core.unreadable(problem, now())
                self._changed.set()
            return False
        if self._driver_problem is not None:
            self._ctx.report(
                Advice(subject="", what="the driver answers", why="it can be read now", reason="DriverReadable")
            )
        self._driver_problem = None
        self._inventory = inventory
        self._core.inventory(inventory, links, now())
        self._changed.set()
        return True

    async def _reread(self) -> None:
        failures = 0 if self._driver_problem is None else FAILURES_BEFORE_UNHEALTHY
        while True:
            calm = self._core.plan.resources and not self._core.sick
            seconds = 1.0 if failures else self._ctx.reread_seconds if calm else REREAD_SICK_SECONDS
            await self._wait_look(seconds)
            failures = 0 if await self._read_inventory() else failures + 1
            if failures == FAILURES_BEFORE_UNHEALTHY and self._driver_problem is not None:
                self._core.unreadable(self._driver_problem, self._ctx.clock.monotonic())
                self._changed.set()

    async def _wait_look(self, seconds: float) -> None:
        """Wait until an event asks for a reading, at most ``seconds``."""
        await first_of(self._look.wait(), self._ctx.clock.sleep(seconds))
        now = self._ctx.clock.monotonic()
        await self._ctx.clock.sleep(self._looked_at + LOOK_PAUSE_SECONDS - now)
        self._looked_at = self._ctx.clock.monotonic()
        self._look.clear()

    def _hear(self, event: HardwareEvent) -> None:
        if self._core.event(event, self._ctx.clock.monotonic()):
            self._changed.set()
        if event.kind not in {EventKind.SINGLE_BIT_ECC, EventKind.DOUBLE_BIT_ECC}:
            self._look.set()

    async def _follow_verdicts(self) -> None:
        if self._ctx.verdicts is None:
            return
        async for verdicts in self._ctx.verdicts.follow():
            if self._judge(verdicts):
                self._changed.set()

    def _judge(self, verdicts: Verdicts | None) -> bool:
        return self._core.verdicts(verdicts.by_uuid if verdicts is not None else None)

    async def _follow_withdrawals(self) -> None:
        """Tell the kubelet of each change; allocations ask for themselves."""
        orders = self._ctx.orders
        revision = 0
        while orders is not None:
            revision = await orders.changed(revision)
            self._changed.set()

    async def _follow_exporter(self) -> None:
        """Ask the vendor's own exporter, where one runs, how well the devices are."""
        from_exporter: ExporterHealth | None = None
        while True:
            if from_exporter is None and (socket := self._core.health_socket):
                path = self._ctx.host_root / socket.lstrip("/")
                if path.exists():
                    from kgpu.deviceplugin.exporter_health import ExporterHealth

                    from_exporter = ExporterHealth(path, self._ctx.report)
            if from_exporter is not None and self._core.elsewhere(await from_exporter.ask(self._core.accelerators)):
                self._changed.set()
            await self._ctx.clock.sleep(EXPORTER_LOOK_SECONDS)

    # --- kubelet ---

    async def _follow_kubelet(self) -> None:
        complaint = Complaint(self._ctx.report)
        async for identity in self._ctx.kubelet_changes(self._ctx.kubelet_socket):
            if identity is None:
                complaint.tell(_no_kubelet(self._ctx.kubelet_socket))
            else:
                complaint.over()
            if identity != self._identity:
                self._identity = identity
                self._tell_state()
            for offer, _ in self._offers.values():
                offer.wake()

    async def _apply(self, group: asyncio.TaskGroup) -> None:
        """Update the offers whenever the core's plan may have changed."""
        while True:
            self._changed.clear()
            settings = self._core.settings
            if self._core.read and settings is not None:
                resources = await self._usable(settings)
                if resources is not None:
                    self._sync(group, resources)
                    self._unsaved.set()
            self._tell_state()
            await self._changed.wait()

    async def _usable(self, settings: PluginSettings) -> tuple[PluginResource, ...] | None:
        """Update the CDI specs and return the resources, without devices that only a missing spec could name.

        None while no spec has ever been written and nothing else names devices.
        """
        planned, write, inventory = self._core.plan.resources, self._ctx.cdi_writer, self._inventory
        if write is None or inventory is None or not settings.uses_cdi or not planned:
            self._cdi_problem = None
            return planned
        try:
            # In a thread: answers to the kubelet must not wait for files.
            await self._write(write, inventory, settings)
        except UserError as problem:
            if line_of(self._cdi_problem or "") != problem.one_line():
                self._ctx.report(Advice.from_error(problem, reason="CdiNotWritten", severity=Severity.ERROR))
            self._cdi_problem = problem
        else:
            self._cdi_problem = None
            self._cdi_names = {shown_name(device, settings) for resource in planned for device in resource.devices}
        planned = self._core.plan.resources
        if not settings.only_cdi:
            return planned
        if not self._cdi_names:
            return None
        # Earlier specs still serve the devices that were offered before.
        return tuple(
            replace(resource, devices=tuple(d for d in resource.devices if shown_name(d, settings) in self._cdi_names))
            for resource in planned
        )

    def _sync(self, group: asyncio.TaskGroup, resources: Sequence[PluginResource]) -> None:
        wanted = {resource.name: resource for resource in resources if resource.devices}
        for name in wanted.keys() | self._former:
            if name not in self._offers:
                self._start(name, group)
        self._former = set()
        states = {name: self._core.states(resource) for name, resource in wanted.items()}
        self._ctx.on_offer(
            {name: sum(state.healthy for state in device_states) for name, device_states in states.items()}
        )
        for name, (offer, task) in list(self._offers.items()):
            resource = wanted.get(name)
            offer.set(states.get(name, ()))
            if resource is None and offer.withdrawn:
                task.cancel()  # closes its socket on the way out
                del self._offers[name]

    def _start(self, name: str, group: asyncio.TaskGroup) -> None:
        offer = Offer(
            name,
            core=self._core,
            kubelet_socket=self._ctx.kubelet_socket,
            clock=self._ctx.clock,
            report=self._ctx.report,
            identity=lambda: self._identity,
            on_progress=self._progress,
            look_seconds=self._ctx.look_seconds,
        )
        self._offers[name] = (offer, group.create_task(offer.run(), name=f"offer {name}"))

    def _progress(self) -> None:
        if any(offer.withdrawn for offer, _ in self._offers.values()):
            self._changed.set()
        self._tell_state()

    async def _remember(self) -> None:
        """Keep the memory's file up to date, in a task of its own: a disk can be slow."""
        complaint = Complaint(self._ctx.report)
        while True:
            await self._unsaved.wait()
            self._unsaved.clear()
            memory = self._memory()
            if roster.coarse(memory) == roster.coarse(self._saved):
                continue
            problem = await self._write(roster.save, self._ctx.state_dir, memory)
            if problem is None:
                self._saved = memory
                complaint.over()
                continue
            complaint.tell(problem)
            await self._ctx.clock.sleep(SAVE_RETRY_SECONDS)
            self._unsaved.set()

    def _memory(self) -> roster.PluginMemory:
        # Resources that are being withdrawn are included, as a later run has to finish that.
        return replace(self._core.memory, resources=tuple(sorted(self._offers)))

    async def _remember_last(self) -> None:
        memory, under_way = self._memory(), set(self._writing)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(LAST_SAVE_SECONDS):
                # A write that is under way continues in its thread: it must not end after the last save and undo it.
                if under_way:
                    await asyncio.wait(under_way)
                if memory != self._saved and (under_way or self._unsaved.is_set()):
                    await self._write(roster.save, self._ctx.state_dir, memory)

    async def _write(self, write: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Write files in a thread, however long it takes; the end of the run waits for it for a limited time."""
        task = asyncio.create_task(beside(write, *args, **kwargs))
        self._writing.add(task)
        task.add_done_callback(self._written)
        return await asyncio.shield(task)

    def _written(self, task: asyncio.Task[Any]) -> None:
        self._writing.discard(task)
        if not task.cancelled():
            task.exception()  # a caller that still waits gets it

    def _tell_state(self) -> None:
        state = self._present_state()
        if state != self._state:
            self._state = state
            self._ctx.on_state(*state)

    def _present_state(self) -> tuple[bool, Reason, str]:
        problem = self._config_problem
        if problem is not None and self._core.settings is None:
            return (
                False,
                UserError(f"no usable configuration: {problem.what}", problem.expected, problem.remedy),
                REFUSED,
            )
        waits_for = self._waits_for()
        if waits_for:
            return False, waits_for, ""
        missing = [advice for advice in self._core.plan.advice if advice.reason == "MpsDaemonMissing"]
        if missing:
            return False, "; ".join(f"{advice.what}: {advice.why}" for advice in missing), "MpsDaemonMissing"
        if problem is None and (refused := self._core.plan.refused):
            return True, first_of_several([refusal.error for refusal in refused]), refused[0].reason
        return True, problem or "", REFUSED if problem else ""

    def _waits_for(self) -> Reason:
        if self._driver_problem is not None:
            return f"the driver can't be read: {self._driver_problem.what}"
        if not self._core.plan.resources:
            held = [f"{advice.what}: {advice.why}" for advice in self._core.plan.advice if advice.reason in _HELD_BACK]
            return "; ".join(held) or "No devices found"
        if self._cdi_problem:
            return self._cdi_problem
        if self._identity is None:
            return f"no kubelet socket at {self._ctx.kubelet_socket}"
        behind = [offer.name for offer, _ in self._offers.values() if not offer.registered]
        return f"not registered with the kubelet: {', '.join(sorted(behind))}" if behind else ""


def _no_kubelet(socket: Path) -> Advice:
    return Advice(
        subject=str(socket),
        what="waiting for the kubelet",
        why="its socket is not there",
        remedy="start the kubelet; check that its device plugin folder is mounted here",
        severity=Severity.WARNING,
        reason="NoKubelet",
    )
