"""What the toolkit's decisions are made of and result in: plain data."""

from __future__ import annotations

from dataclasses import dataclass

from kgpu.formats.cdi import Spec


@dataclass(frozen=True, slots=True)
class Generated:
    """A spec, and what a person should know about it: what was left out, and why."""

    spec: Spec
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ListedSpec:
    """One spec file found on the node: its path, priority (later folders win) and qualified device names."""

    path: str
    priority: int
    devices: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Listing:
    """The names that a runtime can resolve, in order, and warnings about those that it can't."""

    names: tuple[str, ...]
    warnings: tuple[str, ...]
