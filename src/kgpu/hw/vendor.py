"""What components need to know of an accelerator's vendor: one record each, reached by ``Inventory.vendor``.

A vendor is a package ``kgpu.hw.<name>`` whose module ``vendor`` exports one ``VENDOR``; it is found automatically.
Components ask ``vendor_of(inventory.vendor)`` and import no vendor's package.
"""

from __future__ import annotations

import enum
import functools
import importlib
import pkgutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from importlib.machinery import PathFinder
from pathlib import Path
from typing import Protocol

import kgpu.hw
from kgpu.formats.names import NVIDIA
from kgpu.formats.plugin_config import SharingKind
from kgpu.hw.partitioning import GpuReset, ModeKernel, ModePartitioner, Partitioner
from kgpu.hw.port import Reader

FIRST = (NVIDIA,)
"""Whose driver is looked for before all others': a processor's own graphics have a driver, too, beside such a card."""


class Cutting(enum.StrEnum):
    """How an accelerator of which there are slices is offered."""

    BY_STRATEGY = "by-strategy"  # whole or by its slices, as the MIG strategy says
    BY_MODE = "by-mode"  # by its slices alone, named as the naming strategy says: nothing runs on more than one
    BY_DRIVER = "by-driver"  # whole, named after its driver, which is its mode


class Pairing(enum.StrEnum):
    """By what is judged which accelerators go together."""

    LANES = "lanes"  # the most lanes and the nearest PCI ancestors
    WEIGHTS = "weights"  # the least distance, with slices of one accelerator together


@dataclass(frozen=True, slots=True, kw_only=True)
class GivenDevice:
    """A device as a container gets it."""

    uuid: str
    minor: int
    module_id: int | None
    device_nodes: tuple[str, ...]


class DeviceEnvironment(Protocol):
    """What a vendor's software in a container reads of its devices."""

    def __call__(self, devices: Sequence[GivenDevice], *, whole_node: bool) -> Mapping[str, str]:
        """Variables and values; ``whole_node``: these are all devices of the node."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Vendor:
    """One vendor.

    ``name`` is its package's, and what ``Inventory.vendor`` and ``--vendor`` say; ``title`` is for people.
    ``resource`` is a whole accelerator's resource name, below ``domain``; ``partition_resource(profile)`` is that of
    a slice with a profile in the vendor's spelling. ``visible_devices`` is the environment variable that names a
    container's devices, "" where nothing reads one; where ``environment`` is given, it makes that variable and more.
    ``cdi_vendor`` is the first half of the CDI kinds that the device
    plugin answers with. ``control_nodes`` are device nodes that every container with a device needs. ``left_out`` are
    models of boards that drive a monitor and compute nothing. ``pci_id`` is hex without 0x, ``pci_labels`` are the Node
    labels of which a node with such a board has one, by class and vendor. ``resources`` are patterns of all resource
    names that count its devices, () for ``resource`` alone. ``driver_root`` is where a
    driver container mounts its tree. ``sharing`` is what its devices can do. ``cdi_specs``: kgpu can write CDI specs
    for them. ``nodes_suffice``: a container needs device nodes and no file of the driver, so that the kubelet's answer
    alone gives it all, and a CDI spec has nothing else but ``host_files``: settings of the host, below the driver root,
    that its containers may read where they are there. ``missing(root)`` is empty when the driver is under ``root``,
    else the places looked at; ``open(root, deadline, poll)`` is its reader, with seconds per call and between looks.
    ``partitioner(root, reset)`` cuts its devices into slices, ``modes(root, kernel)`` parts them by modes; None if kgpu
    can't. ``computes``: kgpu has a program that
    computes on them, so that the validator proves more than that the driver answers. ``health_socket`` is where the
    vendor's own exporter tells how well they are (``kgpu.kubelet.amd_health``), "" where there is no such.
    """

    name: str
    title: str
    domain: str
    resource: str
    partition_resource: Callable[[str], str]
    visible_devices: str
    environment: DeviceEnvironment | None = None
    cdi_vendor: str
    control_nodes: tuple[str, ...] = ()
    left_out: frozenset[str] = frozenset()
    pci_id: str
    pci_labels: tuple[str, ...] = ()
    resources: tuple[str, ...] = ()
    driver_root: str
    sharing: frozenset[SharingKind] = frozenset()
    cdi_specs: bool = False
    nodes_suffice: bool = False
    host_files: tuple[str, ...] = ()
    cutting: Cutting = Cutting.BY_STRATEGY
    pairing: Pairing = Pairing.LANES
    missing: Callable[[Path], list[str]]
    open: Callable[[Path, float, float], Reader]
    partitioner: Callable[[Path, GpuReset], Partitioner] | None = None
    health_socket: str = ""
    computes: bool = False
    modes: Callable[[Path, ModeKernel], ModePartitioner] | None = None

    def counts(self, resource: str) -> bool:
        """Whether an extended resource counts its devices."""
        return any(fnmatchcase(resource, pattern) for pattern in self.resources or (self.resource,))


@functools.cache
def vendor_names() -> tuple[str, ...]:
    """The names of all vendors, in the order in which their drivers are looked for; none is imported."""
    packages = {module.name for module in pkgutil.iter_modules(kgpu.hw.__path__) if module.ispkg}
    return tuple(sorted(filter(_has, packages), key=lambda name: (name not in FIRST, name)))


def vendors() -> Mapping[str, Vendor]:
    """Every vendor by name. It imports them all: what is about one vendor asks ``vendor_of``."""
    return {name: vendor_of(name) for name in vendor_names()}


def _has(package: str) -> bool:
    """Whether a package has the module; looked up without importing the package, which may be a simulator's."""
    spec = PathFinder.find_spec(f"kgpu.hw.{package}", kgpu.hw.__path__)
    places = spec.submodule_search_locations if spec else None
    return PathFinder.find_spec(f"kgpu.hw.{package}.vendor", places) is not None


@functools.cache
def vendor_of(name: str) -> Vendor:
    """The vendor that an inventory, or an accelerator of it, names. Raises KeyError for a name that none has."""
    if name not in vendor_names():
        raise KeyError(name)
    row: Vendor = importlib.import_module(f"kgpu.hw.{name}.vendor").VENDOR
    return row
