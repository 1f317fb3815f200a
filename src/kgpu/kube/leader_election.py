"""Leader election by Lease: of several candidates one writes, the others stand by.

The rules are those of Kubernetes' own components: a Lease that has not been renewed for its duration, by this process's
own clock, may be taken; the leader that could not renew within the deadline stops at once, counted from before the
renewal was sent. ``guard`` is asked before every write, since a process that was stopped does not know that time has
passed; the clock is one that goes on while the machine is suspended. Who stops in order gives the Lease back, so that
the next one need not wait.
"""

from __future__ import annotations

import asyncio
import contextlib
import datetime as dt
import logging
import random
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass

from kgpu.base.clock import BootClock, Clock
from kgpu.base.errors import KubeError
from kgpu.base.plain import items, mapping, number, text
from kgpu.base.waits import within
from kgpu.kube.port import LEASES, KubeApi, KubeRefusedError, Object, version_of

log = logging.getLogger(__name__)

CLOCKS_APART = 5.0
"""Seconds by which clocks may differ unnoticed: the API server tells whole ones, and a renewal takes a while."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaseTimes:
    """Seconds: how long a Lease holds, within which a renewal must succeed, and between two tries."""

    duration: float = 15.0
    deadline: float = 10.0
    retry: float = 2.0

    def __post_init__(self) -> None:
        if not 0 < self.retry < self.deadline < self.duration:
            msg = f"impossible times of a lease: {self}"
            raise ValueError(msg)


class LostLeadError(KubeError):
    """Another has the Lease, or it could not be renewed in time."""


class Lead:
    """One candidate. ``identity`` is unique among all candidates."""

    def __init__(
        self,
        api: KubeApi,
        *,
        namespace: str,
        identity: str,
        name: str,
        times: LeaseTimes | None = None,
        clock: Clock | None = None,
        now: Callable[[], dt.datetime] = lambda: dt.datetime.now(dt.UTC),
    ) -> None:
        self._api = api
        self._namespace = namespace
        self._identity = identity
        self._name = name
        self._times = times or LeaseTimes()
        self._clock = clock or BootClock()
        self._now = now
        self._seen = ""  # the Lease's version when it last changed, and when that was, by our clock
        self._seen_at = 0.0
        self._renewed = 0.0  # when the last renewal that succeeded was begun, by our clock
        self.leads = False
        self.holder = ""
        """Who has the Lease, as last seen."""
        self.server_ahead = 0.0
        """Seconds by which the API server's clock is ahead of this machine's, by the last renewal; 0 where it is about
        the same, or not known."""

    @contextlib.asynccontextmanager
    async def leading(self) -> AsyncIterator[Callable[[], asyncio.Task[None]]]:
        """Wait for the lead; the block has it. It is given a function that starts the renewal as a task, which raises
        LostLeadError when the lead is lost: whoever is in the block has to stop then.
        """
        await self._acquire()
        self.leads = True
        log.info("this process leads: Lease %s/%s, as %s", self._namespace, self._name, self._identity)
        try:
            yield lambda: asyncio.create_task(self._renew())
        finally:
            self.leads = False

    async def release(self) -> None:
        """Give the Lease back if it is ours. Errors are logged: it then runs out by itself."""
        try:
            lease = await self._get()
            if lease is not None and _holder(lease) == self._identity:
                await self._patch(lease, {"holderIdentity": "", "leaseDurationSeconds": 1, "renewTime": self._stamp()})
        except KubeError as error:
            log.warning("the Lease was not given back: %s", error.one_line())

    async def _acquire(self) -> None:
        logged = ""
        while True:
            try:
                if await self._try():
                    return
                obstacle = f"standing by: {self.holder} leads"
            except KubeError as error:
                obstacle = f"no lead yet: {error.one_line()}"
            if obstacle != logged:
                log.info("%s", obstacle)
                logged = obstacle
            # Jitter keeps candidates that started together from trying together for ever.
            await self._clock.sleep(self._times.retry * (1 + 0.2 * random.random()))  # noqa: S311

    @property
    def in_time(self) -> bool:
        """True while nobody else may have taken the Lease."""
        return self.leads and self._left() > 0

    def guard(self) -> None:
        """Raise LostLeadError unless this candidate certainly leads now."""
        if not self.in_time:
            raise self._lost()

    def _left(self) -> float:
        return self._times.deadline - (self._clock.monotonic() - self._renewed)

    async def _renew(self) -> None:
        while True:
            await self._clock.sleep(self._times.retry)
            left = self._left()
            try:
                if left > 0 and await within(left, self._try(), clock=self._clock):
                    continue
            except KubeError as error:
                log.warning("the Lease was not renewed: %s", error.one_line())
                if self._left() > 0:
                    continue
            self.leads = False
            raise self._lost()

    def _lost(self) -> LostLeadError:
        other = self.holder != self._identity
        return LostLeadError(
            f"this process does not lead any more: {f'{self.holder} does' if other else 'no renewal in time'}",
            f"a renewal of Lease {self._namespace}/{self._name} every {self._times.deadline:g} s",
            "nothing: it stands by and leads again when it can",
        )

    async def _try(self) -> bool:
        """Take or renew the Lease; False when another has it."""
        began, stamp = self._clock.monotonic(), self._stamp()
        lease = self._own() or await self._get()
        if lease is None:
            first = {**self._claim(stamp), "acquireTime": stamp, "leaseTransitions": 0}
            metadata = {"name": self._name, "namespace": self._namespace}
            try:
                created = await self._api.create(LEASES, {"metadata": metadata, "spec": first})
            except KubeRefusedError as refused:
                if refused.conflict:
                    return False
                raise
            self._saw(created)
            self._compare_clocks(created)
            self._renewed = began
            return True
        if version_of(lease) != self._seen:
            self._saw(lease)
        spec = mapping(lease.get("spec"))
        mine, holder = _holder(lease) == self._identity, _holder(lease)
        lasts = float(number(spec.get("leaseDurationSeconds"), int(self._times.duration)))
        if not mine and holder and self._clock.monotonic() < self._seen_at + lasts:
            return False
        change = self._claim(stamp)
        if not mine:
            change |= {"acquireTime": stamp, "leaseTransitions": number(spec.get("leaseTransitions")) + 1}
        try:
            renewed = await self._patch(lease, change)
            self._saw(renewed)
            self._compare_clocks(renewed)
        except KubeRefusedError as refused:
            if not refused.conflict:
                self._seen = ""  # it may be gone: the next try looks
                raise
            self._saw(await self._get() or lease)
            if self.holder == self._identity:
                raise  # somebody changed the Lease, and not who has it: there is time for another try
            return False
        self._renewed = began
        return True

    def _own(self) -> Object | None:
        """The leader's Lease as it last wrote it, which it need not read: its version tells whether it still is so."""
        if not (self.leads and self._seen and self.holder == self._identity):
            return None
        return {"metadata": {"resourceVersion": self._seen}, "spec": {"holderIdentity": self._identity}}

    def _claim(self, stamp: str) -> Object:
        return {
            "holderIdentity": self._identity,
            "leaseDurationSeconds": int(self._times.duration),
            "renewTime": stamp,
        }

    async def _get(self) -> Object | None:
        return await self._api.get(LEASES, self._name, namespace=self._namespace)

    async def _patch(self, lease: Object, spec: Object) -> Object:
        """Change the Lease only if nobody else has meanwhile."""
        change = {"metadata": {"resourceVersion": version_of(lease)}, "spec": spec}
        return await self._api.patch(LEASES, self._name, change, namespace=self._namespace)

    def _saw(self, lease: Object) -> None:
        self._seen, self._seen_at = version_of(lease), self._clock.monotonic()
        self.holder = _holder(lease)

    def _compare_clocks(self, lease: Object) -> None:
        """Note how far the clocks are apart: the API server has just stamped this process's change of the Lease."""
        stamped = _stamped(lease)
        if stamped is None:
            return
        ahead = (stamped - self._now()).total_seconds()
        if abs(ahead - self.server_ahead) <= CLOCKS_APART:
            return
        self.server_ahead = ahead if abs(ahead) > CLOCKS_APART else 0.0
        if not self.server_ahead:
            log.info("the clocks of the API server and of this machine are about the same")
            return
        order = "ahead of" if ahead > 0 else "behind"
        log.warning(
            "the API server's clock is %.0f s %s this machine's; to do: set the clocks right, on all machines",
            abs(ahead), order,
        )  # fmt: skip

    def _stamp(self) -> str:
        return self._now().astimezone(dt.UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def _stamped(lease: Object) -> dt.datetime | None:
    """When the Lease was changed last, by the API server's clock; None where that is not told."""
    managed = map(mapping, items(mapping(lease.get("metadata")).get("managedFields")))
    try:
        moment = dt.datetime.fromisoformat(max((text(entry.get("time")) for entry in managed), default=""))
    except ValueError:
        return None
    return moment if moment.tzinfo else None


def _holder(lease: Object) -> str:
    return text(mapping(lease.get("spec")).get("holderIdentity"))
