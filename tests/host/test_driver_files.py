"""Finding a driver: places of distributions, names of libraries, versions, what is missing; and the edits made of it."""

from __future__ import annotations

import pytest
from host.tree import driver, link, touch
from hypothesis import given
from hypothesis import strategies as st

from kgpu.base.errors import HostError
from kgpu.host.driver_files import LIBRARY_DIRS, driver_edits, find_driver_files
from kgpu.host.elf import soname
from kgpu.host.root import DriverRoot


@pytest.mark.parametrize("folder", LIBRARY_DIRS)
def test_every_usual_folder_is_searched(tmp_path, folder: str) -> None:
    files = find_driver_files(DriverRoot.at(driver(tmp_path, folder)))
    assert files.version == "550.54.15"
    assert {library.path for library in files.libraries} == {
        f"{folder}/libcuda.so.550.54.15",
        f"{folder}/libnvidia-ml.so.550.54.15",
    }
    assert files.binaries == ("/usr/bin/nvidia-smi",)
    assert len(files.control_nodes) == 4


def test_library_has_every_name_that_is_asked_for(tmp_path) -> None:
    driver(tmp_path)
    touch(tmp_path, "/usr/lib/x86_64-linux-gnu/libnvidia-opticalflow.so.550.54.15")
    link(tmp_path, "/usr/lib/x86_64-linux-gnu/libnvidia-opticalflow.so.1", "libnvidia-opticalflow.so.550.54.15")
    link(tmp_path, "/usr/lib/x86_64-linux-gnu/libnvidia-opticalflow.so", "libnvidia-opticalflow.so.1")
    names = {
        library.names[0].partition(".")[0]: library.names
        for library in find_driver_files(DriverRoot.at(tmp_path)).libraries
    }
    assert names["libcuda"] == ("libcuda.so", "libcuda.so.1", "libcuda.so.550.54.15")
    assert names["libnvidia-opticalflow"] == (
        "libnvidia-opticalflow.so",
        "libnvidia-opticalflow.so.1",
        "libnvidia-opticalflow.so.550.54.15",
    )


def test_soname_is_a_name_even_without_a_link(tmp_path, sim_root) -> None:
    root = sim_root("t4", gpus=1)
    folder = root / "usr/lib/x86_64-linux-gnu"
    (folder / "libcuda.so.1").unlink()
    files = find_driver_files(DriverRoot.at(root))
    assert any("libcuda.so.1" in library.names for library in files.libraries)


def test_linked_folders_are_searched_once(tmp_path) -> None:
    driver(tmp_path, "/usr/lib64")
    link(tmp_path, "/lib64", "usr/lib64")
    assert len(find_driver_files(DriverRoot.at(tmp_path)).libraries) == 2


def test_unusual_folder_is_known_from_the_loaders_cache(tmp_path) -> None:
    driver(tmp_path, "/srv/driver/lib")
    with pytest.raises(HostError):
        find_driver_files(DriverRoot.at(tmp_path))
    touch(tmp_path, "/etc/ld.so.cache")
    (tmp_path / "etc/ld.so.cache").write_bytes(b"glibc\0libcuda.so.1\0/srv/driver/lib/libcuda.so.1\0\xff/x/libc.so.6\0")
    assert len(find_driver_files(DriverRoot.at(tmp_path)).libraries) == 2


def test_other_versions_and_other_libraries_stay_out(tmp_path) -> None:
    driver(tmp_path)
    touch(tmp_path, "/usr/lib/x86_64-linux-gnu/libcuda.so.535.1.2", "/usr/lib/x86_64-linux-gnu/libc.so.6")
    touch(tmp_path, "/usr/lib/x86_64-linux-gnu/libnvidia-nvvm70.so.4")
    touch(tmp_path, "/usr/lib/x86_64-linux-gnu/vdpau/libvdpau_nvidia.so.550.54.15")
    files = find_driver_files(DriverRoot.at(tmp_path), version="550.54.15")
    assert sorted(name for library in files.libraries for name in library.names if "cuda" not in name) == [
        "libnvidia-ml.so",
        "libnvidia-ml.so.1",
        "libnvidia-ml.so.550.54.15",
        "libnvidia-nvvm70.so.4",
        "libvdpau_nvidia.so.550.54.15",
    ]
    targets = {mount.container_path for mount in driver_edits(DriverRoot.at(tmp_path), files, machine="x86_64").mounts}
    assert "/usr/lib64/vdpau/libvdpau_nvidia.so.550.54.15" in targets


def test_version_that_is_not_on_disk_is_an_error(tmp_path) -> None:
    with pytest.raises(HostError, match=r"570\.1\.2.*550\.54\.15"):
        find_driver_files(DriverRoot.at(driver(tmp_path)), version="570.1.2")


def test_no_driver_names_the_places(tmp_path) -> None:
    with pytest.raises(HostError) as caught:
        find_driver_files(DriverRoot.at(tmp_path))
    assert "/usr/lib64" in caught.value.expected
    assert "--driver-root" in caught.value.todo


def test_missing_control_node_is_an_error_and_missing_uvm_a_note(tmp_path) -> None:
    driver(tmp_path)
    (tmp_path / "dev/nvidia-uvm").unlink()
    assert any("nvidia-uvm" in note for note in find_driver_files(DriverRoot.at(tmp_path)).notes)
    (tmp_path / "dev/nvidiactl").unlink()
    with pytest.raises(HostError, match="nvidiactl"):
        find_driver_files(DriverRoot.at(tmp_path, dev=tmp_path))


def test_plain_files_for_nodes_are_noted_not_refused(tmp_path) -> None:
    files = find_driver_files(DriverRoot.at(driver(tmp_path)))
    assert any("plain files" in note for note in files.notes)


def test_firmware_and_sockets(tmp_path) -> None:
    driver(tmp_path)
    touch(tmp_path, "/lib/firmware/nvidia/550.54.15/gsp_ga10x.bin", "/lib/firmware/nvidia/550.54.15/readme")
    touch(tmp_path, "/run/nvidia-persistenced/socket")
    root = DriverRoot.at(tmp_path, driver_host="/run/nvidia/driver")
    files = find_driver_files(root)
    assert files.firmware == ("/lib/firmware/nvidia/550.54.15/gsp_ga10x.bin",)
    mounts = {mount.container_path: mount for mount in driver_edits(root, files).mounts}
    socket = mounts["/run/nvidia-persistenced/socket"]
    assert "ro" not in socket.options
    assert "noexec" in socket.options
    assert mounts[files.firmware[0]].host_path == f"/run/nvidia/driver{files.firmware[0]}"


@pytest.mark.parametrize(
    ("machine", "folders"),
    [
        ("x86_64", ["/usr/lib/x86_64-linux-gnu", "/usr/lib64"]),
        ("aarch64", ["/usr/lib/aarch64-linux-gnu", "/usr/lib64"]),
    ],
)
def test_libraries_go_where_the_loader_looks_without_a_cache(tmp_path, machine: str, folders: list[str]) -> None:
    root = DriverRoot.at(driver(tmp_path, "/opt/nvidia/lib64"))
    edits = driver_edits(root, find_driver_files(root), machine=machine)
    for folder in folders:
        (found,) = [mount for mount in edits.mounts if mount.container_path == f"{folder}/libcuda.so.1"]
        assert found.host_path == f"{tmp_path}/opt/nvidia/lib64/libcuda.so.550.54.15"
        assert found.options == ("ro", "nosuid", "nodev", "rbind", "rprivate")


def test_shim_is_told_to_stay_out_and_there_are_no_hooks(tmp_path) -> None:
    root = DriverRoot.at(driver(tmp_path))
    edits = driver_edits(root, find_driver_files(root))
    assert edits.env == ("NVIDIA_VISIBLE_DEVICES=void",)
    assert edits.hooks == ()


def test_simulated_root_brings_its_state_writable(tmp_path) -> None:
    touch(driver(tmp_path), "/state")
    root = DriverRoot.at(tmp_path)
    edits = driver_edits(root, find_driver_files(root))
    (state,) = [mount for mount in edits.mounts if mount.container_path == "/run/kgpu/hw/state"]
    assert state.host_path == f"{tmp_path}/state"
    assert "rw" in state.options
    assert "ro" not in state.options
    assert "KGPU_HW_STATE=/run/kgpu/hw/state" in edits.env


@given(st.binary(max_size=400))
def test_soname_of_any_bytes_is_text(tmp_path_factory, data: bytes) -> None:
    path = tmp_path_factory.mktemp("elf") / "x"
    path.write_bytes(data)
    assert soname(path) == ""
    path.write_bytes(b"\x7fELF\x02\x01" + data)
    assert isinstance(soname(path), str)


def test_soname_of_a_cut_library_is_text_or_the_name(sim_libs, tmp_path) -> None:
    whole = (sim_libs / "libnvidia-ml.so.1").read_bytes()
    assert soname(sim_libs / "libnvidia-ml.so.1") == "libnvidia-ml.so.1"
    for size in range(0, 4096, 61):
        (tmp_path / "cut").write_bytes(whole[:size])
        assert soname(tmp_path / "cut") in {"", "libnvidia-ml.so.1"}
