"""What the labels are made of and what comes out: settings, facts about the node, and the plan with its reasons.

Values only. ``plan.py`` turns the first two and an inventory into the third.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field

from kgpu.base.advice import Advice


class MigStrategy(enum.StrEnum):
    """How MIG devices show: not at all, as plain GPUs, or as resources of their own."""

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
        """The first entry for that resource, None when it is not shared."""
        return next((entry for entry in self.resources if entry.name == resource), None)


@dataclass(frozen=True, slots=True, kw_only=True)
class LabelSettings:
    """What the configuration says about labels."""

    mig_strategy: MigStrategy = MigStrategy.NONE
    sharing: SharingInForce = SharingInForce()
    timestamp: bool = True
    """Whether ``gfd.timestamp`` is written."""
    interval: float | None = 60.0
    """Seconds between readings without a cause; None: only when something changes."""
    machine_type_file: str = "/sys/class/dmi/id/product_name"


@dataclass(frozen=True, slots=True)
class VgpuFacts:
    """What a vGPU's host driver says of itself; "" where the record has nothing."""

    host_driver_version: str
    host_driver_branch: str


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeFacts:
    """Facts that come from the node's files rather than from the driver.

    ``machine`` is the raw content of the machine type file, None when there is none to read. ``vgpu_present`` is None
    when the PCI configuration space is closed to us; ``vgpu`` is the last vGPU's host driver.
    """

    machine: str | None = None
    vgpu_present: bool | None = None
    vgpu: VgpuFacts | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class LabelPlan:
    """The labels to have from now on, sorted by key, and the decisions behind what is not plain to see."""

    labels: Mapping[str, str]
    decisions: tuple[Advice, ...] = field(default=())
    fresh: bool = True
    """False when nothing could be read and ``labels`` are merely the last ones."""
