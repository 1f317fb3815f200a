"""The gate in front of the device plugin: a GPU is offered only once the validator has seen CUDA work on it.

The validator's results come from its folder, so it may be a role of this process or a pod of its own. Promises: nothing
is offered before the driver, toolkit and CUDA checks have passed for at least one device; a device that failed is
offered as unhealthy (a MIG device not at all) while the others are offered; results of another boot or driver are
ignored; inotify brings a change to the plugin at once.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
from collections.abc import AsyncIterator, Callable, Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from kgpu.agent.shared_reader import RoleSubscription
from kgpu.base.errors import HwError
from kgpu.base.inotify import follow_folders, nearest_existing
from kgpu.base.service import running
from kgpu.hw.port import (
    Accelerator,
    Activity,
    DriverReleasedError,
    EventKind,
    HardwareEvent,
    HardwareFinding,
    Inventory,
    Link,
    Problem,
    Process,
    Reader,
    Reading,
)
from kgpu.validator import files
from kgpu.validator.model import Check, DeviceResult, NodeValidation, Status
from kgpu.validator.plan import NEEDS

LOOK_SECONDS: Final = 5.0
"""How often the folder is read without an event from the kernel."""
_NOT_YET: Final = "the validator has not passed yet"


@dataclass(frozen=True, slots=True, kw_only=True)
class GateVerdict:
    """Whether devices may be offered; if not, ``reason`` says why. ``devices`` are CUDA results by uuid. ``untested``
    is True if the policy leaves out the CUDA check, so that every device counts as good.
    """

    open: bool
    reason: str = ""
    untested: bool = False
    devices: Mapping[str, DeviceResult] = field(default_factory=dict)


def judge(
    report: NodeValidation | None, *, boot: str, driver_version: str, folder: str, ready: bool = True
) -> GateVerdict:
    """Judge a report. ``driver_version`` is the current one; ``ready`` says whether the ready files exist. Pure."""
    if report is None:
        return GateVerdict(open=False, reason=f"no result is in {folder}; does the validator run on this node?")
    if not boot:
        return GateVerdict(
            open=False, reason="the kernel tells no boot id, so nobody knows of which boot its results are"
        )
    if report.boot != boot:
        return GateVerdict(open=False, reason="its results are of an earlier boot")
    if report.driver_version != driver_version:
        was = report.driver_version or "no driver"
        return GateVerdict(open=False, reason=f"its results are of {was}, and the driver is {driver_version} now")
    for check in NEEDS[Check.PLUGIN]:
        result = report.result(check)
        if result is None:
            return GateVerdict(open=False, reason=f"the {check} check has not been made")
        if not result.ready:
            return GateVerdict(open=False, reason=f"{check}: {result.reason() or 'under way'}")
    if not ready:
        return GateVerdict(open=False, reason=f"{files.ready(Check.CUDA)} is not in {folder}")
    cuda = report.result(Check.CUDA)
    assert cuda is not None, "it was looked for above"
    return GateVerdict(
        open=True, untested=cuda.status is Status.SKIPPED, devices={device.uuid: device for device in cuda.devices}
    )


def gated(inventory: Inventory, verdict: GateVerdict) -> Inventory:
    """The inventory with a finding on every GPU that may not be used, and without such MIG devices. Pure."""
    return dataclasses.replace(inventory, accelerators=tuple(_gated(gpu, verdict) for gpu in inventory.accelerators))


def _gated(gpu: Accelerator, verdict: GateVerdict) -> Accelerator:
    if not verdict.open:
        return _with(gpu, f"{_NOT_YET}: {verdict.reason}", "see `kgpu validate` on the node")
    if not gpu.mig_enabled:
        return gpu if _good(gpu.uuid, verdict) else _with(gpu, *_why(gpu.uuid, verdict))
    kept = tuple(part for part in gpu.partitions if _good(part.uuid, verdict))
    if gpu.partitions and not kept:
        return _with(gpu, *_why(gpu.partitions[0].uuid, verdict))
    return dataclasses.replace(gpu, partitions=kept)


def _good(uuid: str, verdict: GateVerdict) -> bool:
    return verdict.untested or (uuid in verdict.devices and verdict.devices[uuid].good)


def _why(uuid: str, verdict: GateVerdict) -> tuple[str, str]:
    result = verdict.devices.get(uuid)
    if result is None or result.trouble is None or result.status is Status.WAITING:
        return "CUDA has not been tried on it yet", "none: it is offered once the validator has seen CUDA work"
    return f"CUDA fails on it: {result.trouble.what}", result.trouble.remedy


def _with(gpu: Accelerator, what: str, remedy: str) -> Accelerator:
    finding = HardwareFinding(
        subject=gpu.uuid, problem=Problem.UNPROVEN, what=what, expected="a passed CUDA check", remedy=remedy
    )
    return dataclasses.replace(gpu, findings=(*gpu.findings, finding))


class Gate:
    """Follows the validator's folder. ``stopped()`` returns why no validator runs here, "" if one does."""

    def __init__(
        self,
        folder: Path,
        *,
        boot: str,
        look_seconds: float = LOOK_SECONDS,
        stopped: Callable[[], str] = str,
    ) -> None:
        self._stopped = stopped
        self._folder = files.Folder(folder)
        self._boot = boot
        self._look_seconds = look_seconds
        self._subscribers: list[RoleSubscription] = []
        self._wake = asyncio.Event()
        self._raw: tuple[bytes | None, bool] = (None, False)
        self._report: NodeValidation | None = None

    def verdict(self, driver_version: str) -> GateVerdict:
        """The verdict from the files as they are now."""
        self._read()
        verdict = judge(
            self._report,
            boot=self._boot,
            driver_version=driver_version,
            folder=str(self._folder.path),
            ready=self._raw[1],
        )
        if not verdict.open and (why := self._stopped()):
            return GateVerdict(open=False, reason=f"it does not run on this node: {why}")
        return verdict

    def _read(self) -> bool:
        """Read the files; return whether they have changed."""
        ready = all(self._folder.exists(files.ready(check)) for check in (Check.DRIVER, Check.CUDA))
        raw = (self._folder.read(files.REPORT), ready)
        if raw == self._raw:
            return False
        self._raw = raw
        self._report = None if raw[0] is None else files.decode_report(raw[0])
        return True

    async def opened(self, reader: Reader, waiting: Callable[[str], None]) -> None:
        """Return once devices may be offered; until then ``waiting`` is called with the reason."""
        while True:
            self._wake.clear()
            try:
                verdict = self.verdict((await reader.inventory()).driver_version)
            except DriverReleasedError:  # no driver is exchanged meanwhile
                self._read()
                verdict = self.verdict(self._report.driver_version if self._report is not None else "")
            except HwError as error:
                verdict = GateVerdict(open=False, reason=f"the driver can't be read: {error.what}")
            if verdict.open:
                return
            waiting(f"{_NOT_YET}: {verdict.reason}")
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._look_seconds):
                    await self._wake.wait()

    @contextlib.asynccontextmanager
    async def following(self) -> AsyncIterator[None]:
        """Within the block, changes of the files end waits and reach subscribers as INVENTORY events."""
        folder = self._folder.path
        follow = follow_folders(lambda: {nearest_existing(folder)}, self._look, seconds=self._look_seconds)
        async with running(validator_gate=follow):
            yield

    def _look(self) -> None:
        if self._read():
            self._tell()

    def _tell(self) -> None:
        self._wake.set()
        for subscriber in tuple(self._subscribers):
            subscriber.put(HardwareEvent(kind=EventKind.INVENTORY))

    def subscribe(self, subscription: RoleSubscription) -> None:
        """Send changes to it from now on."""
        self._subscribers.append(subscription)

    def unsubscribe(self, subscription: RoleSubscription) -> None:
        """Stop sending changes to it."""
        with contextlib.suppress(ValueError):
            self._subscribers.remove(subscription)


class GatedReader:
    """A ``Reader`` behind the gate. Closing it closes the wrapped reader."""

    def __init__(self, reader: Reader, gate: Gate) -> None:
        self._reader = reader
        self._gate = gate
        self._open: dict[RoleSubscription, asyncio.Task[None]] = {}

    async def inventory(self) -> Inventory:
        inventory = await self._reader.inventory()
        return gated(inventory, self._gate.verdict(inventory.driver_version))

    async def links(self) -> tuple[Link, ...]:
        return await self._reader.links()

    async def readings(self, keys: Collection[str] | None = None) -> tuple[Reading, ...]:
        return await self._reader.readings(keys)

    async def processes(self) -> tuple[Process, ...]:
        return await self._reader.processes()

    async def activity(self, keys: Collection[str]) -> tuple[Activity, ...]:
        return await self._reader.activity(keys)

    def events(self) -> RoleSubscription:
        source = self._reader.events()
        subscription = RoleSubscription(self._drop)
        self._gate.subscribe(subscription)
        self._open[subscription] = asyncio.create_task(_pump(source, subscription), name="gated-events")
        return subscription

    def _drop(self, subscription: RoleSubscription) -> None:
        self._gate.unsubscribe(subscription)
        task = self._open.pop(subscription, None)
        if task is not None:
            task.cancel()

    async def close(self) -> None:
        for subscription in tuple(self._open):
            await subscription.aclose()
        await self._reader.close()


async def _pump(source: AsyncIterator[HardwareEvent], target: RoleSubscription) -> None:
    try:
        async for event in source:
            target.put(event)
        target.put(HwError("the driver's events ended", "events for as long as the agent runs", "see the agent's log"))
    except HwError as error:
        target.put(error)
    finally:
        close = getattr(source, "aclose", None)
        if close is not None:
            await close()
