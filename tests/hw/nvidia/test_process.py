"""The child process that has the driver's library: whoever calls it off leaves none behind."""

from __future__ import annotations

import asyncio
import subprocess
from typing import Any

import pytest

from kgpu.hw.nvidia import process
from kgpu.hw.nvidia.process import ChildProcess


@pytest.fixture
def children(monkeypatch: pytest.MonkeyPatch) -> list[subprocess.Popen[bytes]]:
    """The processes that are started."""
    found: list[subprocess.Popen[bytes]] = []
    real = subprocess.Popen

    def start(*words: Any, **options: Any) -> subprocess.Popen[bytes]:
        found.append(real(*words, **options))
        return found[-1]

    monkeypatch.setattr(subprocess, "Popen", start)
    return found


async def test_one_that_is_called_off_while_it_starts_is_ended(
    sim_root: Any, children: list[subprocess.Popen[bytes]], monkeypatch: pytest.MonkeyPatch
) -> None:
    connecting = asyncio.Event()

    async def never(**_options: Any) -> Any:
        connecting.set()
        await asyncio.Event().wait()

    monkeypatch.setattr(asyncio, "open_unix_connection", never)
    starting = asyncio.create_task(ChildProcess.start(str(sim_root("l4", gpus=1)), lambda _event: None))
    await connecting.wait()
    starting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await starting
    (child,) = children
    assert child.returncode is not None or child in process._LINGERING, "it is reaped, at once or by the next start"
    assert child.wait(30) < 0


async def test_one_whose_end_nobody_waits_for_is_ended(
    sim_root: Any, children: list[subprocess.Popen[bytes]]
) -> None:  # fmt: skip
    started = await ChildProcess.start(str(sim_root("l4", gpus=1)), lambda _event: None)
    (child,) = children
    closing = asyncio.create_task(started.close(60.0))
    await asyncio.sleep(0)
    closing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await closing
    assert child.wait(30) is not None
