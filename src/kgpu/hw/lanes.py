"""Calls that may block for good, with a deadline each: one lane for each thing that is asked.

A call that has not ended in time is left to its thread, and nothing more is asked in its lane until it has: a file that
hangs costs one thread, whoever waits for it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import ParamSpec, TypeVar

from kgpu.base.threads import beside

P = ParamSpec("P")
T = TypeVar("T")


class HungError(Exception):
    """No answer in time, now or to the call before."""


class Lane:
    """One thing that is asked, such as one GPU."""

    def __init__(self, deadline: float) -> None:
        self._deadline = deadline
        self._stuck: asyncio.Task[object] | None = None

    async def ask(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """The call's result. Raises HungError, and what the call raises."""
        if self._stuck is not None and not self._stuck.done():
            raise HungError
        task = asyncio.create_task(beside(function, *args, **kwargs))
        done, _ = await asyncio.wait({task}, timeout=self._deadline)
        if not done:
            self._stuck = task
            task.add_done_callback(_forget)
            raise HungError
        return task.result()


def _forget(task: asyncio.Task[object]) -> None:
    if not task.cancelled():
        task.exception()
