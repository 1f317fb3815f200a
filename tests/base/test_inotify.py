"""Being told of changes in folders, also in folders that come and go."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import tempfile
import weakref
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kgpu.base.inotify import CONTENT, ENTRIES, Inotify, folder_changes, follow_folders, nearest_existing
from kgpu.base.service import running


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


def instances() -> int:
    """Inotify instances that this process has."""
    found = 0
    for fd in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):
            found += os.readlink(f"/proc/self/fd/{fd}") == "anon_inode:inotify"
    return found


async def test_all_of_a_loop_share_one_instance_that_the_last_closes(tmp_path: Path) -> None:
    before = instances()
    many = [Inotify() for _ in range(20)]
    assert instances() == before + 1
    for one in many[:-1]:
        one.close()
    many[-1].watch({tmp_path})
    (tmp_path / "a").touch()
    assert await many[-1].wait(60)
    many[-1].close()
    assert instances() == before


async def test_each_is_told_of_its_own_folders_and_of_what_it_asked_for(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    file = tmp_path / "a" / "file"
    file.touch()
    async with Inotify() as names, Inotify() as contents, Inotify() as other:
        names.watch({tmp_path / "a"})
        contents.watch({tmp_path / "a"}, CONTENT)
        other.watch({tmp_path / "b"}, CONTENT)
        file.write_text("x")
        assert await contents.wait(60)
        assert not await names.wait(0.05)
        assert not await other.wait(0)
        names.watch({tmp_path / "b"})  # the other one stays in this folder
        file.unlink()
        assert await contents.wait(60)
        assert not await names.wait(0.05)
        contents.close()
        (tmp_path / "b" / "new").touch()
        assert await names.wait(60)
        assert await other.wait(60)


async def test_two_names_of_a_folder_are_watched_until_both_have_gone(tmp_path: Path) -> None:
    folder, link = tmp_path / "folder", tmp_path / "link"
    folder.mkdir()
    link.symlink_to(folder)
    async with Inotify() as inotify:
        inotify.watch({folder, link})
        inotify.watch({link})
        (folder / "a").touch()
        assert await inotify.wait(60)
        inotify.watch(())
        (folder / "b").touch()
        assert not await inotify.wait(0.05)


FOLDERS = ("a", "b", "c")


@given(
    st.lists(
        st.tuples(st.integers(0, 2), st.sampled_from(["watch", "make", "remove", "close"]), st.sampled_from(FOLDERS)),
        max_size=25,
    )
)
def test_whatever_others_do_each_hears_of_what_it_watches(steps: list[tuple[int, str, str]]) -> None:
    with tempfile.TemporaryDirectory() as place:
        asyncio.run(_play(Path(place), steps))


async def _play(place: Path, steps: list[tuple[int, str, str]]) -> None:
    """Three watchers of three folders, which are removed and made anew; a model knows who must have heard."""
    for name in FOLDERS:
        (place / name).mkdir()
    views: list[Inotify | None] = [Inotify() for _ in range(3)]
    watched: list[dict[str, int]] = [{}, {}, {}]  # by folder: its inode when it was asked for
    try:
        for number, (who, action, name) in enumerate(steps):
            folder, view = place / name, views[who]
            if action == "watch" and view is not None:
                view.watch({place / one for one in {*watched[who], name}})
                watched[who] = {one: (place / one).stat().st_ino for one in {*watched[who], name}}
            elif action == "close" and view is not None:
                view.close()
                views[who], watched[who] = None, {}
            elif action in {"make", "remove"}:
                for one in filter(None, views):
                    await one.wait(0)
                hears = [one.get(name) == folder.stat().st_ino for one in watched]
                if action == "make":
                    (folder / str(number)).touch()
                else:
                    folder.rename(place / f"gone-{number}")
                    folder.mkdir()
                heard = [
                    one is not None and await one.wait(0.02 if not hope else 10)
                    for one, hope in zip(views, hears, strict=True)
                ]
                assert [not hope or said for hope, said in zip(hears, heard, strict=True)] == [True] * 3
                assert action == "remove" or heard == hears
                watched = [
                    {key: inode for key, inode in one.items() if action == "make" or key != name} for one in watched
                ]
                if action == "remove":  # what was moved away is still watched until it is asked for anew
                    for one, seen in zip(views, watched, strict=True):
                        if one is not None:
                            one.watch({place / key for key in seen})
    finally:
        for one in filter(None, views):
            one.close()


async def test_whoever_loses_the_instance_is_woken_and_gets_another(tmp_path: Path) -> None:
    async with Inotify() as one, Inotify() as other:
        for view in (one, other):
            view.watch({tmp_path})
        one._kernel.close()  # as for a descriptor that can't be read any more
        assert [await view.wait(0) for view in (one, other)] == [True, True]
        for view in (one, other):
            view.watch({tmp_path})
        (tmp_path / "a").touch()
        assert [await view.wait(60) for view in (one, other)] == [True, True]
        assert one._kernel is other._kernel


def test_a_loop_that_has_ended_is_not_kept() -> None:
    async def watch() -> weakref.ref[asyncio.AbstractEventLoop]:
        async with Inotify() as inotify:
            inotify.watch({Path("/")})
        return weakref.ref(asyncio.get_running_loop())

    ended = asyncio.run(watch())
    gc.collect()
    assert ended() is None


def test_the_nearest_existing_folder(tmp_path: Path) -> None:
    assert nearest_existing(tmp_path) == tmp_path
    assert nearest_existing(tmp_path / "a" / "b") == tmp_path
    (tmp_path / "file").touch()
    assert nearest_existing(tmp_path / "file" / "x") == tmp_path


async def test_a_folder_is_looked_at_now_and_after_every_change_and_in_between(tmp_path: Path) -> None:
    seen: list[int] = []
    home = tmp_path / "later"

    def look() -> None:
        seen.append(len(list(home.iterdir())) if home.exists() else -1)

    def folders() -> set[Path]:
        return {nearest_existing(home)}

    async with running(following=follow_folders(folders, look, seconds=3600)):
        assert seen == [-1]
        home.mkdir()
        await until(lambda: seen[-1] == 0)
        (home / "a").touch()
        await until(lambda: seen[-1] == 1)
    count = len(seen)
    async with running(following=follow_folders(folders, look, seconds=0.01)):
        await until(lambda: len(seen) >= count + 3)


async def test_whoever_follows_a_folder_hears_whether_something_has_changed(tmp_path: Path) -> None:
    async with contextlib.aclosing(folder_changes(lambda: {tmp_path}, seconds=0.01, mask=ENTRIES)) as changes:
        assert not await anext(changes)
        assert not await anext(changes)
        (tmp_path / "a").touch()
        assert await anext(changes)


async def until(true: Callable[[], bool]) -> None:
    async with asyncio.timeout(60):
        while not true():  # noqa: ASYNC110 - the kernel tells whom is tested here
            await asyncio.sleep(0.005)
