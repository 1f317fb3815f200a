"""What a host makes of a container's shim, however soon that ends."""

from __future__ import annotations

from pathlib import Path

import pytest

from kgpu.lab.nodes import container_processes, shim
from kgpu.lab.nodes.runtime import PLAIN, Runtime

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
