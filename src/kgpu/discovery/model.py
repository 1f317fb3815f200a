"""The input and the result of labelling: settings, facts about the node, and the plan with its reasons.

Plain data. ``plan.py`` turns the first two and an inventory into the third.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field

from kgpu.base.advice import Advice
from kgpu.formats.names import AMD_LABEL_PREFIX, AMD_LABELS, BETA_AMD_LABEL_PREFIX


class MigStrategy(enum.StrEnum):
    """How MIG devices are labelled: not at all, as plain GPUs, or as separate resources."""

    NONE = "none"
    SINGLE = "single"
    MIXED = "mixed"


class SharingStrategy(enum.StrEnum):
    """How one device serves several pods; the values are those of the label ``<resource>.sharing-strategy``."""

    NONE = "none"
    TIME_SLICING = "time-slicing"
    MPS = "mps"


@dataclass(frozen=True, slots=True)
class LabelledResource:
    """One entry of ``sharing.*.resources``: the full resource name, replicas per device, and whether it is renamed."""

    name: str
    replicas: int
    renamed: bool = False


@dataclass(frozen=True, slots=True)
class SharingInForce:
    """The sharing that is in force; with kind NONE there are no resources."""

    kind: SharingStrategy = SharingStrategy.NONE
    resources: tuple[LabelledResource, ...] = ()

    def of(self, resource: str) -> LabelledResource | None:
        """The first entry for that resource, None if it is not shared."""
        return next((entry for entry in self.resources if entry.name == resource), None)


@dataclass(frozen=True, slots=True, kw_only=True)
class LabelSettings:
    """The configuration of the labels."""

    mig_strategy: MigStrategy = MigStrategy.NONE
    sharing: SharingInForce = SharingInForce()
    timestamp: bool = True
    """Whether ``gfd.timestamp`` is written."""
    interval: float | None = 60.0
    """Seconds between readings without a cause; None to read only when something changes."""
    machine_type_file: str = "/sys/class/dmi/id/product_name"
    amd_labels: frozenset[str] = frozenset(AMD_LABELS)
    """The labels of AMD's labeller that are written, of ``AMD_LABELS``."""

    def leaves_out(self, key: str) -> bool:
        """Whether the label is one of AMD's that are not to be written."""
        for prefix in (AMD_LABEL_PREFIX, BETA_AMD_LABEL_PREFIX):
            if key.startswith(prefix):
                name = key.removeprefix(prefix)
                found = [label for label in AMD_LABELS if name == label or name.startswith(f"{label}.")]
                return bool(found) and found[0] not in self.amd_labels
        return False


@dataclass(frozen=True, slots=True)
class VgpuFacts:
    """A vGPU's facts about its host driver; "" for what the record lacks."""

    host_driver_version: str
    host_driver_branch: str


@dataclass(frozen=True, slots=True)
class RdmaFacts:
    """The fastest active ports of a node's RDMA adapters: "infiniband" or "ethernet", Gbit/s of each, and how many."""

    link_layer: str
    gbps: int
    ports: int


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeFacts:
    """Facts that come from the node's files rather than from the driver.

    ``machine`` is the raw content of the machine type file, None if it can't be read. ``vgpu_present`` is None if the
    PCI configuration space can't be read; ``vgpu`` is the last vGPU's host driver. ``firmware`` are the versions of
    each AMD GPU's firmware by its PCI address, in the names of AMD's labeller. ``rdma`` is None without an active port.
    """

    machine: str | None = None
    vgpu_present: bool | None = None
    vgpu: VgpuFacts | None = None
    firmware: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    rdma: RdmaFacts | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class LabelPlan:
    """The wanted labels, sorted by key, and advice on those that are not obvious."""

    labels: Mapping[str, str]
    advice: tuple[Advice, ...] = field(default=())
    fresh: bool = True
    """False if nothing could be read and ``labels`` are just the last ones."""
