"""What Nodes tell of their driver's upgrade, in the replaced operator's label and annotations; and the rules that each
driver DaemonSet's nodes are upgraded by. Pure.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from kgpu.formats import names
from kgpu.operator.labels import UpgradeMarks
from kgpu.operator.model import NvidiaDriver, Object, ObservedCluster, Policy
from kgpu.operator.upgrade_rules import UpgradeRules, rules_of
from kgpu.operator.upgrades import AT_REST, NodeUpgrade, is_over, node_upgrades, wanted_driver

_TRUE: Final = "true"


def rules_by_daemon_set(
    daemon_sets: Mapping[str, Object], policy: Policy | None, drivers: Iterable[NvidiaDriver]
) -> dict[str, UpgradeRules]:
    """The rules by the DaemonSet's name; none for one whose NVIDIADriver is gone."""
    by_owner = {driver.name: rules_of(driver) for driver in drivers if not driver.deleting}
    if policy is not None:
        by_owner[""] = rules_of(policy)
    return {
        name: by_owner[wanted.owner]
        for name, daemon_set in daemon_sets.items()
        if (wanted := wanted_driver(daemon_set)) is not None and wanted.owner in by_owner
    }


def of_nodes(observed: ObservedCluster, policy: Policy | None) -> dict[str, UpgradeMarks]:
    """The marks by the node's name, by the DaemonSets that there are."""
    live = observed.daemon_sets
    rules = rules_by_daemon_set(live, policy, observed.drivers)
    moving = {node.name for node in observed.nodes if node.next_owner is not None}
    return {
        name: _marks(upgrade, rules.get(upgrade.wanted.daemon_set), moves=name in moving)
        for name, upgrade in node_upgrades(observed.nodes, live, observed.driver_pods, observed.upgrades).items()
    }


def _marks(upgrade: NodeUpgrade, rules: UpgradeRules | None, *, moves: bool) -> UpgradeMarks:
    operation, annotations = upgrade.operation, {}
    if moves:
        annotations[names.NEXT_DRIVER] = upgrade.wanted.daemon_set
    approved = operation is not None and operation.approved and not is_over(operation)
    if approved or (rules is not None and rules.auto):
        annotations[names.DRIVER_UPGRADE_ENABLED] = _TRUE
    if upgrade.state is not None and upgrade.state not in AT_REST and operation is not None and operation.was_cordoned:
        annotations[names.DRIVER_UPGRADE_INITIAL] = _TRUE
    return UpgradeMarks(state=None if upgrade.state is None else str(upgrade.state), annotations=annotations)
