"""The configuration that is in force: from a variable, from a file that changes, and when it is wrong."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

from kgpu.base.advice import Advice
from kgpu.formats.names import ENV_HEALTH_CONFIG, ENV_HEALTH_CONFIG_FILE
from kgpu.health.config import HealthConfig
from kgpu.health.settings import HealthSettings


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(60):
        while not condition():  # noqa: ASYNC110 - a file's state
            await asyncio.sleep(0.005)


TEXT = "version: v1\nignore: {xids: [%d]}\n"


async def test_the_defaults_hold_without_one() -> None:
    said: list[Advice] = []
    async with HealthSettings({}, said.append).following() as settings:
        assert settings.current() == HealthConfig()
    assert said == []


async def test_the_variable_holds_the_text_itself() -> None:
    async with HealthSettings({ENV_HEALTH_CONFIG: TEXT % 13}, lambda _: None).following() as settings:
        assert settings.current().ignore_xids == {13}


async def test_a_wrong_one_is_told_and_the_defaults_hold() -> None:
    said: list[Advice] = []
    async with HealthSettings({ENV_HEALTH_CONFIG: "version: v1\nignor: {}"}, said.append).following() as settings:
        assert settings.current() == HealthConfig()
    assert [one.reason for one in said] == ["HealthConfigRefused"]
    assert "ignore" in said[0].one_line()


async def test_the_file_is_followed_and_the_last_good_one_stays(tmp_path: Path) -> None:
    said: list[Advice] = []
    file = tmp_path / "health.yaml"
    made = HealthSettings({ENV_HEALTH_CONFIG_FILE: str(file)}, said.append, look_seconds=0.05)
    async with made.following() as settings:
        assert [one.reason for one in said] == ["HealthConfigRefused"]  # it is not there yet
        file.write_text(TEXT % 13)
        await until(lambda: settings.current().ignore_xids == {13})
        file.write_text("a: [")
        await until(lambda: len(said) == 2)
        assert settings.current().ignore_xids == {13}
        file.write_text(TEXT % 31)
        await until(lambda: settings.current().ignore_xids == {31})
