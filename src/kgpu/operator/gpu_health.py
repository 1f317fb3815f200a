"""What the health role says of a node's GPUs in its condition: which are not well, why, and what to do.

The condition is for people, and is read here as they read it: a sentence for each GPU. Nothing raises; a condition that
says nothing of GPUs says nothing.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from kgpu.formats import names
from kgpu.operator.model import Node

UNREADABLE: Final = "DriverUnreadable"
_GPU: Final = r"GPU (?:\d+ \(GPU-[0-9a-fA-F-]+\)|GPU-[0-9a-fA-F-]+|at [0-9a-fA-F:.]+)"
_PARTS: Final = re.compile(rf"(?P<gpu>{_GPU}): (?P<what>.*?)(?=\. (?:{_GPU}: |and \d+ more$)|$)")
_MORE: Final = re.compile(r"\. and (?P<count>\d+) more$")
_WORKS: Final = " (it goes on working)"
_TO_DO: Final = "; to do: "


@dataclass(frozen=True, slots=True, kw_only=True)
class Ill:
    """One GPU that is not well. ``works``: it takes work all the same."""

    gpu: str
    what: str
    todo: str = ""
    works: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Gpus:
    """Of one node. ``more`` are those that the condition only counts; ``unread`` is why the driver can't be read."""

    ill: tuple[Ill, ...] = ()
    more: int = 0
    unread: str = ""

    @property
    def bad(self) -> int:
        """How many take no work, at least."""
        return sum(not one.works for one in self.ill) + self.more


def gpus_of(node: Node) -> Gpus:
    """As the node's condition says it now."""
    said = node.conditions.get(names.GPUS_HEALTHY_CONDITION)
    if said is None:
        return Gpus()
    if said.status == "Unknown":
        return Gpus(unread=said.message if said.reason == UNREADABLE else "")
    found = []
    for hit in _PARTS.finditer(said.message):
        works = hit["what"].endswith(_WORKS)
        what, to_do, todo = hit["what"].removesuffix(_WORKS).partition(_TO_DO)
        if works or to_do:  # else a person has said that it is well
            found.append(Ill(gpu=hit["gpu"].removeprefix("GPU "), what=what, todo=todo, works=works))
    more = _MORE.search(said.message) if said.status == "False" else None
    return Gpus(ill=tuple(found), more=int(more["count"]) if more else 0)
