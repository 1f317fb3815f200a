"""Sharing: which devices of a resource are shared, and under which name. Pure.

The config file's settings for single GPUs (``devices`` as a count or a list, ``rename``) are honoured. Devices that an
entry does not share stay in the resource under its old name.
"""

from __future__ import annotations

from collections.abc import Sequence

from kgpu.base.advice import Advice, Severity
from kgpu.base.errors import ConfigError
from kgpu.base.suggest import did_you_mean
from kgpu.deviceplugin.config import PluginSettings
from kgpu.deviceplugin.model import REPLICA_SEPARATOR, PluginDevice, PluginResource, SharingRefusal
from kgpu.formats.plugin_config import SharedResource, Sharing, SharingKind, most_mps_clients
from kgpu.hw.vendor import Vendor

IMPOSSIBLE = "SharingImpossible"
MANY_REPLICAS = 64
MESSAGE_LIMIT = 4 * 1024 * 1024
"""The most bytes of a message to the kubelet; a device list is one message."""
DEVICE_BYTES = 24
"""The bytes of a device in that message besides its id: health, NUMA node, framing."""


def share(
    resources: Sequence[PluginResource], settings: PluginSettings, advice: list[Advice],
    refused: list[SharingRefusal], *, mig: Sequence[int] = (),
) -> list[PluginResource]:  # fmt: skip
    """The resources with the sharing block applied, entry by entry in the file's order. ``mig`` are the indices of the
    node's GPUs whose MIG mode is on.
    """
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
            refused.append(_name_taken(entry, sharing))
            continue
        if sharing.kind not in makers[entry.name].sharing:
            advice.append(_not_theirs(entry, sharing, makers[entry.name]))
            continue
        if sharing.kind is SharingKind.MPS and mig:
            refused.append(_beside_mig(entry, mig))
            continue
        chosen = _selected(entry, plain[entry.name], advice)
        chosen = _shareable(entry, sharing, chosen, refused)
        if sum(len(device.id) + 2 + len(str(entry.replicas)) + DEVICE_BYTES for device in chosen) * entry.replicas > (
            MESSAGE_LIMIT
        ):
            refused.append(_too_many(entry))
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
    entry: SharedResource, sharing: Sharing, devices: list[PluginDevice], refused: list[SharingRefusal]
) -> list[PluginDevice]:
    """The devices that an MPS server can serve; which ones can't be known from the file alone."""
    if sharing.kind is not SharingKind.MPS:
        return devices
    kept: list[PluginDevice] = []
    for device in devices:
        limit = most_mps_clients(device.unit.compute_capability)
        if entry.replicas <= limit:
            kept.append(device)
        else:
            refused.append(_too_many_clients(entry, device, limit))
    return kept


def _too_many_clients(entry: SharedResource, device: PluginDevice, limit: int) -> SharingRefusal:
    error = ConfigError(
        f"device {device.unit.index} is offered unshared as {entry.name}: invalid MPS configuration: "
        f"invalid device maximum allowed replicas exceeded: {entry.replicas} > {limit}",
        f"at most {limit} shares of a GPU of its generation: its MPS server takes no more clients",
        f"give {entry.where}.replicas at most {limit}",
    )
    return SharingRefusal(subject=device.unit.uuid, reason=IMPOSSIBLE, error=error)


def _beside_mig(entry: SharedResource, mig: Sequence[int]) -> SharingRefusal:
    """A GPU with MIG mode on has no daemon, and feature discovery then says of the whole node that it has none."""
    gpus, their = (f"GPU {mig[0]}", "its") if len(mig) == 1 else (f"GPUs {', '.join(map(str, mig))}", "their")
    error = ConfigError(
        f"{entry.name} is offered unshared: sharing using MPS is not supported for MIG devices, and the MIG mode of "
        f"{gpus} is on",
        "sharing.mps on nodes without MIG",
        f"turn {their} MIG mode off, or choose a configuration without sharing.mps for this node",
    )
    return SharingRefusal(subject=entry.name, reason=IMPOSSIBLE, error=error)


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


def _name_taken(entry: SharedResource, sharing: Sharing) -> SharingRefusal:
    error = ConfigError(
        f"{entry.name} is offered unshared: {entry.where} renames its shares to {sharing.offered_name(entry)}, which "
        "other devices of this node have",
        "a name of their own: a pod could not tell which of the two it gets",
        f"choose another name in {entry.where}.rename",
    )
    return SharingRefusal(subject=entry.name, reason="SharingNameTaken", error=error)


def _too_many(entry: SharedResource) -> SharingRefusal:
    error = ConfigError(
        f"{entry.name} is offered unshared: the list of its devices with {entry.where}.replicas = {entry.replicas} is "
        "too long for the kubelet",
        f"at most {MESSAGE_LIMIT} bytes, which the kubelet takes in one message",
        "use as many replicas as programs fit into the device's memory",
    )
    return SharingRefusal(subject=entry.name, reason="SharingTooMany", error=error)


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
