"""A configuration source that can be exchanged while others wait for it."""

from __future__ import annotations

import asyncio

import pytest

from kgpu.agent.remembered_config import DefaultConfig
from kgpu.agent.switched_config import SwitchedConfig
from kgpu.base.errors import ConfigError
from kgpu.formats.config_choice import ConfigText


class Source(DefaultConfig):
    """One text; ``run`` says how often it began and ended."""

    def __init__(self, name: str = "") -> None:
        self._text = ConfigText(name=name, text=name)
        self.log: list[str] = []

    async def run(self) -> None:
        self.log.append("+")
        try:
            await super().run()
        finally:
            self.log.append("-")


async def test_who_waits_gets_what_another_source_says():
    switched = SwitchedConfig()
    first = await switched.next(None)
    waiting = asyncio.create_task(switched.next(first))
    await asyncio.sleep(0)
    switched.switch(Source("other"))
    assert (await asyncio.wait_for(waiting, 60)).text == "other"
    assert switched.current() == ConfigText(name="other", text="other")


async def test_the_same_text_from_another_source_is_no_news():
    switched = SwitchedConfig()
    switched.switch(Source("one"))
    current = await switched.next(None)
    waiting = asyncio.create_task(switched.next(current))
    await asyncio.sleep(0)
    switched.switch(Source("one"))
    done, _ = await asyncio.wait([waiting], timeout=0.05)
    assert not done
    waiting.cancel()


async def test_only_the_present_source_runs():
    switched, one, two = SwitchedConfig(), Source("one"), Source("two")
    switched.switch(one)
    running = asyncio.create_task(switched.run())
    async with asyncio.timeout(60):
        while one.log != ["+"]:  # noqa: ASYNC110 - the condition is another object's state
            await asyncio.sleep(0)
        switched.switch(two)
        while two.log != ["+"]:  # noqa: ASYNC110 - the condition is another object's state
            await asyncio.sleep(0)
    assert one.log == ["+", "-"]
    running.cancel()
    await asyncio.wait([running])
    assert two.log == ["+", "-"]


async def test_a_source_that_fails_is_no_secret():
    class Failing(Source):
        async def run(self) -> None:
            raise ConfigError("a", "b", "c")

    switched = SwitchedConfig()
    switched.switch(Failing())
    with pytest.raises(ConfigError):
        await asyncio.wait_for(switched.run(), 60)
