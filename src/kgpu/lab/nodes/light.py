"""A light node's agent: kgpu's device plugin on hardware that is only data, inside the host's own process.

The same code as on a real node speaks the same gRPC to the node's device manager; only the driver is missing, and with it
whatever needs one. The node's labels are planned once, by the same code as on a real node.
"""  # noqa: E501

from __future__ import annotations

from pathlib import Path
from typing import Final

from kgpu.base.decision import Decision
from kgpu.deviceplugin.model import HostFacts
from kgpu.deviceplugin.run import DevicePluginContext, run
from kgpu.deviceplugin.source import MemoryConfigSource
from kgpu.discovery import config as labels_config
from kgpu.discovery.model import NodeFacts
from kgpu.discovery.plan import plan
from kgpu.formats.plugin_config_parse import parse_config
from kgpu.hw.fake import fill, profiles
from kgpu.hw.memory import MemoryReader
from kgpu.hw.port import Accelerator, Inventory, Vendor
from kgpu.lab.nodes.spec import NodeSpec

_CONTROL: Final = ("/dev/nvidiactl", "/dev/nvidia-uvm", "/dev/nvidia-uvm-tools", "/dev/nvidia-modeset")


def inventory_of(profile: profiles.Profile, seed: str) -> Inventory:
    """What a driver of that machine would enumerate."""
    major, minor = profile.driver.cuda.split(".")
    return Inventory(
        vendor=Vendor.NVIDIA,
        driver_version=profile.driver.version,
        cuda_version=(int(major), int(minor)),
        library_version=f"{major}.{profile.driver.version}",
        accelerators=tuple(_accelerator(profile, seed, index) for index in range(len(profile.gpus))),
    )


def _accelerator(profile: profiles.Profile, seed: str, index: int) -> Accelerator:
    gpu = profile.gpus[index]
    major, minor = gpu.model.compute_capability.split(".")
    return Accelerator(
        vendor=Vendor.NVIDIA,
        index=index,
        minor=index,
        uuid=fill.gpu_uuid(profile.name, seed, index),
        name=gpu.model.name,
        pci_bus_id=gpu.bus,
        pci_class=gpu.model.pci.pci_class,
        pci_device_id=gpu.model.pci.device,
        memory_mib=gpu.model.memory.total_mib,
        compute_capability=(int(major), int(minor)),
        mig_capable=bool(gpu.model.mig),
        device_nodes=(f"/dev/nvidia{index}",),
    )


class LightAgent:
    """The agent of one light node. ``labels`` are ready at once; ``run`` serves until cancelled."""

    def __init__(self, spec: NodeSpec, kubelet_socket: Path, state_dir: Path) -> None:
        profile = profiles.load(spec.profile, gpus=spec.gpus)
        self._inventory = inventory_of(profile, spec.name)
        self._machine = profile.machine.product
        self.reader = MemoryReader(self._inventory)
        self._config = spec.config
        self._socket = kubelet_socket
        self._state_dir = state_dir

    def labels(self) -> dict[str, str]:
        """The node labels that feature discovery gives. Raises ConfigError."""
        settings = labels_config.resolve(parse_config(self._config, source="the node's config"), env={}).labels()
        facts = NodeFacts(machine=self._machine, vgpu_present=False, vgpu=None)
        return dict(plan(self._inventory, settings, facts).labels)

    async def run(self) -> None:
        """Serve the node's GPUs to its device manager."""
        await run(
            DevicePluginContext(
                reader=self.reader,
                config=MemoryConfigSource(self._config, "the node's config"),
                report=_unheard,
                state_dir=self._state_dir,
                kubelet_socket=self._socket,
                env={},
                host_facts=lambda _: HostFacts(
                    control_nodes=_CONTROL, imex_channels=(), gds=False, mofed=False, gdrcopy=False
                ),
            )
        )


def _unheard(_: Decision) -> None:
    """A thousand nodes' decisions would drown the log."""
