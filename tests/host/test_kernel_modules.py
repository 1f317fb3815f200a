"""Kernel modules and mounts, from trees of files; the kernel is asked only for what it does not have."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kgpu.base.errors import HostError
from kgpu.host import kernel_modules, mounts
from kgpu.host.kernel_modules import LoadedModule, drm_user, unload_order

NAMES = ("nvidia_drm", "nvidia_modeset", "nvidia_uvm", "nvidia")


def module(sys: Path, name: str, users: str = "0\n", *holders: str) -> None:
    folder = sys / "module" / name
    (folder / "holders").mkdir(parents=True)
    (folder / "refcnt").write_text(users)
    for holder in holders:
        (folder / "holders" / holder).touch()


def test_loaded_modules_with_their_users(tmp_path: Path) -> None:
    module(tmp_path, "nvidia", "3\n", "nvidia_uvm", "nvidia_modeset")
    module(tmp_path, "nvidia_uvm", "-1\n")
    (tmp_path / "module/nvidia_drm").mkdir()  # built in: no refcnt
    module(tmp_path, "other")
    assert kernel_modules.loaded(tmp_path, NAMES) == {
        "nvidia": LoadedModule(3, frozenset({"nvidia_uvm", "nvidia_modeset"})),
        "nvidia_uvm": LoadedModule(-1),
    }
    assert kernel_modules.loaded(tmp_path / "none", NAMES) == {}


def test_a_module_is_unloaded_after_those_that_need_it() -> None:
    modules = {
        "nvidia": LoadedModule(2, frozenset({"nvidia_modeset", "nvidia_uvm"})),
        "nvidia_modeset": LoadedModule(1, frozenset({"nvidia_drm"})),
        "nvidia_drm": LoadedModule(0),
        "nvidia_uvm": LoadedModule(0),
    }
    assert unload_order(modules, ("nvidia_uvm", "nvidia_drm")) == (
        "nvidia_uvm",
        "nvidia_drm",
        "nvidia_modeset",
        "nvidia",
    )


@given(st.dictionaries(st.sampled_from("abcdef"), st.frozensets(st.sampled_from("abcdefg"))))
def test_each_is_in_the_order_once_whatever_needs_what(needs: dict[str, frozenset[str]]) -> None:
    order = unload_order({name: LoadedModule(0, needed) for name, needed in needs.items()})
    assert sorted(order) == sorted(needs)


def test_the_module_that_has_gpus_open_for_displays(tmp_path: Path) -> None:
    folder = tmp_path / "module/nvidia_drm/parameters"
    assert drm_user(tmp_path) == ""
    folder.mkdir(parents=True)
    (folder / "modeset").write_text("N\n")
    assert drm_user(tmp_path) == ""
    (folder / "modeset").write_text("Y\n")
    assert drm_user(tmp_path) == "nvidia_drm with modeset"
    (folder / "fbdev").write_text("Y\n")
    assert drm_user(tmp_path) == "nvidia_drm with modeset and fbdev"


@pytest.mark.skipif(os.geteuid() == 0, reason="root may ask the kernel")
def test_who_may_not_is_told_so() -> None:
    with pytest.raises(HostError, match="can't be unloaded"):
        kernel_modules.remove("kgpu_no_such_module")


LINES = (
    "22 1 0:21 / / rw - ext4 /dev/sda rw\n"
    "30 22 0:30 / /run/nvidia/driver rw - overlay overlay rw\n"
    "31 30 0:31 / /run/nvidia/driver/proc rw - proc proc rw\n"
    "32 30 0:32 / /run/nvidia/driver/a\\040b rw - tmpfs tmpfs rw\n"
    "33 22 0:33 / /run/nvidia/driver2 rw - tmpfs tmpfs rw\n"
    "garbage\n"
)


def test_mounts_below_a_folder_the_last_first() -> None:
    assert mounts.below("/run/nvidia/driver", LINES) == (
        "/run/nvidia/driver/a b", "/run/nvidia/driver/proc", "/run/nvidia/driver",
    )  # fmt: skip
    assert mounts.below("/nowhere", LINES) == ()


def test_where_nothing_is_mounted_nothing_is_unmounted(tmp_path: Path) -> None:
    assert mounts.unmount_below(str(tmp_path)) == 0
    with pytest.raises(HostError, match="can't be read"):
        mounts.unmount_below(str(tmp_path), tmp_path / "none")
