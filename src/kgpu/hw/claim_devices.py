"""Which accelerator, or part of one, a claim's device is: by the name that its DRA driver gives it. Pure.

NVIDIA's names have the number of a GPU's device node, and its published devices their UUIDs, so they are not here.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from typing import Final

from kgpu.formats.names import DRA_AMD_DRIVER, DRA_GAUDI_DRIVER
from kgpu.hw.port import Accelerator, Inventory, Partition

_AMD: Final = re.compile(r"gpu-[0-9]{1,6}-([0-9]{1,6})", re.ASCII)
_GAUDI: Final = re.compile(r"([0-9a-f]{4,8})-([0-9a-f]{2})-([0-9a-f]{2})-([0-7])-0x[0-9a-f]{4}", re.ASCII)


def _with_node(match: re.Match[str], inventory: Inventory) -> Iterator[Accelerator | Partition]:
    """Parts first: the first of a GPU's has its node."""
    node = f"/dev/dri/renderD{match[1]}"
    for gpu in inventory.accelerators:
        units: tuple[Accelerator | Partition, ...] = (*gpu.partitions, gpu)
        yield from (unit for unit in units if node in unit.device_nodes)


def _at_address(match: re.Match[str], inventory: Inventory) -> Iterator[Accelerator | Partition]:
    domain, bus, device, function = match.groups()
    address = f"{domain}:{bus}:{device}.{function}"
    return (gpu for gpu in inventory.accelerators if gpu.pci_bus_id == address)


_ROWS: Final[
    Mapping[str, tuple[re.Pattern[str], Callable[[re.Match[str], Inventory], Iterator[Accelerator | Partition]]]]
] = {
    DRA_AMD_DRIVER: (_AMD, _with_node),
    DRA_GAUDI_DRIVER: (_GAUDI, _at_address),
}


def claimed_unit(driver: str, device: str, inventory: Inventory) -> str:
    """The UUID of what the device is, "" if it is none of this node's."""
    if driver not in _ROWS:
        return ""
    pattern, units = _ROWS[driver]
    match = pattern.fullmatch(device)
    return next((unit.uuid for unit in units(match, inventory)), "") if match else ""
