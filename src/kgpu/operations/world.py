"""What one operation sees when its next step is worked out."""

from __future__ import annotations

from dataclasses import dataclass, field

from kgpu.operations.drain import Evicted
from kgpu.operations.model import ActPod, NodePod, TargetNode


@dataclass(frozen=True, slots=True, kw_only=True)
class AdmissionVerdict:
    """Whether an operation that waits may begin; ``reason`` and ``why`` where it may not. ``exact``: also another
    ``why`` for the same reason is worth telling.
    """

    admitted: bool = False
    reason: str = ""
    why: str = ""
    exact: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class World:
    """What one operation sees. ``node`` is None where there is none of its name; ``pods`` are those on it, None while
    they have not been read. ``live`` are the uids of the operations that hold nodes. ``monotonic`` is the time by the
    clock of ``Answer``. ``act`` is the pod that acts on the node under the ID on record; ``acts_known`` is False while
    such pods have not been read. ``tell_progress``: the record of the drain may be written again already.
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
