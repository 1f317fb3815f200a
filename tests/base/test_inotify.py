"""Being told of changes in folders, also in folders that come and go."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from kgpu.base.inotify import CONTENT, Inotify, nearest_existing


async def test_entries_that_come_and_go_are_told(tmp_path: Path) -> None:
    async with Inotify() as inotify:
        inotify.watch({tmp_path})
        assert not await inotify.wait(0)
        (tmp_path / "a").touch()
        assert await inotify.wait(60)
        (tmp_path / "a").unlink()
        assert await inotify.wait(60)
        (tmp_path / "sub").mkdir()
        assert await inotify.wait(60)


async def test_written_files_are_told_where_asked(tmp_path: Path) -> None:
    file = tmp_path / "a"
    file.touch()
    async with Inotify() as inotify:
        inotify.watch({tmp_path}, CONTENT)
        file.write_text("x")
        assert await inotify.wait(60)


async def test_a_folder_that_was_made_anew_is_watched_anew(tmp_path: Path) -> None:
    folder = tmp_path / "a" / "b"
    async with Inotify() as inotify:
        for _ in range(3):
            inotify.watch({nearest_existing(folder)})
            folder.parent.mkdir()
            assert await inotify.wait(60)
            inotify.watch({nearest_existing(folder)})
            folder.mkdir()
            assert await inotify.wait(60)
            inotify.watch({nearest_existing(folder)})
            (folder / "file").touch()
            assert await inotify.wait(60)
            (folder / "file").unlink()
            folder.rmdir()
            folder.parent.rmdir()
            while await inotify.wait(0.01):
                pass


async def test_folders_no_longer_asked_for_are_silent(tmp_path: Path) -> None:
    old, new = tmp_path / "old", tmp_path / "new"
    old.mkdir()
    new.mkdir()
    async with Inotify() as inotify:
        inotify.watch({old})
        inotify.watch({new, tmp_path / "missing"})
        while await inotify.wait(0.01):
            pass
        (old / "a").touch()
        assert not await inotify.wait(0.05)
        (new / "a").touch()
        assert await inotify.wait(60)


async def test_without_kernel_events_waiting_only_times_out(tmp_path: Path) -> None:
    inotify = Inotify()
    inotify.close()
    assert not inotify.available
    inotify.watch({tmp_path})
    (tmp_path / "a").touch()
    assert not await inotify.wait(0.01)
    inotify.close()


async def test_cancelling_a_wait_goes_through(tmp_path: Path) -> None:
    async with Inotify() as inotify:
        inotify.watch({tmp_path})
        waiting = asyncio.create_task(inotify.wait(60))
        await asyncio.sleep(0)
        (tmp_path / "a").touch()
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting


def test_the_nearest_existing_folder(tmp_path: Path) -> None:
    assert nearest_existing(tmp_path) == tmp_path
    assert nearest_existing(tmp_path / "a" / "b") == tmp_path
    (tmp_path / "file").touch()
    assert nearest_existing(tmp_path / "file" / "x") == tmp_path
