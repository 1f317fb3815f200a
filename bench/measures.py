"""The figures: each row starts what it needs, measures it several times, and gives one number per run."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import random
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Final

from bench.kubelet import Kubelet, Plugin
from bench.machine import Memory, children_of, memory_of
from kgpu.deviceplugin.model import PluginDevice, PluginResource
from kgpu.deviceplugin.plan import whole_gpu
from kgpu.deviceplugin.prefer import prefer as decide
from kgpu.deviceplugin.topology import GpuTopology
from kgpu.formats.cdi import dump_spec
from kgpu.formats.names import AMD_GPU_RESOURCE, GAUDI_RESOURCE, GPU_RESOURCE, INTEL_GPU_RESOURCE
from kgpu.host.root import DriverRoot
from kgpu.hw.open import open_reader
from kgpu.hw.port import Inventory, Link
from kgpu.hw.simulator import mig
from kgpu.kubelet.model import PreferenceRequest
from kgpu.toolkit.config import generate_config
from kgpu.toolkit.run import generate

KGPU: Final = (sys.executable, "-m", "kgpu")
BOTH_ROLES: Final = "deviceplugin,labels"
THEIR_ROLES: Final = "deviceplugin,labels,exporter,health"
OTHER_VENDORS: Final = {
    "mi300x": AMD_GPU_RESOURCE, "gaudi3": GAUDI_RESOURCE, "max1550": INTEL_GPU_RESOURCE
}  # fmt: skip
START_LIMIT: Final = 30.0
CALLS: Final = 2000
SHARED: Final = f"""\
version: v1
sharing:
  timeSlicing:
    resources:
    - name: {GPU_RESOURCE}
      replicas: 70
"""

KUBECONFIG: Final = {
    "apiVersion": "v1",
    "kind": "Config",
    "current-context": "bench",
    "contexts": [{"name": "bench", "context": {"cluster": "bench", "user": "bench"}}],
    "clusters": [{"name": "bench", "cluster": {"server": "https://127.0.0.1:1"}}],
    "users": [{"name": "bench", "user": {"token": "none"}}],
}


@dataclass
class World:
    """Simulated roots, made once per profile, and how often to measure."""

    folder: Path
    runs: int
    roots: dict[str, Path] = field(default_factory=dict)

    def root(self, profile: str, gpus: int = 8) -> Path:
        """A simulated driver root."""
        key = f"{profile}-{gpus}"
        if key not in self.roots:
            target = self.folder / key
            command = [*KGPU, "lab", "hw", "create", profile, "--gpus", str(gpus), "--root", str(target)]
            subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
            self.roots[key] = target
        return self.roots[key]


@dataclass(frozen=True, slots=True)
class Running:
    """An agent that has registered."""

    pid: int
    seconds_to_register: float
    plugin: Plugin
    labels: Path


@contextlib.contextmanager
def agent(
    world: World, root: Path, config: str = "", words: tuple[str, ...] = (), *, roles: str = BOTH_ROLES,
    resource: str = GPU_RESOURCE, **env: str,
) -> Iterator[Running]:  # fmt: skip
    """An agent beside a kubelet, until the block ends; it offers ``resource``, ``env`` is added to its environment."""
    with tempfile.TemporaryDirectory(dir=world.folder) as text:
        folder = Path(text)
        (folder / "config.yaml").write_text(config)
        kubelet = Kubelet(folder)
        labels = folder / "labels"
        command = [
            *KGPU, "agent", "--roles", roles, "--root", str(root), "--state-dir", str(folder / "state"),
            "--kubelet-socket", str(kubelet.socket), "--config-file", str(folder / "config.yaml"),
            "--labels-sink", "file", "--labels-file", str(labels), *words,
        ]  # fmt: skip
        with open(folder / "log", "wb") as log:
            begin = time.perf_counter()
            process = subprocess.Popen(command, stdout=log, stderr=log, env={**os.environ, **env})
        try:
            registered = kubelet.wait(resource, START_LIMIT) - begin
            plugin = kubelet.plugin(resource)
            yield Running(process.pid, registered, plugin, labels)
            plugin.close()
        except BaseException:
            sys.stderr.write((folder / "log").read_text(errors="replace"))
            raise
        finally:
            process.send_signal(signal.SIGTERM)
            process.wait(10)
            kubelet.close()


def start_and_memory(world: World) -> Mapping[str, list[float]]:
    """Start to registered, and the memory of agent and child once labels are written and 50 pods came and went."""
    found: dict[str, list[float]] = {"registered": [], "rss": [], "pss": []}
    for _ in range(world.runs):
        with agent(world, world.root("hgx-h100")) as running:
            found["registered"].append(running.seconds_to_register)
            ids = running.plugin.devices()
            for _ in range(50):
                running.plugin.allocate(ids[:1])
            _wait_for(running.labels.exists)
            time.sleep(1)  # let the start's garbage go: the figure is the steady state
            memory = memory_of([running.pid, *children_of(running.pid)])
            found["rss"].append(memory.rss)
            found["pss"].append(memory.pss)
    return found


def memory_with_client(world: World) -> Mapping[str, list[float]]:
    """The memory with the API server's client loaded and in use; the server itself is out of reach."""
    found: dict[str, list[float]] = {"rss": [], "pss": []}
    for _ in range(world.runs):
        with agent(world, world.root("hgx-h100"), words=_with_client(world)) as running:
            memory = _settled(running)
            found["rss"].append(memory.rss)
            found["pss"].append(memory.pss)
    return found


def _with_client(world: World) -> tuple[str, ...]:
    kubeconfig = world.folder / "kubeconfig"
    kubeconfig.write_text(json.dumps(KUBECONFIG))
    return ("--kubeconfig", str(kubeconfig), "--node-name", "bench", "--labels-sink", "node")


def _settled(running: Running) -> Memory:
    """The memory of an agent and its children after several attempts to reach the server."""
    time.sleep(2)
    return memory_of([running.pid, *children_of(running.pid)])


def memory_by_vendor(world: World) -> Mapping[str, list[float]]:
    """PSS in MiB of agents with every role that serves other vendors' nodes, by the node's profile."""
    found: dict[str, list[float]] = {profile: [] for profile in OTHER_VENDORS}
    words = (*_with_client(world), "--host-root", str(world.folder / "host"))
    env = {"DCGM_EXPORTER_LISTEN": "127.0.0.1:0", "KGPU_RUN_DIR": str(world.folder / "run")}
    (world.folder / "host").mkdir(exist_ok=True)
    for profile, resource in OTHER_VENDORS.items():
        for _ in range(world.runs):
            with agent(world, world.root(profile), words=words, roles=THEIR_ROLES, resource=resource, **env) as running:
                time.sleep(8)  # several readings of the exporter
                found[profile].append(_settled(running).pss)
    return found


def allocate(world: World) -> Mapping[str, list[float]]:
    """Allocate calls of one to eight GPUs over the unix socket, one after the other, from grpcio."""
    found: dict[str, list[float]] = {"p50": [], "p99": []}
    chance = random.Random(1)  # noqa: S311 - which GPUs a benchmark asks for
    with agent(world, world.root("hgx-h100")) as running:
        ids = running.plugin.devices()
        running.plugin.allocate(ids)
        for _ in range(world.runs):
            times = [
                _timed(lambda: running.plugin.allocate(chance.sample(ids, chance.randint(1, len(ids)))))
                for _ in range(CALLS)
            ]
            found["p50"].append(1000 * statistics.median(times))
            found["p99"].append(1000 * _percentile(times, 99))
    return found


def prefer(world: World, profile: str, gpus: int, sizes: tuple[int, ...]) -> Mapping[str, list[float]]:
    """p99 in ms: of the choice alone, for random sets of free GPUs and with nothing cached; and over the socket."""
    root = world.root(profile, gpus)
    found: dict[str, list[float]] = {"choice": [], "socket": []}
    inventory, links = asyncio.run(_read(root))
    assert len(inventory.accelerators) == gpus, f"{len(inventory.accelerators)} of {gpus} GPUs are there"
    units = [whole_gpu(gpu) for gpu in inventory.accelerators]
    resource = PluginResource(name=GPU_RESOURCE, devices=tuple(PluginDevice(id=unit.uuid, unit=unit) for unit in units))
    ids = [unit.uuid for unit in units]
    chance = random.Random(1)  # noqa: S311 - which GPUs are free in a benchmark
    for _ in range(world.runs):
        times = []
        for size in sizes:
            for _ in range(400 // len(sizes)):
                free = tuple(chance.sample(ids, chance.randint(size, len(ids))))
                request = PreferenceRequest(available=free, size=size)
                topology = GpuTopology((), ()).updated(inventory.accelerators, links)
                times.append(_timed(partial(decide, resource, request, topology, policy="distributed")))
        found["choice"].append(1000 * _percentile(times, 99))
    with agent(world, root) as running:
        running.plugin.prefer(ids, 1)
        for _ in range(world.runs):
            times = [_timed(lambda size=size: running.plugin.prefer(ids, size)) for size in sizes for _ in range(100)]  # type: ignore[misc]
            found["socket"].append(1000 * _percentile(times, 99))
    return found


async def _read(root: Path) -> tuple[Inventory, tuple[Link, ...]]:
    reader = open_reader(driver_root=root)
    try:
        return await reader.inventory(), await reader.links()
    finally:
        await reader.close()


def list_and_watch(world: World) -> list[float]:
    """From opening the stream to the whole list of 560 devices (8 GPUs shared 70 times)."""
    with agent(world, world.root("hgx-h100"), SHARED) as running:
        assert len(running.plugin.devices()) == 560
        return [1000 * _timed(running.plugin.devices) for _ in range(10 * world.runs)]


def encode_list(world: World) -> list[float]:
    """Making and encoding the message of 560 devices alone."""
    from kgpu.kubelet.convert import device_list
    from kgpu.kubelet.model import DeviceState

    with agent(world, world.root("hgx-h100"), SHARED) as running:
        ids = running.plugin.devices()
    devices = [DeviceState(id=one, numa_node=0) for one in ids]
    return [1000 * _timed(lambda: device_list(devices).SerializeToString()) for _ in range(10 * world.runs)]


def command(world: World, *words: str) -> list[float]:
    """Wall time of a command, in ms; once before for the file cache."""
    arguments = [*KGPU, *words]
    run = partial(subprocess.run, arguments, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    run()
    return [1000 * _timed(run) for _ in range(4 * world.runs)]


def cdi_spec(world: World) -> dict[str, list[float]]:
    """A CDI spec for 8 GPUs with 7 slices each, in ms: the command, and what it does once the GPUs have been read."""
    root = world.folder / "cdi"
    if not root.exists():
        subprocess.run(
            [*KGPU, "lab", "hw", "create", "hgx-h100", "--root", str(root)], check=True, stdout=subprocess.DEVNULL
        )
        for gpu in range(8):
            mig.partition(root, gpu, ["1g.10gb"] * 7)
    inventory, _ = asyncio.run(_read(root))
    slices = sum(len(gpu.partitions) for gpu in inventory.accelerators)
    assert slices == 56, f"{slices} slices"
    config = generate_config()

    def once() -> None:
        dump_spec(generate(lambda: inventory, DriverRoot.at(root), config).spec)

    once()
    target = world.folder / "nvidia.yaml"
    return {
        "spec": command(world, "cdi", "generate", "--root", str(root), "--output", str(target)),
        "generation": [1000 * _timed(once) for _ in range(4 * world.runs)],
    }


def compile_all() -> None:
    """Bytecode for everything, as in the image: compiling at start costs both time and memory for good."""
    import compileall

    import kgpu

    compileall.compile_dir(os.path.dirname(kgpu.__file__), quiet=2)


def _timed(function: Callable[[], object]) -> float:
    begin = time.perf_counter()
    function()
    return time.perf_counter() - begin


def _percentile(values: list[float], percent: int) -> float:
    return statistics.quantiles(values, n=100, method="inclusive")[percent - 1]


def _wait_for(condition: Callable[[], bool], seconds: float = START_LIMIT) -> None:
    end = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > end:
            raise TimeoutError("what was waited for did not happen")
        time.sleep(0.01)
