"""Mode ``nvml``: GPUs and MIG slices as NVML lists them, with the driver's files. The usual mode."""

from __future__ import annotations

from dataclasses import replace

from kgpu.formats.names import CDI_COHERENT_ANNOTATION
from kgpu.host.driver.drm import drm_edits, drm_links, drm_nodes
from kgpu.host.driver.find import find_driver_files
from kgpu.hw.port import Accelerator
from kgpu.toolkit.config import COHERENT
from kgpu.toolkit.model import Beside, ModeFinding, ModeInput
from kgpu.toolkit.modes.base import Hardware, Mode, gid_of
from kgpu.toolkit.modes.driver import common_edits
from kgpu.toolkit.plan import plan_devices


def find(look: ModeInput) -> ModeFinding:
    """Devices by the inventory; a slice or GPU whose nodes are not all there is a gap."""
    inventory = look.inventory
    assert inventory is not None, "mode nvml reads the hardware first"
    files = find_driver_files(look.root, version=inventory.driver_version, search=look.config.search)
    finding = plan_devices(
        inventory,
        look.config,
        node=look.root.device_node,
        has_node=look.root.has_node,
        beside=lambda gpu: beside(look, gpu),
        gid_of=gid_of(look),
    )
    return replace(
        finding, common=common_edits(look, files), notes=(*files.notes, *finding.notes), driver=files.report
    )  # fmt: skip


def beside(look: ModeInput, gpu: Accelerator) -> Beside:
    """A GPU's display nodes, their names by PCI place (nodes of their own, or links where hooks make them)."""
    drm = drm_nodes(look.root, gpu.pci_bus_id, sys=look.config.search.sys)
    hooks = look.hooks
    coherent = COHERENT in look.config.features
    return Beside(
        nodes=tuple(map(look.root.device_node, drm.nodes)) if hooks.wanted else drm_edits(look.root, drm),
        hooks=(*hooks.create_symlinks(drm_links(drm)), *hooks.chmod((*gpu.device_nodes, *drm.nodes))),
        annotations={CDI_COHERENT_ANNOTATION: str(gpu.coherent).lower()} if coherent else {},
    )


MODE = Mode(name="nvml", help="GPUs and MIG slices", find=find, hardware=Hardware.ALWAYS)
