"""The labels as rows: a key, and how its value is computed.

A row's function returns the value, or None if the label does not apply or its source could not be read. One loop in
``plan.py`` runs the rows; a new label is a new row here and its name in ``kgpu.formats.names``.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final, Generic, TypeVar

from kgpu.discovery.model import LabelledResource, LabelSettings, NodeFacts, SharingStrategy
from kgpu.discovery.values import joined, legal
from kgpu.formats import names
from kgpu.hw.port import Accelerator, Inventory, Partition
from kgpu.hw.vendor import Vendor, vendor_of

Source = TypeVar("Source")


@dataclass(frozen=True, slots=True)
class LabelRow(Generic[Source]):
    """One label: its key (or its key's suffix in a group) and the function for its value."""

    key: str
    value: Callable[[Source], str | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class LabelledNode:
    """The input for labels about the node as a whole. ``gpus`` are those that count."""

    inventory: Inventory
    gpus: tuple[Accelerator, ...]
    settings: LabelSettings
    facts: NodeFacts
    timestamp: int | None

    @property
    def vendor(self) -> Vendor:
        """The vendor of the node's accelerators."""
        return vendor_of(self.inventory.vendor)

    @property
    def driver(self) -> tuple[str, str, str] | None:
        """Major, minor and revision ("" if absent) of the driver; None unless its version has two or three parts."""
        parts = self.inventory.driver_version.split(".")
        if len(parts) not in (2, 3) or not all(parts):
            return None
        return parts[0], parts[1], parts[2] if len(parts) == 3 else ""

    @property
    def uses_mig(self) -> bool:
        """True if any GPU has MIG enabled."""
        return any(gpu.mig_enabled for gpu in self.gpus)

    @property
    def cliques(self) -> frozenset[str]:
        """Every NVLink clique with an attached GPU; a cluster uuid of zeros means no cluster."""
        attached = (gpu for gpu in self.gpus if gpu.fabric_cluster.strip("0-"))
        return frozenset(f"{gpu.fabric_cluster}.{gpu.fabric_clique}" for gpu in attached)


@dataclass(frozen=True, slots=True, kw_only=True)
class ResourceGroup:
    """The input for one resource's group of labels.

    ``kind`` is the MIG part of the product, as in ``<model>-MIG-1g.5gb``. ``sharing`` is None if sharing does not apply
    at all, which gives 0 replicas. ``broken`` is True for a MIG layout that strategy single can't express.
    """

    resource: str
    model: str
    count: int
    kind: str = ""
    sharing: SharingStrategy | None = None
    shared: LabelledResource | None = None
    memory_mib: int | None = None
    compute: tuple[int, int] | None = None
    partition: Partition | None = None
    broken: bool = False

    @property
    def replicas(self) -> int:
        """Replicas per device: the sharing entry's, else 1, or 0 if sharing does not apply."""
        if self.sharing is None or self.broken:
            return 0
        return self.shared.replicas if self.shared is not None else 1


# The (major, minor) at which a family starts; the last row at or below a capability names it. "" is a gap.
FAMILIES: Final[tuple[tuple[tuple[int, int], str], ...]] = (
    ((1, 0), "tesla"),
    ((2, 0), "fermi"),
    ((3, 0), "kepler"),
    ((4, 0), ""),
    ((5, 0), "maxwell"),
    ((6, 0), "pascal"),
    ((7, 0), "volta"),
    ((7, 5), "turing"),
    ((8, 0), "ampere"),
    ((8, 9), "ada-lovelace"),
    ((9, 0), "hopper"),
    ((10, 0), "blackwell"),
    ((11, 0), ""),
    ((12, 0), "blackwell"),
    ((13, 0), "rubin"),
    ((14, 0), ""),
)

# PCI class of a GPU (24 bits) -> mode
MODES: Final[Mapping[int, str]] = {0x030000: "graphics", 0x030200: "compute"}

UNKNOWN: Final = "unknown"


def family(compute: tuple[int, int]) -> str:
    """The architecture's name for a CUDA compute capability, "undefined" if it has none."""
    family_name = ""
    for start, name in FAMILIES:
        if start <= compute:
            family_name = name
    return family_name or "undefined"


def boolean(value: bool) -> str:
    """``true`` or ``false``, as labels spell them."""
    return "true" if value else "false"


def _driver(part: int) -> Callable[[LabelledNode], str | None]:
    return lambda view: None if view.driver is None else legal(view.driver[part])


def _runtime(part: int) -> Callable[[LabelledNode], str | None]:
    return lambda view: None if view.inventory.cuda_version is None else str(view.inventory.cuda_version[part])


def _runtime_full(view: LabelledNode) -> str | None:
    version = view.inventory.cuda_version
    return None if version is None else f"{version[0]}.{version[1]}"


def _machine(view: LabelledNode) -> str | None:
    return legal(view.facts.machine or "") or None


def _mode(view: LabelledNode) -> str | None:
    # A broken GPU of unknown class does not affect the mode of the others.
    classes = {gpu.pci_class for gpu in view.gpus if gpu.pci_class or not gpu.findings}
    if not classes or 0 in classes:
        return None
    return MODES.get(classes.pop(), UNKNOWN) if len(classes) == 1 else UNKNOWN


def _mps_capable(view: LabelledNode) -> str:
    return boolean(view.settings.sharing.kind is SharingStrategy.MPS and not view.uses_mig)


def _clique(view: LabelledNode) -> str | None:
    return legal(next(iter(view.cliques))) if len(view.cliques) == 1 else None


def _vgpu(part: str) -> Callable[[LabelledNode], str | None]:
    return lambda view: None if view.facts.vgpu is None else legal(getattr(view.facts.vgpu, part))


# NVIDIA's labels that are written even without any GPU.
_ALWAYS: Final[tuple[LabelRow[LabelledNode], ...]] = (
    LabelRow(names.LABEL_GFD_TIMESTAMP, lambda view: None if view.timestamp is None else str(view.timestamp)),
    LabelRow(
        names.LABEL_VGPU_PRESENT,
        lambda view: None if view.facts.vgpu_present is None else boolean(view.facts.vgpu_present),
    ),
    LabelRow(names.LABEL_VGPU_HOST_DRIVER_VERSION, _vgpu("host_driver_version")),
    LabelRow(names.LABEL_VGPU_HOST_DRIVER_BRANCH, _vgpu("host_driver_branch")),
)

_NODE: Final[tuple[LabelRow[LabelledNode], ...]] = (
    *_ALWAYS,
    LabelRow(names.LABEL_GPU_MACHINE, _machine),
    LabelRow(names.LABEL_GPU_MODE, _mode),
    LabelRow(names.LABEL_GPU_CLIQUE, _clique),
    LabelRow(names.LABEL_MIG_CAPABLE, lambda view: boolean(any(gpu.mig_capable for gpu in view.gpus))),
    LabelRow(
        names.LABEL_MIG_STRATEGY,
        lambda view: None if view.settings.mig_strategy == "none" else str(view.settings.mig_strategy),
    ),
    LabelRow(names.LABEL_MPS_CAPABLE, _mps_capable),
    LabelRow(names.LABEL_CUDA_DRIVER + ".major", _driver(0)),
    LabelRow(names.LABEL_CUDA_DRIVER + ".minor", _driver(1)),
    LabelRow(names.LABEL_CUDA_DRIVER + ".rev", _driver(2)),
    LabelRow(names.LABEL_CUDA_DRIVER_VERSION + ".major", _driver(0)),
    LabelRow(names.LABEL_CUDA_DRIVER_VERSION + ".minor", _driver(1)),
    LabelRow(names.LABEL_CUDA_DRIVER_VERSION + ".revision", _driver(2)),
    LabelRow(
        names.LABEL_CUDA_DRIVER_VERSION + ".full",
        lambda view: None if view.driver is None else legal(view.inventory.driver_version),
    ),
    LabelRow(names.LABEL_CUDA_RUNTIME + ".major", _runtime(0)),
    LabelRow(names.LABEL_CUDA_RUNTIME + ".minor", _runtime(1)),
    LabelRow(names.LABEL_CUDA_RUNTIME_VERSION + ".major", _runtime(0)),
    LabelRow(names.LABEL_CUDA_RUNTIME_VERSION + ".minor", _runtime(1)),
    LabelRow(names.LABEL_CUDA_RUNTIME_VERSION + ".full", _runtime_full),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeLabelTable:
    """A vendor's labels about the node as a whole: ``always`` without accelerators, ``rows`` with one; ``fallbacks``
    are the values of labels that have never been known.
    """

    always: tuple[LabelRow[LabelledNode], ...] = ()
    rows: tuple[LabelRow[LabelledNode], ...] = ()
    fallbacks: Mapping[str, str] = field(default_factory=dict)


_NONE: Final = NodeLabelTable()
_BY_VENDOR: Final = {
    names.NVIDIA: NodeLabelTable(
        always=_ALWAYS, rows=_NODE, fallbacks={names.LABEL_GPU_MACHINE: UNKNOWN, names.LABEL_GPU_MODE: UNKNOWN}
    ),
}


def node_labels(vendor: str) -> NodeLabelTable:
    """The node labels of a vendor; empty for one that only has labels of its resources."""
    return _BY_VENDOR.get(vendor, _NONE)


# Keys that depend on the configuration alone: removed when it no longer asks for them, whatever could be read.
CONFIGURED_KEYS: Final = frozenset({names.LABEL_GFD_TIMESTAMP, names.LABEL_MIG_STRATEGY})


def _product(group: ResourceGroup) -> str:
    shown_shared = group.replicas > 1 and group.shared is not None and not group.shared.renamed
    return joined(group.model, "MIG" if group.kind else "", group.kind, "SHARED" if shown_shared else "")


def _strategy(group: ResourceGroup) -> str:
    if group.broken:
        return ""
    return str(group.sharing) if group.sharing is not None and group.replicas > 1 else str(SharingStrategy.NONE)


def _memory(group: ResourceGroup) -> str | None:
    if group.broken:
        return "0"
    if group.partition is not None:
        return str(group.partition.memory_mib)
    return str(group.memory_mib) if group.memory_mib else None


def _compute(part: int) -> Callable[[ResourceGroup], str | None]:
    return lambda group: str(group.compute[part]) if group.compute and group.compute[0] > 0 else None


def _family(group: ResourceGroup) -> str | None:
    return family(group.compute) if group.compute and group.compute[0] > 0 else None


def _slice(attribute: str) -> Callable[[ResourceGroup], str | None]:
    return lambda group: None if group.partition is None else str(getattr(group.partition, attribute))


GROUP_ROWS: Final[tuple[LabelRow[ResourceGroup], ...]] = (
    LabelRow(names.LABEL_PRODUCT, _product),
    LabelRow(names.LABEL_COUNT, lambda group: str(group.count)),
    LabelRow(names.LABEL_REPLICAS, lambda group: str(group.replicas)),
    LabelRow(names.LABEL_SHARING_STRATEGY, _strategy),
    LabelRow(names.LABEL_MEMORY, _memory),
    LabelRow(names.LABEL_FAMILY, _family),
    LabelRow(names.LABEL_COMPUTE_MAJOR, _compute(0)),
    LabelRow(names.LABEL_COMPUTE_MINOR, _compute(1)),
    LabelRow(names.LABEL_MULTIPROCESSORS, _slice("multiprocessors")),
    LabelRow(names.LABEL_SLICES_GI, _slice("slices_gi")),
    LabelRow(names.LABEL_SLICES_CI, _slice("slices_ci")),
    LabelRow(names.LABEL_ENGINES + "copy", _slice("copy_engines")),
    LabelRow(names.LABEL_ENGINES + "decoder", _slice("decoders")),
    LabelRow(names.LABEL_ENGINES + "encoder", _slice("encoders")),
    LabelRow(names.LABEL_ENGINES + "jpeg", _slice("jpeg_engines")),
    LabelRow(names.LABEL_ENGINES + "ofa", _slice("ofa_engines")),
)


@functools.cache
def group_keys(resource: str) -> frozenset[str]:
    """Every key of a resource's group."""
    return frozenset(resource + row.key for row in GROUP_ROWS)


# Per model, on nodes with several: kgpu.dev/gpu.<model><suffix>.
MODEL_ROWS: Final[tuple[LabelRow[ResourceGroup], ...]] = tuple(
    row
    for row in GROUP_ROWS
    if row.key
    in {
        names.LABEL_COUNT,
        names.LABEL_MEMORY,
        names.LABEL_FAMILY,
        names.LABEL_COMPUTE_MAJOR,
        names.LABEL_COMPUTE_MINOR,
    }
)
