"""What containers of claims get besides their devices: the driver's files, found once for each driver."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from kgpu.formats.cdi import CdiDeviceNode, ContainerEdits, kind_of
from kgpu.formats.names import CDI_PLUGIN_VENDOR
from kgpu.host.root import DriverRoot
from kgpu.hw.port import Inventory
from kgpu.toolkit.config import GenerateConfig
from kgpu.toolkit.run import generate
from kgpu.toolkit.sources import SpecSources

log = logging.getLogger(__name__)


@dataclass(slots=True)
class ClaimEdits:
    """For a driver at ``root``; ``seen`` gives the inventory that was read last. Calls block."""

    root: DriverRoot
    seen: Callable[[], Inventory]
    _found: tuple[str, SpecSources, ContainerEdits] | None = None

    def node(self, path: str) -> CdiDeviceNode:
        """The entry of a device node."""
        return self.root.device_node(path)

    def common(self, devices: Sequence[str]) -> ContainerEdits:
        """What every container gets, whichever devices it has. Raises HostError, HwError, ConfigError."""
        del devices
        inventory = self.seen()
        if self._found is not None:
            version, sources, edits = self._found
            if version == inventory.driver_version and not sources.changed():
                return edits
        before = SpecSources.snapshot(self.root)
        config = GenerateConfig(kind=kind_of(CDI_PLUGIN_VENDOR, "gpu"), strategies=("uuid",), all_device=False)
        generated = generate(lambda: inventory, self.root, config)
        for note in generated.notes:
            log.info("CDI: %s", note)
        edits = generated.spec.container_edits
        self._found = (inventory.driver_version, before.of_specs([generated.spec]), edits)
        return edits
