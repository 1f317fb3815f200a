"""The loop of the agent's role ``usage``: looks every ten seconds, counts, remembers, and answers who asks.

Promises: the driver is asked once a look for what has passed since the one before, with a deadline, so that a hung call
makes its node unknown and nothing else; a store that fails is told, and counting and metrics go on; a restart within
the same boot goes on where it was.
"""

from __future__ import annotations

import asyncio
import datetime as dt
import logging
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import msgspec
from msgspec import structs

from kgpu.base.advice import Advice, AdviceSink
from kgpu.base.boot import boot_id, uptime
from kgpu.base.clock import BootClock, Clock
from kgpu.base.errors import HostError, HwError, KubeError
from kgpu.base.http import Address, AwaitedPage, Page, Request, Response, StatusServer
from kgpu.base.service import Complaint, StateSink, ignore_state
from kgpu.base.threads import beside
from kgpu.formats.names import METRICS_TYPE
from kgpu.formats.usage import RecordedGpu, RecordedNode
from kgpu.formats.usage_now import (
    BUCKET_US,
    DAY_US,
    LINES_PATH,
    NOW_PATH,
    VERSION,
    LinesPage,
    UsageBucket,
    encode_page,
)
from kgpu.formats.usage_now import encode as encode_now
from kgpu.hw.port import DriverReleasedError, Inventory, Reader
from kgpu.usage import telling
from kgpu.usage.gathering import Gathered, Gathering, UnitKey
from kgpu.usage.looks import HoldersPort, LookedDevice, UsageLook
from kgpu.usage.reading import AVERAGES, KEYS, UsageAnswer, devices
from kgpu.usage.store import UsageStore

log = logging.getLogger(__name__)

EVERY: Final = 10.0
PATIENCE: Final = 5.0
SAMPLED: Final = 12.0
"""Seconds back to which a reading may go: counters are averages since one before it, which may be another role's."""
SAVE_US: Final = 30_000_000
"""Between two saves of the counters where no line is due: a kill and a restart within a minute lose nothing."""
LINES_TYPE: Final = "application/jsonl"
NODE_US: Final = 6 * 3_600_000_000
"""How often the node's own line is written, as lines that are too old go."""


class UsageContext(msgspec.Struct, frozen=True, kw_only=True):
    """What the loop works with. ``labels`` are the keys of pods' labels that holders have; ``about_node`` says what the
    node is, None: nobody can say. ``checked(uuid, since)`` is whether kgpu itself has worked
    on a device since that second of ``uptime``.
    """

    node: str
    reader: Reader
    holders: HoldersPort
    store: UsageStore
    report: AdviceSink
    labels: tuple[str, ...] = ()
    about_node: Callable[[], Any] | None = None
    on_state: StateSink = ignore_state
    clock: Clock = msgspec.field(default_factory=BootClock)
    wall: Callable[[], dt.datetime] = lambda: dt.datetime.now(dt.UTC)
    uptime: Callable[[], float] = uptime
    boot: Callable[[], str] = boot_id
    every: float = EVERY
    patience: float = PATIENCE
    checked: Callable[[str, float], bool] = lambda _uuid, _since: False


class UsageWatcher:
    """One node's usage. ``run`` looks until cancelled; ``pages`` answers meanwhile."""

    def __init__(self, context: UsageContext) -> None:
        self._context = context
        self._gathering: Gathering | None = None
        self._inventory: Inventory | None = None
        self._reading: asyncio.Task[UsageAnswer] | None = None
        self._disk = Complaint(context.report)
        self._driver = Complaint(context.report)
        self._unsaved: list[RecordedGpu | RecordedNode] = []
        self._buckets: list[tuple[UnitKey, UsageBucket]] = []
        self._saved_us = 0
        self._about: RecordedNode | None = None
        self._about_us = -NODE_US
        self._looked_at = 0.0
        self._read_from = 0.0

    async def run(self) -> None:
        """Look until cancelled. What was counted is saved at the end."""
        await self.start()
        try:
            while True:
                await self.look()
                await self._context.clock.sleep(self._context.every)
        finally:
            await asyncio.shield(self.end())

    async def start(self) -> None:
        """Go on with the counters of this boot, else begin anew."""
        self._gathering = await self._begin()

    async def end(self) -> None:
        """Save what was counted, and let go of everything."""
        if self._reading is not None:
            self._reading.cancel()
        await self._context.holders.close()
        if self._gathering is not None:
            await self._save(self._gathering.gathered, last=True)

    def pages(self) -> dict[str, Page]:
        """What is served."""
        return {
            "/metrics": lambda: Response(200, self.metrics(), METRICS_TYPE),
            NOW_PATH: AwaitedPage(self._now_page),
            LINES_PATH: AwaitedPage(self._lines_page),
        }

    def metrics(self) -> str:
        """The metrics' text."""
        if self._gathering is None:
            return ""
        node = self._context.node
        return telling.metrics(self._gathering.gathered, self._looked_at, node=node, about=self._about)

    async def _begin(self) -> Gathering:
        context = self._context
        gathered: Gathered | None = None
        closed: Mapping[UnitKey, Sequence[UsageBucket]] = {}
        try:
            for advice in await beside(context.store.open):
                context.report(advice)
            gathered, closed = await beside(context.store.load)
        except HostError as error:
            self._disk.tell(Advice.from_error(error, reason="UsageNotSaved"))
        now_us = self._uptime_us()
        boot = context.boot()
        if gathered is None or gathered.boot.partition("/")[0] != boot or gathered.uptime_us > now_us:
            gathered, closed = Gathered(boot=f"{boot or 'boot'}/{now_us // 1_000_000}", uptime_us=now_us), {}
        return Gathering(context.node, gathered, closed)

    async def look(self) -> None:
        """One look: count what has passed, and save what is due."""
        context, gathering = self._context, self._gathering
        assert gathering is not None
        begin = context.uptime()
        answer = await self._read()
        if answer is not None:
            self._inventory = answer.inventory
        elif self._inventory is not None:
            answer = UsageAnswer(self._inventory)
        at_us = self._uptime_us()
        wall = context.wall()
        look = UsageLook(at=wall, uptime_us=at_us)
        if answer is not None:
            passed = (at_us - gathering.gathered.uptime_us) / 1e6
            found = devices(answer, at_us / 1e6, passed)
            look = UsageLook(
                at=wall, uptime_us=at_us, devices=tuple(map(self._without_own_work, found)),
                holders=await context.holders.holders(answer.inventory),
            )  # fmt: skip
        self._read_from = begin - SAMPLED
        accounted = gathering.take(look)
        self._looked_at = wall.timestamp()
        self._unsaved += accounted.lines
        self._buckets += accounted.buckets
        await self._describe(wall, at_us)
        if self._unsaved or at_us - self._saved_us >= SAVE_US:
            await self._save(gathering.gathered)

    def _without_own_work(self, device: LookedDevice) -> LookedDevice:
        """The device without readings of what kgpu itself has worked on since the look before."""
        checked, since = self._context.checked, self._read_from
        parts = tuple(
            structs.replace(part, reading=None, checked=True) if checked(part.id, since) else part
            for part in device.parts
        )
        if checked(device.device, since):
            return structs.replace(device, reading=None, checked=True, parts=parts)
        return structs.replace(device, parts=parts) if parts != device.parts else device

    async def _read(self) -> UsageAnswer | None:
        """What the driver answers, None where it does not in time. One call is in flight at most."""
        context = self._context
        if self._reading is None:
            self._reading = asyncio.create_task(self._ask(), name="usage-reading")
        await asyncio.wait([self._reading], timeout=context.patience)
        if not self._reading.done():
            context.on_state(False, "DriverSilent", "a reading has not come back: what its GPUs do is unknown")
            return None
        task, self._reading = self._reading, None
        try:
            answer = task.result()
        except DriverReleasedError as released:
            context.on_state(True, released.what, released.REASON)
            return None
        except HwError as error:
            self._driver.tell(Advice.from_error(error, reason="DriverSilent"))
            context.on_state(False, error)
            return None
        self._driver.over()
        context.on_state(True, "")
        return answer

    async def _ask(self) -> UsageAnswer:
        reader = self._context.reader
        inventory, readings = await reader.inventory(), await reader.readings(KEYS)
        return UsageAnswer(inventory, readings, await reader.activity(AVERAGES), await reader.processes())

    async def _describe(self, wall: dt.datetime, at_us: int) -> None:
        """A line about the node, where it has changed, and once in a while."""
        context = self._context
        if context.about_node is None or at_us - self._about_us < BUCKET_US:
            return
        try:
            about: RecordedNode = msgspec.structs.replace(await context.about_node(), at=wall)
        except KubeError as error:
            log.debug("the node is not described: %s", error.one_line())
            return
        due = at_us - self._about_us >= NODE_US
        if due or self._about is None or msgspec.structs.replace(self._about, at=wall) != about:
            self._unsaved.append(about)
            self._about, self._about_us = about, at_us

    async def _save(self, gathered: Gathered, *, last: bool = False) -> None:
        """Save lines, stretches and counters together. What can't be saved is tried again, within bounds."""
        self._saved_us = self._uptime_us()
        lines, buckets = tuple(self._unsaved), tuple(self._buckets)
        try:
            await beside(self._context.store.save, lines, gathered=gathered, buckets=buckets)
            if last:
                await beside(self._context.store.close)
        except HostError as error:
            self._disk.tell(Advice.from_error(error, reason="UsageNotSaved"))
            # A line says all that those before it said of its counters: the newest are kept.
            self._unsaved = self._unsaved[-MOST_UNSAVED:]
            self._buckets = self._buckets[-MOST_UNSAVED:]
            return
        self._disk.over()
        del self._unsaved[: len(lines)], self._buckets[: len(buckets)]

    async def _now_page(self, request: Request) -> Response:
        gathering = self._gathering
        if gathering is None:
            return Response(503, "nothing has been looked at yet\n")
        seconds = request.number("seconds", DAY_US // 1_000_000)
        since = self._uptime_us() - min(seconds * 1_000_000, DAY_US)
        closed: Mapping[UnitKey, Sequence[UsageBucket]] = gathering.closed
        try:
            stored = await beside(self._context.store.buckets, gathering.gathered.boot, since)
            closed = _joined(stored, {**gathering.closed}, since)
        except HostError:
            log.debug("stretches are told from memory alone", exc_info=True)
        said = telling.now(
            self._context.node, gathering.gathered, closed, at=self._context.wall(), uptime_us=self._uptime_us()
        )
        return Response(200, encode_now(said), "application/json")

    async def _lines_page(self, request: Request) -> Response:
        try:
            page = await beside(self._context.store.page, request.value("after"), since=request.number("since", 0))
        except HostError as error:
            return Response(503, f"{error.what}\n")
        first = LinesPage(
            version=VERSION, node=self._context.node, cursor=page.cursor, more=page.more, labels=self._context.labels
        )
        return Response(200, encode_page(first, page.lines), LINES_TYPE)

    def _uptime_us(self) -> int:
        return int(self._context.uptime() * 1e6)


MOST_UNSAVED: Final = 500


def _joined(
    stored: Mapping[UnitKey, Sequence[UsageBucket]], kept: Mapping[UnitKey, Sequence[UsageBucket]], since: int
) -> dict[UnitKey, list[UsageBucket]]:
    """What is on the disk, with what is not there yet."""
    found: dict[UnitKey, list[UsageBucket]] = {key: list(buckets) for key, buckets in stored.items()}
    for key, buckets in kept.items():
        last = found[key][-1].end_us if found.get(key) else since
        found.setdefault(key, []).extend(one for one in buckets if one.end_us > last)
    return found


def usage_store(folder: Path) -> UsageStore:
    """An agent's store, in its folder: two weeks of lines, and of at most 64 MiB."""
    return UsageStore(folder / "usage.sqlite", days=14, max_bytes=64 << 20, cache_kib=64)


async def serve(watcher: UsageWatcher, server: StatusServer, address: Address | None) -> None:
    """Answer at the address, if there is one, and look until cancelled. Raises HostError if it can't listen."""
    try:
        if address is not None:
            await server.start(address)
        await watcher.run()
    finally:
        await server.close()
