"""One at a time in a lab's folder, also while it goes and comes; and nobody's files are taken for a lab's."""

from __future__ import annotations

import sys
import threading
import time
from pathlib import Path

import pytest

from kgpu.base.errors import LabError
from kgpu.lab import lock
from kgpu.lab.embedded.lab import EmbeddedLab
from kgpu.lab.progress import QuietProgress


def test_the_second_is_refused_and_then_let_in(tmp_path: Path) -> None:
    folder = tmp_path / "lab"
    with lock.held(folder, "a"), pytest.raises(LabError, match="another kgpu"), lock.held(folder, "a"):
        pass
    with lock.held(folder, "a"):
        lock.release_folder(folder)
    assert not folder.exists()


def test_who_waited_for_a_lab_that_went_has_the_new_lock(tmp_path: Path) -> None:
    folder = tmp_path / "lab"
    inside: list[str] = []
    most: list[int] = []
    waiting = threading.Event()

    class Said:
        def __enter__(self) -> None:
            waiting.set()

        def __exit__(self, *_: object) -> None:
            pass

    def enter(name: str) -> None:
        with lock.held(folder, name, wait_s=20, waiting=Said):
            inside.append(name)
            most.append(len(inside))
            inside.remove(name)
            lock.release_folder(folder)

    with lock.held(folder, "first"):
        threads = [threading.Thread(target=enter, args=(str(number),)) for number in range(4)]
        for thread in threads:
            thread.start()
        assert waiting.wait(60)
        lock.release_folder(folder)
    for thread in threads:
        thread.join(20)
    assert most == [1, 1, 1, 1]
    assert not folder.exists()


def test_a_folder_that_comes_and_goes_is_never_taken_for_something_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lock, "_POLL_S", 0.0001)
    before = sys.getswitchinterval()
    failed: list[LabError] = []

    def enter(name: str) -> None:
        for _ in range(60):
            try:
                with lock.held(tmp_path / "lab", name, wait_s=60):
                    lock.release_folder(tmp_path / "lab")
            except LabError as error:
                failed.append(error)

    threads = [threading.Thread(target=enter, args=(str(number),)) for number in range(8)]
    sys.setswitchinterval(1e-6)
    try:
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
    finally:
        sys.setswitchinterval(before)
    assert failed == []


def test_a_link_to_nowhere_ends(tmp_path: Path) -> None:
    (tmp_path / "lab").symlink_to(tmp_path / "nowhere")
    with pytest.raises(LabError, match="lab"), lock.held(tmp_path / "lab", "a"):
        pass


def test_a_link_is_not_followed(tmp_path: Path) -> None:
    folder = tmp_path / "lab"
    folder.mkdir()
    (folder / ".lock").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(LabError, match=r"\.lock"), lock.held(folder, "a"):
        pass
    assert not (tmp_path / "elsewhere").exists()


@pytest.mark.parametrize("name", ["notes.txt", "nodes", "kubeconfig", "tokens.csv", "config"])
def test_a_folder_with_somebodys_files_is_refused_and_left_alone(name: str, tmp_path: Path) -> None:
    theirs = tmp_path / "project" / name / "deep" if name in {"nodes", "config"} else tmp_path / "project" / name
    theirs.parent.mkdir(parents=True)
    theirs.write_text("mine")
    lab = EmbeddedLab("x", tmp_path / "project", QuietProgress())
    with pytest.raises(LabError, match="is no lab's folder") as caught:
        lab.up()
    assert name in caught.value.what
    assert lab.down() is False
    assert theirs.read_text() == "mine"


def test_an_empty_folder_will_do(tmp_path: Path) -> None:
    lock.refuse_foreign(tmp_path, ("lab.json",))
    lock.refuse_foreign(tmp_path / "not-there", ())
    (tmp_path / ".lock").touch()
    lock.refuse_foreign(tmp_path, ())
    (tmp_path / "lab.json").touch()
    lock.refuse_foreign(tmp_path, ("lab.json",))


@pytest.mark.parametrize("data", ["lab", "lab/data", "."])
def test_data_and_lab_are_not_in_each_other(data: str, tmp_path: Path) -> None:
    lab = EmbeddedLab("x", tmp_path / "lab", QuietProgress(), data=tmp_path / data)
    with pytest.raises(LabError, match="are in each other"):
        lab.up()
    assert list(tmp_path.iterdir()) == []


def test_labs_take_what_the_machine_has_one_after_the_other(tmp_path: Path) -> None:
    path = tmp_path / "run" / "lock"
    free = [1, 2, 3, 4]
    taken: list[int] = []

    def take() -> None:
        with lock.machine(path):
            first = free[0]  # two labs that look before either has taken would take the same
            time.sleep(0.02)
            free.remove(first)
            taken.append(first)

    threads = [threading.Thread(target=take) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    assert taken == [1, 2, 3, 4]


def test_a_machine_lock_that_can_t_be_made_is_explained(tmp_path: Path) -> None:
    (tmp_path / "lock").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(LabError, match="lock"), lock.machine(tmp_path / "lock"):
        pass
