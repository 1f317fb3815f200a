"""An asyncio loop's own calls in threads (name resolution above all) that keep nobody from ending.

asyncio resolves names in its default executor, whose threads are waited for at the end of the loop and again at the end
of the process. A resolver whose servers do not answer takes half a minute and more, for each search domain of a pod
anew. Here each call has a daemon thread, as in ``kgpu.base.threads``.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")


class DaemonExecutor(ThreadPoolExecutor):
    """Runs each call in a daemon thread of its own; a subclass, as a loop takes no other executor."""

    def submit(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        """Begin the call; its future can't be cancelled once it runs."""
        future: Future[T] = Future()

        def call() -> None:
            if not future.set_running_or_notify_cancel():
                return
            try:
                result = fn(*args, **kwargs)
            except BaseException as error:
                future.set_exception(error)
            else:
                future.set_result(result)

        threading.Thread(target=call, name="called by the loop", daemon=True).start()
        return future

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Nothing is waited for."""
        del wait, cancel_futures


def wait_for_no_thread() -> None:
    """Let the running loop's calls in threads keep nobody from ending."""
    asyncio.get_running_loop().set_default_executor(DaemonExecutor())
