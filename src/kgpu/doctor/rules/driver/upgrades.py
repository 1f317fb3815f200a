"""Rows DRV about upgrades of drivers: one that stands still, and one that would take all nodes at once."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from kgpu.base.plain import strings
from kgpu.base.remedy import Remedy
from kgpu.doctor import matching, remedies
from kgpu.doctor.model import CERTAIN, Finding, Level, Place
from kgpu.doctor.objects import Obj
from kgpu.doctor.rule import rule
from kgpu.doctor.snapshot import Snapshot
from kgpu.formats import names

_GENTLY: Final = {"maxParallelUpgrades": 1, "maxUnavailable": "25%"}
_STUCK: Final = frozenset({"pod-deletion-required", "drain-required"})


@rule(
    "DRV-27",
    "A driver's upgrade stands still",
    Place.DRIVER,
    explains=("SCH-*", "DPL-18", "OPR-15", "OPR-21", "TNT-*"),
    rests_on=("NVIDIA/gpu-operator#2509", "NVIDIA/gpu-operator v26.7.0, source"),
)
def upgrade_stuck(snapshot: Snapshot) -> Iterator[Finding]:
    """The upgrade controller gave up on a node, or a PodDisruptionBudget lets it evict nothing."""
    label = names.DRIVER_UPGRADE_STATE_LABEL
    for node in snapshot.nodes.values():
        state = node.labels.get(label, "")
        held = _protected(snapshot, node.name) if state in _STUCK else ()
        if state != "upgrade-failed" and not held:
            continue
        why = f": PodDisruptionBudget {held[0].path} lets no pod go" if held else ""
        yield Finding(
            subject=node.subject,
            cause=f"the driver's upgrade of node {node.name} stands at {state}{why}",
            evidence=(
                node.cite(f"metadata.labels[{label}]"),
                *(budget.cite("status.disruptionsAllowed") for budget in held),
            ),
            remedy=(
                Remedy("kubectl get events -A --field-selector involvedObject.name={}", node.name),
                Remedy("end the pods that can't be evicted (no controller, emptyDir, a budget)"),
                remedies.label(node.name, label, "upgrade-required", anew=True),
            ),
            confidence=CERTAIN,
            nodes=(node.name,),
        )


def _protected(snapshot: Snapshot, node: str) -> tuple[Obj, ...]:
    """The PodDisruptionBudgets that allow none of the GPU pods on a node to be evicted."""
    pods = [pod for pod in snapshot.pods_by_node.get(node, ()) if matching.uses_accelerators(pod) and not pod.ended]
    budgets = []
    for budget in snapshot.all("PodDisruptionBudget"):
        wanted = strings(budget.at("spec.selector.matchLabels"))
        if wanted and budget.at("status.disruptionsAllowed") == 0:
            budgets += [
                budget for pod in pods if pod.namespace == budget.namespace and wanted.items() <= pod.labels.items()
            ][:1]
    return tuple(budgets)


@rule(
    "DRV-28",
    "The next driver takes all nodes at once",
    Place.DRIVER,
    rests_on=("NVIDIA/gpu-operator v26.7.0, source",),
)
def all_at_once(snapshot: Snapshot) -> Iterator[Finding]:
    """autoUpgrade with no limit on parallel upgrades and maxUnavailable 100% drains the whole cluster's GPUs."""
    count = len(matching.gpu_nodes(snapshot, matching.NVIDIA))
    for policy in snapshot.all("ClusterPolicy"):
        at_once, share = (
            policy.at("spec.driver.upgradePolicy.maxParallelUpgrades"),
            policy.at("spec.driver.upgradePolicy.maxUnavailable"),
        )
        if policy.at("spec.driver.upgradePolicy.autoUpgrade") is not True or count < 2:
            continue
        if not isinstance(at_once, int) or 0 < at_once < count or share not in ("100%", count):
            continue
        yield Finding(
            subject=policy.subject,
            cause=f"{policy} lets the next change of the driver drain all {count} GPU nodes at once",
            evidence=(policy.cite("spec.driver.upgradePolicy"),),
            remedy=(remedies.patch_policy(policy.name, {"spec": {"driver": {"upgradePolicy": _GENTLY}}}),),
            confidence=CERTAIN,
            level=Level.NOTE,
        )
