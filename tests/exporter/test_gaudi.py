"""The exporter on nodes with Gaudi accelerators and Intel GPUs: what has the same meaning there has the same name."""

from __future__ import annotations

import subprocess
import sys

import pytest


@pytest.mark.parametrize(
    ("profile", "device", "name", "expected"),
    [
        ("gaudi3", "accel1", "Intel Gaudi 3", {"GPU_TEMP": 31, "POWER_USAGE": 220, "FB_FREE": 131072, "GPU_UTIL": 0, "SM_CLOCK": 400}),
        ("arc", "card1", "Intel Arc Pro B60", {"GPU_TEMP": 41, "SM_CLOCK": 400, "TOTAL_ENERGY_CONSUMPTION": 1_000_000}),
    ],
)  # fmt: skip
def test_readings_are_shown_with_the_vendors_devices(sim_root, profile, device, name, expected) -> None:
    command = [sys.executable, "-m", "kgpu", "exporter", "--root", str(sim_root(profile, gpus=2)), "--once"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    rows = {row.partition("{")[0]: row for row in done.stdout.splitlines() if 'gpu="1"' in row}
    assert {key: float(rows[f"DCGM_FI_DEV_{key}"].split()[-1]) for key in expected} == expected
    assert f'device="{device}",modelName="{name}"' in rows["DCGM_FI_DEV_GPU_TEMP"]
    assert 'device="nvidia' not in done.stdout
