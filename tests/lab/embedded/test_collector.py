"""Garbage collection in small steps: what lives is set aside, and rings among it are found all the same."""

from __future__ import annotations

import asyncio
import gc
import weakref
from collections.abc import Callable, Iterator

import pytest

from kgpu.lab.embedded import collector


class Ring:
    def __init__(self) -> None:
        self.itself = self


@pytest.fixture(autouse=True)
def as_it_was() -> Iterator[None]:
    yield
    gc.unfreeze()
    gc.collect()


def grown(gone: Callable[[], object] = lambda: None) -> weakref.ref[Ring]:
    """A ring that was set aside while it was in use, and is not any more."""
    ring = Ring()
    gc.collect(1)
    return weakref.ref(ring, lambda _: gone())


def test_what_has_grown_old_is_looked_at_only_by_a_look_at_everything() -> None:
    thresholds = gc.get_threshold()
    with collector.small_steps():
        assert gc.get_threshold() == collector.YOUNG
        aside = gc.get_freeze_count()
        kept = [[number] for number in range(5000)]
        gc.collect(1)
        assert gc.get_freeze_count() - aside >= len(kept)
        ring = grown()
        gc.collect(2)
        assert ring() is not None
        assert collector.everything() > 0
        assert ring() is None
    assert (gc.get_threshold(), gc.get_freeze_count()) == (thresholds, 0)


async def test_everything_is_looked_at_when_enough_was_set_aside() -> None:
    with collector.small_steps():
        gone = asyncio.Event()
        ring = grown(gone.set)
        task = asyncio.create_task(collector.run(period=0.001, worth=1000))
        await asyncio.sleep(0.01)
        assert ring() is not None
        kept = [[number] for number in range(5000)]
        gc.collect(1)
        await asyncio.wait_for(gone.wait(), 300)
        assert len(kept) == 5000
        task.cancel()
