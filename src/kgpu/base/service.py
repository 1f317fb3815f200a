"""What the run loops of components are made of: tasks that live as long as a block, and troubles that are told once."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Coroutine, Iterable
from typing import Any

from kgpu.base.advice import Advice, AdviceSink, Severity
from kgpu.base.errors import UserError


async def end(*tasks: asyncio.Future[Any]) -> None:
    """Cancel and wait until each is over; what they died of is theirs."""
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


@contextlib.asynccontextmanager
async def running(**named: Coroutine[Any, Any, None]) -> AsyncIterator[tuple[asyncio.Task[None], ...]]:
    """The coroutines as tasks of those names within the block; whatever ends it ends them.

    They have begun when the block begins: what listens hears of all that happens from then on.
    """
    tasks = tuple(asyncio.create_task(work, name=name) for name, work in named.items())
    try:
        await asyncio.sleep(0)
        yield tasks
    finally:
        await end(*tasks)


async def first_end(tasks: Iterable[asyncio.Future[Any]], *, stop: asyncio.Event | None = None) -> None:
    """Return when one of the tasks has ended, or ``stop`` is set. Raises what those died of that have ended."""
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
    """A trouble that comes and goes: told when it begins and when it becomes another, not each time that it is met."""

    def __init__(
        self, report: AdviceSink, *, reason: str, subject: str = "", severity: Severity = Severity.WARNING
    ) -> None:
        self._report = report
        self._reason = reason
        self._subject = subject
        self._severity = severity
        self._told = ""

    def of(self, problem: UserError, *, reason: str = "") -> None:
        """It is met; ``reason`` stands in for the usual one."""
        line = problem.one_line()
        if line != self._told:
            self._told = line
            advice = Advice.from_error(
                problem, subject=self._subject, reason=reason or self._reason, severity=self._severity
            )
            self._report(advice)

    def over(self) -> bool:
        """It works again; True when it did not before."""
        was, self._told = bool(self._told), ""
        return was
