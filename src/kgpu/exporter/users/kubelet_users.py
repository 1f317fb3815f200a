"""Who uses which device: the kubelet's holdings, the pods' own labels, claims, processes and batch jobs, kept current.

Promises: ``current`` never raises and never waits for long. Each part fails alone, with a reason in ``Users.failures``
and one log record; its last value stays for ``KEPT_SECONDS``. The kubelet is asked every ``PERIOD`` seconds, and soon
after its checkpoint or this node's pods have changed. Parts that did not change stay the same objects, so that a plan
made from them need not be made again.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

from kgpu.base.advice import Advice, AdviceSink
from kgpu.base.clock import Clock, SystemClock
from kgpu.base.errors import HostError, HwError, KubeError, KubeletError, UserError
from kgpu.base.service import end
from kgpu.base.threads import beside
from kgpu.exporter.holders import Holder, Unshown, concerns, resolve
from kgpu.exporter.model import ClaimedKey, PodFacts, PodKey, Unit, Users
from kgpu.exporter.users.claims import claimed
from kgpu.exporter.users.jobs import read_jobs
from kgpu.exporter.users.reasons import reason_of
from kgpu.exporter.users.shares import shares
from kgpu.exporter.users.unshown import UnshownReporter
from kgpu.hw.port import DriverReleasedError, Inventory, Process, Reader

if TYPE_CHECKING:
    from kgpu.exporter.users.containers import Containers
    from kgpu.exporter.users.followed_objects import FollowedObjects
    from kgpu.exporter.users.reserved_claims import ReservedClaims
    from kgpu.kubelet.pod_resources import Holding, Holdings

log = logging.getLogger(__name__)

PERIOD: Final = 9.5
"""Just less than two of the ticks, which are five seconds apart by default; asking costs some 10 ms of CPU."""
SOONEST: Final = 0.5
POLL: Final = 1.0
KEPT_SECONDS: Final = 60.0
FIRST_WAIT: Final = 2.0
WAIT: Final = 0.25
SLOW_SECONDS: Final = 15.0
T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class UserSources:
    """The sources of what is known; None for those that are not asked for.

    ``checkpoint`` is the kubelet's file that changes when it gives a device to a container. ``also`` are resources that
    are GPUs beside the usual ones.
    """

    reader: Reader
    holdings: Holdings | None = None
    containers: Containers | None = None
    pods: FollowedObjects | None = None
    slices: FollowedObjects | None = None
    reserved: ReservedClaims | None = None
    jobs: Path | None = None
    checkpoint: Path | None = None
    also: frozenset[str] = frozenset()


@dataclass(slots=True)
class _KnownPart:
    """One part's last value, and why it can't be read now."""

    value: Any = None
    at: float = float("-inf")
    error: str = ""


@dataclass(slots=True)
class _Tally:
    """What one update adds up."""

    failures: dict[str, str] = field(default_factory=dict)
    unshown: list[Unshown] = field(default_factory=list)
    counted: dict[tuple[str, str], int] = field(default_factory=dict)


class KubeletUsers:
    """The real ``UsersPort``."""

    def __init__(self, sources: UserSources, *, tell: AdviceSink, clock: Clock | None = None) -> None:
        self.changed: Callable[[], None] = lambda: None
        self._from = sources
        self._tell = tell
        self._teller = UnshownReporter(tell)
        self._clock = clock or SystemClock()
        self._users = Users()
        self._parts: dict[str, _KnownPart] = {}
        self._looking: asyncio.Task[None] | None = None
        self._following: list[asyncio.Task[None]] = []
        self._began = float("-inf")
        self._news = True
        self._checkpoint: tuple[int, int, int] | None = None
        self._ready = False

    async def current(self) -> Users:
        if not self._following:
            self._follow()
        self._look_if_due()
        task = self._looking
        if task is not None and not task.done():
            await asyncio.wait({task}, timeout=WAIT if self._ready else FIRST_WAIT)
            if not task.done() and self._clock.monotonic() - self._began > SLOW_SECONDS:
                return replace(self._users, failures={**self._users.failures, "users": "slow"})
        return self._users

    async def close(self) -> None:
        tasks = [*self._following, *([self._looking] if self._looking is not None else [])]
        await end(*tasks)

    def _follow(self) -> None:
        runs = [
            followed.run(self._tell_news) for followed in (self._from.pods, self._from.slices) if followed is not None
        ]
        self._following = [asyncio.create_task(run) for run in (*runs, self._poll())]

    async def _poll(self) -> None:
        """Poll the kubelet's checkpoint, which it replaces: a stat is cheaper than watching its busy folder.

        Changes that came too soon after an update are announced again.
        """
        while True:
            await self._clock.sleep(POLL)
            if self._has_given() or self._news:
                self._tell_news()

    def _has_given(self) -> bool:
        """Whether the kubelet has given devices to containers since the last call."""
        before, self._checkpoint = self._checkpoint, _state_of(self._from.checkpoint)
        return before != self._checkpoint

    def _tell_news(self) -> None:
        self._news = True
        self.changed()

    def _look_if_due(self) -> None:
        if self._looking is not None and not self._looking.done():
            return
        now = self._clock.monotonic()
        self._news = self._has_given() or self._news
        if now - self._began >= (SOONEST if self._news else PERIOD):
            self._began, self._news = now, False
            self._looking = asyncio.create_task(self._look(), name="exporter-users")

    async def _look(self) -> None:
        try:
            self._users = await self._collect()
        except Exception:  # a defect here must not cost the metrics of the devices
            log.exception("looking who uses the devices failed")
            self._users = replace(self._users, failures={**self._users.failures, "users": "defect"})
        self._ready = True

    async def _collect(self) -> Users:
        if not self._ready:
            await self._first_lists()
        tally, was, source = _Tally(), self._users, self._from
        inventory: Inventory | None = await self._part("devices", source.reader.inventory, tally, None)
        holdings: tuple[Holding, ...] | None = ()
        if source.holdings is not None:
            holdings = await self._part("holdings", self._holdings, tally, None)
        uuids = self._claimed(inventory, tally)
        if holdings is not None:
            holdings += await self._reserved(holdings, uuids, tally)
        held: dict[Unit, tuple[Holder, ...]] | None = None
        if source.holdings is not None and inventory is not None and holdings is not None:
            held, unshown = resolve(inventory, holdings, None if source.slices is None else uuids, source.also)
            tally.unshown += unshown
        return Users(
            holdings=_kept(was.holdings, holdings),
            pods=_kept(was.pods, self._pods(holdings or (), tally)),
            claimed=_kept(was.claimed, uuids),
            shares=_kept(was.shares, await self._shares(held, tally)),
            jobs=_kept(was.jobs, await self._jobs(inventory, tally)),
            missing=self._teller.missing(tally.unshown, tally.counted),
            failures=tally.failures,
        )

    async def _first_lists(self) -> None:
        """Give the API server a moment: series that first appear without pod labels would be replaced by others."""
        waits = [followed.known.wait() for followed in (self._from.pods, self._from.slices) if followed is not None]
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(FIRST_WAIT * 0.75):
                await asyncio.gather(*waits)

    async def _holdings(self) -> tuple[Holding, ...]:
        assert self._from.holdings is not None
        return tuple(holding for holding in await self._from.holdings.holdings() if concerns(holding, self._from.also))

    async def _part(self, name: str, ask: Callable[[], Awaitable[T]], tally: _Tally, otherwise: T) -> T:
        """Return the part's new value, or the last one while that is not too old, else ``otherwise``."""
        part = self._parts.setdefault(name, _KnownPart(otherwise))
        now = self._clock.monotonic()
        try:
            part.value = await ask()
            part.at, part.error = now, ""
        except DriverReleasedError:
            log.debug("%s: not asked for while the driver is released", name)
        except (HwError, KubeletError, KubeError, HostError) as error:
            self._failed(name, error, tally)
        if now - part.at > KEPT_SECONDS:
            part.value = otherwise
        value: T = part.value
        return value

    def _failed(self, name: str, error: UserError, tally: _Tally) -> None:
        """Record a failure. Each reason is reported once, until the part could be read again."""
        reason = tally.failures[name] = reason_of(error)
        part = self._parts.setdefault(name, _KnownPart())
        if part.error != reason:
            part.error = reason
            self._tell(Advice.from_error(error, reason="UsersNotKnown"))

    def _check(self, name: str, error: UserError | None, tally: _Tally) -> None:
        if error is not None:
            self._failed(name, error, tally)
        elif name in self._parts:
            self._parts[name].error = ""

    def _pods(self, holdings: tuple[Holding, ...], tally: _Tally) -> Mapping[tuple[str, str], PodFacts]:
        """Facts of the pods that hold something, not of the node's other pods."""
        followed = self._from.pods
        if followed is None:
            return {}
        self._check("pods", followed.error, tally)
        facts: dict[tuple[str, str], PodFacts] = {}
        for key in dict.fromkeys((holding.namespace, holding.pod) for holding in holdings):
            pod = followed.objects.get(key)
            if pod is not None:
                about = pod["metadata"]
                facts[key] = PodFacts(
                    uid=str(about.get("uid") or ""),
                    owner=pod["owner"],
                    labels=about.get("labels") or {},
                    gang=pod["gang"],
                )
        return facts

    def _claimed(self, inventory: Inventory | None, tally: _Tally) -> dict[ClaimedKey, str]:
        followed = self._from.slices
        if followed is None or inventory is None:
            return {}
        self._check("claimed", followed.error, tally)
        return claimed(followed.objects.values(), inventory)

    async def _reserved(
        self, holdings: tuple[Holding, ...], uuids: Mapping[ClaimedKey, str], tally: _Tally
    ) -> tuple[Holding, ...]:
        """Holders of claims where the kubelet reports none."""
        reserved, slices = self._from.reserved, self._from.slices
        if reserved is None or slices is None or any(holding.claim is not None for holding in holdings):
            return ()
        pools = {(driver, pool) for driver, pool, _ in uuids}
        none: tuple[Holding, ...] = ()
        return await self._part("claims", lambda: reserved.holdings(slices.kind, pools), tally, none)

    async def _shares(
        self, held: Mapping[Unit, tuple[Holder, ...]] | None, tally: _Tally
    ) -> Mapping[tuple[Unit, PodKey], Mapping[str, float]]:
        containers = self._from.containers
        if containers is None:
            return {}
        none: tuple[Process, ...] = ()
        processes = await self._part("processes", self._from.reader.processes, tally, none)
        placed, error = await containers.place(row.pid for row in processes)
        self._check("containers", error, tally)
        keys = (
            None
            if held is None
            else {unit: {holder.key for holder in unit_holders} for unit, unit_holders in held.items()}
        )
        usage = shares(processes, placed.__getitem__, keys)
        tally.unshown += usage.unshown
        return usage.values

    async def _jobs(self, inventory: Inventory | None, tally: _Tally) -> Mapping[Unit, tuple[str, ...]]:
        folder = self._from.jobs
        if folder is None or inventory is None:
            return {}

        async def read() -> Mapping[Unit, tuple[str, ...]]:
            jobs = await beside(read_jobs, folder, inventory)
            tally.counted.update(jobs.missing)
            return jobs.by_unit

        return await self._part("jobs", read, tally, {})


class FakeUsers:
    """A ``UsersPort`` that returns what a test sets."""

    def __init__(self, now: Users | None = None) -> None:
        self.changed: Callable[[], None] = lambda: None
        self.now = now or Users()
        self.asked = 0
        self.closed = False

    async def current(self) -> Users:
        self.asked += 1
        return self.now

    async def close(self) -> None:
        self.closed = True


def _kept(before: T, now: T) -> T:
    return before if before == now else now


def _state_of(path: Path | None) -> tuple[int, int, int] | None:
    try:
        about = os.stat(path) if path is not None else None
    except OSError:
        return None
    return (about.st_ino, about.st_mtime_ns, about.st_size) if about is not None else None
