"""The engine's keeper: configured once, asked over the CRI, put right with patience, left alone where it must be."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
from pathlib import Path

import pytest

from kgpu.base.advice import Advice
from kgpu.base.clock import VirtualClock
from kgpu.base.errors import line_of
from kgpu.kubelet.cri import RuntimeStatus
from kgpu.toolkit.fake_engines import LINE, PLAIN, FakeEngines
from kgpu.toolkit.runtime import NO_ENGINE, EngineKeeper, RuntimeContext, missing, run
from kgpu.toolkit.settings import ToolkitSettings, toolkit_settings


class Story:
    def __init__(self, engines: FakeEngines, settings: ToolkitSettings | None = None) -> None:
        self.engines = engines
        self.clock = VirtualClock()
        self.told: list[Advice] = []
        self.keeper = EngineKeeper(
            RuntimeContext(
                engines=engines,
                settings=settings or ToolkitSettings(),
                report=self.told.append,
                clock=self.clock,
            )
        )

    async def look(self):
        return await self.keeper.look()


async def test_configured_once_and_then_only_asked() -> None:
    story = Story(FakeEngines())
    looks = [await story.look() for _ in range(3)]
    assert all(look.ready for look in looks)
    assert looks[0].reason == "containerd 2.1.4 (handlers nvidia, nvidia-cdi, nvidia-legacy; CDI on)"
    assert story.engines.restarts == 1
    assert [one.reason for one in story.told] == ["RuntimeConfigured"]


async def test_a_node_without_an_engine_is_well() -> None:
    look = await Story(FakeEngines(None)).look()
    assert (look.ready, look.reason) == (True, NO_ENGINE)


async def test_an_engine_without_a_cri_is_configured_all_the_same() -> None:
    story = Story(FakeEngines(cri=False))
    assert (await story.look()).ready
    assert story.engines.restarts == 1


async def test_an_engine_that_does_not_answer_is_not_touched() -> None:
    story = Story(FakeEngines())
    story.engines.running.down = "it has been stopped"
    look = await story.look()
    assert not look.ready
    assert "it has been stopped" in line_of(look.reason)
    assert story.engines.restarts == 0
    story.engines.running.down = ""
    assert (await story.look()).ready


async def test_a_refused_config_is_told_once_and_tried_again_later() -> None:
    story = Story(FakeEngines())
    story.engines.fail = "containerd did not come back"
    for _ in range(3):
        look = await story.look()
        assert not look.ready
        assert "did not come back" in line_of(look.reason)
    assert story.engines.restarts == 1
    assert [one.reason for one in story.told] == ["RuntimeNotConfigured"]
    story.engines.fail = ""
    await story.clock.advance(11)
    assert (await story.look()).ready


async def test_an_engine_that_does_not_follow_its_config_is_not_ready() -> None:
    story = Story(FakeEngines())
    story.engines.deaf = True
    look = await story.look()
    assert not look.ready
    assert "no runtime handler nvidia" in line_of(look.reason)


async def test_another_writer_is_met_with_growing_pauses() -> None:
    """Two programs that undo each other's edits would restart the engine for ever."""
    story = Story(FakeEngines())
    assert (await story.look()).ready
    hours = 6
    for _ in range(hours * 60):
        story.engines.config = story.engines.config.replace(LINE, b"")
        await story.look()
        await story.clock.advance(60)
    assert 3 < story.engines.restarts < 40  # of 360 edits; how many depends on the jitter of the pauses


async def test_a_package_upgrade_is_put_right_at_once() -> None:
    story = Story(FakeEngines())
    assert (await story.look()).ready
    await story.clock.advance(3600)
    story.engines.config = b"version = 3\n# the maintainer's new file\n"
    story.engines.running.state = dataclasses.replace(PLAIN, version="2.2.0")
    look = await story.look()
    assert look.ready
    assert look.reason.startswith("containerd 2.2.0")


async def test_a_changed_config_is_not_waited_for_as_long_as_the_same_again() -> None:
    story = Story(FakeEngines())
    story.engines.fail = "refused"
    for _ in range(5):
        await story.look()
        await story.clock.advance(400)
    before = story.engines.restarts
    story.engines.fail = ""
    story.engines.config = b"version = 3\n# corrected by hand\n"
    await story.clock.advance(11)
    assert (await story.look()).ready
    assert story.engines.restarts == before + 1


async def test_left_alone_where_told() -> None:
    story = Story(FakeEngines(), toolkit_settings({"NO_RUNTIME_CONFIG": "true"}))
    look = await story.look()
    assert look.ready
    assert "NO_RUNTIME_CONFIG" in line_of(look.reason)
    assert story.engines.restarts == 0


async def test_an_engine_left_alone_with_cdi_off_gives_no_devices() -> None:
    story = Story(FakeEngines(), toolkit_settings({}, nri=True))
    story.engines.running.state = dataclasses.replace(PLAIN, version="1.7.30", cdi=False)
    look = await story.look()
    assert not look.ready
    assert "enable_cdi = true" in line_of(look.reason)
    assert "NRI" in line_of(look.reason)


@pytest.mark.parametrize(
    ("change", "lacks"),
    [
        ({}, ""),
        ({"handlers": None}, ""),
        ({"cdi": None}, ""),
        ({"cdi": False}, "CDI"),
        ({"problem": "it starts"}, "it starts"),
        ({"handlers": ("", "runc", "nvidia")}, "nvidia-cdi, nvidia-legacy"),
    ],
)
def test_what_a_running_engine_lacks(change: dict[str, object], lacks: str) -> None:
    right = dataclasses.replace(PLAIN, handlers=("", "nvidia", "nvidia-cdi", "nvidia-legacy"))
    told = missing(dataclasses.replace(right, **change), ToolkitSettings())
    assert bool(told) == bool(lacks)
    assert lacks in told


def test_the_default_handler_is_asked_for_only_where_wanted() -> None:
    status = RuntimeStatus(name="containerd", version="2.1.4", handlers=None, default_handler="runc", cdi=True)
    assert missing(status, ToolkitSettings()) == ""
    assert "default" in missing(status, ToolkitSettings(default=True))


async def test_it_wakes_when_its_config_is_written(tmp_path: Path) -> None:
    engines = FakeEngines(folder=tmp_path)
    states: list[bool] = []
    ctx = RuntimeContext(engines=engines, settings=ToolkitSettings(), report=lambda _: None)
    task = asyncio.create_task(run(ctx, lambda ready, _: states.append(ready)))
    try:
        async with asyncio.timeout(60):
            while not states:  # noqa: ASYNC110 - nothing tells of it
                await asyncio.sleep(0.01)
            engines.config = b"version = 3\n# new\n"
            while len(states) < 2:
                (tmp_path / "config.toml").write_bytes(engines.config)
                await asyncio.sleep(0.05)
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task
    assert states[0]
