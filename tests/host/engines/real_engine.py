"""The real containerd as the judge of what kgpu writes, where the lab has built one."""

from __future__ import annotations

import os
import subprocess
import tomllib
from pathlib import Path

import pytest

from kgpu.lab.real.build import cache_root


def containerd_binary() -> str:
    """Its path; skips the test where there is none, except where the real programs are required."""
    built = [path for path in sorted(cache_root().glob("*/bin/containerd")) if os.access(path, os.X_OK)]
    if not built:
        if os.environ.get("KGPU_REQUIRE_REAL") == "1":
            pytest.fail("no containerd in the lab's cache; run: kgpu lab build")
        pytest.skip("no containerd in the lab's cache; run: kgpu lab build")
    return str(built[-1])


def dump(binary: str, config: Path) -> dict:
    """What containerd makes of a config; fails the test when it does not load."""
    answer = subprocess.run(
        [binary, "--config", str(config), "config", "dump"], capture_output=True, timeout=60, check=False
    )
    assert answer.returncode == 0, f"{answer.stderr.decode()}\n{config.read_text()}"
    return tomllib.loads(answer.stdout.decode())
