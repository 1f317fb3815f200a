"""CDI edits of a driver's files: where things go in a container, once each, free of hooks; and the form with hooks."""

from __future__ import annotations

import posixpath

import pytest

from kgpu.formats.cdi import CdiDevice, build_spec
from kgpu.host.driver.edits import driver_edits, host_edits, library_folders, link_pairs
from kgpu.host.driver.find import find_driver_files
from kgpu.host.driver.model import DriverFiles, Library, Search
from kgpu.host.root import DriverRoot
from tests.host.driver import roots
from tests.host.tree import driver, elf, library, link, simulated, touch, write

PLACE = "/usr/lib/x86_64-linux-gnu"
V = "550.54.15"


@pytest.mark.parametrize(
    ("machine", "folders"),
    [
        ("x86_64", ["/usr/lib/x86_64-linux-gnu", "/usr/lib64", "/usr/lib"]),
        ("aarch64", ["/usr/lib/aarch64-linux-gnu", "/usr/lib64", "/usr/lib"]),
    ],
)
def test_libraries_go_where_the_loader_looks_without_a_cache(tmp_path, machine: str, folders: list[str]) -> None:
    root = DriverRoot.at(driver(tmp_path, "/opt/nvidia/lib64"))
    edits = driver_edits(root, find_driver_files(root), machine=machine)
    for folder in folders:
        (found,) = [mount for mount in edits.mounts if mount.container_path == f"{folder}/libcuda.so.1"]
        assert found.host_path == f"{tmp_path}/opt/nvidia/lib64/libcuda.so.{V}"
        assert found.options == ("ro", "nosuid", "nodev", "rbind", "rprivate")


def test_vdpau_libraries_keep_their_folder(tmp_path) -> None:
    driver(tmp_path)
    touch(tmp_path, f"{PLACE}/vdpau/libvdpau_nvidia.so.{V}")
    root = DriverRoot.at(tmp_path)
    targets = {mount.container_path for mount in driver_edits(root, find_driver_files(root), machine="x86_64").mounts}
    assert f"/usr/lib64/vdpau/libvdpau_nvidia.so.{V}" in targets


def test_32_bit_libraries_go_to_folders_of_their_own(tmp_path) -> None:
    driver(tmp_path)
    for stem in ("libcuda", "libnvidia-ml"):
        library(tmp_path, "/usr/lib/i386-linux-gnu", stem, V, bits=32)
    root = DriverRoot.at(tmp_path)
    edits = driver_edits(root, find_driver_files(root, search=Search(compat32=True)), machine="x86_64")
    by_place = {mount.container_path: mount.host_path for mount in edits.mounts}
    for folder in ("/usr/lib/i386-linux-gnu", "/usr/lib"):
        assert by_place[f"{folder}/libcuda.so.1"] == f"{tmp_path}/usr/lib/i386-linux-gnu/libcuda.so.{V}"
    assert by_place["/usr/lib64/libcuda.so.1"] == f"{tmp_path}{PLACE}/libcuda.so.{V}"


def test_every_place_is_used_once(tmp_path) -> None:
    """Two libraries may claim one name; the first that the search finds has it."""
    driver(tmp_path)
    files = DriverFiles(
        version=V,
        libraries=(
            Library("/a/libcuda.so.1", ("libcuda.so.1",)),
            Library("/b/libcuda.so.1", ("libcuda.so.1",)),
        ),
    )
    edits = driver_edits(DriverRoot.at(tmp_path, driver_host="/"), files, machine="x86_64")
    places = [mount.container_path for mount in edits.mounts]
    assert len(places) == len(set(places)) == 3
    assert {mount.host_path for mount in edits.mounts} == {"/a/libcuda.so.1"}


def test_mesa_finds_the_driver_by_its_gbm_name(tmp_path) -> None:
    driver(tmp_path)
    library(tmp_path, PLACE, "libnvidia-allocator", V)
    root = DriverRoot.at(tmp_path)
    files = find_driver_files(root)
    places = {mount.container_path: mount for mount in driver_edits(root, files, machine="x86_64").mounts}
    gbm = places[f"{PLACE}/gbm/nvidia-drm_gbm.so"]
    assert gbm.host_path == f"{tmp_path}{PLACE}/libnvidia-allocator.so.{V}"
    assert f"../libnvidia-allocator.so.{V}::{PLACE}/gbm/nvidia-drm_gbm.so" in link_pairs(files)


def test_shim_is_told_to_stay_out_and_there_are_no_hooks(tmp_path) -> None:
    root = DriverRoot.at(driver(tmp_path))
    edits = driver_edits(root, find_driver_files(root))
    assert "NVIDIA_VISIBLE_DEVICES=void" in edits.env
    assert edits.hooks == ()


@pytest.mark.parametrize("machine", ["x86_64", "aarch64"])
def test_programs_that_ask_the_loaders_cache_are_told_where_libcuda_is(tmp_path, machine: str) -> None:
    """No hook writes that cache; with hooks there is nothing to tell."""
    root = DriverRoot.at(driver(tmp_path))
    files = find_driver_files(root)
    edits = driver_edits(root, files, machine=machine)
    (folder,) = [one.partition("=")[2] for one in edits.env if one.startswith("TRITON_LIBCUDA_PATH=")]
    mounted = {mount.container_path for mount in edits.mounts}
    assert {f"{folder}/libcuda.so.1", f"{folder}/libcuda.so"} <= mounted
    assert host_edits(root, files).env == ("NVIDIA_VISIBLE_DEVICES=void",)


def test_simulated_root_brings_its_state_writable(tmp_path) -> None:
    simulated(driver(tmp_path))
    root = DriverRoot.at(tmp_path)
    for edits in (driver_edits(root, find_driver_files(root)), host_edits(root, find_driver_files(root))):
        (state,) = [mount for mount in edits.mounts if mount.container_path == "/run/kgpu/hw/state"]
        assert state.host_path == f"{tmp_path}/state"
        assert "rw" in state.options
        assert "ro" not in state.options
        assert "KGPU_HW_STATE=/run/kgpu/hw/state" in edits.env


def test_an_absolute_link_of_a_program_or_socket_stays_in_the_root(tmp_path) -> None:
    driver(tmp_path)
    (tmp_path / "usr/bin/nvidia-smi").unlink()
    write(tmp_path, "/opt/nvidia/smi", elf())
    link(tmp_path, "/usr/bin/nvidia-smi", "/opt/nvidia/smi")
    touch(tmp_path, "/var/run/nvidia-persistenced/socket")
    link(tmp_path, "/run", "/var/run")
    root = DriverRoot.at(tmp_path, driver_host="/run/nvidia/driver")
    by_place = {mount.container_path: mount.host_path for mount in driver_edits(root, find_driver_files(root)).mounts}
    assert by_place["/usr/bin/nvidia-smi"] == "/run/nvidia/driver/opt/nvidia/smi"
    assert by_place["/run/nvidia-persistenced/socket"] == "/run/nvidia/driver/var/run/nvidia-persistenced/socket"


def test_prepared_params_only_when_given(tmp_path) -> None:
    """runc refuses to start a container with a mount in /proc, so there is none unless the caller knows better."""
    root = DriverRoot.at(driver(tmp_path))
    files = find_driver_files(root)
    assert not any(mount.container_path.startswith("/proc") for mount in driver_edits(root, files).mounts)
    (params,) = [
        mount
        for mount in driver_edits(root, files, params_file="/run/kgpu/params").mounts
        if mount.container_path == "/proc/driver/nvidia/params"
    ]
    assert params.host_path == "/run/kgpu/params"
    assert "ro" in params.options


def test_a_spec_can_be_made_of_them(tmp_path) -> None:
    roots.nixos(tmp_path)
    roots.nodes(tmp_path)
    root = DriverRoot.at(tmp_path)
    common = driver_edits(root, find_driver_files(root))
    device = CdiDevice(names=("0",), nodes=(root.device_node("/dev/nvidia0"),))
    assert build_spec(kind="nvidia.com/gpu", devices=[device], common=common).container_edits.mounts


def test_with_hooks_each_file_is_mounted_once_where_the_host_has_it(tmp_path) -> None:
    roots.ubuntu(tmp_path)
    roots.nodes(tmp_path)
    root = DriverRoot.at(tmp_path, driver_host="/run/nvidia/driver")
    files = find_driver_files(root)
    edits = host_edits(root, files)
    for mount in edits.mounts:
        real = (tmp_path / mount.container_path.lstrip("/")).resolve()
        assert mount.host_path == f"/run/nvidia/driver/{real.relative_to(tmp_path)}"
    assert len({mount.host_path for mount in edits.mounts}) == len(edits.mounts)
    assert f"{PLACE}/libcuda.so.{roots.VERSION}" in {mount.container_path for mount in edits.mounts}


def test_links_for_hooks_make_every_other_name(tmp_path) -> None:
    roots.ubuntu(tmp_path)
    roots.nodes(tmp_path)
    files = find_driver_files(DriverRoot.at(tmp_path))
    links = dict(reversed(pair.split("::")) for pair in link_pairs(files))
    assert links[f"{PLACE}/libcuda.so"] == "libcuda.so.1"
    assert links[f"{PLACE}/libcuda.so.1"] == f"libcuda.so.{roots.VERSION}"
    made = {library.path for library in files.libraries} | set(links)
    for one in files.libraries:
        assert {f"{posixpath.dirname(one.path)}/{name}" for name in one.names} <= made
    assert library_folders(files) == (PLACE, f"{PLACE}/vdpau")
