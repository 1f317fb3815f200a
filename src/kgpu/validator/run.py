"""The validator's loop over injected ports: look, judge, write files and report; again when something changes.

Promises: neither a driver nor a disk nor an API server blocks the loop; a device that hangs or crashes the test is a
result; results of an earlier run with the same boot and driver hold until there are new ones, so that neither a restart
of this program nor a driver that can't be read for a moment withdraws anything; after a reboot or with another driver,
old results are removed.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable, Coroutine, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, TypeVar

from kgpu.base.advice import AdviceSink
from kgpu.base.backoff import Backoff, BackoffPolicy
from kgpu.base.boot import boot_id
from kgpu.base.clock import Clock, SystemClock
from kgpu.base.errors import HostError, HwError, KubeError, UserError
from kgpu.base.inotify import folder_changes, nearest_existing
from kgpu.base.service import Complaint, StateSink, ignore_state, running
from kgpu.base.threads import beside
from kgpu.base.waits import woken
from kgpu.formats.names import NVIDIA, NVIDIA_DOMAIN
from kgpu.formats.validation_report import CheckTrouble
from kgpu.host.root import DriverRoot
from kgpu.hw.follow import follow_events
from kgpu.hw.port import DriverExchangedError, DriverReleasedError, Inventory, Reader
from kgpu.hw.vendor import Vendor, vendor_of
from kgpu.validator import plan
from kgpu.validator.checks import cuda, driver, plugin, toolkit
from kgpu.validator.checks.plugin import NodeResources, NodeSource
from kgpu.validator.config import ValidatorSettings, roots_of
from kgpu.validator.cuda import CudaRunner
from kgpu.validator.files import Folder
from kgpu.validator.look import CdiFacts, DriverFacts, look_at_driver, look_at_specs
from kgpu.validator.model import (
    Check,
    CheckResult,
    DeviceResult,
    NodeValidation,
    Status,
    failed,
    skipped,
    waiting,
)
from kgpu.validator.patience import Patience
from kgpu.validator.plan import ValidatedCondition
from kgpu.validator.publish import ConditionPublisher
from kgpu.validator.recheck import IDLE_KEYS, Readings, Rechecks, idle

log = logging.getLogger(__name__)

T = TypeVar("T")

RETRY: Final = BackoffPolicy(first=2.0, cap=60.0, factor=2.0, jitter=0.2)
LOOK_SECONDS: Final = 20.0
"""The deadline for reading files: a disk that hangs is a failure."""
NODE_SECONDS: Final = 5.0
PAUSE_SECONDS: Final = 0.25
"""The minimum time between two looks that changes cause."""
SETTLE_SECONDS: Final = 0.5
DRIVER_TRIES: Final = 3
DRIVER_PAUSE_SECONDS: Final = 1.0
UNREADABLE_SECONDS: Final = 5.0
"""How soon a driver that could not be read is read again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ValidatorContext:
    """Everything that the validator gets from outside.

    ``proc`` and ``sys`` are the paths of /proc and /sys of the GPUs' machine. ``node`` and ``publisher`` are None
    without an API server. ``offered()`` returns how many healthy devices the device plugin offers by resource, empty if
    that is not known here; ``plugin_off()`` returns why no device plugin should run on this node, "" if one should.
    ``on_state(ready, reason)`` is called with whether this node can take work.
    """

    reader: Reader
    root: DriverRoot
    runner: CudaRunner
    settings: ValidatorSettings
    report: AdviceSink
    node: NodeSource | None = None
    publisher: ConditionPublisher | None = None
    clock: Clock = field(default_factory=SystemClock)
    proc: str = "/proc"
    sys: str = "/sys"
    boot: str = field(default_factory=boot_id)
    wall: Callable[[], float] = time.time
    offered: Callable[[], Mapping[str, int]] = dict
    plugin_off: Callable[[], str] = str
    on_state: StateSink = ignore_state


async def run(ctx: ValidatorContext) -> None:
    """Validate until cancelled."""
    await NodeValidator(ctx).run()


async def validate_once(
    ctx: ValidatorContext, on_progress: Callable[[NodeValidation], None] = lambda _: None
) -> NodeValidation:
    """Make one pass without files, conditions or state, for a command line."""
    validator = NodeValidator(ctx, keep=on_progress)
    await validator.look()
    return validator.report


class NodeValidator:
    """One node's validation. ``keep`` replaces the files and the Node."""

    def __init__(self, ctx: ValidatorContext, *, keep: Callable[[NodeValidation], None] | None = None) -> None:
        self._ctx = ctx
        self._folder = Folder(ctx.settings.folder)
        self._keep = keep
        self.report = NodeValidation()
        self._known: dict[str, DeviceResult] = {}
        self._due: dict[str, float] = {}
        self._tries: dict[str, Backoff] = {}
        self._retry = Backoff(RETRY)
        self._rechecks = Rechecks(ctx.settings.recheck_seconds)
        self._unreadable: float | None = None  # since when
        self._patience = Patience()
        self._facts: DriverFacts | None = None
        self._driver = ""
        self._vendor: Vendor | None = None  # None for NVIDIA, and until a driver has answered
        self._first = True
        self._fresh: set[str] = set()  # tested by this run, not an earlier one
        self._runtime = ""
        self._wake = asyncio.Event()
        self._condition: ValidatedCondition | None = None
        self._condition_changed = asyncio.Event()
        self._files_problem: HostError | None = None
        self._files_complaint = Complaint(ctx.report, reason="ValidationNotWritten")

    async def run(self) -> None:
        """Make passes until cancelled."""
        events = follow_events(self._ctx.reader, lambda _event: self._wake.set(), clock=self._ctx.clock)
        async with running(events=events, files=self._follow_files(), node=self._tell_node()) as tasks:
            await self._keep_looking(tasks)

    async def _keep_looking(self, beside_it: Iterable[asyncio.Task[None]]) -> None:
        while True:
            before = self._outline()
            self._wake.clear()
            begun = self._ctx.clock.monotonic()
            await self.look()
            if self._outline() != before:
                self._retry.reset()
            # The device plugin waits for the results: news from a long look has waited already.
            waited = self._ctx.clock.monotonic() - begun if self._wake.is_set() else 0.0
            await woken(self._wake, self._pause(), clock=self._ctx.clock, beside=beside_it)
            await self._ctx.clock.sleep(max(0.0, PAUSE_SECONDS - waited))

    def _pause(self) -> float:
        """Seconds until the next look without an event."""
        if self._unreadable is not None and self._driver:
            return UNREADABLE_SECONDS
        now = self._ctx.clock.monotonic()
        calm = plan.CALM_SECONDS if self.report.passed else self._retry.next_delay()
        if plan.lacks_the_plugin_alone(self.report):
            calm = min(calm, self._patience.soon(now))
        return min(self._patience.pause(now, calm), self._rechecks.pause(now))

    def _outline(self) -> tuple[object, ...]:
        return tuple(
            (result.check, result.status, tuple((d.uuid, d.status) for d in result.devices))
            for result in self.report.results
        )

    # --- one pass ---

    async def look(self) -> None:
        """Make every check that can be made, and publish the results."""
        if self._first and self._keep is None:
            self._restore()
        try:
            await self._look()
        except DriverExchangedError as exchanged:
            self._driver_change(None)
            self._publish(self._unproven(exchanged), "")
        except DriverReleasedError as released:
            log.info("nothing is checked for a while; what is known still holds: %s", released.what)
            self._publish(self._kept(released), self._driver)

    async def _look(self) -> None:
        """Raises DriverReleasedError, also in the middle."""
        inventory, error = await self._inventory()
        if inventory is None and error is not None and self._in_grace():
            log.warning("the driver can't be read now; what is known of it still holds: %s", error.one_line())
            self._publish(self._kept(error), self._driver)
            return
        self._driver_change(inventory)
        results: dict[Check, CheckResult] = {}
        steps: dict[Check, Callable[[Inventory | None, HwError | None, dict[Check, CheckResult]], Any]] = {
            Check.DRIVER: self._look_driver,
            Check.TOOLKIT: self._look_toolkit,
            Check.CUDA: self._look_cuda,
            Check.PLUGIN: self._look_plugin,
        }
        skip = self._skip()
        for check in self._ctx.settings.checks:
            if check in skip:
                results[check] = skipped(check, skip[check])
                continue
            first = plan.blocked(check, results)
            if first is None:
                result = await steps[check](inventory, error, results)
                first = self._patience.with_limit(result, self._ctx.clock.monotonic())
            results[check] = first
        self._publish(results, self._driver)

    async def _inventory(self) -> tuple[Inventory | None, HwError | None]:
        """Read the inventory; a driver that answered before gets more tries, as its library may just be restarting.

        Raises DriverReleasedError.
        """
        problem: HwError | None = None
        for attempt in range(DRIVER_TRIES):
            try:
                return await self._ctx.reader.inventory(), None
            except DriverReleasedError:
                raise
            except HwError as error:
                problem = error
            if not self._driver or attempt == DRIVER_TRIES - 1:
                break
            await self._ctx.clock.sleep(DRIVER_PAUSE_SECONDS)
        return None, problem

    def _restore(self) -> None:
        """Load an earlier run's results, whether or not the driver can be read now."""
        self._first = False
        former = self._folder.report()
        if former is None:
            return
        if not plan.holds(former, boot=self._ctx.boot):
            self._clear()  # from another boot: nobody may rely on it any longer
            return
        self.report, self._driver, self._known = former, former.driver_version, plan.restorable(former)

    def _in_grace(self) -> bool:
        """Whether a driver that can't be read still counts as present, because it answered a short time ago."""
        now = self._ctx.clock.monotonic()
        if self._unreadable is None:
            self._unreadable = now
        return bool(self._driver) and now - self._unreadable < self._ctx.settings.grace_seconds

    def _kept(self, error: HwError) -> dict[Check, CheckResult]:
        """The results that hold while the driver can't be read."""
        skip = self._skip()
        return {
            check: skipped(check, skip[check])
            if check in skip
            else self.report.result(check) or waiting(check, CheckTrouble.of(error))
            for check in self._ctx.settings.checks
        }

    def _unproven(self, error: HwError) -> dict[Check, CheckResult]:
        """The results while the driver is exchanged: what was found with the one before is over."""
        skip = self._skip()
        return {
            check: skipped(check, skip[check]) if check in skip else waiting(check, CheckTrouble.of(error))
            for check in self._ctx.settings.checks
        }

    def _skip(self) -> Mapping[Check, str]:
        """The checks that are skipped now, with reasons."""
        off, skip = self._ctx.plugin_off(), self._ctx.settings.skip
        if self._vendor is not None:
            from kgpu.validator.checks import file_driver

            skip = {**file_driver.skips(self._vendor), **skip}
        if not off:
            return skip
        # A plugin that is switched on again gets the full time to offer its devices.
        self._patience.empty_for(self._ctx.clock.monotonic(), empty=False)
        return {Check.PLUGIN: f"no device plugin is meant to run here: {off}", **skip}

    def _driver_change(self, inventory: Inventory | None) -> None:
        version = inventory.driver_version if inventory is not None else ""
        if version != self._driver:
            self._known.clear()
            self._fresh.clear()
            self._due.clear()
            self._clear()
        self._driver = version
        if inventory is not None:
            self._unreadable = None
            self._vendor = None if inventory.vendor == NVIDIA else vendor_of(inventory.vendor)
            self._known = plan.still_known(inventory, self._known)
            self._fresh &= self._known.keys()
        self._rechecks.forget(self._known)

    def _clear(self) -> None:
        self.report = NodeValidation()
        if self._keep is None:
            with contextlib.suppress(HostError):  # a later write reports the same problem
                self._folder.clear()

    async def _look_driver(
        self, inventory: Inventory | None, error: HwError | None, _results: dict[Check, CheckResult]
    ) -> CheckResult:
        ctx = self._ctx
        if self._vendor is not None:
            return await self._look_files(self._vendor, inventory, error)
        looking = beside(look_at_driver, ctx.root, proc=ctx.proc, sys=ctx.sys, validations=ctx.settings.folder)
        facts = await _in_time(looking)
        if facts is None:
            return failed(Check.DRIVER, _hanging(str(self._ctx.root.files.here)))
        if inventory is None and not facts.pci and (vendor := await self._vendor_on_bus()) is not None:
            return await self._look_files(vendor, inventory, error)
        self._facts = facts
        return driver.judge(facts, inventory, error)

    async def _vendor_on_bus(self) -> Vendor | None:
        from kgpu.validator.checks import file_driver

        return await _in_time(beside(file_driver.by_bus, self._ctx.sys))

    async def _look_files(self, vendor: Vendor, inventory: Inventory | None, error: HwError | None) -> CheckResult:
        from kgpu.validator.checks import file_driver

        nodes = await _in_time(beside(file_driver.look, self._ctx.root, vendor, inventory))
        if nodes is None:
            return failed(Check.DRIVER, _hanging(str(self._ctx.root.files.here)))
        return file_driver.judge(vendor, nodes, inventory, error)

    async def _look_toolkit(
        self, inventory: Inventory | None, _error: HwError | None, _results: dict[Check, CheckResult]
    ) -> CheckResult:
        settings = self._ctx.settings
        if inventory is None:
            return waiting(Check.TOOLKIT, CheckTrouble(what="the driver can't be read"))
        await self._node_facts()
        facts: CdiFacts | None = await _in_time(
            beside(look_at_specs, settings.cdi_dirs, self._ctx.root, settings.host_root)
        )
        if facts is None:
            return failed(Check.TOOLKIT, _hanging(", ".join(map(str, settings.cdi_dirs))))
        return toolkit.judge(facts, inventory, self._runtime)

    async def _look_cuda(
        self, inventory: Inventory | None, _error: HwError | None, results: dict[Check, CheckResult]
    ) -> CheckResult:
        if inventory is None:
            return waiting(Check.CUDA, CheckTrouble(what="the driver can't be read"))
        now = self._ctx.clock.monotonic()
        remedy = await self._cuda_todo(inventory, now)
        if any(target.uuid not in self._known for target in remedy):
            self._interim(results, inventory)
        slots = asyncio.Semaphore(self._ctx.settings.at_once)
        runs = [asyncio.create_task(self._run_cuda(target, slots)) for target in remedy]
        waits: Iterable[asyncio.Task[None]] = runs
        try:
            while waits:
                done, waits = await asyncio.wait(waits, timeout=self._ctx.settings.interim_seconds)
                for run_ in done:
                    run_.result()
                if waits:
                    self._interim(results, inventory)
        finally:
            for run_ in runs:
                run_.cancel()
            await asyncio.gather(*runs, return_exceptions=True)  # the others end like the first
        return cuda.judge(inventory, self._known)

    async def _cuda_todo(self, inventory: Inventory, now: float) -> list[cuda.CudaTarget]:
        tried = {uuid: result for uuid, result in self._known.items() if uuid in self._fresh}
        remedy = plan.to_run(inventory, tried, self._due, now)
        good = [target for target in remedy if target.uuid in self._known and self._known[target.uuid].good]
        again = self._rechecks.asking((target for target in cuda.targets(inventory) if target not in remedy), now)
        if not good and not again:
            return remedy
        readings = await self._readings()
        # Work on a device proves more than another test would, and a test must not disturb it.
        remedy = [target for target in remedy if target not in good or idle(readings.get(target.gpu, {})) is not False]
        return [*remedy, *(target for target in again if self._rechecks.allowed(target, readings))]

    async def _readings(self) -> Readings:
        try:
            readings = await self._ctx.reader.readings(IDLE_KEYS)
            return {reading.uuid: reading.numbers for reading in readings if reading.whole}
        except HwError:
            return {}

    def _interim(self, results: dict[Check, CheckResult], inventory: Inventory) -> None:
        """Publish what is known so far, so that a slow GPU does not delay it."""
        later = {result.check: result for result in self.report.results if result.check not in results}
        self._publish({**results, **later, Check.CUDA: cuda.judge(inventory, self._known)}, self._driver)

    async def _run_cuda(self, target: cuda.CudaTarget, gate: asyncio.Semaphore) -> None:
        async with gate:
            outcome = await self._ctx.runner.run(target.uuid, deadline=self._ctx.settings.cuda_seconds)
        new, before = cuda.device(target, outcome), self._known.get(target.uuid)
        result = self._rechecks.judge(before, new, outcome, self._ctx.clock.monotonic())
        text = "; ".join(new.evidence) or (new.trouble.what if new.trouble else "")
        doubt = " (it was good; it is tried once more before this counts)" if new.status is not result.status else ""
        log.log(logging.DEBUG if result is before and not doubt else logging.INFO, "%s: %s%s", target.name, text, doubt)
        self._known[target.uuid] = result
        self._fresh.add(target.uuid)
        tries = self._tries.setdefault(target.uuid, Backoff(RETRY))
        if result.status is Status.PASSED:
            tries.reset()
        else:
            self._due[target.uuid] = self._ctx.clock.monotonic() + tries.next_delay()

    async def _look_plugin(
        self, _inventory: Inventory | None, _error: HwError | None, results: dict[Check, CheckResult]
    ) -> CheckResult:
        if self._ctx.node is None:
            return skipped(Check.PLUGIN, "no API server is known here: the Node was not asked")
        facts = await self._node_facts()
        if isinstance(facts, NodeResources):
            tried = results.get(Check.CUDA if self._vendor is None else Check.DRIVER)
            domain = NVIDIA_DOMAIN if self._vendor is None else self._vendor.domain
            usable = sum(device.good for device in tried.devices) if tried else 0
            now, empty = self._ctx.clock.monotonic(), plugin.is_empty(facts, domain)
            since = self._patience.empty_for(now, empty=empty)
            result = plugin.judge(facts, usable=usable, offered=self._ctx.offered(), empty_for=since, domain=domain)
            return result if empty else self._patience.settled(self.report.result(Check.PLUGIN), result, now)
        before = self.report.result(Check.PLUGIN)
        return before if before and before.status is Status.PASSED else waiting(Check.PLUGIN, CheckTrouble.of(facts))

    async def _node_facts(self) -> NodeResources | KubeError:
        if self._ctx.node is None:
            return NodeResources()
        try:
            async with asyncio.timeout(NODE_SECONDS):
                facts = await self._ctx.node.facts()
        except TimeoutError:
            return KubeError("the API server does not answer", "the Node object", "check the API server")
        except KubeError as error:
            return error
        self._runtime = facts.runtime
        return facts

    # --- telling ---

    def _publish(self, results: dict[Check, CheckResult], driver_version: str) -> None:
        old = self.report
        facts = self._facts
        new = NodeValidation(
            results=tuple(results.values()),
            driver_version=driver_version,
            boot=self._ctx.boot,
            roots=roots_of(self._ctx.root, self._ctx.settings.host_root),
            pci_devices=old.pci_devices if facts is None else -1 if facts.pci is None else len(facts.pci),
            times=plan.successes(old, results.values(), self._ctx.wall()),
            asked_modules=old.asked_modules if facts is None else tuple(sorted(facts.asked)),
            loaded_modules=old.loaded_modules if facts is None else tuple(sorted(facts.loaded)),
        )
        self.report = new
        if self._keep is not None:
            self._keep(new)
            return
        try:
            self._folder.apply(plan.files_of(new))
            self._files_problem = None
            self._files_complaint.over()
        except HostError as problem:
            self._files_problem = problem
            self._files_complaint.of(problem)
        for advice in plan.advice(old, new):
            self._ctx.report(advice)
        self._condition = plan.condition_of(new)
        self._condition_changed.set()
        ready, reason = plan.summary(new)
        self._ctx.on_state(ready and not self._files_problem, self._files_problem or reason)

    async def _tell_node(self) -> None:
        """Keep the Node's condition up to date, with retries."""
        written: ValidatedCondition | None = None
        backoff = Backoff(RETRY)
        while True:
            await self._condition_changed.wait()
            if self._condition is not None and self._condition.status != "True":
                await self._ctx.clock.sleep(SETTLE_SECONDS)  # a state that lasts a moment is not worth a write
            self._condition_changed.clear()
            wanted = self._condition
            if wanted is None or wanted == written or self._ctx.publisher is None:
                continue
            try:
                await self._ctx.publisher.publish(wanted)
            except KubeError as error:
                log.warning("the Node's condition was not written: %s", error.one_line())
                await self._ctx.clock.sleep(backoff.next_delay())
                self._condition_changed.set()
            else:
                written = wanted
                backoff.reset()

    # --- what wakes it ---

    async def _follow_files(self) -> None:
        folders = (*self._ctx.settings.cdi_dirs, self._ctx.settings.folder)
        changes = folder_changes(lambda: {nearest_existing(folder) for folder in folders}, seconds=plan.CALM_SECONDS)
        async with contextlib.aclosing(changes):
            async for changed in changes:
                if changed:
                    self._wake.set()


async def _in_time(looking: Coroutine[Any, Any, T]) -> T | None:
    """The coroutine's result, None if a disk does not answer in time."""
    try:
        async with asyncio.timeout(LOOK_SECONDS):
            return await looking
    except TimeoutError:
        return None


def _hanging(place: str) -> CheckTrouble:
    return CheckTrouble(
        what=f"looking at {place} did not come back within {LOOK_SECONDS:g} s",
        expected="files that can be read",
        remedy="look for a disk or network mount that hangs on the node",
    )


def as_error(report: NodeValidation) -> UserError | None:
    """The first failed or waiting check as an error, None if there is none."""
    for result in report.results:
        trouble = result.trouble or next((device.trouble for device in result.failed_devices if device.trouble), None)
        if result.status in {Status.FAILED, Status.WAITING} and trouble is not None:
            return HostError(f"{result.check}: {trouble.what}", trouble.expected, trouble.remedy)
    return None
