"""WSL: which driver store, and its files in a container without hooks."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from kgpu.base.errors import HostError
from kgpu.host.driver.wsl import find_wsl_store, is_wsl, wsl_edits
from kgpu.host.root import DriverRoot
from tests.host.tree import elf, link, touch, write

LIB = "/usr/lib/wsl/lib"
STORE = "/usr/lib/wsl/drivers/nv_dispi.inf_amd64_3f1a"
OLDER = "/usr/lib/wsl/drivers/nv_dispi.inf_amd64_0b7c"


def wsl(root: Path) -> DriverRoot:
    touch(root, "/dev/dxg")
    write(root, f"{LIB}/libdxcore.so", elf())
    for store in (OLDER, STORE):
        write(root, f"{store}/libcuda.so.1.1", elf(soname="libcuda.so.1"))
        write(root, f"{store}/libcuda_loader.so", elf(soname="libcuda.so.1"))
        write(root, f"{store}/libnvidia-ml.so.1", elf(soname="libnvidia-ml.so.1"))
        touch(root, f"{store}/nvcubins.bin", f"{store}/nvidia-smi", f"{store}/nvlddmkm.sys", f"{store}/x.dll")
    os.utime(root / f"{OLDER}/libcuda.so.1.1".lstrip("/"), (1, 1))
    return DriverRoot.at(root, dev=root, driver_host="/")


def places(root: DriverRoot) -> dict[str, str]:
    edits = wsl_edits(root, find_wsl_store(root), machine="x86_64")
    assert edits.env == ("NVIDIA_VISIBLE_DEVICES=void",)
    assert edits.hooks == ()
    return {mount.container_path: mount.host_path for mount in edits.mounts}


def test_recognised_by_device_and_library(tmp_path) -> None:
    root = wsl(tmp_path)
    assert is_wsl(root)
    (tmp_path / "dev/dxg").unlink()
    assert not is_wsl(root)


def test_the_newest_store_keeps_its_place(tmp_path) -> None:
    found = places(wsl(tmp_path))
    for name in ("libcuda.so.1.1", "libcuda_loader.so", "libnvidia-ml.so.1", "nvcubins.bin", "nvidia-smi", "x.dll"):
        assert found[f"{STORE}/{name}"] == f"{STORE}/{name}"
    assert f"{STORE}/nvlddmkm.sys" not in found
    assert not any(path.startswith(OLDER) for path in found)
    assert found["/usr/bin/nvidia-smi"] == f"{STORE}/nvidia-smi"


def test_loader_finds_libraries_without_a_cache(tmp_path) -> None:
    found = places(wsl(tmp_path))
    for folder in ("/usr/lib/x86_64-linux-gnu", "/usr/lib64"):
        assert found[f"{folder}/libdxcore.so"] == f"{LIB}/libdxcore.so"
        assert found[f"{folder}/libcuda.so.1"].startswith(STORE)
        assert found[f"{folder}/libnvidia-ml.so.1"] == f"{STORE}/libnvidia-ml.so.1"


def test_names_are_those_that_wsl_itself_uses(tmp_path) -> None:
    """/usr/lib/wsl/lib says which file goes by libcuda.so.1, and which store is in use."""
    root = wsl(tmp_path)
    link(tmp_path, f"{LIB}/libcuda.so.1", f"{OLDER}/libcuda_loader.so")
    touch(tmp_path, f"{LIB}/libd3d12.so")
    found = places(root)
    assert found["/usr/lib64/libcuda.so.1"] == f"{OLDER}/libcuda_loader.so"
    assert f"{OLDER}/libcuda.so.1.1" in found
    assert not any(path.startswith(STORE) for path in found)
    assert "/usr/lib64/libd3d12.so" not in found


@pytest.mark.parametrize(
    ("missing", "remedy"),
    [
        ((f"{LIB}/libdxcore.so",), "wsl --update"),
        ((f"{STORE}/libcuda.so.1.1", f"{OLDER}/libcuda.so.1.1"), "in Windows"),
    ],
)
def test_what_is_missing_is_an_error_with_a_way_out(tmp_path, missing: tuple[str, ...], remedy: str) -> None:
    root = wsl(tmp_path)
    for path in missing:
        (tmp_path / path.lstrip("/")).unlink()
    with pytest.raises(HostError) as caught:
        find_wsl_store(root)
    assert remedy in caught.value.remedy
