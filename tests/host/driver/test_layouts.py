"""Every layout: all libraries under all names, programs, firmware, real host paths, and a name in the report."""

from __future__ import annotations

import posixpath
from collections.abc import Callable
from pathlib import Path

import pytest

from kgpu.formats.cdi import CdiMount
from kgpu.host.driver.edits import driver_edits, library_dirs
from kgpu.host.driver.find import find_driver_files
from kgpu.host.driver.layouts import BINARY_DIRS, LIBRARY_DIRS
from kgpu.host.driver.model import DriverFiles
from kgpu.host.root import DriverRoot
from kgpu.hw import roots as nvml
from tests.host.driver import roots
from tests.host.driver.roots import LAYOUTS, NIX_DRIVER, NIX_LOADER, VERSION

Make = Callable[[Path], Path]
EXPECTED = {
    "libcuda.so",
    "libcuda.so.1",
    f"libcuda.so.{VERSION}",
    "libnvidia-ml.so",
    "libnvidia-ml.so.1",
    f"libnvidia-ml.so.{VERSION}",
    "libnvidia-ptxjitcompiler.so.1",
    f"libnvidia-ptxjitcompiler.so.{VERSION}",
    "libnvidia-encode.so.1",
    f"libnvidia-encode.so.{VERSION}",
    f"libnvidia-glcore.so.{VERSION}",
    "vdpau/libvdpau_nvidia.so.1",
    f"vdpau/libvdpau_nvidia.so.{VERSION}",
}


def look(make: Make, tmp_path: Path, host: str = "") -> tuple[DriverRoot, DriverFiles]:
    make(tmp_path)
    roots.nodes(tmp_path)
    root = DriverRoot.at(tmp_path, driver_host=host)
    return root, find_driver_files(root, version=VERSION)


def mounts(root: DriverRoot, files: DriverFiles) -> dict[str, CdiMount]:
    return {mount.container_path: mount for mount in driver_edits(root, files, machine="x86_64").mounts}


@pytest.mark.parametrize("make", LAYOUTS, ids=lambda make: make.__name__)
def test_libraries_are_found_with_every_name(tmp_path, make: Make) -> None:
    root, files = look(make, tmp_path)
    places = mounts(root, files)
    for folder in library_dirs("x86_64"):
        assert {posixpath.relpath(path, folder) for path in places if path.startswith(f"{folder}/")} >= EXPECTED
    assert files.report.layout == LAYOUTS[make]


@pytest.mark.parametrize("make", LAYOUTS, ids=lambda make: make.__name__)
def test_every_mount_is_of_a_real_file_in_the_root(tmp_path, make: Make) -> None:
    """No link is left in a host path: the runtime would follow an absolute one out of the root."""
    root, files = look(make, tmp_path, host="/run/nvidia/driver")
    places = mounts(root, files)
    assert places
    for mount in places.values():
        here = tmp_path / mount.host_path.removeprefix("/run/nvidia/driver/")
        assert mount.host_path.startswith("/run/nvidia/driver/")
        assert here.exists()
        assert here.resolve() == here


@pytest.mark.parametrize("make", LAYOUTS, ids=lambda make: make.__name__)
def test_programs_firmware_and_nodes(tmp_path, make: Make) -> None:
    root, files = look(make, tmp_path)
    places = mounts(root, files)
    assert "/usr/bin/nvidia-smi" in places
    assert [posixpath.basename(path) for path in files.firmware] == ["gsp_ga10x.bin"]
    assert files.control_nodes == ("/dev/nvidiactl", "/dev/nvidia-uvm", "/dev/nvidia-uvm-tools", "/dev/nvidia-modeset")
    assert not files.report.missing(essential=True)


@pytest.mark.parametrize("make", LAYOUTS, ids=lambda make: make.__name__)
def test_no_system_folder_is_mounted_over_an_images(tmp_path, make: Make) -> None:
    root, files = look(make, tmp_path)
    folders = [path for path, mount in mounts(root, files).items() if Path(mount.host_path).is_dir()]
    assert all(path.startswith("/nix/store/") for path in folders)


def test_rhel_takes_no_32_bit_library_unless_asked(tmp_path) -> None:
    _, files = look(roots.rhel, tmp_path)
    assert {posixpath.dirname(library.path) for library in files.libraries} == {"/usr/lib64", "/usr/lib64/vdpau"}


def test_nixos_brings_loader_and_libraries_where_its_programs_look(tmp_path) -> None:
    root, files = look(roots.nixos, tmp_path)
    places = mounts(root, files)
    for folder in (NIX_LOADER, f"{NIX_DRIVER}/lib"):
        assert places[folder].host_path == f"{tmp_path}{folder}"
        assert "ro" in places[folder].options


def test_cos_driver_folder_as_the_driver_root(tmp_path) -> None:
    """GKE's own setting: the driver root is the folder that the installer fills."""
    roots.cos(tmp_path)
    top = tmp_path / "home/kubernetes/bin/nvidia"
    roots.nodes(tmp_path)
    root = DriverRoot.at(top, dev=tmp_path, driver_host="/home/kubernetes/bin/nvidia", dev_host="/")
    files = find_driver_files(root)
    places = mounts(root, files)
    assert places["/usr/bin/nvidia-smi"].host_path == "/home/kubernetes/bin/nvidia/bin/nvidia-smi"
    assert places["/etc/vulkan/icd.d/nvidia_icd.json"].host_path.endswith("/nvidia/vulkan/icd.d/nvidia_icd.json")
    assert files.firmware == (f"/firmware/nvidia/{VERSION}/gsp_ga10x.bin",)
    assert files.report.layout == "Container-Optimized OS"


def test_talos_glibc_as_the_driver_root(tmp_path) -> None:
    roots.talos(tmp_path)
    roots.nodes(tmp_path)
    root = DriverRoot.at(tmp_path / "usr/local/glibc", dev=tmp_path)
    assert {library.path for library in find_driver_files(root).libraries} >= {f"/usr/lib/libcuda.so.{VERSION}"}


@pytest.mark.parametrize("make", LAYOUTS, ids=lambda make: make.__name__)
def test_nvml_is_read_from_every_layout(tmp_path, make: Make) -> None:
    """The reader of the hardware finds its library in each root in which the driver is found."""
    _, files = look(make, tmp_path)
    found = nvml.find_library(str(tmp_path))
    assert found is not None
    assert found.removeprefix(str(tmp_path)) in {library.path for library in files.libraries}


def test_table_has_no_folder_twice() -> None:
    for table in (LIBRARY_DIRS, BINARY_DIRS):
        assert len(set(table)) == len(table)
        assert all(folder.startswith("/") for folder in table)
