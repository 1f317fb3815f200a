"""Readings of AMD GPUs from ``gpu_metrics`` and RAS files: what is named how, and what the driver's versions differ in."""

from __future__ import annotations

from pathlib import Path

import pytest

from kgpu.formats.amd_gpu_metrics import decode, encode, table
from kgpu.hw import sysfs
from kgpu.hw.amd.telemetry import of_metrics, read


def test_clocks_are_numbered_through_with_places_for_those_that_are_absent() -> None:
    values = {"current_gfxclk": (2100, 2000), "current_uclk": 1300, "current_vclk0": (29,), "current_dclk0": (22, 23)}
    found = {key: value for key, value in of_metrics(decode(encode((1, 6), values))).items() if "clock_" in key}
    assert found.keys() - {"sm_clock_mhz", "memory_clock_mhz", "video_clock_mhz"} == {
        "clock_system_0_mhz", "clock_system_1_mhz", "clock_memory_8_mhz", "clock_video_9_mhz", "clock_data_13_mhz",
        "clock_data_14_mhz",
    }  # fmt: skip
    assert found["clock_data_14_mhz"] == 23


def test_partitions_have_their_own_activity_and_limits() -> None:
    values = {"xcp0.gfx_busy_inst": (10,), "xcp3.gfx_busy_inst": (0, 30), "xcp1.gfx_below_host_limit_total_acc": (7,),
              "xcp1.gfx_low_utilization_acc": (8,), "xcp1.vcn_busy": (5,)}  # fmt: skip
    assert of_metrics(decode(encode((1, 8), values))) == {
        "part_0_xcc_0_busy_percent": 10, "part_3_xcc_0_busy_percent": 0, "part_3_xcc_1_busy_percent": 30,
        "part_1_xcc_0_below_limit": 7, "part_1_xcc_0_low_utilization": 8, "part_1_vcn_0_busy_percent": 5,
    }  # fmt: skip


def test_a_partition_of_version_1_8_has_four_counters_for_each_die() -> None:
    # By the kernel's struct amdgpu_xcp_metrics_v1_2: 8 dies, 40 JPEG engines, 4 video engines, then five lists of 8.
    assert table((1, 8)).size - table((1, 6)).size == 8 * ((40 - 32) * 2 + 4 * 8 * 8) + 8 + 8 * 2 + 2 + 6


@pytest.mark.parametrize(("text", "expected"), [("ue: 1\nce: 2\n", None), ("ue: 1\nce: 2\nde: 3\n", 3)])
def test_newer_drivers_count_deferred_errors_besides(tmp_path: Path, text: str, expected: int | None) -> None:
    folder = tmp_path / "bus/pci/devices/0000:05:00.0/ras"
    folder.mkdir(parents=True)
    for block in ("umc", "pcie_bif"):
        (folder / f"{block}_err_count").write_text(text)
    assert sysfs.error_counts(str(folder / "umc_err_count")) == (1, 2)
    values = read(str(tmp_path), "0000:05:00.0").values
    assert (values["ecc_uncorrected_pcie_bif"], values["ecc_corrected_volatile"]) == (1, 4)
    assert values.get("ecc_deferred_umc") == expected
    assert values.get("ecc_deferred_volatile") == (None if expected is None else 2 * expected)
