"""The input from which an operation's next step is worked out."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from kgpu.operations.drain import Evicted
from kgpu.operations.driver_pods import DriverPod
from kgpu.operations.model import ActPod, NodeEvidence, NodePod, TargetNode

UNAPPROVED: Final = "WaitsForApproval"
"""The reason of an operation that waits for a person."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AdmissionVerdict:
    """Whether an operation that waits may begin; ``reason`` and ``why`` say why not. With ``exact``, a new ``why`` is
    recorded even if the reason stays the same.
    """

    admitted: bool = False
    reason: str = ""
    why: str = ""
    exact: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class World:
    """What one operation sees. ``node`` is None if it does not exist; ``pods`` are those on it, None while they have
    not been read. ``live`` are the uids of the operations that may hold nodes. ``monotonic`` is the time by the clock
    of ``Answer``. ``act`` is the pod of the act on record; ``acts_known`` is False while such pods have not been read.
    ``tell_progress`` is True if the progress may be written again. ``evidence`` is what came of collecting it, None if
    this process has not begun to. ``allow_force`` is the admin's ``operations.allowForce``. ``driver`` is the pod that
    holds the driver of a DriverUpgrade's node, of its DaemonSet or of the one before, None without one;
    ``drivers_known`` is False while such pods have not been read.
    """

    now: float
    node: TargetNode | None
    admission: AdmissionVerdict = field(default_factory=AdmissionVerdict)
    pods: tuple[NodePod, ...] | None = None
    evicted: Evicted = field(default_factory=Evicted)
    live: frozenset[str] = frozenset()
    monotonic: float = 0.0
    act: ActPod | None = None
    acts_known: bool = True
    tell_progress: bool = True
    evidence: NodeEvidence | None = None
    allow_force: bool = False
    driver: DriverPod | None = None
    drivers_known: bool = True
