"""What advice about sharing is made of: the ways, what is known of a node's GPUs, and what comes of it."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field

Version = tuple[int, ...]


class SharingWay(enum.StrEnum):
    """A way in which containers get at a GPU. The values are what users type and read in JSON."""

    WHOLE = "whole"
    TIME_SLICING = "time-slicing"
    MPS = "mps"
    MIG = "mig"
    DRA = "dra"

    @property
    def words(self) -> str:
        """For people."""
        return {"whole": "whole GPU", "mps": "MPS", "mig": "MIG", "dra": "DRA"}.get(self.value, self.value)


class Possibility(enum.StrEnum):
    """How a way stands on one kind of GPU, the best first."""

    IN_USE = "in use"
    YES = "yes"
    MISSING = "missing"  # the hardware can; what lacks is said
    UNKNOWN = "unknown"
    NO = "no"  # not on this hardware, or not beside what is set up there now

    @property
    def usable(self) -> bool:
        """Whether it is there, or a change of settings brings it."""
        return self in {Possibility.IN_USE, Possibility.YES}


@dataclass(frozen=True, slots=True, kw_only=True)
class ResourceShares:
    """What a node's labels say of one resource: ``replicas`` is 0 where no number can be read."""

    resource: str
    way: SharingWay
    replicas: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelOnNode:
    """The GPUs of one model on one node, as the Node object tells. What it does not tell is "", 0, () or None.

    ``compute`` is the CUDA compute capability; ``mig_capable`` is the driver's word on the node. ``count`` is the
    number of GPUs, and of slices where ``slices`` has the profile that they have under strategy single. ``offered``
    are the node's resources in its capacity, by name; ``shares`` which of them are shared. ``beside``: the node has
    other models.
    """

    node: str
    product: str = ""
    count: int = 0
    compute: Version = ()
    mig_capable: bool | None = None
    mig_strategy: str = ""
    slices: str = ""
    offered: tuple[tuple[str, int], ...] = ()
    shares: tuple[ResourceShares, ...] = ()
    driver: Version = ()
    kubelet: Version = ()
    beside: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class DraService:
    """What a cluster has of Dynamic Resource Allocation.

    ``kubernetes`` is the API server's version. ``served`` is the version of ``resource.k8s.io`` that it serves, "" for
    none. ``publishers`` has the DRA drivers of GPUs that publish devices of a node, by node; None where that could not
    be read.
    """

    kubernetes: Version = ()
    served: str = ""
    publishers: Mapping[str, frozenset[str]] | None = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class WayHere:
    """How one way stands on a kind of GPU, and why: ``why`` is one line for people."""

    way: SharingWay
    state: Possibility
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuKind:
    """GPUs that are alike in all that counts here, on ``nodes``; ``gpus`` is what they have in common.

    ``profiles``: the MIG profiles of the model, each with the most that one GPU takes of it; () where there are none or
    no table is known.
    """

    nodes: tuple[str, ...]
    gpus: ModelOnNode
    ways: tuple[WayHere, ...]
    profiles: tuple[tuple[str, int], ...] = ()

    def of(self, way: SharingWay) -> WayHere:
        """How that way stands here."""
        return next(row for row in self.ways if row.way is way)


@dataclass(frozen=True, slots=True, kw_only=True)
class WayChoice:
    """Which way answers a need on a kind of GPU: the first that is usable, None for none.

    ``passed`` are those that would suit better, or as well, and are not usable.
    """

    kind: GpuKind
    way: WayHere | None
    passed: tuple[WayHere, ...] = ()
