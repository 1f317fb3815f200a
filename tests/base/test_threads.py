"""Blocking calls beside the loop: results, errors, and an end that does not wait for them."""

from __future__ import annotations

import subprocess
import sys
import threading

import pytest

from kgpu.base.threads import beside

STUCK = """
import asyncio, threading
from kgpu.base.threads import beside

async def main():
    asked = threading.Event()
    task = asyncio.create_task(beside(lambda: (asked.set(), threading.Event().wait())))
    while not asked.is_set():
        await asyncio.sleep(0.001)
    task.cancel()

asyncio.run(main())
print("ended")
"""


async def test_the_result_comes_from_another_thread() -> None:
    assert await beside(lambda a, *, b: (a, b, threading.current_thread()), 1, b=2) != (1, 2, threading.main_thread())
    assert (await beside(lambda a, *, b: (a, b), 1, b=2)) == (1, 2)


async def test_errors_come_through() -> None:
    with pytest.raises(KeyError, match="x"):
        await beside({}.__getitem__, "x")


def test_a_call_that_never_returns_keeps_the_program_from_nothing() -> None:
    done = subprocess.run([sys.executable, "-c", STUCK], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout == "ended\n"
