"""What a host makes of a container's shim, however soon that ends."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from kgpu.lab.nodes import container_processes, runtime, shim
from kgpu.lab.nodes.runtime import PLAIN, Runtime, StartError

PID = 4711


async def test_a_command_that_begins_and_ends_while_the_host_looks_has_begun(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks: list[str] = []

    def ends_now(pid: int) -> bool:
        """All of it happens between whatever was looked at before and this look."""
        assert pid == PID
        looks.append("process")
        shim.write_json(str(tmp_path / "state.json"), {"pid": 1, "shim": pid, "started": 1.0})
        shim.write_json(str(tmp_path / "exit.json"), {"code": 0, "finished": 2.0, "problem": ""})
        return False

    monkeypatch.setattr(container_processes, "is_alive", ends_now)
    begun = await Runtime(PLAIN)._begun(tmp_path, PID)
    assert (begun["started"], looks) == (1.0, ["process"])


def test_a_container_that_takes_too_long_to_begin_is_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody would know of it, and the next try would run beside it."""
    monkeypatch.setattr(runtime, "START_S", 0.1)
    config = tmp_path / container_processes.CONFIG
    config.write_text('{"id": "slow"}')
    slow = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)", str(config)])
    try:
        with pytest.raises(StartError, match="did not start within"):
            asyncio.run(Runtime(PLAIN)._begun(tmp_path, slow.pid))
        assert slow.wait(60) == -signal.SIGKILL
    finally:
        slow.kill()
        slow.wait()
