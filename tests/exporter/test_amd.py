"""The exporter on a node with AMD GPUs: what has the same meaning there has the same name, and no GPU poses as NVIDIA's."""

from __future__ import annotations

import subprocess
import sys


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
