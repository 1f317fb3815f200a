"""Why a node with another driver than the one that is asked for is not ready, and what is done about it. Pure."""

from __future__ import annotations

from typing import Final

from kgpu.formats import names
from kgpu.formats.crd.nodeoperation import ROLLOUT_STOPPED, Result
from kgpu.kube import kinds
from kgpu.operator.causes import Cause, CauseView
from kgpu.operator.upgrades import NodeUpgrade, UpgradeState, is_over, is_pending, state_of

WAITS: Final = "DriverUpgradeWaits"
FAILED: Final = "DriverUpgradeFailed"
CANCELLED: Final = "DriverUpgradeCancelled"
SKIPPED: Final = "DriverUpgradeSkipped"
IMPOSSIBLE: Final = "DriverUpgradeImpossible"
STOPPED: Final = "DriverRolloutStopped"
PENDING: Final = "DriverUpgradePending"
UPGRADING: Final = "DriverUpgrading"

_DOES: Final = {
    UpgradeState.CORDON: "the node is being cordoned",
    UpgradeState.WAIT_FOR_JOBS: "it waits for pods to end",
    UpgradeState.POD_DELETION: "pods with GPUs are being evicted",
    UpgradeState.DRAIN: "the node is being drained",
    UpgradeState.POD_RESTART: "the driver is being exchanged",
    UpgradeState.VALIDATION: "the new driver is being checked",
    UpgradeState.UNCORDON: "the node is being given back",
}


def upgrade_cause(view: CauseView, node: str) -> Cause | None:
    """Why a node does not run the driver that is asked for, None where it does, or where no driver is installed."""
    upgrade = view.upgrades.get(node)
    if upgrade is None:
        return None
    operation = upgrade.operation
    if operation is not None and not is_pending(operation) and not is_over(operation):
        what = f"{_said(upgrade)}; {_DOES[state_of(operation)]}"
        return Cause(reason=UPGRADING, what=what, passing=True)
    if upgrade.state is UpgradeState.FAILED:
        why = f": {operation.message}" if operation is not None and operation.message else ""
        return Cause(
            reason=FAILED,
            what=f"the upgrade to {_wanted(upgrade)} has failed{why}",
            remedy=f"mend what it names, then: kgpu node upgrade-driver {node}; or ask for another driver",
        )
    return _waiting(view, upgrade) if upgrade.needed else None


def _waiting(view: CauseView, upgrade: NodeUpgrade) -> Cause:
    """The cause on a node that needs an upgrade which has not begun."""
    operation, said = upgrade.operation, _said(upgrade)
    if upgrade.skipped:
        key = names.DRIVER_UPGRADE_SKIP
        return Cause(
            reason=SKIPPED,
            what=f"{said}; the node label {key}=true keeps it",
            remedy=f"kubectl label node {upgrade.node} {key}-",
        )
    hindrance = _hindrance(view, upgrade)
    if hindrance is not None:
        return hindrance
    if operation is None or is_over(operation):
        if operation is not None and operation.result == Result.CANCELLED:
            remedy = f"kgpu node upgrade-driver {upgrade.node}"
            return Cause(reason=CANCELLED, what=f"{said}; its upgrade was cancelled", remedy=remedy)
        return Cause(reason=PENDING, what=f"{said}; its upgrade is about to be asked for", passing=True)
    if not operation.approved:
        return Cause(
            reason=WAITS,
            what=f"{said}; its upgrade waits for approval",
            remedy=f"kgpu operations approve {operation.name} (what goes: kgpu operations plan {operation.name})",
        )
    if operation.reason == ROLLOUT_STOPPED:
        return Cause(
            reason=STOPPED,
            what=f"{said}; its rollout has stopped: {operation.message}",
            remedy=f"mend what has failed, or ask for another driver; to go on as it is: kgpu operations approve "
            f"{operation.name}",
        )
    return Cause(reason=PENDING, what=f"{said}; its upgrade waits for its turn", passing=True)


def _hindrance(view: CauseView, upgrade: NodeUpgrade) -> Cause | None:
    """Why no upgrade can be made at all."""
    said = _said(upgrade)
    if not view.settings.operations:
        return Cause(
            reason=IMPOSSIBLE,
            what=f"{said}, and operations on nodes, which exchange drivers, are switched off",
            remedy="set operations.enabled=true in the chart's values",
        )
    if kinds.plural_and_group(kinds.NODE_OPERATIONS) not in view.observed.kinds:
        return Cause(
            reason=IMPOSSIBLE,
            what=f"{said}, and the cluster has no kind NodeOperation, by which drivers are exchanged",
            remedy="kgpu crds apply",
        )
    rules = view.upgrade_rules.get(upgrade.wanted.daemon_set)
    if rules is not None and rules.problem is not None:
        return Cause(reason=IMPOSSIBLE, what=f"{said}; {rules.problem.what}", remedy=rules.problem.remedy)
    return _taken(view, upgrade)


def _taken(view: CauseView, upgrade: NodeUpgrade) -> Cause | None:
    """A pod that another controller would make anew. That of a DaemonSet that is here is about to go by itself."""
    other = upgrade.stranger
    if other is None:
        return None
    return Cause(
        reason=IMPOSSIBLE,
        what=f"{_said(upgrade)}; its pod finds no place, as {other.name} of {other.daemon_set} is a driver's pod, too",
        remedy=f"take the pods of {other.daemon_set} away from this node, then the wanted driver's comes by itself",
        passing=other.daemon_set in view.observed.daemon_sets,
    )


def _wanted(upgrade: NodeUpgrade) -> str:
    release = upgrade.wanted.release
    return f"driver {release}" if release else f"driver image {upgrade.wanted.image}"


def _said(upgrade: NodeUpgrade) -> str:
    """What is wanted and what runs."""
    wanted, running = upgrade.wanted.release or upgrade.wanted.image, upgrade.running
    if not running:
        return f"{_wanted(upgrade)} is wanted"
    if not upgrade.needed:
        return f"driver {running} is loaded"
    if upgrade.former:
        by = f"NVIDIADriver {upgrade.wanted.owner}" if upgrade.wanted.owner else "the ClusterPolicy"
        return f"{_wanted(upgrade)} of {by} is wanted, and {running} of another object runs"
    if wanted == running:
        return f"driver {running} runs with other settings than are wanted"
    return f"{_wanted(upgrade)} is wanted, and {running} runs"
