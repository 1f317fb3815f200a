"""Whoever waits for news hears of every change, also of one that came between looking and waiting."""

from __future__ import annotations

import asyncio

from kgpu.base.change_notifier import ChangeNotifier


async def test_a_change_wakes_everybody_who_waits() -> None:
    notifier = ChangeNotifier()
    waiting = [asyncio.create_task(notifier.changed(0)) for _ in range(3)]
    await asyncio.sleep(0)
    assert not any(task.done() for task in waiting)
    notifier.notify()
    assert await asyncio.wait_for(asyncio.gather(*waiting), 60) == [1, 1, 1]


async def test_what_was_missed_is_not_waited_for() -> None:
    notifier = ChangeNotifier()
    notifier.notify()
    notifier.notify()
    assert await asyncio.wait_for(notifier.changed(1), 60) == 2
    assert notifier.revision == 2
