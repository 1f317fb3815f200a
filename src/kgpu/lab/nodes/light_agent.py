"""The agent of a light node: kgpu's device plugin and labels over data instead of a driver, in the host's process.

The device plugin is the same code as on a real node and speaks the same gRPC to the node's device manager; only what
needs a driver is missing. The profile and the labels are computed once for all nodes of one shape.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Mapping
from functools import lru_cache
from pathlib import Path
from types import MappingProxyType
from typing import Final

from kgpu.base.advice import Advice
from kgpu.deviceplugin.config import PluginSettings
from kgpu.deviceplugin.model import HostDevices
from kgpu.deviceplugin.run import DevicePluginContext, run
from kgpu.deviceplugin.source import MemoryConfigSource
from kgpu.discovery import config as labels_config
from kgpu.discovery.model import NodeFacts
from kgpu.discovery.plan import plan
from kgpu.formats.names import NVIDIA
from kgpu.formats.plugin_config_parse import parse_config
from kgpu.hw.fake_reader import FakeReader
from kgpu.hw.port import Accelerator, Inventory, Link, TopologyLevel
from kgpu.hw.simulator import fill, profiles
from kgpu.hw.simulator.topology import Topology
from kgpu.kubelet.socket_watch import SocketIdentity, socket_identity
from kgpu.lab.nodes.spec import NodeSpec

LOOK_S: Final = 60.0
"""Hardware and device manager are in the same process and report every change; polling is only a safety net."""
_FACTS: Final = HostDevices(
    control_nodes=("/dev/nvidiactl", "/dev/nvidia-uvm", "/dev/nvidia-uvm-tools", "/dev/nvidia-modeset"),
    imex_channels=(),
    gds=False,
    mofed=False,
    gdrcopy=False,
)


@lru_cache(maxsize=64)
def profile_of(name: str, gpus: int | None) -> profiles.Profile:
    """The profile, read once. Raises ConfigError."""
    return profiles.load(name, gpus=gpus)


@lru_cache(maxsize=64)
def labels_of(name: str, gpus: int | None, config: str) -> Mapping[str, str]:
    """The labels that feature discovery gives every node of that shape: they depend on the model, not on one GPU.

    Raises ConfigError.
    """
    profile = profile_of(name, gpus)
    settings = labels_config.resolve(parse_config(config, source="the node's config"), env={}).labels()
    facts = NodeFacts(machine=profile.machine.product, vgpu_present=False, vgpu=None)
    return MappingProxyType(dict(plan(inventory_of(profile, ""), settings, facts).labels))


def inventory_of(profile: profiles.Profile, seed: str) -> Inventory:
    """What a driver of that machine would enumerate."""
    major, minor = profile.driver.cuda.split(".")
    return Inventory(
        vendor=NVIDIA,
        driver_version=profile.driver.version,
        cuda_version=(int(major), int(minor)),
        library_version=f"{major}.{profile.driver.version}",
        accelerators=tuple(_accelerator(profile, seed, index) for index in range(len(profile.gpus))),
    )


def _accelerator(profile: profiles.Profile, seed: str, index: int) -> Accelerator:
    gpu = profile.gpus[index]
    major, minor = gpu.model.compute_capability.split(".")
    numa = profile.topology.numa[index]
    return Accelerator(
        vendor=NVIDIA,
        index=index,
        minor=index,
        uuid=fill.gpu_uuid(profile.name, seed, index),
        name=gpu.model.name,
        pci_bus_id=gpu.bus,
        pci_class=gpu.model.pci.pci_class,
        pci_device_id=gpu.model.pci.device,
        numa_node=numa if numa >= 0 else None,
        memory_mib=gpu.model.memory.total_mib,
        compute_capability=(int(major), int(minor)),
        mig_capable=bool(gpu.model.mig),
        device_nodes=(f"/dev/nvidia{index}",),
    )


def links_of(inventory: Inventory, topology: Topology) -> tuple[Link, ...]:
    """How the GPUs reach each other; lanes to a switch belong to no pair, so a pair has none."""
    gpus = inventory.accelerators
    return tuple(
        Link(
            a=gpus[i].uuid,
            b=gpus[j].uuid,
            level=TopologyLevel(topology.levels[i][j]),
            lanes=0 if topology.switched else topology.lanes[i][j],
        )
        for i in range(len(gpus))
        for j in range(i + 1, len(gpus))
    )


class LightAgent:
    """The agent of one light node. ``labels`` are ready at once; ``run`` serves until cancelled."""

    def __init__(self, spec: NodeSpec, kubelet_socket: Path, state_dir: Path) -> None:
        """Raises ConfigError for a profile that is not there."""
        profile = profile_of(spec.profile, spec.gpus)
        inventory = inventory_of(profile, spec.name)
        self.reader = FakeReader(inventory, links=links_of(inventory, profile.topology))
        self._spec = spec
        self._socket = kubelet_socket
        self._state_dir = state_dir

    def labels(self) -> Mapping[str, str]:
        """The node labels that feature discovery gives. Raises ConfigError."""
        return labels_of(self._spec.profile, self._spec.gpus, self._spec.config)

    async def run(self) -> None:
        """Serve the node's GPUs to its device manager."""
        await run(
            DevicePluginContext(
                reader=self.reader,
                config=MemoryConfigSource(self._spec.config, "the node's config"),
                report=_ignore,
                state_dir=self._state_dir,
                kubelet_socket=self._socket,
                env={},
                host_facts=_facts,
                kubelet_changes=_seldom,
                reread_seconds=_about(LOOK_S),
                look_seconds=_about(LOOK_S / 3),
            )
        )


async def _seldom(socket: Path) -> AsyncIterator[SocketIdentity | None]:
    while True:
        yield socket_identity(socket)
        await asyncio.sleep(_about(LOOK_S))


def _about(seconds: float) -> float:
    """Vary a time at random, so that many nodes do not act at once."""
    return seconds * random.uniform(0.8, 1.2)  # noqa: S311 - no secret


def _facts(_: PluginSettings) -> HostDevices:
    return _FACTS


def _ignore(_: Advice) -> None:
    """Drop the advice: that of a thousand nodes would flood the log."""
