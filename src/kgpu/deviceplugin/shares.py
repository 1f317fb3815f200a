"""Sharing: which devices of a resource are shared, and under which name. Pure.

The config file's settings for single GPUs (``devices`` as a count or a list, ``rename``) are honoured. Devices that an
entry does not share stay in the resource under its old name.
"""

from __future__ import annotations

from collections.abc import Sequence

from kgpu.base.advice import Advice, Severity
from kgpu.base.suggest import did_you_mean
from kgpu.deviceplugin.config import PluginSettings
from kgpu.deviceplugin.model import REPLICA_SEPARATOR, PluginDevice, PluginResource
from kgpu.formats.plugin_config import SharedResource, Sharing, SharingKind
from kgpu.hw.vendor import Vendor

VOLTA = (7, 0)
MPS_CLIENTS_VOLTA = 48
MPS_CLIENTS_BEFORE = 16
MANY_REPLICAS = 64
MESSAGE_LIMIT = 4 * 1024 * 1024
"""The most bytes of a message to the kubelet; a device list is one message."""
DEVICE_BYTES = 24
"""The bytes of a device in that message besides its id: health, NUMA node, framing."""


def share(resources: Sequence[PluginResource], settings: PluginSettings, advice: list[Advice]) -> list[PluginResource]:
    """The resources with the sharing block applied, entry by entry in the file's order."""
    sharing = settings.sharing
    if sharing is None:
        return list(resources)
    plain = {resource.name: list(resource.devices) for resource in resources}
    makers = {resource.name: resource.vendor for resource in resources}
    shared: dict[str, list[PluginDevice]] = {}
    for entry in sharing.resources:
        if entry.name not in plain:
            advice.append(_not_here(entry, list(plain)))
            continue
        if sharing.offered_name(entry) in plain.keys() - {entry.name}:
            advice.append(_name_taken(entry, sharing))
            continue
        if sharing.kind not in makers[entry.name].sharing:
            advice.append(_not_theirs(entry, sharing, makers[entry.name]))
            continue
        chosen = _selected(entry, plain[entry.name], advice)
        chosen = _shareable(entry, sharing, chosen, advice)
        if sum(len(device.id) + 2 + len(str(entry.replicas)) + DEVICE_BYTES for device in chosen) * entry.replicas > (
            MESSAGE_LIMIT
        ):
            advice.append(_too_many(entry))
            continue
        shared_ids = {device.id for device in chosen}
        plain[entry.name] = [device for device in plain[entry.name] if device.id not in shared_ids]
        shared.setdefault(sharing.offered_name(entry), []).extend(
            PluginDevice(id=f"{device.id}{REPLICA_SEPARATOR}{number}", unit=device.unit)
            for device in chosen
            for number in range(entry.replicas)
        )
        if entry.replicas > MANY_REPLICAS and sharing.kind is SharingKind.TIME_SLICING:
            advice.append(_many(entry))
    names = dict.fromkeys([*plain, *shared])
    return [
        PluginResource(
            name=name,
            devices=tuple(sorted([*plain.get(name, ()), *shared.get(name, ())], key=_order)),
            sharing=sharing.kind if shared.get(name) else None,
            refuses_many=sharing.refuses_many and bool(shared.get(name)),
        )
        for name in names
        if plain.get(name) or shared.get(name)
    ]


def _order(device: PluginDevice) -> tuple[int, int, str, int]:
    position = device.unit.index.partition(":")[2]
    replica = device.id.partition(REPLICA_SEPARATOR)[2]
    return device.unit.gpu_index, int(position or -1), device.unit.uuid, int(replica or 0)


def _selected(entry: SharedResource, devices: list[PluginDevice], advice: list[Advice]) -> list[PluginDevice]:
    if entry.devices.is_all:
        return devices
    if entry.devices.count is not None:
        if entry.devices.count > len(devices):
            advice.append(
                Advice(
                    subject=entry.name,
                    what=f"All {len(devices)} devices are shared",
                    why=f"{entry.where}.devices asks for {entry.devices.count}, more than there are",
                    severity=Severity.WARNING,
                    reason="SharingCount",
                )
            )
        return devices[: entry.devices.count]
    named: list[PluginDevice] = []
    for ref in entry.devices.refs:
        hit = next((device for device in devices if _refers(ref, device)), None)
        if hit is not None and hit not in named:
            named.append(hit)
        elif hit is None:
            advice.append(
                Advice(
                    subject=entry.name,
                    what=f"Device {ref} is not shared",
                    why=f"{entry.where}.devices names it, and no unshared device of {entry.name} is called so",
                    evidence=(f"it has: {', '.join(device.unit.index for device in devices) or 'none'}",),
                    severity=Severity.WARNING,
                    remedy="give an index (0), a MIG index (0:1) or a UUID of a device of this resource",
                    reason="SharingUnknownDevice",
                )
            )
    return [device for device in devices if device in named]


def _refers(ref: str, device: PluginDevice) -> bool:
    unit = device.unit
    legacy = f"MIG-{unit.gpu_uuid}/{unit.gpu_instance}/{unit.compute_instance}"
    return ref in {unit.index, unit.uuid, legacy}


def _shareable(
    entry: SharedResource, sharing: Sharing, devices: list[PluginDevice], advice: list[Advice]
) -> list[PluginDevice]:
    if sharing.kind is not SharingKind.MPS:
        return devices
    kept: list[PluginDevice] = []
    for device in devices:
        unit = device.unit
        volta = unit.compute_capability is None or unit.compute_capability >= VOLTA
        limit = MPS_CLIENTS_VOLTA if volta else MPS_CLIENTS_BEFORE
        if unit.is_mig:
            why, remedy = "sharing using MPS is not supported for MIG devices", "share MIG devices by timeSlicing"
        elif entry.replicas > limit:
            why = (
                "invalid MPS configuration: invalid device maximum allowed replicas exceeded: "
                f"{entry.replicas} > {limit}"
            )
            remedy = f"give {entry.where}.replicas at most {limit}"
        else:
            kept.append(device)
            continue
        advice.append(
            Advice(
                subject=unit.uuid,
                what=f"Device {unit.index} is offered unshared as {entry.name}",
                why=why,
                severity=Severity.ERROR,
                remedy=remedy,
                reason="SharingImpossible",
            )
        )
    return kept


def _not_here(entry: SharedResource, names: list[str]) -> Advice:
    return Advice(
        subject=entry.name,
        what=f"Nothing is shared as {entry.name}",
        why=f"{entry.where} names it, and this node has no such resource",
        evidence=(f"it has: {', '.join(names) or 'none'}",),
        severity=Severity.WARNING,
        remedy=did_you_mean(entry.name, names) or "name a resource that this node offers",
        reason="SharingUnknownResource",
    )


def _not_theirs(entry: SharedResource, sharing: Sharing, vendor: Vendor) -> Advice:
    return Advice(
        subject=entry.name,
        what=f"{entry.name} is not shared",
        why=f"accelerators of {vendor.title} can't be shared by {sharing.kind}",
        severity=Severity.WARNING,
        remedy=f"take it out of sharing.{sharing.kind}.resources",
        reason="SharingUnsupported",
    )


def _name_taken(entry: SharedResource, sharing: Sharing) -> Advice:
    return Advice(
        subject=entry.name,
        what=f"{entry.name} is offered unshared",
        why=f"{entry.where} renames its shares to {sharing.offered_name(entry)}, which other devices of this node have",
        evidence=("a pod could not tell which of the two it gets",),
        severity=Severity.ERROR,
        remedy=f"choose another name in {entry.where}.rename",
        reason="SharingNameTaken",
    )


def _too_many(entry: SharedResource) -> Advice:
    return Advice(
        subject=entry.name,
        what=f"{entry.name} is offered unshared",
        why=f"the list of its devices with {entry.where}.replicas = {entry.replicas} is too long for the kubelet",
        evidence=(f"the kubelet takes at most {MESSAGE_LIMIT} bytes in one message",),
        severity=Severity.ERROR,
        remedy="use as many replicas as programs fit into the device's memory",
        reason="SharingTooMany",
    )


def _many(entry: SharedResource) -> Advice:
    return Advice(
        subject=entry.name,
        what=f"Every device becomes {entry.replicas} shares",
        why=f"{entry.where}.replicas says so",
        evidence=("time-slicing isolates neither memory nor faults, and more shares give no more compute",),
        severity=Severity.WARNING,
        remedy="use as many replicas as programs fit into the device's memory",
        reason="SharingMany",
    )
