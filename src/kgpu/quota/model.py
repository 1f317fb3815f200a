"""What ``kgpu quota`` answers: rows by namespace and resource, gaps, and how busy what is held is."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction


@dataclass(frozen=True, slots=True, kw_only=True)
class QuotaRow:
    """A resource in a namespace. ``key`` is the quota's key that counts it.

    ``hard`` is the smallest limit of all quotas that count it, None where none does; ``used`` what that one has
    counted. ``held`` are devices of pods that have a node, ``waiting`` those of pods that have none yet.
    """

    namespace: str
    resource: str
    key: str
    hard: int | None = None
    used: int | None = None
    held: int = 0
    waiting: int = 0
    quota: str = ""

    @property
    def full(self) -> bool:
        return self.hard is not None and self.used is not None and self.used >= self.hard


@dataclass(frozen=True, slots=True, kw_only=True)
class QuotaGap:
    """A way round a namespace's quota: a resource, or a device class, that it does not count and the cluster has."""

    namespace: str
    quota: str
    resource: str
    key: str
    what: str


@dataclass(frozen=True, slots=True, kw_only=True)
class NamespaceUse:
    """By a recording: how many GPUs a namespace held on average, and how many of these were busy, None for unknown."""

    held: Fraction
    busy: Fraction | None = None

    @property
    def idle(self) -> Fraction | None:
        return None if self.busy is None else max(Fraction(0), self.held - self.busy)


@dataclass(frozen=True, slots=True, kw_only=True)
class QuotaFinding:
    """What one of the doctor's rules says of a quota or a LimitRange."""

    id: str
    namespace: str
    cause: str
    remedy: tuple[str, ...] = ()
