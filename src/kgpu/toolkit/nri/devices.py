"""Which GPUs and MIG devices stand behind the CDI names of this node, and which files of the driver they bring. Pure.

Two names are the same device when they bring the same device nodes, whatever they are called: so an index, a UUID and
a claim's device can be compared with what the kubelet says of others.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

from kgpu.formats.cdi import ALL_DEVICE, ContainerEdits, Spec, qualified_name
from kgpu.formats.names import CDI_MANAGEMENT_KIND, CDI_NVIDIA_KIND, CDI_PLUGIN_KIND, NVIDIA_DOMAIN
from kgpu.kubelet.pod_resources import Holding

_GPU_NODE: Final = re.compile(r"/dev/nvidia(\d{1,6})", re.ASCII)
_SLICE_NODE: Final = re.compile(r"/dev/nvidia-caps/nvidia-cap(\d{1,9})", re.ASCII)
REPLICA: Final = "::"
"""Between a device's id and the number of a share of it, in the kubelet's device ids."""
_DEVICE_IDS: Final = ("GPU-", "MIG-")
_DRA_DRIVER: Final = f"gpu.{NVIDIA_DOMAIN}"
PLAIN_KINDS: Final = (CDI_NVIDIA_KIND, CDI_PLUGIN_KIND)
"""Where a bare id (an index or a UUID) is looked for, in this order."""


@dataclass(frozen=True, slots=True)
class Units:
    """The hardware behind a name: numbers of GPU nodes and of capability nodes; none for a network card or a switch."""

    gpus: frozenset[int] = frozenset()
    slices: frozenset[int] = frozenset()

    def __bool__(self) -> bool:
        return bool(self.gpus or self.slices)

    def meets(self, other: Units) -> bool:
        """Whether a container with one would reach into the other.

        MIG devices of one GPU meet only when one has all capabilities of the other: two compute instances share the
        capability of their GPU instance.
        """
        if self.slices and other.slices:
            return self.slices <= other.slices or other.slices <= self.slices
        return bool(self.gpus & other.gpus)


@dataclass(frozen=True, slots=True)
class ResolvedDevice:
    """One resolvable CDI device: what is behind it, and the mounts (container path, host path) that it brings."""

    units: Units
    mounts: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True)
class DeviceIndex:
    """Every resolvable CDI device of NVIDIA's kinds by qualified name; ``mounts`` are all that any of them brings."""

    entries: Mapping[str, ResolvedDevice] = field(default_factory=dict)
    mounts: frozenset[tuple[str, str]] = frozenset()

    def bare(self, word: str) -> str:
        """The qualified name of an id or name as it stands in a variable; "" when there is none."""
        candidates = (word, *(qualified_name(kind, word) for kind in PLAIN_KINDS))
        return next((name for name in candidates if name in self.entries), "")

    def members(self, name: str) -> tuple[str, ...]:
        """The devices that make up ``all`` of a kind, one name for each; the name itself for any other device."""
        kind, _, device = name.partition("=")
        if device != ALL_DEVICE:
            return (name,)
        whole = self.entries[name].units
        by_units: dict[Units, str] = {}
        for member, entry in self.entries.items():
            inside = entry.units.gpus <= whole.gpus and entry.units.slices <= whole.slices
            if member != name and member.startswith(f"{kind}=") and entry.units and inside:
                by_units.setdefault(entry.units, member)
        return tuple(by_units.values()) or (name,)

    def held(self, holding: Holding) -> tuple[Units, ...] | None:
        """What is behind the devices that somebody has; None when it is GPUs that no spec tells of."""
        units: list[Units] = []
        for name in holding.cdi_devices:
            if name in self.entries:
                units.append(self.entries[name].units)
            elif holding.resource == _DRA_DRIVER:
                return None
        if holding.cdi_devices:
            return tuple(units)
        for device in holding.devices:
            name = self.bare(device.partition(REPLICA)[0])
            if name:
                units.append(self.entries[name].units)
            elif device.startswith(_DEVICE_IDS) or holding.resource == _DRA_DRIVER:
                return None
        return tuple(units)


def is_nvidia_kind(kind: str) -> bool:
    """Whether the kind is one that this plugin speaks for."""
    vendor = kind.partition("/")[0]
    return vendor == NVIDIA_DOMAIN or vendor.endswith(f".{NVIDIA_DOMAIN}")


def is_management(name: str) -> bool:
    """Whether it is a device for those who look after GPUs that others use."""
    return name.partition("=")[0] == CDI_MANAGEMENT_KIND


def index_of(specs: Iterable[tuple[int, Spec]]) -> DeviceIndex:
    """From (priority, spec): by CDI's rules the higher priority wins, a name twice at one priority resolves to none."""
    best: dict[str, tuple[int, list[ResolvedDevice]]] = {}
    mounts: set[tuple[str, str]] = set()
    for priority, spec in specs:
        if not is_nvidia_kind(spec.kind):
            continue
        for device in spec.devices:
            name = qualified_name(spec.kind, device.name)
            entry = _entry(spec.container_edits, device.container_edits)
            mounts.update(entry.mounts)
            top, entries = best.get(name, (priority, []))
            if priority > top:
                top, entries = priority, []
            if priority == top:
                best[name] = (top, [*entries, entry])
    return DeviceIndex(
        {name: entries[0] for name, (_, entries) in best.items() if len(entries) == 1}, frozenset(mounts)
    )


def units_of_nodes(paths: Iterable[str]) -> Units:
    """What is behind device nodes with these paths in a container."""
    gpus: set[int] = set()
    slices: set[int] = set()
    for path in paths:
        for pattern, numbers in ((_GPU_NODE, gpus), (_SLICE_NODE, slices)):
            match = pattern.fullmatch(path)
            if match:
                numbers.add(int(match[1]))
    return Units(frozenset(gpus), frozenset(slices))


def _entry(common: ContainerEdits, own: ContainerEdits) -> ResolvedDevice:
    every = (common, own)
    return ResolvedDevice(
        units_of_nodes(node.path for edits in every for node in edits.device_nodes),
        tuple((mount.container_path, mount.host_path) for edits in every for mount in edits.mounts),
    )
