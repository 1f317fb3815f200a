"""Building blocks of the components' run loops: tasks that live as long as a block, and problems reported once."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Coroutine, Iterable
from typing import Any

from kgpu.base.advice import Advice, AdviceSink, Severity
from kgpu.base.errors import UserError


async def end(*tasks: asyncio.Future[Any]) -> None:
    """Cancel the tasks and wait until each has ended; their exceptions are dropped."""
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


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


class Complaint:
    """Reports a recurring problem when it begins and when its text changes, not each time that it occurs."""

    def __init__(
        self, report: AdviceSink, *, reason: str, subject: str = "", severity: Severity = Severity.WARNING
    ) -> None:
        self._report = report
        self._reason = reason
        self._subject = subject
        self._severity = severity
        self._told = ""

    def of(self, problem: UserError, *, reason: str = "") -> None:
        """The problem has occurred; ``reason`` replaces the usual one."""
        line = problem.one_line()
        if line != self._told:
            self._told = line
            advice = Advice.from_error(
                problem, subject=self._subject, reason=reason or self._reason, severity=self._severity
            )
            self._report(advice)

    def over(self) -> bool:
        """The problem is gone; True when there was one."""
        was, self._told = bool(self._told), ""
        return was
