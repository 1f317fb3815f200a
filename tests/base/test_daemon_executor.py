"""The loop's own calls in threads: results, errors, and an end that does not wait for them."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading

import pytest

from kgpu.base.daemon_executor import wait_for_no_thread

STUCK = """
import asyncio, socket, threading
from kgpu.base.daemon_executor import wait_for_no_thread

asked = threading.Event()

def hang(*args, **kwargs):
    asked.set()
    threading.Event().wait()

socket.getaddrinfo = hang

async def main():
    wait_for_no_thread()
    task = asyncio.create_task(asyncio.open_connection("api.invalid", 1))
    while not asked.is_set():
        await asyncio.sleep(0.001)
    task.cancel()

asyncio.run(main())
print("ended")
"""


async def test_the_result_comes_from_another_thread() -> None:
    wait_for_no_thread()
    assert await asyncio.to_thread(threading.current_thread) is not threading.main_thread()
    assert await asyncio.to_thread(lambda a, *, b: (a, b), 1, b=2) == (1, 2)


async def test_errors_come_through() -> None:
    wait_for_no_thread()
    with pytest.raises(KeyError, match="x"):
        await asyncio.to_thread({}.__getitem__, "x")


def test_a_name_that_is_never_resolved_keeps_the_program_from_nothing() -> None:
    done = subprocess.run([sys.executable, "-c", STUCK], capture_output=True, text=True, check=True, timeout=120)
    assert done.stdout == "ended\n"
