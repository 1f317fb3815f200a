"""Blocking calls beside the loop: results, errors, and an end that does not wait for them."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading

import pytest

from kgpu.base.threads import beside, calls_under_way

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


async def test_what_is_under_way_can_be_waited_for_though_it_was_given_up() -> None:
    begun, go_on, done = threading.Event(), threading.Event(), []

    def slow() -> None:
        begun.set()
        go_on.wait(60)
        done.append(1)

    assert await calls_under_way(60)
    task = asyncio.create_task(beside(slow))
    await beside(begun.wait, 60)
    assert not await calls_under_way(0.05)
    task.cancel()
    await asyncio.wait([task])
    assert (await calls_under_way(0.05), done) == (False, [])
    go_on.set()
    assert (await calls_under_way(60), done) == (True, [1])
    assert await calls_under_way(60)
