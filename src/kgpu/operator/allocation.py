"""Which programs hand out a node's GPUs: ``allocators``, the one place that decides it. Pure.

The Node label ``kgpu.dev/allocation`` says it, where it is absent the chart's value ``allocation``. A value that nobody
knows counts as absent, and where claims can't be served the device plugin goes on: a mistake takes no GPU away.
What a node has given out in the other way before stays with its pods, and keeps its program there (``lingers``); that
no GPU is given out twice then is the agent's to see to (``kgpu.agent.claimed_gpus``, ``counted_gpus``).
``rendering.allocations`` tells of both.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from kgpu.formats import names
from kgpu.formats.agent_report import OVER
from kgpu.formats.operands import OPERANDS
from kgpu.kube.kinds import RESOURCE_SLICES, plural_and_group
from kgpu.operator.model import Allocation, ClusterNode, ObservedCluster, OperatorSettings

CHOICES: Final = tuple(map(str, Allocation))
DEPLOYED: Final[Mapping[Allocation, str]] = {Allocation.DEVICE_PLUGIN: "device-plugin", Allocation.DRA: "dra-driver"}
"""The ends of the Node labels ``nvidia.com/gpu.deploy.<x>`` that let each run."""
LEAVING: Final = "leaving"
"""Its value where a program hands out nothing more and goes on: pods still have what it gave them."""
LINGERING: Final = frozenset({Allocation.DRA})
"""The programs that pods need until they end: without the DRA driver the kubelet can't take a claim back."""
ROLES: Final = {program: next(row.role for row in OPERANDS if row.deploy == end) for program, end in DEPLOYED.items()}
"""The role that each program is."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AllocationRules:
    """How GPUs are handed out where no label says it, and whether claims can be served in this cluster."""

    default: Allocation = Allocation.DEVICE_PLUGIN
    claims: bool = False


def allocation_rules(settings: OperatorSettings, observed: ObservedCluster) -> AllocationRules:
    """The rules of this cluster: claims need the chart's ``dra.enabled``, and an API server that has them."""
    return AllocationRules(default=settings.allocation, claims=settings.dra and serves_claims(observed))


def serves_claims(observed: ObservedCluster) -> bool:
    """Whether the API server has ResourceSlices, in any version."""
    return plural_and_group(RESOURCE_SLICES) in observed.kinds


def asked_for(labels: Mapping[str, str], default: Allocation) -> Allocation:
    """What the Node's label asks for, the default where it is absent or unknown."""
    told = labels.get(names.ALLOCATION_LABEL, "")
    return Allocation(told) if told in CHOICES else default


def lingers(node: ClusterNode, program: Allocation) -> bool:
    """Whether a program that a node is to have no more has to go on there, by what its role says."""
    key = names.LABEL_DEPLOY_PREFIX + DEPLOYED[program]
    if program not in LINGERING or key not in node.owned or node.report is None:
        return False
    role = node.report.roles.get(ROLES[program])
    return role is not None and role.state not in OVER


def allocators(labels: Mapping[str, str], rules: AllocationRules, *, by_claims: bool = False) -> frozenset[Allocation]:
    """What hands out the GPUs of a node with these labels; ``by_claims``: where these are silent, its DeviceConfig asks
    for claims.
    """
    asked = asked_for(labels, Allocation.DRA if by_claims else rules.default)
    return frozenset({asked if rules.claims else Allocation.DEVICE_PLUGIN})
