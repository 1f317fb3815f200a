"""The whole plugin as a task: a fake kubelet on one side, a reader in memory on the other."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

from kgpu.base.advice import Advice
from kgpu.base.clock import SystemClock
from kgpu.base.errors import HwError, Reason, line_of
from kgpu.deviceplugin import run
from kgpu.deviceplugin.model import HostDevices
from kgpu.deviceplugin.run import DevicePluginContext
from kgpu.deviceplugin.source import MemoryConfigSource
from kgpu.hw.fake_reader import FakeReader, sample_inventory
from kgpu.hw.port import Inventory
from kgpu.kubelet.fake import FakeKubelet

INVENTORY = sample_inventory(8)
GPUS = INVENTORY.accelerators
NO_DRIVER = HwError("nvml init failed: ERROR_LIBRARY_NOT_FOUND", "a driver", "install it")


class Node:
    """One node: reader, kubelet, configuration, and the plugin's task."""

    def __init__(self, folder: Path, inventory: Inventory = INVENTORY) -> None:
        self.folder = folder
        self.reader: Any = FakeReader(inventory)
        self.kubelet = FakeKubelet(folder / "plugins")
        self.config = MemoryConfigSource()
        self.advice: list[Advice] = []
        self.states: list[tuple[bool, str]] = []
        self.why = ""
        self.task: asyncio.Task[None] | None = None

    def _tell(self, ready: bool, reason: Reason, why: str) -> None:
        self.states.append((ready, line_of(reason)))
        self.why = why

    def start(self, **options: Any) -> None:
        context = DevicePluginContext(
            reader=self.reader,
            config=self.config,
            report=self.advice.append,
            state_dir=self.folder / "state",
            kubelet_socket=self.kubelet.socket,
            on_state=self._tell,
            **{"env": {}, "host_facts": lambda _settings: HostDevices(), "clock": SystemClock(), **options},
        )
        self.task = asyncio.create_task(run.run(context))

    async def stop(self) -> None:
        if self.task is not None:
            self.task.cancel()
            await asyncio.gather(self.task, return_exceptions=True)

    async def until(self, condition: Callable[[], bool]) -> None:
        async with asyncio.timeout(60):
            while not condition():
                assert self.task is None or not self.task.done(), self.task
                await asyncio.sleep(0.005)

    async def offers(self, **counts: int) -> None:
        """Wait for exactly these healthy devices; `gpu=8` is nvidia.com/gpu."""
        wanted = {f"nvidia.com/{name}": count for name, count in counts.items()}
        await self.until(lambda: {n: c for n, c in self.kubelet.allocatable().items() if c} == wanted)

    def reasons(self) -> list[str]:
        return [advice.reason for advice in self.advice]
