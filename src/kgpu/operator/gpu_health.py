"""What the health role says of a node's GPUs: which are not well, and whether the driver can be read.

It is read from the report annotation (``kgpu.formats.gpu_report``). The Node condition is for people; its message is
passed on whole when the agent is of another version and its report can't be read. Nothing raises.
"""

from __future__ import annotations

from dataclasses import dataclass

from kgpu.formats import names
from kgpu.formats.gpu_report import UNREADABLE, ReportedGpu
from kgpu.operator.model import ClusterNode


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeGpus:
    """One node's GPUs. ``ill`` are those not well, ``bad`` how many take no work, ``more`` how many are not named.

    ``unread`` is why the driver can't be read. ``untold`` is the condition's message when the report can't be read.
    """

    ill: tuple[ReportedGpu, ...] = ()
    bad: int = 0
    more: int = 0
    unread: str = ""
    untold: str = ""


def gpus_of(node: ClusterNode) -> NodeGpus:
    """Read a node's GPU health from its condition and its agent's report."""
    condition = node.conditions.get(names.GPUS_HEALTHY_CONDITION)
    if condition is None:
        return NodeGpus()
    unread = condition.message if condition.status == "Unknown" and condition.reason == UNREADABLE else ""
    if node.gpus is None:
        untold = condition.message if condition.status == "False" else ""
        return NodeGpus(bad=int(bool(untold)), unread=unread, untold=untold)
    ill = tuple(gpu for gpu in node.gpus.gpus if not gpu.muted)
    return NodeGpus(ill=ill, bad=node.gpus.bad, more=node.gpus.more, unread=unread)
