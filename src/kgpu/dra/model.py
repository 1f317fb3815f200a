"""What a node publishes, free of a vendor's names and of the API's versions: devices, counters, taints.

Amounts are quantities as text, in the API server's own spelling, so that what is read back compares equal.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field

from kgpu.base.advice import Advice


class AttributeKind(enum.StrEnum):
    """Which type an attribute has; values are the API's field names."""

    STRING = "string"
    VERSION = "version"
    INT = "int"
    BOOL = "bool"


@dataclass(frozen=True, slots=True)
class DeviceAttribute:
    """One attribute's value; a version is of semver 2.0.0."""

    value: str | int | bool
    kind: AttributeKind = AttributeKind.STRING


class DeviceTaintEffect(enum.StrEnum):
    """What a taint does: nothing but to be seen, to keep new claims away, or to end pods with the device, too."""

    NONE = "None"  # known since Kubernetes 1.35
    NO_SCHEDULE = "NoSchedule"
    NO_EXECUTE = "NoExecute"


@dataclass(frozen=True, slots=True)
class DraTaint:
    """A taint of a device."""

    key: str
    effect: DeviceTaintEffect
    value: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class TaintWords:
    """A vendor's taints. ``unmonitored`` is the key where no process judges the device, ``gone`` that of one that has
    fallen off the bus or is not listed any more. ``critical``, if there is one, is the taint of a device on which no
    work can go on: fallen off the bus, or in need of a reset.
    """

    unmonitored: str
    gone: str = ""
    critical: DraTaint | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class DraDevice:
    """One device that a claim can be given.

    ``capacity`` and ``consumes`` are quantities by name; ``counter_set`` is the set that it consumes of, "" for none.
    ``gpu`` and ``partition`` are UUIDs of what it is; ``partition`` is "" for a ``whole`` accelerator, and for a slice
    that is made when a claim is prepared. ``instance`` is the GPU instance that is there, ``compute`` the compute
    instance in it. ``start`` and ``size`` are the memory slices that a slice has, none for a whole accelerator;
    ``profile`` is the vendor's number of what can be made there, None for what is there.
    """

    name: str
    gpu: str
    whole: bool = False
    partition: str = ""
    instance: int | None = None
    compute: int | None = None
    profile: int | None = None
    start: int = 0
    size: int = 0
    attributes: Mapping[str, DeviceAttribute] = field(default_factory=dict)
    capacity: Mapping[str, str] = field(default_factory=dict)
    counter_set: str = ""
    consumes: Mapping[str, str] = field(default_factory=dict)
    taints: tuple[DraTaint, ...] = ()

    @property
    def uuid(self) -> str:
        """The device's own UUID, "" for a slice that is yet to be made."""
        return self.partition or (self.gpu if self.whole else "")

    @property
    def withdrawn(self) -> bool:
        """Whether a taint keeps new claims away."""
        return any(taint.effect is not DeviceTaintEffect.NONE for taint in self.taints)


@dataclass(frozen=True, slots=True, kw_only=True)
class DraCounterSet:
    """What the devices of one accelerator share out: quantities by the counter's name."""

    name: str
    counters: Mapping[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuDevices:
    """What one accelerator is published as. ``unnamed`` is why its devices can't have names, "" where they have."""

    devices: tuple[DraDevice, ...] = ()
    counters: DraCounterSet | None = None
    unnamed: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishedNode:
    """What a node publishes, under which driver's name; ``advice`` is about what it can't publish."""

    driver: str
    gpus: tuple[GpuDevices, ...] = ()
    advice: tuple[Advice, ...] = ()

    @property
    def devices(self) -> tuple[DraDevice, ...]:
        """Every device, in the order of the accelerators."""
        return tuple(device for gpu in self.gpus for device in gpu.devices)


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishRules:
    """How a node's accelerators are published.

    ``dynamic``: slices are made for claims, so that every possible one is a device. ``monitored``: a device of which no
    verdict is there is told to be unmonitored. ``ignored_xids`` never keep claims away. ``made`` are the
    places, a GPU's UUID and a memory slice where a partition starts, of what this driver makes or has made for claims:
    it is no reason to publish less. ``pcie_roots`` are by PCI address. ``taken`` are the accelerators that are not this
    driver's to give now, by UUID, and why.
    """

    dynamic: bool = False
    monitored: bool = False
    ignored_xids: frozenset[int] = frozenset()
    made: frozenset[tuple[str, int]] = frozenset()
    pcie_roots: Mapping[str, str] = field(default_factory=dict)
    taken: Mapping[str, str] = field(default_factory=dict)
