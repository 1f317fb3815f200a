"""What of a driver is no library: firmware, sockets, the MPS folder, loaders of unusual systems."""

from __future__ import annotations

import os

import pytest

from kgpu.host.driver import programs
from kgpu.host.driver.edits import driver_edits
from kgpu.host.driver.find import find_driver_files
from kgpu.host.driver.model import DriverFiles, Search
from kgpu.host.root import DriverRoot
from tests.host.tree import driver, elf, link, simulated, touch, write

V = "550.54.15"
PARAMETER = "sys/module/firmware_class/parameters/path"


def find(root, **search) -> DriverFiles:
    return find_driver_files(DriverRoot.at(root), search=Search(sys=root / "sys", proc=root / "proc", **search))


def test_firmware_and_sockets(tmp_path) -> None:
    driver(tmp_path)
    touch(tmp_path, f"/lib/firmware/nvidia/{V}/gsp_ga10x.bin", f"/lib/firmware/nvidia/{V}/readme")
    touch(tmp_path, "/run/nvidia-persistenced/socket", "/run/nvidia-fabricmanager/socket")
    root = DriverRoot.at(tmp_path, driver_host="/run/nvidia/driver")
    files = find_driver_files(root)
    assert files.firmware == (f"/lib/firmware/nvidia/{V}/gsp_ga10x.bin",)
    mounts = {mount.container_path: mount for mount in driver_edits(root, files).mounts}
    for name in ("persistenced", "fabricmanager"):
        assert mounts[f"/run/nvidia-{name}/socket"].options == ("nosuid", "nodev", "rbind", "rprivate", "noexec")
    assert mounts[files.firmware[0]].host_path == f"/run/nvidia/driver{files.firmware[0]}"


@pytest.mark.parametrize(
    ("folders", "expected"),
    [
        (("/lib/firmware", "/lib/firmware/6.1.0-x"), "/lib/firmware/6.1.0-x"),
        (("/lib/firmware", "/lib/firmware/updates"), "/lib/firmware/updates"),
        (("/lib/firmware/updates", "/lib/firmware/updates/6.1.0-x"), "/lib/firmware/updates/6.1.0-x"),
        (("/lib/firmware/updates/6.1.0-x", "/srv/fw"), "/srv/fw"),
        (("/usr/lib/firmware",), "/usr/lib/firmware"),
    ],
)
def test_firmware_is_looked_for_as_the_kernel_does(tmp_path, folders: tuple[str, ...], expected: str) -> None:
    driver(tmp_path)
    write(tmp_path, PARAMETER, "/srv/fw\n")
    touch(tmp_path, *(f"{folder}/nvidia/{V}/gsp_tu10x.bin" for folder in folders))
    assert find(tmp_path, kernel="6.1.0-x").firmware == (f"{expected}/nvidia/{V}/gsp_tu10x.bin",)


def test_the_kernels_path_into_a_driver_container_is_of_its_root(tmp_path) -> None:
    driver(tmp_path)
    write(tmp_path, PARAMETER, "/run/nvidia/driver/lib/fw")
    touch(tmp_path, f"/lib/fw/nvidia/{V}/gsp_tu10x.bin")
    root = DriverRoot.at(tmp_path, driver_host="/run/nvidia/driver")
    assert find_driver_files(root, search=Search(sys=tmp_path / "sys")).firmware == (
        f"/lib/fw/nvidia/{V}/gsp_tu10x.bin",
    )


@pytest.mark.parametrize("told", ["", "\n", "relative", "/../..", "/a\0b", "/\x1b[31m", "/" + "x" * 5000])
def test_a_strange_firmware_path_or_kernel_is_no_harm(tmp_path, told: str) -> None:
    driver(tmp_path)
    write(tmp_path, PARAMETER, told)
    for kernel in ("..", "../..", "/etc", ""):
        assert find(tmp_path, kernel=kernel).firmware == ()


def test_mps_folder_is_found_and_mounted_as_a_folder(tmp_path) -> None:
    """The replaced program looks for a file there, so the folder is never mounted."""
    driver(tmp_path)
    (tmp_path / "tmp/nvidia-mps").mkdir(parents=True)
    files = find(tmp_path)
    assert files.folders == ("/tmp/nvidia-mps",)
    (mount,) = [
        mount for mount in driver_edits(DriverRoot.at(tmp_path), files).mounts if "nvidia-mps" in mount.container_path
    ]
    assert (mount.host_path, mount.container_path) == (f"{tmp_path}/tmp/nvidia-mps", "/tmp/nvidia-mps")
    assert "ro" not in mount.options
    assert "noexec" in mount.options


def test_mps_folder_that_others_can_turn_into_a_link_is_refused(tmp_path) -> None:
    driver(tmp_path)
    touch(tmp_path, "/etc/secret")
    link(tmp_path, "/tmp/nvidia-mps", "/etc")
    files = find(tmp_path)
    assert files.folders == ()
    assert any("not a folder" in note for note in files.notes)
    (tmp_path / "tmp/nvidia-mps").unlink()
    (tmp_path / "tmp/nvidia-mps").mkdir()
    if os.geteuid() == 0:
        os.chown(tmp_path / "tmp/nvidia-mps", 1234, 1234)
        files = find(tmp_path)
        assert files.folders == ()
        assert any("1234" in note for note in files.notes)
        os.chown(tmp_path / "tmp/nvidia-mps", 0, 0)
    (tmp_path / "tmp").chmod(0o777)  # without the sticky bit: whoever likes may rename what is in it
    files = find(tmp_path)
    assert files.folders == ()
    assert any("no sticky bit" in note for note in files.notes)
    (tmp_path / "tmp").chmod(0o1777)
    assert find(tmp_path).folders == ("/tmp/nvidia-mps",)


def test_no_ipc_when_not_wanted(tmp_path) -> None:
    driver(tmp_path)
    touch(tmp_path, "/run/nvidia-persistenced/socket", "/tmp/nvidia-mps/control")
    files = find(tmp_path, ipc=False)
    assert (files.sockets, files.folders) == ((), ())
    assert not any(item.kind == "ipc" for item in files.report.items)
    assert find(tmp_path).sockets


def test_a_folder_in_place_of_a_socket_or_program_is_none(tmp_path) -> None:
    driver(tmp_path)
    touch(tmp_path, "/run/nvidia-persistenced/socket/x")
    (tmp_path / "usr/bin/nvidia-smi").unlink()
    touch(tmp_path, "/usr/bin/nvidia-smi/x")
    files = find(tmp_path)
    assert files.sockets == ()
    assert files.binaries == ()
    assert any(note.startswith("nvidia-smi is in none of") for note in files.notes)


@pytest.mark.parametrize("target", ["/run/containerd/containerd.sock", "/etc/shadow", "../containerd/containerd.sock"])
def test_a_link_in_place_of_a_socket_is_none(tmp_path, target: str) -> None:
    """The folder is nvidia-persistenced's own user's, who may make links in it to what only root may reach."""
    driver(tmp_path)
    touch(tmp_path, "/run/containerd/containerd.sock", "/etc/shadow")
    link(tmp_path, "/run/nvidia-persistenced/socket", target)
    files = find(tmp_path)
    assert files.sockets == ()
    mounts = driver_edits(DriverRoot.at(tmp_path), files).mounts
    assert not any("containerd" in one.host_path or "shadow" in one.host_path for one in mounts)


@pytest.mark.parametrize(
    ("interpreter", "mounted"),
    [
        ("", []),
        ("/lib64/ld-linux-x86-64.so.2", []),
        ("/usr/lib64/ld-linux-x86-64.so.2", []),
        ("/nix/store/x-glibc/lib/ld.so", ["/nix/store/x-glibc/lib"]),
        ("/usr/local/glibc/usr/lib/ld.so", ["/usr/local/glibc/usr/lib"]),
    ],
)
def test_a_loader_in_an_unusual_place_comes_along(tmp_path, interpreter: str, mounted: list[str]) -> None:
    driver(tmp_path)
    if interpreter:
        touch(tmp_path, interpreter)
    write(tmp_path, "/usr/bin/nvidia-smi", elf(interpreter=interpreter))
    files = find(tmp_path)
    assert [placed.targets for placed in files.loaders] == [(folder,) for folder in mounted]
    assert not any(item.kind == "loader" and not item.found for item in files.report.items)


@pytest.mark.parametrize(
    "interpreter",
    [
        "/etc/ld.so",
        "/ld.so",
        "/nix/store/ld.so",
        "/nix/store/../../etc/ld.so",
        "//nix/store/x/ld.so",
        "/nix/store/out/ld.so",
    ],
)
def test_a_loader_whose_folder_would_hide_an_images_is_told_and_not_mounted(tmp_path, interpreter: str) -> None:
    driver(tmp_path)
    link(tmp_path, "/nix/store/out", "/etc")
    touch(tmp_path, "/etc/ld.so", "/ld.so", "/nix/store/ld.so", "/nix/store/x/ld.so")
    write(tmp_path, "/usr/bin/nvidia-smi", elf(interpreter=interpreter))
    files = find(tmp_path)
    assert files.loaders == ()
    assert any("nvidia-smi needs" in note for note in files.notes)


def test_sys_and_proc_are_a_simulated_roots_own(tmp_path) -> None:
    root = DriverRoot.at(driver(tmp_path))
    assert str(programs.sys_of(root, Search())) == "/sys"
    simulated(tmp_path)
    assert programs.sys_of(root, Search()) == tmp_path / "sys"
    assert programs.proc_of(root, Search()) == tmp_path / "proc"
    assert programs.proc_of(root, Search(proc=tmp_path)) == tmp_path
