"""Paths of a driver root: links stay inside it, and the host's view differs from ours."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from kgpu.host.root import DriverRoot, Tree, read_some
from tests.host.tree import driver, link, simulated, touch


def test_absolute_link_means_the_tree_itself(tmp_path) -> None:
    touch(tmp_path, "/opt/real/lib.so.5")
    link(tmp_path, "/usr/lib64", "/opt/real")
    link(tmp_path, "/opt/real/lib.so", "lib.so.5")
    assert Tree.at(tmp_path).resolve("/usr/lib64/lib.so") == "/opt/real/lib.so.5"


def test_link_can_not_leave_the_tree(tmp_path) -> None:
    touch(tmp_path, "/secret")
    root = tmp_path / "root"
    link(root, "/usr/lib64/lib.so", "../../../../../secret")
    assert Tree.at(root).resolve("/usr/lib64/lib.so") is None
    touch(root, "/secret")
    assert Tree.at(root).resolve("/usr/lib64/lib.so") == "/secret"


def test_circle_and_missing_file_resolve_to_nothing(tmp_path) -> None:
    link(tmp_path, "/a", "b")
    link(tmp_path, "/b", "a")
    assert Tree.at(tmp_path).resolve("/a") is None
    assert Tree.at(tmp_path).resolve("/none") is None


@pytest.mark.parametrize(
    ("host", "expected"), [("", None), ("/", "/usr/x"), ("/run/nvidia/driver/", "/run/nvidia/driver/usr/x")]
)
def test_host_view(tmp_path, host: str, expected: str | None) -> None:
    assert Tree.at(tmp_path, host).on_host("/usr/x") == (expected or f"{tmp_path}/usr/x")


def test_dev_root_is_the_driver_root_only_when_it_has_the_nodes(tmp_path) -> None:
    assert DriverRoot.at(tmp_path).dev.here == Path("/")
    driver(tmp_path)
    assert DriverRoot.at(tmp_path).dev.here == tmp_path
    assert DriverRoot.at(tmp_path, dev="/other").dev.here == Path("/other")


def test_host_path_of_a_node_only_where_it_differs(tmp_path) -> None:
    driver(tmp_path)
    root = DriverRoot.at(tmp_path)
    assert root.device_node("/dev/nvidia0").host_path == f"{tmp_path}/dev/nvidia0"
    assert DriverRoot.at(tmp_path, dev="/").device_node("/dev/nvidia0").host_path == ""
    assert root.is_stand_in("/dev/nvidia0")
    assert not root.has_node("/dev/nvidia7")


def test_state_file_makes_a_root_simulated(tmp_path) -> None:
    assert DriverRoot.at(tmp_path).state_file is None
    touch(tmp_path, "/state")
    assert DriverRoot.at(tmp_path).state_file is None  # any file of that name
    simulated(tmp_path)
    assert DriverRoot.at(tmp_path).state_file == "/state"
    assert DriverRoot.at("/").state_file is None


def test_reading_is_bounded_stays_inside_and_never_waits(tmp_path) -> None:
    root = tmp_path / "root"
    touch(tmp_path, "/secret")
    touch(root, "/a")
    (root / "a").write_bytes(b"0123456789")
    (root / "folder").mkdir()
    os.mkfifo(root / "pipe")
    link(root, "/inside", "/a")
    link(root, "/outside", "../secret")
    tree = Tree.at(root)
    assert tree.read("/a", 4) == b"0123"
    assert tree.read("/inside", 99) == b"0123456789"
    for name in ("/folder", "/pipe", "/outside", "/none", "/a\0"):
        assert tree.read(name, 99) == b""
    assert [tree.kind(name) for name in ("/inside", "/folder", "/pipe", "/outside")] == [
        stat.S_IFREG,
        stat.S_IFDIR,
        stat.S_IFIFO,
        0,
    ]
    assert tree.is_file("/inside")
    assert tree.is_dir("/folder")
    assert not tree.is_file("/folder")
    assert not tree.is_dir("/pipe")


def test_files_of_proc_have_no_size_and_are_read(tmp_path) -> None:
    assert read_some(Path("/proc/self/stat"), 4096)
    assert read_some(tmp_path, 1) == b""
