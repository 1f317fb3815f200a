"""Node features, which run everywhere: a node that has not been looked at may have unknown GPUs."""

from __future__ import annotations

from typing import Final

from kgpu.formats import names
from kgpu.formats.operands import BY_ROLE
from kgpu.operator.causes import Cause, CauseView
from kgpu.operator.checks import refused_causes, role_cause
from kgpu.operator.labels import is_known, looked_at, opted_out
from kgpu.operator.model import Object
from kgpu.operator.objects import finder
from kgpu.operator.objects.common import Scene
from kgpu.operator.objects.rbac import features
from kgpu.operator.operand_spec import OperandPod, OperandSpec, Variable
from kgpu.operator.vendors import of_vendor
from kgpu.operator.verdict import (
    NOT_LOOKED_AT,
    SHOWN,
    NodeCause,
    OperandVerdict,
    and_more,
    some_nodes,
    unique,
    verdict_of,
)

OPERAND: Final = BY_ROLE["features"]
OTHER_DISCOVERY: Final = "another node feature discovery works in this cluster and is used"
"""The note if kgpu's own adds no labels and keeps each that it has until the other one has published it."""


def _unlabelled(view: CauseView) -> tuple[NodeCause, ...]:
    """The nodes that offer NVIDIA GPUs but have no GPU label, because something has removed it.

    Capacity does not count, as the kubelet keeps it after the plugin has gone.
    """
    gpus = {node.name for node in view.gpu_nodes}
    findings = []
    for node in view.nodes if names.NVIDIA in view.settings.vendors else ():
        offered = of_vendor(node.allocatable, names.NVIDIA)
        if node.name in gpus or is_known(node) or opted_out(node) or not any(offered.values()):
            continue
        counted = ", ".join(f"{count} {name}" for name, count in sorted(offered.items()) if count)
        cause = Cause(
            reason="GPULabelsMissing",
            what=f"it has {counted} and no label of an NVIDIA device ({', '.join(names.NFD_PCI_NVIDIA)})",
            remedy=(
                "let its node feature discovery label it again (kgpu's does so by itself); see which labels it has: "
                f"kubectl get node {node.name} --show-labels"
            ),
        )
        findings.append(NodeCause(node.name, cause))
    return tuple(findings)


def _verdict(view: CauseView) -> OperandVerdict:
    gpus = {node.name for node in view.gpu_nodes}
    findings = [NodeCause("", cause) for cause in refused_causes(view, OPERAND)]
    missed = {finding.node: finding for finding in _unlabelled(view)}
    aside: list[str] = []
    unseen: list[NodeCause] = []
    counted: list[str] = []
    others: list[str] = []
    for node in view.nodes:
        if node.os != "linux":
            continue
        daemon_set = view.finder(node)
        if not daemon_set:
            (counted if looked_at(node) else others).append(node.name)
            continue
        if node.name not in gpus:
            taints = view.tainted(daemon_set).get(node.name)
            if taints or not node.ready:
                why = f"taint {taints[0]} is not tolerated" if taints else "it is not Ready"
                absent = view.pod_cause(node, daemon_set, running=False)
                if not looked_at(node) and absent is not None:
                    aside.append(f"{node.name} ({why})")
                    unseen.append(NodeCause(node.name, absent))
                continue
        counted.append(node.name)
        cause = role_cause(view, OPERAND, node)
        if cause is not None and (node.name in gpus or not cause.passing or not looked_at(node)):
            findings.append(NodeCause("" if cause.cluster else node.name, cause))
        elif node.name in missed:
            findings.append(missed[node.name])
    notes = [OTHER_DISCOVERY] if view.observed.foreign_nfd else []
    if unseen and not counted:  # no node has been looked at, so it is not known that there are no GPUs
        findings += unseen
        counted = [finding.node for finding in unseen]
    elif aside:
        shown = f"{', '.join(sorted(aside)[:SHOWN])}{and_more(max(0, len(aside) - SHOWN))}"
        notes.append(
            f"{NOT_LOOKED_AT}{shown}; if there are GPUs on them, "
            f"add the taint to spec.daemonsets.tolerations of ClusterPolicy {view.policy.name}"
        )
    if others:
        notes.append(f"{NOT_LOOKED_AT}{some_nodes(others)}; the other node feature discovery has not labelled them")
    return verdict_of(OPERAND, counted, unique(findings), notes)


def _publishes_features(scene: Scene) -> list[Object]:
    return features(scene, OPERAND.state, OPERAND.account) if scene.settings.feature_rules else []


SPEC: Final = OperandSpec(
    operand=OPERAND,
    objects=_publishes_features,
    # It also runs beside another discovery, as it gives way label by label on each node.
    enabled=lambda _, settings: settings.discovery,
    env=(Variable(names.ENV_FEATURES_CONFIG, lambda scene: scene.settings.features_config or None),),
    pod=OperandPod(
        container="kgpu-node-features", volumes=finder.VOLUMES, privileged=False, resources=finder.RESOURCES
    ),
    has_pods=finder.is_needed,
    why_off=lambda _: "switched off by the Helm value nfd.enabled; something else has to label nodes",
    missed=_unlabelled,
    verdict=_verdict,
)
