"""Finding a driver: where, which version, under which names; what is missing; what hostile roots do."""

from __future__ import annotations

import os
import posixpath

import pytest

from kgpu.base.errors import ConfigError, HostError
from kgpu.host.driver.find import find_driver_files, module_version
from kgpu.host.driver.layouts import LIBRARY_DIRS
from kgpu.host.driver.model import DriverFiles, Search
from kgpu.host.root import DriverRoot
from tests.host.tree import driver, elf, library, link, touch, write

PLACE = "/usr/lib/x86_64-linux-gnu"
V = "550.54.15"


def names(files: DriverFiles) -> dict[str, tuple[str, ...]]:
    return {one.path.rpartition("/")[2].partition(".so")[0]: one.names for one in files.libraries}


@pytest.mark.parametrize("folder", LIBRARY_DIRS)
def test_every_usual_folder_is_searched(tmp_path, folder: str) -> None:
    files = find_driver_files(DriverRoot.at(driver(tmp_path, folder)))
    assert files.version == V
    assert {one.path for one in files.libraries} == {
        posixpath.join(folder, f"libcuda.so.{V}"),
        posixpath.join(folder, f"libnvidia-ml.so.{V}"),
    }
    assert files.binaries == ("/usr/bin/nvidia-smi",)
    assert len(files.control_nodes) == 4


def test_library_has_every_name_that_is_asked_for(tmp_path) -> None:
    driver(tmp_path)
    touch(tmp_path, f"{PLACE}/libnvidia-opticalflow.so.{V}", f"{PLACE}/libGLX_nvidia.so.{V}")
    link(tmp_path, f"{PLACE}/libGLX_nvidia.so.0", f"libGLX_nvidia.so.{V}")
    found = names(find_driver_files(DriverRoot.at(tmp_path)))
    assert found["libcuda"] == ("libcuda.so", "libcuda.so.1", f"libcuda.so.{V}")
    assert found["libnvidia-opticalflow"] == (
        "libnvidia-opticalflow.so",
        "libnvidia-opticalflow.so.1",
        f"libnvidia-opticalflow.so.{V}",
    )
    assert found["libGLX_nvidia"] == ("libGLX_indirect.so.0", "libGLX_nvidia.so.0", f"libGLX_nvidia.so.{V}")


def test_soname_is_a_name_even_without_a_link(sim_root) -> None:
    root = sim_root("t4", gpus=1)
    (root / PLACE.lstrip("/") / "libcuda.so.1").unlink()
    files = find_driver_files(DriverRoot.at(root))
    assert any("libcuda.so.1" in one.names for one in files.libraries)


def test_a_link_in_another_folder_is_a_name(tmp_path) -> None:
    library(tmp_path, f"{PLACE}/nvidia/current", "libcuda", V)
    driver(tmp_path, f"{PLACE}/other")
    write(tmp_path, f"{PLACE}/nvidia/current/libnvidia-ml.so.{V}", elf())
    link(tmp_path, f"{PLACE}/libnvidia-ml.so.9", f"{PLACE}/nvidia/current/libnvidia-ml.so.{V}")
    assert "libnvidia-ml.so.9" in names(find_driver_files(DriverRoot.at(tmp_path)))["libnvidia-ml"]


def test_linked_folders_are_searched_once(tmp_path) -> None:
    driver(tmp_path, "/usr/lib64")
    link(tmp_path, "/lib64", "usr/lib64")
    assert len(find_driver_files(DriverRoot.at(tmp_path)).libraries) == 2


def test_other_versions_and_other_libraries_stay_out(tmp_path) -> None:
    driver(tmp_path)
    touch(tmp_path, f"{PLACE}/libcuda.so.535.1.2", f"{PLACE}/libc.so.6", f"{PLACE}/libz.so.1.{V}")
    touch(tmp_path, f"{PLACE}/libnvidia-nvvm70.so.4", f"{PLACE}/libnvidia-egl-gbm.so.1.1.2", f"{PLACE}/libEGL.so.1.1.0")
    touch(tmp_path, f"{PLACE}/vdpau/libvdpau_nvidia.so.{V}")
    found = names(find_driver_files(DriverRoot.at(tmp_path), version=V))
    assert sorted(found) == [
        "libcuda",
        "libnvidia-egl-gbm",
        "libnvidia-ml",
        "libnvidia-nvvm70",
        "libvdpau_nvidia",
    ]


def test_neutral_libraries_only_when_asked(tmp_path) -> None:
    driver(tmp_path)
    touch(tmp_path, f"{PLACE}/libEGL.so.1.1.0", f"{PLACE}/libEGL_mesa.so.0.0.0", f"{PLACE}/libOpenCL.so.1.0.0")
    link(tmp_path, f"{PLACE}/libEGL.so.1", "libEGL.so.1.1.0")
    found = names(find_driver_files(DriverRoot.at(tmp_path), search=Search(explicit_libraries=True)))
    assert found["libEGL"] == ("libEGL.so.1", "libEGL.so.1.1.0")
    assert "libOpenCL" in found
    assert "libEGL_mesa" not in found


def test_32_bit_libraries_are_no_driver(tmp_path) -> None:
    driver(tmp_path, "/nowhere")
    for stem in ("libcuda", "libnvidia-ml"):
        library(tmp_path, "/usr/lib", stem, V, bits=32)
    with pytest.raises(HostError, match="no NVIDIA driver libraries"):
        find_driver_files(DriverRoot.at(tmp_path))
    driver(tmp_path, "/usr/lib64")
    files = find_driver_files(DriverRoot.at(tmp_path))
    assert {one.bits for one in files.libraries} == {64}
    both = find_driver_files(DriverRoot.at(tmp_path), search=Search(compat32=True))
    assert {(one.path, one.bits) for one in both.libraries if one.bits == 32} == {
        (f"/usr/lib/libcuda.so.{V}", 32),
        (f"/usr/lib/libnvidia-ml.so.{V}", 32),
    }


def test_a_32_bit_library_among_the_others_is_refused(tmp_path) -> None:
    driver(tmp_path)
    library(tmp_path, PLACE, "libnvidia-encode", V, bits=32)
    files = find_driver_files(DriverRoot.at(tmp_path))
    assert "libnvidia-encode" not in names(files)
    assert any("32-bit" in item.why for item in files.report.missing())


def test_explicit_folders_replace_the_table(tmp_path) -> None:
    driver(tmp_path)
    driver(tmp_path, "/srv/other", version="535.1.2")
    files = find_driver_files(DriverRoot.at(tmp_path), search=Search(library_dirs=("/srv/other",)))
    assert files.version == "535.1.2"
    with pytest.raises(HostError, match="/srv/none"):
        find_driver_files(DriverRoot.at(tmp_path), search=Search(library_dirs=("/srv/none",)))
    with pytest.raises(ConfigError, match="--library-search-path"):
        Search(library_dirs=("srv",))


def test_version_that_is_not_on_disk_is_an_error(tmp_path) -> None:
    with pytest.raises(HostError, match=r"570\.1\.2.*550\.54\.15"):
        find_driver_files(DriverRoot.at(driver(tmp_path)), version="570.1.2")


def test_the_newest_whole_driver_is_taken_when_no_version_is_told(tmp_path) -> None:
    driver(tmp_path, version="99.1")
    driver(tmp_path / "x", version="535.1.2")
    driver(tmp_path, "/usr/lib64", version="535.1.2")
    touch(tmp_path, f"{PLACE}/libcuda.so.999.1.1")
    assert find_driver_files(DriverRoot.at(tmp_path)).version == "535.1.2"


MODULE = "NVRM version: NVIDIA UNIX x86_64 Kernel Module  {}  Wed Feb 14 03:35:19 UTC 2024\nGCC version: 12.2.0\n"
OPEN_MODULE = (
    "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  {}  Release Build  (root@x)  Wed\nGCC version: 12\n"
)


@pytest.mark.parametrize("text", [MODULE, OPEN_MODULE])
def test_the_loaded_modules_version_decides_between_two_drivers(tmp_path, text: str) -> None:
    driver(tmp_path, version="535.1.2")
    driver(tmp_path / "x")
    driver(tmp_path, "/usr/lib64")
    search = Search(proc=tmp_path / "proc")
    assert find_driver_files(DriverRoot.at(tmp_path), search=search).version == V
    write(tmp_path, "/proc/driver/nvidia/version", text.format("535.1.2"))
    assert find_driver_files(DriverRoot.at(tmp_path), search=search).version == "535.1.2"
    assert find_driver_files(DriverRoot.at(tmp_path), version=V, search=search).version == V


def test_module_and_libraries_of_two_versions_are_an_essential_lack(tmp_path) -> None:
    write(driver(tmp_path), "/proc/driver/nvidia/version", MODULE.format("570.1.2"))
    files = find_driver_files(DriverRoot.at(tmp_path), search=Search(proc=tmp_path / "proc"))
    (lack,) = files.report.missing(essential=True)
    assert "570.1.2" in lack.note()
    assert V in lack.note()


@pytest.mark.parametrize("text", ["", "no version", "Kernel Module  x.y", "\0" * 99])
def test_a_version_file_that_says_nothing(tmp_path, text: str) -> None:
    write(driver(tmp_path), "/proc/driver/nvidia/version", text)
    assert module_version(DriverRoot.at(tmp_path), Search(proc=tmp_path / "proc")) == ""


def test_a_link_leads_to_a_folder_that_no_table_knows(tmp_path) -> None:
    driver(tmp_path, f"{PLACE}/nvidia/tesla-535")
    link(tmp_path, f"{PLACE}/libcuda.so.1", f"{PLACE}/nvidia/tesla-535/libcuda.so.1")
    assert len(find_driver_files(DriverRoot.at(tmp_path)).libraries) == 2


def test_no_driver_names_the_places(tmp_path) -> None:
    with pytest.raises(HostError) as caught:
        find_driver_files(DriverRoot.at(tmp_path))
    assert "/usr/lib64" in caught.value.expected
    assert "--driver-root" in caught.value.remedy


def test_missing_control_node_is_an_error_and_missing_uvm_an_essential_lack(tmp_path) -> None:
    driver(tmp_path)
    (tmp_path / "dev/nvidia-uvm").unlink()
    files = find_driver_files(DriverRoot.at(tmp_path))
    assert any("nvidia-uvm" in note for note in files.notes)
    assert [item.name for item in files.report.missing(essential=True)] == ["/dev/nvidia-uvm"]
    (tmp_path / "dev/nvidiactl").unlink()
    with pytest.raises(HostError, match="nvidiactl"):
        find_driver_files(DriverRoot.at(tmp_path, dev=tmp_path))


def test_half_a_driver_is_an_essential_lack(tmp_path) -> None:
    driver(tmp_path)
    (tmp_path / PLACE.lstrip("/") / f"libcuda.so.{V}").unlink()
    (lack,) = [
        item
        for item in find_driver_files(DriverRoot.at(tmp_path)).report.missing(essential=True)
        if item.kind == "library" and item.name == "libcuda"
    ]
    assert "CUDA will not start" in lack.note()


def test_an_empty_library_is_told(tmp_path) -> None:
    """A container's end leaves empty files where libraries were mounted; committed images carry them."""
    driver(tmp_path)
    assert "empty" not in " ".join(find_driver_files(DriverRoot.at(tmp_path)).notes)
    write(tmp_path, f"{PLACE}/libcuda.so.{V}", b"")
    files = find_driver_files(DriverRoot.at(tmp_path))
    assert "empty" in " ".join(files.notes)
    assert [item.name for item in files.report.missing(essential=True)] == [f"libcuda.so.{V}"]


def test_plain_files_for_nodes_are_noted_not_refused(tmp_path) -> None:
    files = find_driver_files(DriverRoot.at(driver(tmp_path)))
    assert any("plain files" in note for note in files.notes)


def test_simulated_driver_misses_nothing_that_anybody_must_know(sim_root) -> None:
    files = find_driver_files(DriverRoot.at(sim_root("t4", gpus=1)))
    assert [note for note in files.notes if "plain files" not in note] == []


def test_pipes_folders_and_circles_in_place_of_files_neither_block_nor_count(tmp_path) -> None:
    driver(tmp_path)
    for at, name in enumerate(("libnvidia-encode", "libnvcuvid", "libnvoptix", "libnvidia-cfg")):
        path = tmp_path / PLACE.lstrip("/") / f"{name}.so.{V}"
        (os.mkfifo, os.mkdir, lambda p: os.symlink(p, p), lambda p: os.symlink("/../../../../etc/passwd", p))[at](path)
    os.mkfifo(tmp_path / "usr/bin/nvidia-debugdump")
    (tmp_path / "etc").mkdir(exist_ok=True)
    os.mkfifo(tmp_path / "etc/ld.so.cache")
    assert sorted(names(find_driver_files(DriverRoot.at(tmp_path)))) == ["libcuda", "libnvidia-ml"]


def test_a_path_that_no_spec_can_hold_is_left_out(tmp_path) -> None:
    driver(tmp_path)
    write(tmp_path, f"/opt/a\nb/libnvidia-encode.so.{V}", elf())
    link(tmp_path, f"{PLACE}/libnvidia-encode.so.{V}", f"/opt/a\nb/libnvidia-encode.so.{V}")
    os.symlink(b"/opt/\xff", os.fsencode(tmp_path / PLACE.lstrip("/") / f"libnvcuvid.so.{V}"))
    (tmp_path / "opt").joinpath(os.fsdecode(b"\xff")).touch()
    files = find_driver_files(DriverRoot.at(tmp_path))
    assert sorted(names(files)) == ["libcuda", "libnvidia-ml"]
    assert sum("no spec can hold" in item.why for item in files.report.missing()) == 2
