"""Calls that may block for good (a disk, a device's files), in threads beside the asyncio loop.

Unlike ``asyncio.to_thread``, whose threads are waited for at the end of the loop and of the process, a call that never
returns keeps nobody from ending: its thread is a daemon. Each call has a thread of its own, so none waits for another.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
import weakref
from collections.abc import Callable
from typing import Final, ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")
# By loop, the end of each call that is under way, whether or not anybody still waits for its answer.
_under_way: Final = weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, set[asyncio.Future[None]]]()


async def beside(function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Run the call in a daemon thread and return its result. Cancelling stops the wait; the call itself goes on."""
    loop = asyncio.get_running_loop()
    future: asyncio.Future[T] = loop.create_future()
    ended: asyncio.Future[None] = loop.create_future()
    others = _under_way.setdefault(loop, set())
    others.add(ended)
    ended.add_done_callback(others.discard)

    def settle(set_it: Callable[[], None]) -> None:
        ended.set_result(None)
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


async def calls_under_way(seconds: float) -> bool:
    """Wait at most ``seconds`` for all calls that this loop has under way now; True when all have ended.

    For callers that remove files which an abandoned call may still write.
    """
    waited_for = set(_under_way.get(asyncio.get_running_loop(), ()))
    if not waited_for:
        return True
    _, going_on = await asyncio.wait(waited_for, timeout=seconds)
    return not going_on
