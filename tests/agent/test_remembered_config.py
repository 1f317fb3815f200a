"""What is remembered is used only when the source is silent, and only what this node was once given."""

from __future__ import annotations

import asyncio
import json
import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kgpu.agent import remembered_config
from kgpu.agent.remembered_config import DefaultConfig, RememberedConfig, load
from kgpu.base.clock import VirtualClock, settle
from kgpu.base.errors import ConfigError
from kgpu.formats.config_choice import ConfigText, problem_text

GOOD = ConfigText(name="ConfigMap a/b, c", text="version: v1")
OTHER = ConfigText(name="ConfigMap a/b, d", text="")
BAD = problem_text("ConfigMap a/b", ConfigError("a", "b", "c"))


class Scripted:
    def __init__(self) -> None:
        self.known: ConfigText | None = None
        self.changed = asyncio.Event()
        self.error = None

    def current(self):
        return self.known

    def set(self, text: ConfigText) -> None:
        self.known = text
        self.changed.set()
        self.changed = asyncio.Event()

    async def next(self, after):
        while self.known is None or self.known == after:
            await self.changed.wait()
        return self.known

    async def run(self) -> None:
        await asyncio.Event().wait()


class World:
    def __init__(self, tmp_path) -> None:
        self.path = tmp_path / "state" / "config.json"
        self.restart()

    def restart(self) -> None:
        self.clock, self.source = VirtualClock(), Scripted()
        self.config = RememberedConfig(self.source, self.path, clock=self.clock, patience=3.0)


@pytest.fixture
def world(tmp_path, monkeypatch):
    monkeypatch.setattr(remembered_config, "WRITE_SECONDS", 60.0)  # what was given is written, however busy the disk is
    return World(tmp_path)


async def test_a_silent_source_is_waited_for_when_nothing_is_remembered(world):
    asked = asyncio.create_task(world.config.next(None))
    await world.clock.advance(100)
    assert not asked.done()
    assert world.config.current() is None
    world.source.set(GOOD)
    assert await asyncio.wait_for(asked, 60) == GOOD


async def test_after_a_restart_the_last_configuration_is_used_until_the_source_speaks(world):
    world.source.set(GOOD)
    await world.config.next(None)
    world.restart()
    asked = asyncio.create_task(world.config.next(None))
    await world.clock.advance(2.9)
    assert not asked.done()
    await world.clock.advance(0.2)
    assert asked.result() == GOOD
    assert await world.config.next(None) == GOOD  # the second role does not wait again
    again = asyncio.create_task(world.config.next(GOOD))
    await settle()
    world.source.set(GOOD)
    await settle()
    assert not again.done()
    world.source.set(OTHER)
    assert await asyncio.wait_for(again, 60) == OTHER


async def test_a_source_that_speaks_in_time_wins(world):
    world.source.set(GOOD)
    await world.config.next(None)
    world.restart()
    asked = asyncio.create_task(world.config.next(None))
    await world.clock.advance(1)
    world.source.set(OTHER)
    assert await asyncio.wait_for(asked, 60) == OTHER
    assert load(world.path) == OTHER


async def test_a_problem_is_passed_on_but_not_remembered(world):
    world.source.set(GOOD)
    await world.config.next(None)
    world.source.set(BAD)
    assert (await world.config.next(GOOD)).problem is BAD.problem
    assert load(world.path) == GOOD


async def test_a_folder_that_can_not_be_written_costs_only_the_memory(tmp_path):
    (tmp_path / "file").write_text("")
    source = Scripted()
    source.set(GOOD)
    assert await RememberedConfig(source, tmp_path / "file" / "config.json").next(None) == GOOD


@given(
    st.binary()
    | st.recursive(
        st.none() | st.integers() | st.text(), lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner)
    )
    .map(json.dumps)
    .map(str.encode)
)
def test_a_damaged_memory_is_none(tmp_path_factory, raw):
    path = tmp_path_factory.mktemp("memory") / "config.json"
    path.write_bytes(raw)
    assert load(path) is None


async def test_without_a_source_there_is_one_empty_configuration():
    config = DefaultConfig()
    first = await config.next(None)
    assert first.text == ""
    waiting = asyncio.create_task(config.next(first))
    await settle()
    assert not waiting.done()
    waiting.cancel()


async def test_a_disk_that_hangs_holds_nobody_up(tmp_path, monkeypatch):
    stuck, threads = threading.Event(), list[int]()

    def hang(*_, **__) -> None:
        threads.append(threading.get_ident())
        stuck.wait(60)

    monkeypatch.setattr(remembered_config, "write_atomic", hang)
    monkeypatch.setattr(remembered_config, "WRITE_SECONDS", 0.2)
    world = World(tmp_path)
    world.source.set(GOOD)
    try:
        assert await world.config.next(None) == GOOD
        async with asyncio.timeout(60):
            while not threads:  # noqa: ASYNC110 - a thread that is late to begin
                await asyncio.sleep(0.01)
        assert threads != [threading.get_ident()], "the loop goes on meanwhile"
    finally:
        stuck.set()
