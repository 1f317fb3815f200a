"""Choosing the reader: by what is there, with every place named when nothing is."""

from __future__ import annotations

import pytest

from kgpu.base.errors import ConfigError
from kgpu.hw.nvidia import vendor as nvidia
from kgpu.hw.nvidia.client import NvidiaReader
from kgpu.hw.open import NoHardwareError, open_reader


@pytest.fixture(autouse=True)
def no_host_driver(monkeypatch, tmp_path) -> None:
    monkeypatch.delenv("LD_LIBRARY_PATH", raising=False)
    monkeypatch.setattr(nvidia, "LOADER_CACHE", str(tmp_path / "ld.so.cache"))


def library(folder) -> None:
    folder.mkdir(parents=True)
    (folder / "libnvidia-ml.so.1").touch()


@pytest.mark.parametrize("vendor", ["auto", "nvidia"])
async def test_library_under_the_root_opens_nvml(tmp_path, vendor: str) -> None:
    library(tmp_path / "root/usr/lib64")
    assert isinstance(open_reader(driver_root=tmp_path / "root", vendor=vendor), NvidiaReader)


async def test_library_on_the_loader_path_counts(tmp_path, monkeypatch) -> None:
    library(tmp_path / "libs")
    monkeypatch.setenv("LD_LIBRARY_PATH", f"/nowhere:{tmp_path}/libs")
    assert isinstance(open_reader(driver_root=tmp_path / "root"), NvidiaReader)


async def test_library_in_the_loaders_cache_counts(tmp_path) -> None:
    (tmp_path / "ld.so.cache").write_bytes(b"glibc-ld.so.cache1.1 libnvidia-ml.so.1\0/opt/libnvidia-ml.so.1\0")
    assert isinstance(open_reader(driver_root=tmp_path / "root"), NvidiaReader)


def test_nothing_there_is_a_waiting_state_that_names_the_places(tmp_path) -> None:
    with pytest.raises(NoHardwareError) as caught:
        open_reader(driver_root=tmp_path)
    assert f"{tmp_path}/usr/lib64/libnvidia-ml.so.1" in caught.value.expected
    assert "ERROR_LIBRARY_NOT_FOUND" in caught.value.what
    assert "--driver-root" in caught.value.remedy


def test_nobody_is_told_of_nvml_who_asked_for_another_vendor(tmp_path) -> None:
    with pytest.raises(NoHardwareError) as caught:
        open_reader(driver_root=tmp_path, vendor="amd")
    assert caught.value.what == "no accelerator driver was found"


def test_misspelt_vendor_gets_a_suggestion(tmp_path) -> None:
    with pytest.raises(ConfigError, match='did you mean "nvidia"'):
        open_reader(driver_root=tmp_path, vendor="nvida")
