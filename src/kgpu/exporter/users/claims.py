"""Which GPU or MIG device a resource claim's device is, by what its driver has published in ResourceSlices. Pure.

A device has its ``uuid`` as an attribute, or a PCI address, or a name that tells, or (a MIG device that is created when
it is claimed) its GPU's uuid, its profile and its place on the GPU. Slices of API versions v1, v1beta2 and v1beta1 are
read alike.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any, Final

from kgpu.exporter.model import ClaimedKey
from kgpu.formats.names import DRA_PCI_BUS_ID
from kgpu.hw.claim_devices import claimed_unit
from kgpu.hw.port import Accelerator, Inventory
from kgpu.kube.port import Object, Resource, Selector

SLICES: Final = tuple(
    Resource("resource.k8s.io", version, "resourceslices", "ResourceSlice", namespaced=False)
    for version in ("v1", "v1beta2", "v1beta1")
)
"""The newest first."""
_UUID: Final = "uuid"
_PARENT: Final = "parentUUID"
_PROFILE: Final = "profile"
_TYPE: Final = "type"
_KEPT: Final = (_UUID, _PARENT, _PROFILE, _TYPE, DRA_PCI_BUS_ID)
_GPUS: Final = ("gpu", "mig", "amdgpu", "amdgpu-partition")
# GPU's minor, profile, the profile's number, where the device begins: gpu-1-mig-2g47gb-14-0
_PLACE: Final = re.compile(r"gpu-[0-9]{1,4}-mig-.{1,40}-[0-9]{1,3}-([0-9]{1,3})", re.ASCII)


def of_node(node: str) -> Selector:
    """The selector of slices with a node's own devices."""
    return Selector(fields=(("spec.nodeName", node),))


def project(slice_: Object) -> Object:
    """Keep of a ResourceSlice its names, and of each device the attributes that identify it."""
    about, spec = _map(slice_.get("metadata")), _map(slice_.get("spec"))
    return {
        "metadata": {key: about[key] for key in ("name", "resourceVersion") if key in about},
        "spec": {
            "driver": str(spec.get("driver") or ""),
            "pool": {
                "name": str(_map(spec.get("pool")).get("name") or ""),
                "generation": _whole(_map(spec.get("pool")).get("generation")),
            },
            "devices": [
                {"name": str(device.get("name") or ""), "attributes": _attributes(device)}
                for device in spec.get("devices") or ()
                if isinstance(device, dict)
            ],
        },
    }


def claimed(slices: Iterable[Object], inventory: Inventory) -> dict[ClaimedKey, str]:
    """Uuids by driver, pool and device of projected slices; "" for a device that is no GPU.

    Only the newest generation of a pool counts: a driver that publishes anew leaves older slices behind for a while.
    """
    listed = list(slices)
    newest: dict[tuple[str, str], int] = {}
    for slice_ in listed:
        pool = (slice_["spec"]["driver"], slice_["spec"]["pool"]["name"])
        newest[pool] = max(newest.get(pool, 0), slice_["spec"]["pool"]["generation"])
    return {
        (spec["driver"], spec["pool"]["name"], device["name"]): _uuid(
            spec["driver"], device["name"], device["attributes"], inventory
        )
        for spec in (slice_["spec"] for slice_ in listed)
        if spec["pool"]["generation"] == newest[spec["driver"], spec["pool"]["name"]]
        for device in spec["devices"]
    }


def _attributes(device: Mapping[str, Any]) -> dict[str, str]:
    """String attributes by name; v1beta1 has them one level deeper, and a driver may prefix them with its domain."""
    attributes = _map(device.get("attributes") or _map(device.get("basic")).get("attributes"))
    texts: dict[str, str] = {}
    for name, value in attributes.items():
        short = name if name in _KEPT else str(name).rpartition("/")[2]
        text = _map(value).get("string")
        if short in _KEPT and isinstance(text, str):
            texts.setdefault(short, text)
    return texts


def _uuid(driver: str, name: str, attributes: Mapping[str, str], inventory: Inventory) -> str:
    """A device's uuid; its own name where it is a GPU that can't be found, "" for no GPU."""
    kind = attributes.get(_TYPE, "")
    if kind and kind not in _GPUS:
        return ""  # passed through to virtual machines, or no GPU at all
    if attributes.get(_UUID):
        return attributes[_UUID]
    if unit := claimed_unit(driver, name, inventory):
        return unit
    if _PARENT in attributes:
        parent = next((gpu for gpu in inventory.accelerators if gpu.uuid == attributes[_PARENT]), None)
        return (_slice(name, attributes.get(_PROFILE, ""), parent) if parent else "") or name
    bus = attributes.get(DRA_PCI_BUS_ID, "").lower()
    uuid = next((gpu.uuid for gpu in inventory.accelerators if bus and gpu.pci_bus_id == bus), "")
    return uuid or (name if kind else "")


def _slice(name: str, profile: str, gpu: Accelerator) -> str:
    """The uuid of a MIG device by its place, or by its profile where the GPU has only one of it; "" without one."""
    same = [part for part in gpu.partitions if part.profile == profile]
    place = _PLACE.fullmatch(name)
    if place is not None:
        same = [part for part in same if part.placement_start == int(place[1])]
    return same[0].uuid if len(same) == 1 else ""


def _map(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _whole(value: Any) -> int:
    return value if isinstance(value, int) else 0
