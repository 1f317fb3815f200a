"""Calls that may block for good (a disk, a device's files), beside the asyncio loop.

Unlike ``asyncio.to_thread``, whose threads are waited for at the end of the loop and of the process, a call that never
returns keeps nobody from ending: its thread is a daemon. Each call has a thread of its own, so none waits for another.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")


async def beside(function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """What the call returns or raises. Cancelling gives up waiting; the call itself goes on."""
    loop = asyncio.get_running_loop()
    future: asyncio.Future[T] = loop.create_future()

    def settle(set_it: Callable[[], None]) -> None:
        if not future.done():
            set_it()

    def call() -> None:
        try:
            result = function(*args, **kwargs)
        except BaseException as error:
            problem = error
            done = lambda: future.set_exception(problem)  # noqa: E731
        else:
            done = lambda: future.set_result(result)  # noqa: E731
        with contextlib.suppress(RuntimeError):  # the loop has ended meanwhile
            loop.call_soon_threadsafe(settle, done)

    threading.Thread(target=call, name="beside", daemon=True).start()
    return await future
