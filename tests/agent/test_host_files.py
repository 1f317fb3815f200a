"""Which files on the host are kgpu's to remove."""

from __future__ import annotations

import json
import multiprocessing
import threading
from pathlib import Path
from typing import Any

import pytest

from kgpu.agent.host_files import LEDGER, HostFiles
from kgpu.agent.leaving import OURS, empty
from kgpu.deviceplugin import roster

MANY = 25


@pytest.fixture
def files(tmp_path):
    return HostFiles(tmp_path / "state")


@pytest.fixture
def spec(tmp_path, files):
    path = tmp_path / "spec.json"
    path.write_text("one")
    files.wrote(path)
    return path


def test_a_listed_file_goes(files, spec):
    files.remove_all()
    assert not spec.exists()


def test_a_file_that_somebody_has_written_since_stays(files, spec):
    spec.write_text("theirs")
    files.remove_all()
    assert spec.read_text() == "theirs"


def test_a_file_that_was_never_listed_stays(files, tmp_path):
    other = tmp_path / "other"
    other.write_text("x")
    files.remove(other)
    assert other.exists()


def test_a_file_that_became_a_link_stays(files, spec, tmp_path):
    target = tmp_path / "target"
    target.write_text("one")
    spec.unlink()
    spec.symlink_to(target)
    files.remove_all()
    assert target.exists()
    assert spec.is_symlink()


def test_the_list_survives_a_restart_and_a_file_that_is_gone(tmp_path, spec):
    spec.unlink()
    HostFiles(tmp_path / "state").remove_all()
    assert json.loads((tmp_path / "state" / LEDGER).read_text()) == {}


@pytest.mark.parametrize(
    "text", ["", "[]", '["FILE"]', "{", '{"FILE": 1}', '{"FILE": null}', "[" * 100000, '{"FILE": ""}']
)
def test_a_spoilt_list_removes_nothing(tmp_path, text):
    theirs = tmp_path / "theirs"
    theirs.write_text("x")
    (tmp_path / "state").mkdir()
    (tmp_path / "state" / LEDGER).write_text(text.replace("FILE", str(theirs)))
    HostFiles(tmp_path / "state").remove_all()
    assert theirs.read_text() == "x"


def test_emptying_takes_kgpus_files_and_does_not_follow_links(tmp_path):
    folder, other = tmp_path / "own", tmp_path / "other"
    for path in (folder / "pod", folder / "deep/er", other):
        path.mkdir(parents=True)
    for path in (other / "agent.json", folder / "pod/devices.json", folder / "deep/er/agent.json", folder / "mine"):
        path.write_text("x")
    (folder / "link").symlink_to(other)
    (folder / "agent.json").symlink_to(other / "agent.json")
    empty(folder)
    assert sorted(path.name for path in folder.iterdir()) == ["deep", "link", "mine"]
    assert (other / "agent.json").exists()
    assert (folder / "deep/er/agent.json").exists()


def test_the_health_roles_history_goes_with_all_that_lies_beside_it(tmp_path):
    for name in ("health.db", "health.db-journal", "health.db.orders", "health.db.broken", "others.db"):
        (tmp_path / name).touch()
    empty(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["others.db"]


def test_a_folder_that_is_not_there_is_empty(tmp_path):
    empty(tmp_path / "none")
    assert not (tmp_path / "none").exists()


def test_every_file_that_the_device_plugin_keeps_is_known_to_leaving():
    assert roster.FILE_NAME in OURS


def write_many(state: Path, folder: Path, start: Any) -> None:
    files = HostFiles(state)
    folder.mkdir()
    start.wait()
    for number in range(MANY):
        (folder / str(number)).write_text("x")
        files.wrote(folder / str(number))


def test_roles_that_write_at_once_lose_nothing(tmp_path):
    """As threads of one agent, and as pods of their own with one folder."""
    context = multiprocessing.get_context("fork")
    start = context.Barrier(4)
    places = [tmp_path / str(number) for number in range(4)]
    processes = [context.Process(target=write_many, args=(tmp_path / "state", one, start)) for one in places[:2]]
    for process in processes:
        process.start()
    threads = [threading.Thread(target=write_many, args=(tmp_path / "state", one, start)) for one in places[2:]]
    for thread in threads:
        thread.start()
    for process in processes:
        process.join(60)
    for thread in threads:
        thread.join(60)
    listed = json.loads((tmp_path / "state" / LEDGER).read_text())
    assert listed.keys() == {str(one / str(number)) for one in places for number in range(MANY)}
