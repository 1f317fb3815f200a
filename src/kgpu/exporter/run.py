"""The exporter's loop: a tick reads everything and renders the text, a scrape returns it.

Promises: a scrape never waits for the driver, the kubelet or the API server; a failure there becomes a metric and
advice, and everything else is exported. The driver is read every ``interval`` and at once when devices came or went;
who uses what is read every few seconds, and an Xid is in the text within a second. A reading that does not come back
leaves no old values behind.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from kgpu import __version__
from kgpu.base.advice import Advice, AdviceSink, Severity
from kgpu.base.clock import Clock, SystemClock
from kgpu.base.errors import HwError, UserError
from kgpu.base.http import AccessPolicy, Address, Response, StatusServer
from kgpu.base.service import Complaint, StateSink, all_end, ignore_state, running
from kgpu.base.waits import first_of
from kgpu.exporter.config import ExporterOptions
from kgpu.exporter.model import Users, UsersPort
from kgpu.exporter.reload import CountersSource, vendor_page
from kgpu.exporter.self_metrics import ConfigState, ExporterStatus
from kgpu.exporter.serve import MetricsPage
from kgpu.exporter.ticks import Ticks
from kgpu.hw.follow import follow_events
from kgpu.hw.port import DriverReleasedError, EventKind, HardwareEvent, Inventory, Reader, Reading
from kgpu.hw.verdicts import Verdicts, VerdictSource

if TYPE_CHECKING:
    from kgpu.exporter.web_access import WebAccess
    from kgpu.kube.port import KubeApi

log = logging.getLogger(__name__)

LOOK_SECONDS: Final = 5.0
"""Seconds between two updates of who uses what, where readings are further apart."""
SOON: Final = 0.2
"""Seconds in which events are gathered before the text is rendered anew."""
SPACING: Final = 1.0
"""Seconds between readings that events ask for."""
PATIENCE: Final = 5.0
"""Seconds after which a reading in flight means that the driver does not answer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExporterContext:
    """What the exporter works with. ``on_state`` gets (ready, reason); ``on_address`` where it listens."""

    reader: Reader
    users: UsersPort
    options: ExporterOptions
    hostname: str
    report: AdviceSink
    api: Callable[[], KubeApi] | None = None
    verdicts: VerdictSource | None = None
    xid_text: Callable[[int], str] | None = None
    on_state: StateSink = ignore_state
    on_address: Callable[[Address], None] = lambda address: None  # noqa: ARG005
    clock: Clock = field(default_factory=SystemClock)
    patience: float = PATIENCE


class Exporter:
    """One exporter; ``run`` serves until cancelled."""

    def __init__(self, context: ExporterContext) -> None:
        """Raises ConfigError, HostError when the web config file can't be used: nothing is served without it."""
        self._context = context
        options = context.options
        self._counters = CountersSource(options, context.report, api=context.api)
        self._counters.changed = self._new_counters
        context.users.changed = self._look
        self._ticks = Ticks(
            options.settings(hostname=context.hostname, counters=self._counters.rows),
            xid_window=options.xid_window,
            clock_window=options.clock_window,
            xid_text=context.xid_text,
        )
        self._page = MetricsPage(clock=context.clock)
        self._web = _open_door(options.web_config, context.report)
        if self._web is not None:
            self._web.changed = self._wake_up
        self._wake = asyncio.Event()
        self._asked = True
        self._reading: asyncio.Task[tuple[Inventory, tuple[Reading, ...]]] | None = None
        self._began = 0.0
        self._last_read = float("-inf")
        self._news = True
        self._read_at: float | None = None
        self._read_seconds = 0.0
        self._made_at = float("-inf")
        self._ticked_at = float("-inf")
        self._error = "nothing has been read yet"
        self._released = ""
        self._complaint = Complaint(context.report)
        self._users = Users()
        self._vendor: str | None = None
        self._page_there = asyncio.Event()
        self._listening = False

    @property
    def counters(self) -> CountersSource:
        """The metrics in force."""
        return self._counters

    def reload(self) -> None:
        """Read every file now (SIGHUP)."""
        self._counters.reload()
        if self._web is not None:
            self._web.reload()

    async def run(self) -> None:
        """Serve until cancelled. Raises HostError when the address can't be listened on."""
        context = self._context
        access: AccessPolicy | None = self._web
        server = StatusServer(self._page.routes(self.health), patience=context.options.write_timeout, access=access)
        loops: dict[str, Coroutine[Any, Any, None]] = {
            "events": follow_events(context.reader, self._hear, clock=context.clock, missed=self._missed),
            "counters": self._counters.run(),
            "ticks": self._keep_ticking(server),
            "vendor": self._follow_vendor(),
        }
        if context.verdicts is not None:
            self._judged(context.verdicts.read())
            loops["verdicts"] = self._follow_verdicts(context.verdicts)
        if self._web is not None:
            loops["web"] = self._web.run()
        try:
            async with running(**loops) as tasks:
                await all_end(tasks)
        finally:
            await server.close()
            if self._reading is not None:
                self._reading.cancel()
            await context.users.close()

    async def _keep_ticking(self, server: StatusServer) -> None:
        """Tick and listen; the first text is there before the first scrape can come."""
        await self._tick()
        self._context.on_address(await self._listen(server))
        while True:
            await self._pause()
            await self._tick()

    async def _listen(self, server: StatusServer) -> Address:
        self._listening = True
        options, page = self._context.options, self._ticks.page
        if options.web_socket:
            from kgpu.exporter.systemd import listening_socket

            return await server.start_on(listening_socket())
        wanted = page.port if page is not None and not options.address_given else None
        return await server.start(Address(options.address.host, wanted or options.address.port))

    def health(self) -> Response:
        """200 while the text is current and the driver answers or is released, else 503 with what is wrong."""
        age = self._context.clock.monotonic() - self._ticked_at
        if age > self._step() + 2 * self._context.patience:
            return Response(503, f"no new text for {age:.0f} s\n")
        if not self._ticks.answers and not self._context.options.fake_gpus and not self._released:
            return Response(503, f"the driver does not answer: {self._error}\n")
        gpus = self._ticks.inventory.accelerators
        broken = [f"GPU {gpu.index} ({gpu.uuid}) does not work\n" for gpu in gpus if not gpu.usable]
        stale = [f"{config.source} is not in force as it is now\n" for config in self._followed() if not config.current]
        return Response(200, "".join(["OK\n", *broken, *stale]))

    def _followed(self) -> tuple[ConfigState, ...]:
        return (*self._sources(), *((self._web.followed(),) if self._web else ()))

    def _sources(self) -> tuple[ConfigState, ...]:
        page = self._ticks.page
        return (*self._counters.followed(), *(page.followed() if page is not None else ()))

    def _step(self) -> float:
        return min(self._context.options.interval, LOOK_SECONDS)

    async def _pause(self) -> None:
        """Wait for the time of the next tick, or for a change that should be in the text sooner."""
        seconds = min(SPACING, self._step()) if self._asked else self._step()
        await first_of(self._wake.wait(), self._context.clock.sleep(seconds))
        if self._wake.is_set():
            await self._context.clock.sleep(SOON)
            self._wake.clear()

    async def _tick(self) -> None:
        """Read what is due, update who uses what, and render the text if anything is new."""
        context = self._context
        await self._read_if_due()
        users = await context.users.current()
        now = context.clock.monotonic()
        self._ticked_at = now
        if not self._news and users == self._users and now - self._made_at < context.options.interval:
            return
        self._news, self._users = False, users
        outcome = self._ticks.families(now, users, status=self._status())
        for advice in outcome.advice:
            context.report(advice)
        self._page.publish(outcome.families)
        self._made_at = now

    async def _read_if_due(self) -> None:
        context = self._context
        now = context.clock.monotonic()
        interval = context.options.interval
        if self._reading is None:
            spaced = now - self._last_read >= min(SPACING, interval)
            # Half a step of grace: a tick that comes a little early must not put a reading off to the next.
            if not (self._asked and spaced) and now - self._last_read < interval - self._step() / 2:
                return
            self._asked, self._began = False, now
            self._reading = asyncio.create_task(self._read(), name="exporter-reading")
        task = self._reading
        await asyncio.wait([task], timeout=max(0.0, self._began + context.patience - now))
        if not task.done():
            task.add_done_callback(lambda _: self._wake.set())
            self._fell_silent("a reading has not come back")
            return
        self._reading, self._last_read = None, self._began
        try:
            inventory, readings = task.result()
        except DriverReleasedError as released:
            self._rest(released)
            return
        except HwError as error:
            self._fell_silent(error.one_line(), error)
            return
        now = context.clock.monotonic()
        self._ticks.read(now, inventory, readings)
        self._open_page(inventory.vendor)
        self._news = True
        self._read_at, self._read_seconds = time.time(), now - self._began
        if self._error:
            log.info("%d GPUs are read", len(inventory.accelerators))
            # Averages and rates are over the time since the reading before: have one soon.
            self._asked = True
        self._error = self._released = ""
        self._complaint.over()
        context.on_state(True, "")

    def _open_page(self, vendor: str) -> None:
        """Add what the vendor has besides, once it is known whose GPUs these are."""
        options, report = self._context.options, self._context.report
        if self._vendor is not None:
            return
        self._vendor, page = vendor, vendor_page(vendor, options, report)
        if page is None:
            return
        page.on_change(self._wake_up)
        self._ticks.page = page
        self._page_there.set()
        if self._listening and page.port and not options.address_given:
            report(page.too_late())

    async def _follow_vendor(self) -> None:
        await self._page_there.wait()
        assert self._ticks.page is not None, "it is there"
        await self._ticks.page.run()

    async def _read(self) -> tuple[Inventory, tuple[Reading, ...]]:
        inventory = await self._context.reader.inventory()
        return inventory, await self._context.reader.readings(self._ticks.keys)

    def _fell_silent(self, why: str, error: UserError | None = None) -> None:
        """Report that the driver does not answer: once, until it has answered again."""
        self._released = ""
        self._ticks.silent(self._context.clock.monotonic())
        self._news = True
        if self._context.options.fake_gpus:
            self._context.on_state(True, "")
            return
        self._error = why
        silent = Advice(
            subject="driver", what="no GPU is read", why=why, severity=Severity.WARNING,
            remedy=error.remedy if error else "see the kernel's log; the reading goes on as soon as it can",
            reason="DriverSilent",
        )  # fmt: skip
        self._complaint.tell(silent)
        self._context.on_state(False, error or why)

    def _rest(self, released: DriverReleasedError) -> None:
        """The driver is not read for a while, on purpose: its values are left out, the rest is exported."""
        self._ticks.silent(self._context.clock.monotonic())
        self._news = True
        self._error = self._released = released.what
        self._context.on_state(True, released.what, released.REASON)

    def _status(self) -> ExporterStatus:
        return ExporterStatus(
            version=__version__,
            answers=self._ticks.answers,
            read_at=self._read_at,
            read_seconds=self._read_seconds,
            scrapes=self._page.scrapes,
            counters=self._sources(),
            web=self._web.followed() if self._web else None,
        )

    def _hear(self, event: HardwareEvent) -> None:
        changed = self._ticks.hear(self._context.clock.monotonic(), event)
        # Xids change no device by themselves; what they lead to comes as an event of its own.
        if event.kind is not EventKind.XID:
            self._asked = True
        if changed or self._asked:
            self._wake_up()

    def _look(self) -> None:
        """Wake up, as the users may have changed."""
        self._wake.set()

    def _wake_up(self) -> None:
        self._news = True
        self._wake.set()

    def _missed(self) -> None:
        self._asked = True

    def _new_counters(self) -> None:
        self._ticks.use(self._counters.rows)
        self._wake_up()

    def _judged(self, verdicts: Verdicts | None) -> None:
        self._ticks.judged(verdicts.gpus if verdicts is not None else None)

    async def _follow_verdicts(self, source: VerdictSource) -> None:
        async for verdicts in source.follow():
            self._judged(verdicts)
            # A verdict follows a change: the values beside it should be newer than that, too.
            self._asked = True
            self._wake_up()


def _open_door(path: str, report: AdviceSink) -> WebAccess | None:
    if not path:
        return None
    from kgpu.exporter.web_access import WebAccess

    return WebAccess(path, report)


async def serve(context: ExporterContext, *, started: Callable[[Exporter], object] = lambda _: None) -> None:
    """Make an exporter and run it until cancelled."""
    exporter = Exporter(context)
    started(exporter)
    await exporter.run()
