"""What the role ``usage`` adds to an agent with the other roles, on 8 GPUs with two processes and a pod each."""

from __future__ import annotations

import asyncio
import subprocess
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from bench.exporter import ALL_ROLES, Served, served
from bench.machine import memory_of
from bench.measures import KGPU, World
from kgpu.hw.open import open_reader
from kgpu.hw.port import Inventory
from kgpu.hw.simulator import processes
from kgpu.usage.looks import LookedHolder
from kgpu.usage.run import UsageContext, UsageWatcher, usage_store

LOOKS: Final = 60
REST: Final = 60.0
SETTLED: Final = 30.0
LOADS: Final = ("train", "notebook")
FOLLOWING: Final = {"DCGM_EXPORTER_KUBERNETES_ENABLE_POD_UID": "true"}
"""Either agent follows objects of the API server, as every agent that an operator has rolled out does."""


def loaded(world: World) -> Path:
    """A simulated root with eight H100, two processes on each."""
    root = world.folder / "loaded"
    if not root.exists():
        command = [*KGPU, "lab", "hw", "create", "hgx-h100", "--root", str(root)]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        for gpu in range(8):
            for number, load in enumerate(LOADS):
                processes.add(root, gpu, pid=5000 + 10 * gpu + number, load=load)
    return root


def added(world: World) -> Mapping[str, list[float]]:
    """What an agent with the role has and uses more than one without, run after each other; and the time of a look."""
    found: dict[str, list[float]] = {"pss": [], "cpu": [], "look": asyncio.run(_looks(world))}
    for _ in range(world.runs):
        figures = []
        for roles in (ALL_ROLES, f"{ALL_ROLES},usage"):
            with served(world, roles, loaded(world), **FOLLOWING) as running:
                time.sleep(SETTLED)
                figures.append((_cpu(running), memory_of(running.pids).pss))
        (cpu, pss), (cpu_with, pss_with) = figures
        found["pss"].append(pss_with - pss)
        found["cpu"].append(cpu_with - cpu)
    return found


def _cpu(running: Served) -> float:
    """Percent of a core."""
    before, begin = running.cpu(), time.monotonic()
    time.sleep(REST)
    return 100 * (running.cpu() - before) / (time.monotonic() - begin)


class _Held:
    """A pod on each GPU."""

    async def holders(self, inventory: Inventory) -> Mapping[str, tuple[LookedHolder, ...]]:
        return {
            gpu.uuid: (LookedHolder(namespace="research", pod=f"trainer-{gpu.index}", uid=gpu.uuid),)
            for gpu in inventory.accelerators
        }

    async def close(self) -> None:
        """Nothing is open."""


async def _looks(world: World) -> list[float]:
    """Milliseconds of a look, the driver's answers and the store included."""
    reader = open_reader(driver_root=loaded(world))
    watcher = UsageWatcher(
        UsageContext(
            node="bench", reader=reader, holders=_Held(), store=usage_store(world.folder), report=lambda _: None
        )
    )
    times = []
    try:
        await watcher.start()
        await watcher.look()
        for _ in range(LOOKS):
            begin = time.perf_counter()
            await watcher.look()
            times.append(1000 * (time.perf_counter() - begin))
    finally:
        await watcher.end()
        await reader.close()
    return times
