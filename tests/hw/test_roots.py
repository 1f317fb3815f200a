"""What is looked for under a driver root, and when the host's own /proc and /sys stand in."""

from __future__ import annotations

import os

import pytest

from kgpu.hw import roots


def touch(path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.touch()


def test_first_folder_of_the_order_wins(tmp_path) -> None:
    touch(tmp_path / "lib64/libnvidia-ml.so.1")
    assert roots.find_library(str(tmp_path)) == str(tmp_path / "lib64/libnvidia-ml.so.1")
    touch(tmp_path / "usr/lib/x86_64-linux-gnu/libnvidia-ml.so.1")
    assert roots.find_library(str(tmp_path)) == str(tmp_path / "usr/lib/x86_64-linux-gnu/libnvidia-ml.so.1")


def test_links_are_followed(tmp_path) -> None:
    touch(tmp_path / "usr/lib64/libnvidia-ml.so.550.54.15")
    os.symlink("libnvidia-ml.so.550.54.15", tmp_path / "usr/lib64/libnvidia-ml.so.1")
    assert roots.find_library(str(tmp_path)) == str(tmp_path / "usr/lib64/libnvidia-ml.so.550.54.15")


def test_absolute_links_mean_the_root_itself(tmp_path) -> None:
    """Debian's alternatives and NixOS, seen by a process for which the host's root is a folder."""
    root = tmp_path / "host"
    touch(root / "nix/store/x/lib/libnvidia-ml.so.550.54.15")
    os.symlink("/nix/store/x/lib/libnvidia-ml.so.550.54.15", root / "nix/store/x/lib/libnvidia-ml.so.1")
    (root / "run").mkdir()
    os.symlink("/nix/store/x", root / "run/opengl-driver")
    assert roots.find_library(str(root)) == str(root / "nix/store/x/lib/libnvidia-ml.so.550.54.15")
    touch(tmp_path / "outside/libnvidia-ml.so.1")
    (root / "usr").mkdir()
    os.symlink("../../outside", root / "usr/lib64")
    assert roots.find_library(str(root)) == str(root / "nix/store/x/lib/libnvidia-ml.so.550.54.15")


@pytest.mark.parametrize("folder", roots.LIBRARY_DIRS + roots.FURTHER_DIRS)
def test_every_folder_is_looked_at(tmp_path, folder: str) -> None:
    touch(tmp_path / folder / "libnvidia-ml.so.1")
    assert roots.find_library(str(tmp_path)) == str(tmp_path / folder / "libnvidia-ml.so.1")


def test_dangling_link_is_not_a_library(tmp_path) -> None:
    (tmp_path / "usr/lib64").mkdir(parents=True)
    os.symlink("nowhere", tmp_path / "usr/lib64/libnvidia-ml.so.1")
    assert roots.find_library(str(tmp_path)) is None


def test_proc_and_sys_of_the_root_only_when_they_are_there(tmp_path) -> None:
    assert (roots.proc_root(str(tmp_path)), roots.sys_root(str(tmp_path))) == ("/proc", "/sys")
    (tmp_path / "proc/driver").mkdir(parents=True)
    (tmp_path / "sys/bus/pci").mkdir(parents=True)
    assert roots.proc_root(str(tmp_path)) == str(tmp_path / "proc")
    assert roots.sys_root(str(tmp_path)) == str(tmp_path / "sys")
