"""What is asked and what is answered: changes to a cluster, pods that need a node, where each lands or why it does not.

Frozen values without behaviour. Amounts of accelerators are counts of an extended resource, money is millionths of a
currency an hour.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any, TypeAlias

from kgpu.fit.model import NodeView, PodView


class Origin(enum.StrEnum):
    """Why a pod needs a node."""

    WAITING = "waiting"
    """It had none before the change."""
    DRAINED = "drained"
    SCALED = "scaled"
    SUBMITTED = "submitted"
    CREATED = "created"
    """Its controller could not create it before."""
    PREEMPTED = "preempted"


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeTemplate:
    """A node to make copies of. ``daemons`` are the DaemonSets' pods that come with each; ``assumed`` is what nobody
    has measured about it.
    """

    what: str
    view: NodeView
    daemons: tuple[PodView, ...] = ()
    provider_id: str = ""
    assumed: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class AddNodes:
    template: NodeTemplate
    count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class DrainNode:
    node: str


@dataclass(frozen=True, slots=True, kw_only=True)
class CutGpus:
    """Another MIG layout: so many slices of each profile on every GPU; none for MIG off."""

    node: str
    layout: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ShareGpus:
    """So many shares of each device."""

    node: str
    replicas: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ScaleWorkload:
    namespace: str
    kind: str
    name: str
    replicas: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SetQuota:
    """Another limit in a namespace's ResourceQuotas; ``amount`` in billionths, None for no limit. ``quota`` is "" where
    the one that has the key is meant.
    """

    namespace: str
    key: str
    amount: int | None
    quota: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class SubmitPods:
    """Objects with pods in them, each so many times. ``gang``: all of their pods or none of them."""

    objects: tuple[Mapping[str, Any], ...]
    count: int = 1
    gang: bool = False
    namespace: str = "default"


Change: TypeAlias = AddNodes | DrainNode | CutGpus | ShareGpus | SetQuota | ScaleWorkload | SubmitPods


@dataclass(frozen=True, slots=True, kw_only=True)
class GangWish:
    """``scheduled``: the scheduler starts ``least`` pods of the group, those that run among them, or none; others are
    placed one by one and wait for each other where they run.
    """

    scheduled: bool
    least: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class PodToPlace:
    """A pod that needs a node. ``gang`` names the group that it starts or works with, "" for none."""

    pod: PodView
    origin: Origin
    came_from: str = ""
    gang: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class PodOutcome:
    """Where a pod lands, or why it does not.

    ``node`` is "" where it has none; then ``message`` is the scheduler's own, ``counts`` the nodes by what they lack,
    ``reasons`` what keeps the pod off any node. ``preempts`` are the pods that would have to go for it.
    """

    pod: PodView
    origin: Origin
    came_from: str = ""
    gang: str = ""
    node: str = ""
    message: str = ""
    counts: Mapping[str, int] = field(default_factory=dict)
    reasons: tuple[str, ...] = ()
    preempts: tuple[str, ...] = ()
    room: str = ""
    """The node that one of a gang had room on, which starts nowhere as others of it have none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GangOutcome:
    """A group of pods that start or work together: for how many there is room, and what is in the way.

    ``pods`` need a node, ``running`` others have one. ``least`` is how many start at once or none, those that run among
    them; ``scheduled`` is False where each is placed by itself. ``makes_room``: what would have room for all, tried.
    """

    name: str
    pods: int
    room_for: int
    running: int = 0
    least: int = 0
    scheduled: bool = True
    blocked_by: str = ""
    quality: tuple[str, ...] = ()
    makes_room: tuple[str, ...] = ()

    @property
    def fits_whole(self) -> bool:
        return self.room_for == self.pods

    @property
    def starts(self) -> bool:
        """Whether so many have a node that its scheduler, or its work, begins."""
        return self.running + self.room_for >= self.least if self.scheduled else self.fits_whole


@dataclass(frozen=True, slots=True, kw_only=True)
class ResourceRoom:
    """What is free of one resource on nodes that take pods.

    ``fits`` says how many pods of k devices each have room at once, ``fragmentation`` which part of the free devices
    such pods can't use (0 to 1). ``largest`` is the most that one node has free. ``stranded`` is how many free devices
    a usual pod of this cluster can't use, as an expected value over what runs and waits.
    """

    resource: str
    total: int
    free: int
    largest: int
    fits: Mapping[int, int]
    fragmentation: Mapping[int, Fraction]
    stranded: Fraction


@dataclass(frozen=True, slots=True, kw_only=True)
class StrandedNode:
    """Devices that are free on a node that is full of something else. ``holders``: who has most of that."""

    node: str
    resource: str
    free: int
    full_of: str
    holders: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class PodMove:
    """A pod that goes from a node to another one, where it fits at that moment."""

    pod: PodView
    source: str
    target: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PodInTheWay:
    """A pod that holds devices of a node on which no moves make room, and why it stays there."""

    pod: PodView
    node: str
    devices: int
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class DefragPlan:
    """The fewest moves found that free ``wanted`` devices on one node. ``node`` is "" where none were found: ``why``.

    ``moves`` is () and ``node`` set where it is so already.
    """

    resource: str
    wanted: int
    node: str = ""
    moves: tuple[PodMove, ...] = ()
    why: str = ""
    fixed: Mapping[str, int] = field(default_factory=dict)
    """Pods that may not be moved, counted by the reason."""
    in_the_way: tuple[PodInTheWay, ...] = ()
    """Where there is no plan: what is on the nodes that come closest."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PriceChange:
    """What a node that comes or goes costs an hour, with the source; ``per_hour`` is negative for one that goes."""

    node: str
    per_hour: int
    source: str
    assumed: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class WhatIfAnswer:
    """All of it. ``notes`` are what has to be known besides, one sentence each; ``refusals`` are an API server's words
    against submitted pods, of which it is said all the same where they would go.
    """

    changes: tuple[str, ...]
    outcomes: tuple[PodOutcome, ...]
    gangs: tuple[GangOutcome, ...] = ()
    before: tuple[ResourceRoom, ...] = ()
    after: tuple[ResourceRoom, ...] = ()
    stranded: tuple[StrandedNode, ...] = ()
    quality: Mapping[str, str] = field(default_factory=dict)
    """By pod that asks for several devices: how they are connected on its node, where that is known."""
    defrag: DefragPlan | None = None
    prices: tuple[PriceChange, ...] = ()
    currency: str = ""
    refusals: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def without_node(self) -> tuple[PodOutcome, ...]:
        return tuple(outcome for outcome in self.outcomes if not outcome.node)

    @property
    def holds(self) -> bool:
        """Whether all that was asked for comes true. Pods that waited before count only where nothing else is asked."""
        asked = [outcome for outcome in self.outcomes if outcome.origin is not Origin.WAITING] or self.outcomes
        found = self.defrag is None or bool(self.defrag.node)
        return found and not self.refusals and all(outcome.node for outcome in asked)
