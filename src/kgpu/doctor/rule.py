"""What a rule is: a row of the catalogue with a small pure function over the snapshot."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TypeAlias

from kgpu.doctor.model import Finding, Place
from kgpu.doctor.snapshot import Snapshot

Check: TypeAlias = Callable[[Snapshot], Iterable[Finding]]


@dataclass(frozen=True, slots=True)
class Rule:
    """``id`` is the catalogue's. ``title`` names the cause in a few words; ``explain`` is for ``--explain``: why it
    happens, what proves it, what helps.

    ``explains``: ids (``DPL-01``) or groups (``DPL-*``) of findings that follow from this one where they hurt the same
    node or pod. ``also``: further rows of the catalogue that this rule covers, with the same cause and cure.
    ``by_hand``: somebody has written it so; it follows from nothing, and no group (``DPL-*``) of another rule means it.
    ``last_resort``: counts only for pods of which no other finding but a note is told.
    """

    id: str
    title: str
    place: Place
    check: Check
    explain: str
    explains: tuple[str, ...] = ()
    also: tuple[str, ...] = ()
    last_resort: bool = False
    by_hand: bool = False
