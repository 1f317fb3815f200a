"""Roles that run side by side in one process and do not take each other along.

A role is a coroutine that runs until it is cancelled. When it raises, or returns although nobody asked, it is started
again after a backoff, and the other roles never notice. A ``UserError`` is an obstacle that is understood (no kubelet
socket yet, no driver library): the role is then *waiting*, with the reason. Anything else is a defect: *failed*.
Promises: a cancellation from outside always goes through; ``stop`` returns within its deadline and names what did not
end by then.
"""

from __future__ import annotations

import asyncio
import contextlib
import enum
import logging
import random
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass
from typing import TypeAlias

from kgpu.base.advice import Advice, AdviceSink, Severity
from kgpu.base.backoff import Backoff, BackoffPolicy
from kgpu.base.clock import Clock, SystemClock
from kgpu.base.errors import Reason, UserError, to_do
from kgpu.base.problems import describe, obstacle_in
from kgpu.base.service import end_within

log = logging.getLogger(__name__)


class RoleState(enum.StrEnum):
    """Where a role stands."""

    STARTING = "starting"
    RUNNING = "running"
    WAITING = "waiting"
    FAILED = "failed"
    STOPPED = "stopped"


@dataclass(frozen=True, slots=True, kw_only=True)
class RoleStatus:
    """One role as it is now. ``since`` is the clock's monotonic second of the last change of state or reason.
    ``remedy`` is what can be done about the reason, "" where nothing is known.

    ``why`` is a CamelCase word where a person has to do something. A running role has one when it does not do
    everything that it is configured to do.
    """

    name: str
    state: RoleState
    reason: str
    since: float
    restarts: int
    why: str = ""
    remedy: str = ""

    @property
    def line(self) -> str:
        """The reason and what can be done about it."""
        return to_do(self.reason, self.remedy)

    @property
    def ready(self) -> bool:
        """True when the role does its job."""
        return self.state is RoleState.RUNNING


class RoleHandle:
    """Reports a role's state to its supervisor. Calls are cheap, and repeating one changes nothing."""

    def __init__(self, name: str, clock: Clock) -> None:
        self.name = name
        self._clock = clock
        self._healthy_since: float | None = None
        self.status = RoleStatus(name=name, state=RoleState.STARTING, reason="", since=clock.monotonic(), restarts=0)

    def running(self, reason: Reason = "", why: str = "") -> None:
        """The role does its job; with ``why``, it does not do everything that it is configured to do."""
        if self._healthy_since is None:
            self._healthy_since = self._clock.monotonic()
        self.become(RoleState.RUNNING, reason, why)

    def waiting(self, reason: Reason, why: str = "") -> None:
        """The role is alive but lacks something that only time or, with ``why``, a person brings."""
        self._healthy_since = None
        self.become(RoleState.WAITING, reason, why)

    def report(self, ready: bool, reason: Reason, why: str = "", /) -> None:
        """The same as one call: the ``base.service.StateSink`` of a component that the role runs."""
        (self.running if ready else self.waiting)(reason, why)

    def become(self, state: RoleState, reason: Reason, why: str = "", *, restarted: bool = False) -> bool:
        """Set the state; True when something changed."""
        old = self.status
        text, remedy = (reason.statement, reason.remedy) if isinstance(reason, UserError) else (reason, "")
        changed = (old.state, old.reason, old.remedy, old.why) != (state, text, remedy, why)
        if changed or restarted:
            self.status = RoleStatus(
                name=self.name,
                state=state,
                reason=text,
                remedy=remedy,
                since=self._clock.monotonic() if changed else old.since,
                restarts=old.restarts + restarted,
                why=why,
            )
        if changed:
            log.debug("role %s: %s%s", self.name, state, f" ({line})" if (line := self.status.line) else "")
        return changed

    def take_healthy_seconds(self) -> float:
        """How long the role has been running without trouble; the count starts over."""
        since, self._healthy_since = self._healthy_since, None
        return 0.0 if since is None else self._clock.monotonic() - since


RoleFunction: TypeAlias = Callable[[RoleHandle], Awaitable[None]]


class Supervisor:
    """Starts roles, starts them again, and stops them. Use from one asyncio loop."""

    def __init__(
        self,
        *,
        clock: Clock | None = None,
        policy: BackoffPolicy | None = None,
        on_advice: AdviceSink | None = None,
        uniform: Callable[[], float] = random.random,
    ) -> None:
        self._clock = clock or SystemClock()
        self._policy = policy or BackoffPolicy()
        self._decide = on_advice or (lambda _: None)
        self._uniform = uniform
        self._handles: dict[str, RoleHandle] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}

    def start(self, name: str, function: RoleFunction) -> None:
        """Run a role from now on. Names are unique for the supervisor's life."""
        if name in self._handles:
            msg = f"role {name} is started twice"
            raise ValueError(msg)
        handle = self._handles[name] = RoleHandle(name, self._clock)
        self._tasks[name] = asyncio.create_task(self._keep(handle, function), name=f"role-{name}")

    def statuses(self) -> tuple[RoleStatus, ...]:
        """Every role's status, in the order they were started."""
        return tuple(handle.status for handle in self._handles.values())

    async def stop(self, deadline: float) -> tuple[str, ...]:
        """Cancel every role and wait at most ``deadline`` seconds. Returns the names that had not ended by then."""
        await end_within(deadline, *self._tasks.values())
        stuck = tuple(name for name, task in self._tasks.items() if not task.done())
        if stuck:
            log.error("these roles did not end within %g s: %s", deadline, ", ".join(stuck))
        return stuck

    async def _keep(self, handle: RoleHandle, function: RoleFunction) -> None:
        backoff = Backoff(self._policy, uniform=self._uniform)
        reported = ""
        try:
            while True:
                problem = await self._attempt(handle, function)
                healthy = handle.take_healthy_seconds()
                delay = backoff.next_delay(ran_for=healthy)
                reported = self._report(handle, problem, delay, reported="" if healthy else reported)
                await self._clock.sleep(delay)
                if handle.status.state is RoleState.FAILED:
                    handle.become(RoleState.STARTING, f"after: {handle.status.reason}")
        finally:
            handle.become(RoleState.STOPPED, "")

    async def _attempt(self, handle: RoleHandle, function: RoleFunction) -> BaseException:
        """One life of the role; returns what ended it, unless that was a cancellation from outside."""

        async def live() -> None:
            await function(handle)

        # In a task of its own, so that a cancellation here is always from outside, and one in there always its own:
        # Task.cancelling() can't tell them apart on Python 3.11, where a failing task group leaves it set.
        life = asyncio.create_task(live(), name=f"role-{handle.name}-life")
        try:
            await asyncio.wait([life])
        except asyncio.CancelledError:
            while not life.done():
                life.cancel()
                with contextlib.suppress(asyncio.CancelledError):  # asked once more, and so is the role
                    await asyncio.wait([life])
            problem = None if life.cancelled() else life.exception()
            if problem is not None:
                log.warning("role %s failed while it was stopped: %s", handle.name, describe(problem))
            raise
        if life.cancelled():
            return asyncio.CancelledError("something inside it was cancelled")
        return life.exception() or RuntimeError("it returned although it should run until it is stopped")

    def _report(self, handle: RoleHandle, problem: BaseException, delay: float, *, reported: str) -> str:
        """Set the status and report the problem unless it is ``reported`` already; return the problem reported last."""
        obstacle = obstacle_in(problem)
        reason = obstacle.one_line() if obstacle else describe(problem)
        handle.become(RoleState.WAITING if obstacle else RoleState.FAILED, obstacle or reason, restarted=True)
        if reason == reported:
            log.debug("role %s: the same again, next attempt in %.1f s", handle.name, delay)
        elif obstacle is not None:
            self._decide(Advice.from_error(obstacle, subject=handle.name, reason="RoleWaiting"))
        else:
            log.error("role %s: traceback of its failure", handle.name, exc_info=problem)
            self._decide(
                Advice(
                    subject=handle.name,
                    what=f"the role failed and starts again in {delay:.1f} s",
                    why=reason,
                    severity=Severity.ERROR,
                    reason="RoleFailed",
                    remedy="report this with the log of this process",
                )
            )
        return reason


@contextlib.contextmanager
def stop_on_signals(stop: asyncio.Event, *signals: int) -> Iterator[None]:
    """Within the block, each of the signals sets ``stop`` instead of ending the process."""
    loop = asyncio.get_running_loop()
    for number in signals:
        loop.add_signal_handler(number, stop.set)
    try:
        yield
    finally:
        for number in signals:
            loop.remove_signal_handler(number)
