"""Tegra nodes are recognised by their files and by the GPU's name."""

from __future__ import annotations

import pytest

from kgpu.host.driver.tegra import is_integrated_gpu, is_orin, is_tegra
from kgpu.host.root import DriverRoot
from tests.host.tree import touch, write


@pytest.mark.parametrize(
    ("path", "text", "expected"),
    [
        ("/etc/nv_tegra_release", "# R36", True),
        ("/sys/devices/soc0/family", "Tegra\n", True),
        ("/sys/devices/soc0/family", "tegra234", True),
        ("/sys/devices/soc0/family", "jep106:0070", False),
        ("/etc/other", "tegra", False),
    ],
)
def test_tegra(tmp_path, path: str, text: str, expected: bool) -> None:
    write(tmp_path, path, text)
    assert is_tegra(DriverRoot.at(tmp_path), sys=tmp_path / "sys") is expected


def test_a_release_file_outside_the_root_does_not_count(tmp_path) -> None:
    touch(tmp_path, "/etc/nv_tegra_release")
    (tmp_path / "root/etc").mkdir(parents=True)
    (tmp_path / "root/etc/nv_tegra_release").symlink_to(tmp_path / "etc/nv_tegra_release")
    assert not is_tegra(DriverRoot.at(tmp_path / "root"), sys=tmp_path / "sys")


@pytest.mark.parametrize(("model", "expected"), [("NVIDIA Jetson AGX Orin\0", True), ("NVIDIA Jetson Xavier", False)])
def test_orin(tmp_path, model: str, expected: bool) -> None:
    write(tmp_path, "/sys/firmware/devicetree/base/model", model)
    assert is_orin(DriverRoot.at(tmp_path), sys=tmp_path / "sys") is expected


@pytest.mark.parametrize(
    ("name", "expected"), [("Orin (nvgpu)", True), ("NVIDIA Thor", True), ("NVIDIA H100 80GB HBM3", False), ("", False)]
)
def test_integrated_gpu(name: str, expected: bool) -> None:
    assert is_integrated_gpu(name) is expected
