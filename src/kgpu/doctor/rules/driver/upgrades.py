"""Rows DRV about upgrades of drivers: one that stands still, and one that would take all nodes at once."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from kgpu.base.plain import strings
from kgpu.base.printable import counted, one_line
from kgpu.base.remedy import Remedy
from kgpu.doctor import matching, remedies
from kgpu.doctor.model import CERTAIN, Finding, Level, Place
from kgpu.doctor.objects import Obj
from kgpu.doctor.rule import rule
from kgpu.doctor.snapshot import Snapshot
from kgpu.formats import names
from kgpu.formats.crd.nodeoperation import ROLLOUT_STOPPED

_GENTLY: Final = {"maxParallelUpgrades": 1, "maxUnavailable": "25%"}
_OWN: Final = ("kgpu/operator, source",)
_MAX_WHY: Final = 300
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
        own = _failed_operation(snapshot, node.name) if state == "upgrade-failed" else None
        why = f": PodDisruptionBudget {held[0].path} lets no pod go" if held else ""
        if own is not None and own.text("status.message"):
            why = f": {one_line(own.text('status.message'), _MAX_WHY)}"
        yield Finding(
            subject=node.subject,
            cause=f"the driver's upgrade of node {node.name} stands at {state}{why}",
            evidence=(
                node.cite(f"metadata.labels[{label}]"),
                *(budget.cite("status.disruptionsAllowed") for budget in held),
                *((own.cite("status.reason"), own.cite("status.message")) if own is not None else ()),
            ),
            remedy=(
                remedies.show_operation(own.name).why("mend what it names, then have the driver exchanged again"),
                Remedy("kgpu node upgrade-driver {}", node.name),
            )
            if own is not None
            else (
                Remedy("kubectl get events -A --field-selector involvedObject.name={}", node.name),
                Remedy("end the pods that can't be evicted (no controller, emptyDir, a budget)"),
                remedies.label(node.name, label, "upgrade-required", anew=True),
            ),
            confidence=CERTAIN,
            nodes=(node.name,),
        )


def _upgrades(snapshot: Snapshot) -> tuple[Obj, ...]:
    """kgpu's operations that exchange drivers."""
    return tuple(obj for obj in snapshot.all("NodeOperation") if obj.at("spec.type") == "DriverUpgrade")


def _failed_operation(snapshot: Snapshot, node: str) -> Obj | None:
    """The newest one on a node that has failed, None where the newest has not."""
    mine = [obj for obj in _upgrades(snapshot) if obj.at("spec.nodeName") == node]
    newest = max(mine, key=lambda obj: (obj.created, obj.name), default=None)
    return newest if newest is not None and newest.at("status.phase") == "Failed" else None


def _pending(obj: Obj) -> bool:
    return obj.text("status.phase") in ("", "Pending")


@rule("DRV-30", "A driver's upgrade waits for approval", Place.DRIVER, rests_on=_OWN)
def unapproved(snapshot: Snapshot) -> Iterator[Finding]:
    """The policy asks for another driver than runs, and its upgradePolicy.autoUpgrade is off, so that kgpu's operator
    has made an operation per node that a person lets begin. Until then the old driver runs and the policy is not ready.
    """
    waiting = [obj for obj in _upgrades(snapshot) if _pending(obj) and obj.at("spec.approved") is False]
    for obj in waiting:
        node = obj.text("spec.nodeName")
        wanted, runs = obj.text("spec.driver.version"), obj.text("spec.driver.fromVersion")
        what = f" to {one_line(wanted, 40)}" if wanted else ""
        what += f" from {one_line(runs, 40)}" if runs and runs != wanted else ""
        yield Finding(
            subject=obj.subject,
            cause=f"the upgrade of node {node}'s driver{what} waits for approval",
            evidence=(obj.cite("spec.approved", "false"), obj.cite("spec.driver.image")),
            remedy=(
                remedies.plan_operation(obj.name).why("see which pods would go"),
                remedies.approve_operation(obj.name).why("let it begin"),
            ),
            confidence=CERTAIN,
            since=obj.created,
            nodes=(node,) if node in snapshot.nodes else (),
        )


@rule("DRV-31", "A driver's rollout has stopped", Place.DRIVER, explains=("NOP-04", "DRV-27"), rests_on=_OWN)
def rollout_stopped(snapshot: Snapshot) -> Iterator[Finding]:
    """Several upgrades of a driver have failed one after the other, so that the next nodes would hardly do better: kgpu
    begins no other one until a person lets it, or another driver is wanted. The other nodes keep their driver.
    """
    stopped = [obj for obj in _upgrades(snapshot) if _pending(obj) and obj.at("status.reason") == ROLLOUT_STOPPED]
    for name in sorted({obj.text("spec.rollout.name") for obj in stopped}):
        mine = [obj for obj in stopped if obj.text("spec.rollout.name") == name]
        first = min(mine, key=lambda obj: (obj.created, obj.name))
        yield Finding(
            subject=first.subject,
            cause=f"{counted(len(mine), 'upgrade of drivers begins', 'upgrades of drivers begin')} no more: "
            f"{one_line(first.text('status.message'), _MAX_WHY) or 'upgrades of the same rollout have failed'}",
            evidence=(first.cite("status.reason"), first.cite("status.message")),
            remedy=(
                Remedy("mend what has failed, or ask for another driver in the policy"),
                remedies.approve_operation(first.name).why("or let the next one begin all the same"),
            ),
            confidence=CERTAIN,
            since=first.created,
            nodes=tuple(node for obj in mine if (node := obj.text("spec.nodeName")) in snapshot.nodes),
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
