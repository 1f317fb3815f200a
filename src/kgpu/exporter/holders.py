"""Who uses which device: the kubelet's holdings, resolved to GPUs and GPU instances by any form of device id.

Every container that holds a device is found, also several on one time-sliced or MPS-shared GPU; the replaced exporter
shows the last of them only. Ids that are no device of this node are passed over: other plugins have ids too.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NamedTuple

from kgpu.exporter.model import PodKey, Unit
from kgpu.formats.names import GPU_RESOURCE
from kgpu.hw.port import Inventory

if TYPE_CHECKING:
    from kgpu.kubelet.pod_resources import Holding

_UUID: Final = "[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}"
_OLD_MIG: Final = re.compile(f"MIG-(GPU-{_UUID})/([0-9]{{1,4}})/([0-9]{{1,4}})", re.ASCII)
_NODE: Final = re.compile(r"nvidia([0-9]{1,4})(?:/gi([0-9]{1,4}))?(?:/vgpu([0-9]{1,6}))?", re.ASCII)
_REPLICA: Final = re.compile(r"[0-9]{1,6}", re.ASCII)
_DOMAIN: Final = GPU_RESOURCE.partition("/")[0] + "/"


@dataclass(frozen=True, slots=True, order=True)
class Holder:
    """One container on one device; ``replica`` is its share of a shared device, "" when the device is not shared."""

    namespace: str
    pod: str
    container: str
    replica: str = ""

    @property
    def key(self) -> PodKey:
        return (self.namespace, self.pod, self.container)


class Held(NamedTuple):
    """A device id, resolved."""

    unit: Unit
    replica: str


class Devices:
    """Finds the unit that an id names, in one inventory."""

    def __init__(self, inventory: Inventory) -> None:
        self._gpus = {gpu.uuid: Unit(gpu.uuid) for gpu in inventory.accelerators}
        self._minors = {gpu.minor: gpu.uuid for gpu in inventory.accelerators}
        self._slices = {
            partition.uuid: Unit(gpu.uuid, partition.gpu_instance)
            for gpu in inventory.accelerators
            for partition in gpu.partitions
        }

    def find(self, text: str, resource: str, also: frozenset[str] = frozenset()) -> Held | None:
        """The unit and replica of an id; forms such as ``nvidia0/gi1`` count only for GPU resources and ``also``."""
        name, _, replica = text.partition("::")
        if replica and not _REPLICA.fullmatch(replica):
            return None
        unit = self._gpus.get(name) or self._slices.get(name)
        if unit is None and (old := _OLD_MIG.fullmatch(name)) and old[1] in self._gpus:
            unit = Unit(old[1], int(old[2]))
        if unit is not None:
            return Held(unit, replica)
        node = _NODE.fullmatch(text)
        if node is None or not (resource.startswith(_DOMAIN) or resource in also):
            return None
        uuid = self._minors.get(int(node[1]))
        return Held(Unit(uuid, int(node[2]) if node[2] else None), node[3] or "") if uuid else None


def holders(
    inventory: Inventory,
    holdings: Iterable[Holding],
    claimed: Mapping[tuple[str, str], str] | None = None,
    also: frozenset[str] = frozenset(),
) -> dict[Unit, tuple[Holder, ...]]:
    """Who holds each unit, in order. ``also`` are resources beside the usual ones; ``claimed`` as in ``Look``."""
    devices = Devices(inventory)
    claimed = claimed or {}
    found: dict[Unit, set[Holder]] = {}
    for holding in holdings:
        for text in holding.devices:
            held = devices.find(claimed.get((holding.resource, text), text), holding.resource, also)
            if held is not None:
                holder = Holder(holding.namespace, holding.pod, holding.container, held.replica)
                found.setdefault(held.unit, set()).add(holder)
    return {unit: tuple(sorted(all_of_it)) for unit, all_of_it in found.items()}
