"""What containers of claims get besides their devices where these need no file of the driver: control nodes, settings
of the host, and the variables that the vendor's software reads.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import msgspec

from kgpu.formats.cdi import CdiDeviceNode, ContainerEdits
from kgpu.host.root import DriverRoot
from kgpu.hw.port import Inventory
from kgpu.hw.vendor import GivenDevice, vendor_of


@dataclass(frozen=True, slots=True)
class ClaimVariables:
    """For a driver at ``root``; ``seen`` gives the inventory that was read last."""

    root: DriverRoot
    seen: Callable[[], Inventory]

    def node(self, path: str) -> CdiDeviceNode:
        """The entry of a device node."""
        return self.root.device_node(path)

    def common(self, devices: Sequence[str]) -> ContainerEdits:
        """What every container of a claim of these accelerators, by UUID, gets."""
        inventory = self.seen()
        vendor = vendor_of(inventory.vendor)
        edits = ContainerEdits(
            device_nodes=tuple(self.node(path) for path in vendor.control_nodes),
            mounts=self.root.settings(vendor.host_files),
        )
        if vendor.environment is None:
            return edits
        given = [
            GivenDevice(uuid=gpu.uuid, minor=gpu.minor, module_id=gpu.module_id, device_nodes=gpu.device_nodes)
            for gpu in inventory.accelerators
            if gpu.uuid in devices
        ]
        # Modules are named even where a claim has all of them: Intel's DRA driver does.
        variables = vendor.environment(given, whole_node=False)
        return msgspec.structs.replace(edits, env=tuple(f"{name}={value}" for name, value in variables.items()))
