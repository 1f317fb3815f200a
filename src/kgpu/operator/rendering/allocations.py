"""What is told of nodes whose GPUs are not handed out as somebody asks: one record each, as ``ignored``."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from kgpu.base.advice import Advice, Severity
from kgpu.base.printable import one_line
from kgpu.base.suggest import did_you_mean
from kgpu.formats import names
from kgpu.formats.support import dotted
from kgpu.operator.allocation import CHOICES, serves_claims
from kgpu.operator.labels import has_accelerators
from kgpu.operator.model import Allocation, ClusterNode
from kgpu.operator.objects.common import Scene
from kgpu.operator.verdict import some_nodes

UNKNOWN: Final = "InvalidAllocation"
OFF: Final = "ClaimsSwitchedOff"
NO_API: Final = "ClaimsNotServed"


def allocations(scene: Scene) -> Iterator[Advice]:
    """Labels that nobody knows, and claims where there can be none."""
    asking = []
    for node in scene.observed.nodes:
        told = node.labels.get(names.ALLOCATION_LABEL, "")
        if not has_accelerators(node):
            continue
        if told == Allocation.DRA:
            asking.append(node.name)
        elif told and told not in CHOICES:
            yield _unknown(scene, node, told)
    if scene.settings.dra and not serves_claims(scene.observed):
        yield _not_served(scene)
    elif asking and not scene.settings.dra:
        yield _switched_off(scene, asking)


def _unknown(scene: Scene, node: ClusterNode, told: str) -> Advice:
    hint = did_you_mean(told, CHOICES)
    absent = Allocation.DRA if node.by_claims else scene.settings.allocation
    return _warning(
        f"Node/{node.name}",
        what=f'node {node.name}: the label {names.ALLOCATION_LABEL} is "{one_line(told, 63)}", which is no way to hand '
        f"out GPUs{f'; {hint}' if hint else ''}",
        why=f"it counts as absent, which is {absent} here",
        remedy=f"set it to one of {', '.join(CHOICES)}, or remove it: "
        f"kubectl label node {node.name} {names.ALLOCATION_LABEL}-",
        reason=UNKNOWN,
    )


def _switched_off(scene: Scene, nodes: list[str]) -> Advice:
    return _warning(
        f"ClusterPolicy/{scene.policy.name}",
        what=f"without effect: the label {names.ALLOCATION_LABEL}={Allocation.DRA} on {some_nodes(nodes)}",
        why="the DRA driver is switched off by the Helm value dra.enabled; the device plugin hands out the GPUs there",
        remedy="set dra.enabled=true, or remove the label",
        reason=OFF,
    )


def _not_served(scene: Scene) -> Advice:
    version = dotted(scene.observed.kube_version)
    return _warning(
        f"ClusterPolicy/{scene.policy.name}",
        what="no GPU can be handed out by claims: the API server has no resource.k8s.io",
        why=f"it is of Kubernetes {version}, and the device plugin goes on on every node; Kubernetes has the API from "
        "1.34 on, before that with the feature gate DynamicResourceAllocation and the API group turned on",
        remedy="upgrade to Kubernetes 1.34 or later, or set dra.enabled=false",
        reason=NO_API,
    )


def _warning(subject: str, *, what: str, why: str, remedy: str, reason: str) -> Advice:
    return Advice(
        subject=subject, what=what, why=why, severity=Severity.WARNING, remedy=remedy, reason=reason
    ).printable()
