"""Mode auto: which mode a node gets and why, and that the hardware is asked only where files don't decide."""

from __future__ import annotations

import pytest

from kgpu.base.errors import HwError
from kgpu.hw.fake_reader import sample_inventory
from tests.host.tree import driver, simulated, touch, write
from tests.toolkit.generation import Never, make


def no_nvml():
    raise HwError("no accelerator driver was found", "NVML", "install it")


def test_usual_node_is_nvml(tmp_path) -> None:
    generated = make(driver(tmp_path), mode="auto")
    assert (generated.mode, generated.why) == ("nvml", "NVML answers")


def test_dxg_decides_without_asking(tmp_path) -> None:
    touch(tmp_path, "/dev/dxg", "/usr/lib/wsl/lib/libdxcore.so", "/usr/lib/wsl/drivers/nv/libcuda.so.1.1")
    generated = make(tmp_path, mode="auto", read=Never())
    assert generated.mode == "wsl"
    assert "/dev/dxg" in generated.why


@pytest.mark.parametrize(("path", "text"), [("/etc/nv_tegra_release", ""), ("/sys/devices/soc0/family", "Tegra\n")])
def test_tegra_without_nvml_is_csv(tmp_path, path: str, text: str) -> None:
    touch(simulated(tmp_path), "/dev/nvmap")  # /sys of this tree is looked at
    write(tmp_path, path, text)
    write(tmp_path, "/etc/nvidia-container-runtime/host-files-for-container.d/devices.csv", "dev,/dev/nvmap")
    assert make(tmp_path, mode="auto", read=no_nvml).mode == "csv"


@pytest.mark.parametrize("name", ["Orin (nvgpu)", "NVIDIA Thor"])
def test_integrated_gpu_is_csv_although_nvml_answers(tmp_path, name: str) -> None:
    touch(tmp_path, "/dev/nvmap")
    write(tmp_path, "/etc/nvidia-container-runtime/host-files-for-container.d/devices.csv", "dev,/dev/nvmap")
    generated = make(tmp_path, mode="auto", inventory=sample_inventory(1, name=name))
    assert generated.mode == "csv"
    assert name in generated.why


def test_nothing_at_all_is_the_hardwares_own_error(tmp_path) -> None:
    with pytest.raises(HwError, match="no accelerator driver was found"):
        make(tmp_path, mode="auto", read=no_nvml)
