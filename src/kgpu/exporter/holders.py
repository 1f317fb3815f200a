"""Who uses which device: the kubelet's holdings, resolved to GPUs and GPU instances by any form of device id.

Every container that holds a device is found, also several on one time-sliced or MPS-shared GPU; the replaced exporter
shows the last of them only. Ids of other plugins are ignored; a GPU's id that names no device of this node is reported.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NamedTuple

from kgpu.exporter.model import ClaimedKey, PodKey, Unit
from kgpu.formats.names import (
    ACCELERATOR_DOMAINS,
    AMD,
    AMD_RESOURCE_PREFIX,
    DRA_DRIVERS,
    GPU_RESOURCE,
    MIG_RESOURCE_PREFIX,
)
from kgpu.hw.port import Inventory

if TYPE_CHECKING:
    from kgpu.kubelet.pod_resources import Holding

_UUID: Final = "[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}"
_OLD_MIG: Final = re.compile(f"MIG-(GPU-{_UUID})/([0-9]{{1,4}})/([0-9]{{1,4}})", re.ASCII)
_NODE: Final = re.compile(r"nvidia([0-9]{1,4})(?:/gi([0-9]{1,4}))?(?:/vgpu([0-9]{1,6}))?", re.ASCII)
_REPLICA: Final = re.compile(r"[0-9]{1,6}", re.ASCII)
_DOMAIN: Final = GPU_RESOURCE.partition("/")[0] + "/"
_OURS: Final = (f"{GPU_RESOURCE}.", MIG_RESOURCE_PREFIX)
_UUIDS: Final = ("GPU-", "MIG-")
NOT_ASKED: Final = "not-asked"
UNKNOWN_ID: Final = "unknown-id"
NOT_PUBLISHED: Final = "not-published"
_NONE: Final[Mapping[ClaimedKey, str]] = {}


@dataclass(frozen=True, slots=True, order=True)
class Holder:
    """One container on one device; ``replica`` is its share of a shared device, "" when the device is not shared.

    ``claim`` are the labels of the resource claim that it has the device by, as the replaced exporter calls them.
    """

    namespace: str
    pod: str
    container: str
    replica: str = ""
    claim: tuple[tuple[str, str], ...] = ()

    @property
    def key(self) -> PodKey:
        return (self.namespace, self.pod, self.container)


class HeldUnit(NamedTuple):
    """A resolved device id: the unit and the replica."""

    unit: Unit
    replica: str


class UnitFinder:
    """Finds the unit that an id names, in one inventory."""

    def __init__(self, inventory: Inventory) -> None:
        self._gpus = {gpu.uuid: Unit(gpu.uuid) for gpu in inventory.accelerators}
        self._minors = {gpu.minor: gpu.uuid for gpu in inventory.accelerators}
        self._slices = {
            partition.uuid: Unit(gpu.uuid, partition.gpu_instance)
            for gpu in inventory.accelerators
            for partition in gpu.partitions
        }

    def find(self, text: str, resource: str, also: frozenset[str] = frozenset()) -> HeldUnit | None:
        """The unit and replica of an id; forms such as ``nvidia0/gi1`` count only for GPU resources and ``also``."""
        name, _, replica = text.partition("::")
        if replica and not _REPLICA.fullmatch(replica):
            return None
        unit = self._gpus.get(name) or self._slices.get(name)
        if unit is None and (old := _OLD_MIG.fullmatch(name)) and old[1] in self._gpus:
            unit = Unit(old[1], int(old[2]))
        if unit is not None:
            return HeldUnit(unit, replica)
        node = _NODE.fullmatch(text)
        if node is None or not (resource.startswith(_DOMAIN) or resource in also):
            return None
        uuid = self._minors.get(int(node[1]))
        return HeldUnit(Unit(uuid, int(node[2]) if node[2] else None), node[3] or "") if uuid else None


class Unshown(NamedTuple):
    """Something in use that is not shown: what it is (``device``, ``claim``), why, who has it, and its id."""

    what: str
    reason: str
    key: PodKey
    id: str


class ResolvedHolders(NamedTuple):
    """Who holds each unit, in order, and what could not be resolved."""

    held: dict[Unit, tuple[Holder, ...]]
    unshown: tuple[Unshown, ...]


def concerns(holding: Holding, also: frozenset[str] = frozenset()) -> bool:
    """Whether a holding may be of a GPU; other plugins' devices need not be kept."""
    return (
        holding.claim is not None
        or holding.resource.partition("/")[0] in ACCELERATOR_DOMAINS
        or holding.resource in also
        or any(text.startswith(_UUIDS) for text in holding.devices)
    )


def resolve(
    inventory: Inventory,
    holdings: Iterable[Holding],
    claimed: Mapping[ClaimedKey, str] | None = None,
    also: frozenset[str] = frozenset(),
) -> ResolvedHolders:
    """Return who holds what. ``also`` are resources beside the usual ones; ``claimed`` is as in ``PlanInput``, None:
    claims are not resolved.
    """
    devices = UnitFinder(inventory)
    ours = (AMD_RESOURCE_PREFIX,) if inventory.vendor == AMD else _OURS
    by_unit: dict[Unit, set[Holder]] = {}
    unshown: list[Unshown] = []
    for holding in holdings:
        for text in holding.devices:
            key = (holding.namespace, holding.pod, holding.container)
            name = text if holding.claim is None else _claimed(holding, claimed or _NONE, text)
            held = devices.find(name, holding.resource, also) if name else None
            if name and held is not None:
                labels = _claim_labels(holding, text, name, inventory)
                by_unit.setdefault(held.unit, set()).add(Holder(*key, held.replica, labels))
            elif holding.claim is not None:
                if name != "":
                    reason = NOT_ASKED if claimed is None else NOT_PUBLISHED if name is None else UNKNOWN_ID
                    unshown.append(Unshown("claim", reason, key, name or text))
            elif holding.resource == GPU_RESOURCE or holding.resource.startswith(ours) or holding.resource in also:
                unshown.append(Unshown("device", UNKNOWN_ID, key, text))
    return ResolvedHolders(
        {unit: tuple(sorted(unit_holders)) for unit, unit_holders in by_unit.items()}, tuple(unshown)
    )


def holders(
    inventory: Inventory,
    holdings: Iterable[Holding],
    claimed: Mapping[ClaimedKey, str] | None = None,
    also: frozenset[str] = frozenset(),
) -> dict[Unit, tuple[Holder, ...]]:
    """Who holds each unit, without what could not be resolved."""
    return resolve(inventory, holdings, claimed, also).held


def _claimed(holding: Holding, claimed: Mapping[ClaimedKey, str], device: str) -> str | None:
    """The uuid of a claim's device, "" for one that is no GPU, None for one that its driver has not published."""
    assert holding.claim is not None
    name = claimed.get((holding.resource, holding.claim.pool, device))
    if name is not None or holding.resource in DRA_DRIVERS:
        return name
    return None if any(driver == holding.resource and uuid for (driver, _, _), uuid in claimed.items()) else ""


def _claim_labels(holding: Holding, device: str, uuid: str, inventory: Inventory) -> tuple[tuple[str, str], ...]:
    if holding.claim is None:
        return ()
    slices = {part.uuid: part.profile for gpu in inventory.accelerators for part in gpu.partitions}
    mig = (("dra_mig_profile", slices[uuid]), ("dra_mig_device_uuid", uuid)) if uuid in slices else ()
    return (
        ("dra_claim_name", holding.claim.name),
        ("dra_claim_namespace", holding.namespace),
        ("dra_driver_name", holding.resource),
        ("dra_pool_name", holding.claim.pool),
        ("dra_device_name", device),
        *mig,
    )
