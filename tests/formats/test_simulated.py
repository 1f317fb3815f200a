"""Only what ``kgpu lab hw create`` made counts as a simulated driver root."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from kgpu.formats.simulated import MAGIC, state_file
from kgpu.hw.simulator import schema
from kgpu.hw.simulator.create import create_root
from kgpu.hw.simulator.state import DriverState
from tests.host.tree import driver, simulated


def test_a_root_that_was_made_is_simulated(tmp_path: Path) -> None:
    root = create_root("l4", tmp_path / "hw", gpus=1)
    assert state_file(str(root)) == str(root / "state")


def test_the_head_is_that_of_the_layout(tmp_path: Path) -> None:
    DriverState.create(tmp_path / "state").close()
    (tmp_path / "sys/bus").mkdir(parents=True)
    assert state_file(str(tmp_path)) is not None
    assert (tmp_path / "state").stat().st_size == schema.STATE_SIZE
    assert schema.MAGIC == MAGIC


def test_an_older_layout_is_still_a_simulated_root(tmp_path: Path) -> None:
    """Its programs say that it is to be made again; nobody looks for real GPUs in it."""
    state = simulated(tmp_path) / "state"
    state.write_bytes(MAGIC.to_bytes(8, "little") + (99).to_bytes(4, "little") + (64).to_bytes(4, "little") + bytes(48))
    assert state_file(str(tmp_path)) == str(state)


def empty(root: Path) -> None:
    (root / "state").write_bytes(b"")


def other_text(root: Path) -> None:
    (root / "state").write_text("what a program of the host keeps here " * 200)


def cut_short(root: Path) -> None:
    os.truncate(root / "state", 100)


def grown(root: Path) -> None:
    with (root / "state").open("ab") as file:
        file.write(b"more")


def link_to_a_good_one(root: Path) -> None:
    os.rename(root / "state", root / "elsewhere")
    os.symlink("elsewhere", root / "state")


def pipe(root: Path) -> None:
    os.unlink(root / "state")
    os.mkfifo(root / "state")


def folder(root: Path) -> None:
    os.unlink(root / "state")
    (root / "state").mkdir()


def sys_not_mounted(root: Path) -> None:
    os.rmdir(root / "sys/bus")


def no_sys(root: Path) -> None:
    os.rmdir(root / "sys/bus")
    os.rmdir(root / "sys")


def sys_of_the_kernel(root: Path) -> None:
    no_sys(root)
    os.symlink("/sys", root / "sys")


def bus_of_the_kernel(root: Path) -> None:
    os.rmdir(root / "sys/bus")
    os.symlink("/sys/bus", root / "sys/bus")


@pytest.mark.parametrize(
    "spoil",
    [
        empty, other_text, cut_short, grown, link_to_a_good_one, pipe, folder,
        sys_not_mounted, no_sys, sys_of_the_kernel, bus_of_the_kernel,
    ],
)  # fmt: skip
def test_what_only_looks_like_one_is_not(tmp_path: Path, spoil: Callable[[Path], None]) -> None:
    simulated(driver(tmp_path))
    assert state_file(str(tmp_path)) is not None
    spoil(tmp_path)
    assert state_file(str(tmp_path)) is None


def test_a_host_with_a_good_state_file_is_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel's /sys, seen below the folder that the host's root is mounted at: another file system."""
    simulated(tmp_path)
    real = os.lstat

    def with_a_mount(path: str) -> os.stat_result:
        found = real(path)
        fields = list(found)
        fields[2] += str(path).endswith("/sys/bus")
        return os.stat_result(fields)

    monkeypatch.setattr(os, "lstat", with_a_mount)
    assert state_file(str(tmp_path)) is None


@pytest.mark.skipif(os.geteuid() != 0, reason="gives a file to another user")
def test_what_another_user_made_is_none(tmp_path: Path) -> None:
    simulated(tmp_path)
    os.chown(tmp_path / "state", 4711, -1)
    assert state_file(str(tmp_path)) is None
