"""A followed file: news only when the content differs, through links too, and trouble is a problem, not emptiness."""

from __future__ import annotations

import asyncio
import contextlib
import os

import pytest

from kgpu.agent.config_file import MAX_BYTES, FileConfigSource, read_config


@contextlib.asynccontextmanager
async def following(path):
    source = FileConfigSource(path)
    task = asyncio.create_task(source.run())
    try:
        yield source
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def following_value(source, after):
    return await asyncio.wait_for(source.next(after), 60)


async def test_a_written_file_is_news(tmp_path):
    path = tmp_path / "config.yaml"
    path.write_text("version: v1")
    async with following(path) as source:
        first = await following_value(source, None)
        assert first.text == "version: v1"
        assert str(path) in first.name
        path.write_text("version: v1\n# changed")
        second = await following_value(source, first)
        assert second.text.endswith("# changed")


async def test_every_waiting_role_gets_the_news(tmp_path):
    path = tmp_path / "config.yaml"
    path.write_text("a")
    async with following(path) as source:
        first = await source.next(None)
        waiting = [asyncio.create_task(following_value(source, first)) for _ in range(3)]
        await asyncio.sleep(0)
        path.write_text("b")
        assert [found.text for found in await asyncio.gather(*waiting)] == ["b"] * 3


async def test_a_config_map_volume_swaps_a_link(tmp_path):
    for version in ("1", "2"):
        (tmp_path / f"..{version}").mkdir()
        (tmp_path / f"..{version}" / "config.yaml").write_text(version)
    data, path = tmp_path / "..data", tmp_path / "config.yaml"
    data.symlink_to("..1")
    path.symlink_to("..data/config.yaml")
    async with following(path) as source:
        first = await source.next(None)
        assert first.text == "1"
        (tmp_path / "..tmp").symlink_to("..2")
        os.rename(tmp_path / "..tmp", data)
        assert (await following_value(source, first)).text == "2"


async def test_a_touched_file_is_no_news(tmp_path):
    path = tmp_path / "config.yaml"
    path.write_text("same")
    source = FileConfigSource(path)
    first = source.current()
    waiting = asyncio.create_task(source.next(first))
    os.utime(path, (1, 1))
    source.reload()
    await asyncio.sleep(0)
    assert not waiting.done()
    path.write_text("other")
    source.reload()
    assert (await asyncio.wait_for(waiting, 60)).text == "other"


async def test_a_file_that_goes_away_and_comes_back(tmp_path):
    path = tmp_path / "config.yaml"
    path.write_text("a")
    async with following(path) as source:
        first = await source.next(None)
        path.unlink()
        gone = await following_value(source, first)
        assert gone.problem is not None
        assert "No such file" in gone.problem.what
        assert source.error is gone.problem
        path.write_text("a")
        back = await following_value(source, gone)
        assert back == first
        assert source.error is None


@pytest.mark.parametrize("kind", ["missing", "folder", "binary", "huge"])
def test_what_can_not_be_read_is_a_problem_in_three_parts(kind, tmp_path):
    path = tmp_path / "config.yaml"
    make = {
        "missing": lambda: None,
        "folder": path.mkdir,
        "binary": lambda: path.write_bytes(b"\xff\xfe\x00"),
        "huge": lambda: path.write_bytes(b"#" * (MAX_BYTES + 1)),
    }
    make[kind]()
    found = read_config(path)
    assert found.text == ""
    assert found.problem is not None
    assert str(path) in found.problem.what
    assert found != read_config(tmp_path / "other")
