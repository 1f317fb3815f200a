"""What is kept on disk comes back; what is damaged or in use is told and left alone."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest

from kgpu.base.errors import LabError
from kgpu.lab.embedded.core.model import DeleteOptions
from kgpu.lab.embedded.journal import FILE, Journal
from kgpu.lab.embedded.status import ApiError
from tests.lab.embedded.support import CALL, config_map, kind, make_core


def test_objects_and_the_revision_survive(tmp_path: Path) -> None:
    core = make_core(journal=Journal.open(tmp_path))
    maps = kind(core, "configmaps")
    kept = core.create(maps, "default", config_map("kept", {"a": "ü"}), CALL).obj
    core.create(maps, "default", config_map("gone"), CALL)
    core.delete(maps, "default", "gone", DeleteOptions(), CALL)
    last = core.store.revision
    core.close()

    again = make_core(journal=Journal.open(tmp_path))
    assert again.store.revision > last
    assert [stored.obj for stored in again.list(maps).items] == [kept]
    with pytest.raises(ApiError) as caught:
        again.watch(maps, version=str(last - 1))
    assert caught.value.code == 410, "the history is not kept"
    first = again.store.revision
    assert again.create(maps, "default", config_map("next"), CALL).revision == first + 1
    again.close()


def test_a_second_process_is_refused(tmp_path: Path) -> None:
    first = Journal.open(tmp_path)
    with pytest.raises(LabError, match="in use"):
        Journal.open(tmp_path)
    first.close()
    Journal.open(tmp_path).close()


@pytest.mark.parametrize("content", [b"not a database at all, but long enough to be read as one" * 40, b"\0" * 8192])
def test_a_damaged_file_is_told_and_left_as_it_is(content: bytes, tmp_path: Path) -> None:
    (tmp_path / FILE).write_bytes(content)
    with pytest.raises(LabError) as caught:
        Journal.open(tmp_path)
    assert caught.value.remedy
    assert (tmp_path / FILE).read_bytes() == content


def test_an_object_that_can_not_be_read_is_told(tmp_path: Path) -> None:
    core = make_core(journal=Journal.open(tmp_path))
    core.close()
    with sqlite3.connect(tmp_path / FILE) as connection:
        connection.execute("UPDATE objects SET body = '{' WHERE name = 'default'")
    connection.close()
    journal = Journal.open(tmp_path)
    with pytest.raises(LabError, match="default"):
        journal.load()
    journal.close()


def test_a_folder_that_is_a_file(tmp_path: Path) -> None:
    (tmp_path / "x").write_text("")
    with pytest.raises(LabError, match="can't keep"):
        Journal.open(tmp_path / "x")


def test_after_the_end_writes_are_refused(tmp_path: Path) -> None:
    core = make_core(journal=Journal.open(tmp_path))
    core.close()
    with pytest.raises(ApiError) as caught:
        core.create(kind(core, "configmaps"), "default", config_map("late"), CALL)
    assert caught.value.code == 503


async def test_a_commit_is_on_disk_once_it_is_told_to_be_kept(tmp_path: Path) -> None:
    core = make_core(journal=Journal.open(tmp_path))
    for number in range(5):
        core.create(kind(core, "configmaps"), "default", config_map(f"c{number}"), CALL)
        await core.kept()
        with sqlite3.connect(tmp_path / FILE) as connection:
            (count,) = connection.execute("SELECT count(*) FROM objects WHERE plural = 'configmaps'").fetchone()
        connection.close()
        assert count == number + 1
    core.close()


async def test_what_can_not_be_written_is_not_acknowledged(tmp_path: Path) -> None:
    core = make_core(journal=Journal.open(tmp_path))
    await core.kept()
    with sqlite3.connect(tmp_path / FILE) as connection:
        connection.execute("DROP TABLE objects")
    connection.close()
    core.create(kind(core, "configmaps"), "default", config_map("lost"), CALL)
    with pytest.raises(ApiError) as caught:
        await core.kept()
    assert caught.value.code == 500
    with pytest.raises(LabError):
        core.close()
