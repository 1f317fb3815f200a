"""What the health role says of a node's GPUs: which are not well, and whether the driver can be read.

It is read as data (``kgpu.formats.gpu_report``). The condition beside it is for people; of an agent that writes no
report that is understood, one older than this operator, it is passed on whole. Nothing raises.
"""

from __future__ import annotations

from dataclasses import dataclass

from kgpu.formats import names
from kgpu.formats.gpu_report import UNREADABLE, ReportedGpu
from kgpu.operator.model import ClusterNode


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeGpus:
    """Of one node. ``ill`` are not well, ``more`` of those not named; ``unread`` is why the driver can't be read.
    ``untold``: what an agent of another version says to people, of GPUs that take no work.
    """

    ill: tuple[ReportedGpu, ...] = ()
    bad: int = 0
    more: int = 0
    unread: str = ""
    untold: str = ""


def gpus_of(node: ClusterNode) -> NodeGpus:
    """As its agent says it now."""
    condition = node.conditions.get(names.GPUS_HEALTHY_CONDITION)
    if condition is None:
        return NodeGpus()
    unread = condition.message if condition.status == "Unknown" and condition.reason == UNREADABLE else ""
    if node.gpus is None:
        untold = condition.message if condition.status == "False" else ""
        return NodeGpus(bad=int(bool(untold)), unread=unread, untold=untold)
    ill = tuple(gpu for gpu in node.gpus.gpus if not gpu.muted)
    return NodeGpus(ill=ill, bad=node.gpus.bad, more=node.gpus.more, unread=unread)
