"""The exporter on a node with AMD GPUs: what has the same meaning there has the same name, and no GPU poses as NVIDIA's."""

from __future__ import annotations

import subprocess
import sys

from kgpu.exporter.holders import concerns, resolve
from kgpu.hw.port import Inventory
from tests.exporter.made import holding


def test_power_temperature_memory_and_load_are_shown_with_amds_devices(sim_root) -> None:
    command = [sys.executable, "-m", "kgpu", "exporter", "--root", str(sim_root("mi300x", gpus=2)), "--once"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    rows = {row.partition("{")[0]: row for row in done.stdout.splitlines() if 'gpu="1"' in row}
    assert rows["DCGM_FI_DEV_GPU_TEMP"].endswith(" 38")
    assert float(rows["DCGM_FI_DEV_POWER_USAGE"].split()[-1]) == 132
    assert float(rows["DCGM_FI_DEV_FB_FREE"].split()[-1]) == 196592 - 283
    assert float(rows["DCGM_FI_DEV_GPU_UTIL"].split()[-1]) == 0
    assert 'device="card8",modelName="AMD Instinct MI300X OAM"' in rows["DCGM_FI_DEV_GPU_TEMP"]
    assert 'device="nvidia' not in done.stdout


def test_what_pods_hold_of_each_vendor_concerns_the_exporter() -> None:
    for resource in ("amd.com/gpu", "amd.com/cpx_nps4", "habana.ai/gaudi", "gpu.intel.com/xe", "nvidia.com/gpu"):
        assert concerns(holding("p", "0000:05:00.0", resource=resource)), resource
    assert not concerns(holding("p", "0000:05:00.0", resource="rdma/hca"))


def test_an_amd_gpu_that_is_held_and_not_there_is_told() -> None:
    found = resolve(Inventory(vendor="amd", driver_version=""), [holding("p", "x", resource="amd.com/cpx_nps4")])
    assert [(one.what, one.reason, one.id) for one in found.unshown] == [("device", "unknown-id", "x")]
