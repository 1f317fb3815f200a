"""Building blocks of the components' run loops.

They are tasks that live as long as a block, problems and advice that are reported once and not at every reading, and
the way in which a component reports its state to the process that hosts it. Followed folders are in ``inotify``.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Coroutine, Iterable
from typing import Any, Protocol

from kgpu.base.advice import Advice, AdviceSink, Severity
from kgpu.base.errors import Reason, UserError


async def end(*tasks: asyncio.Future[Any]) -> None:
    """Cancel the tasks and wait until each has ended; their exceptions are dropped."""
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


async def end_within(seconds: float, *tasks: asyncio.Task[Any]) -> tuple[str, ...]:
    """Cancel the tasks and wait at most so long; returns the names of those that have not ended. Each is asked once
    more after half of the time: a library may have lost the first.
    """
    for _ in range(2):
        pending = [task for task in tasks if not task.done()]
        for task in pending:
            task.cancel()
        if pending:
            await asyncio.wait(pending, timeout=seconds / 2)
    return tuple(task.get_name() for task in tasks if not task.done())


@contextlib.asynccontextmanager
async def running(**named: Coroutine[Any, Any, None]) -> AsyncIterator[tuple[asyncio.Task[None], ...]]:
    """Run the coroutines as tasks, named by keyword, until the block ends.

    They have started when the block begins, so a listener among them misses nothing that happens in it.
    """
    tasks = tuple(asyncio.create_task(work, name=name) for name, work in named.items())
    try:
        await asyncio.sleep(0)
        yield tasks
    finally:
        await end(*tasks)


async def first_end(tasks: Iterable[asyncio.Future[Any]], *, stop: asyncio.Event | None = None) -> None:
    """Return when one of the tasks has ended or ``stop`` is set. Raises the exception of a task that failed."""
    tasks = tuple(tasks)
    stopped = () if stop is None else (asyncio.ensure_future(stop.wait()),)
    try:
        await asyncio.wait([*tasks, *stopped], return_when=asyncio.FIRST_COMPLETED)
    finally:
        await end(*stopped)
    for task in tasks:
        if task.done():
            task.result()


async def all_end(tasks: Iterable[asyncio.Future[None]]) -> None:
    """Return when every task has ended. Raises the exception of the first one that fails, at once."""
    done, _ = await asyncio.wait(tuple(tasks), return_when=asyncio.FIRST_EXCEPTION)
    for task in done:
        task.result()


class StateSink(Protocol):
    """Takes a component's state: whether it does its job, and what it does or waits for.

    ``why`` is a CamelCase word where a person has to act. Calls are cheap, and repeating one changes nothing.
    """

    def __call__(self, ready: bool, reason: Reason, why: str = "", /) -> None: ...


def ignore_state(_ready: bool, _reason: Reason, _why: str = "", /) -> None:
    """The sink of a component that runs by itself."""


class StandingAdvice:
    """Tells which advice is new, of a list that is made anew at every reading."""

    def __init__(self) -> None:
        self._standing: frozenset[Advice] = frozenset()

    def news(self, advice: Iterable[Advice]) -> tuple[Advice, ...]:
        """What was not in the list before; what is gone from it is new when it comes back."""
        advice = tuple(advice)
        news = tuple(row for row in advice if row not in self._standing)
        self._standing = frozenset(advice)
        return news


class Complaint:
    """Reports a recurring problem when it begins and when its text changes, not each time that it occurs."""

    def __init__(
        self, report: AdviceSink, *, reason: str = "Failed", subject: str = "", severity: Severity = Severity.WARNING
    ) -> None:
        self._report = report
        self._reason = reason
        self._subject = subject
        self._severity = severity
        self._told = ""

    def of(self, problem: UserError, *, reason: str = "") -> None:
        """The problem has occurred; ``reason`` replaces the usual one."""
        advice = Advice.from_error(
            problem, subject=self._subject, reason=reason or self._reason, severity=self._severity
        )
        self.tell(advice, line=problem.one_line())

    def tell(self, advice: Advice, *, line: str = "") -> bool:
        """The problem that the advice describes has occurred; True when it was reported.

        ``line`` tells problems apart, the whole advice where it is "".
        """
        line = line or advice.one_line()
        if line == self._told:
            return False
        self._told = line
        self._report(advice)
        return True

    def over(self) -> bool:
        """The problem is gone; True when there was one."""
        was, self._told = bool(self._told), ""
        return was
