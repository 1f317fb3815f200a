"""What a filter is: a row with the scheduler's plugin name, and what it prepares for one pod to judge nodes with.

``check`` is fast and says only what the scheduler says; ``reasons`` says the same with the evidence. Both agree always:
a node has reasons exactly when its check has misses.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, NamedTuple, Protocol, Self, TypeAlias

from kgpu.fit.model import PodView, Reason
from kgpu.fit.snapshot import ClusterSnapshot, NodeState


class Miss(NamedTuple):
    """One thing that a node lacks, in the scheduler's words."""

    phrase: str
    resolvable: bool
    """Removing pods of lower priority from the node could help (Unschedulable, not ...AndUnresolvable)."""


Misses: TypeAlias = tuple[Miss, ...]
PASS: Final[Misses] = ()


class Checker(Protocol):
    """A filter prepared for one pod. Trials ``fork`` it, and report pods that come and go to the copy."""

    moves: bool
    """False when pods on the node can't change its answers."""

    def check(self, node: NodeState) -> Misses:
        """What the node lacks, empty when it passes."""
        ...

    def reasons(self, node: NodeState) -> tuple[Reason, ...]:
        """The same with the evidence."""
        ...

    def moved(self, pod: PodView, node: NodeState, sign: int) -> None:
        """A pod has come (1) or gone (-1)."""
        ...

    def fork(self) -> Checker:
        """A copy that ``moved`` can change."""
        ...


class StaticChecker:
    """Base of checkers whose answers don't depend on other pods, or only through the node's own accounts."""

    moves: bool = False

    def moved(self, pod: PodView, node: NodeState, sign: int) -> None:
        """Nothing to follow."""

    def fork(self) -> Self:
        return self


@dataclass(frozen=True, slots=True, kw_only=True)
class Rejection:
    """A filter's finding that no node can pass, made before any node is looked at."""

    filter: str
    phrase: str
    sentence: str
    resolvable: bool = False
    subject: str = ""


class FilterFaultError(Exception):
    """A filter fails instead of judging: kube-scheduler gives the pod up for now, whatever other nodes are like."""

    def __init__(self, filter_name: str, words: str) -> None:
        super().__init__(f'running "{filter_name}" filter plugin: {words}')
        self.filter = filter_name


@dataclass(frozen=True, slots=True)
class Filter:
    """``prepare`` gives the checker for a pod, None when the filter has nothing to do with it, or a rejection."""

    name: str
    prepare: Callable[[PodView, ClusterSnapshot], Checker | Rejection | None]


def names_of(pods: list[PodView], limit: int = 5) -> str:
    """A few pods by name, and how many more."""
    shown = ", ".join(str(pod) for pod in pods[:limit])
    return f"{shown} and {len(pods) - limit} more" if len(pods) > limit else shown
