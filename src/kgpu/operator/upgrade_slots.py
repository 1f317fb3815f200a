"""How many drivers may begin to be exchanged now, as the replaced operator counts them for its metric. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

from kgpu.operator.upgrade_rules import UpgradeRules
from kgpu.operator.upgrades import AT_REST, NodeUpgrade, UpgradeState


def upgrade_slots(upgrades: Iterable[NodeUpgrade], rules: Mapping[str, UpgradeRules], down: Collection[str]) -> int:
    """The slots of all rollouts. ``rules`` are by DaemonSet, ``down`` are the nodes that are cordoned or not Ready.

    The formula is that of NVIDIA's operator (``GetUpgradesAvailable``), for each object with an ``upgradePolicy``. One
    that upgrades nothing by itself, or can't be carried out, has no slots.
    """
    nodes: dict[str, list[NodeUpgrade]] = {}
    rule_of: dict[str, UpgradeRules] = {}
    for upgrade in upgrades:
        rule = rules.get(upgrade.wanted.daemon_set)
        if rule is not None and rule.auto and rule.problem is None:
            nodes.setdefault(rule.asked_by, []).append(upgrade)
            rule_of[rule.asked_by] = rule
    return sum(_slots(rows, rule_of[owner], down) for owner, rows in nodes.items())


def _slots(rows: list[NodeUpgrade], rules: UpgradeRules, down: Collection[str]) -> int:
    most = _share(rules.rollout["maxUnavailable"], len(rows))
    unavailable = sum(row.node in down or row.state is UpgradeState.CORDON for row in rows)
    if unavailable >= most:
        return 0
    parallel = int(rules.rollout["maxParallel"])
    required = sum(row.state is UpgradeState.REQUIRED for row in rows)
    in_progress = sum(row.state is not None and row.state not in AT_REST for row in rows)
    slots = min(max(0, parallel - in_progress) if parallel else required, most)
    return min(slots, most - unavailable) if most < len(rows) else slots


def _share(given: int | str, total: int) -> int:
    """A number of nodes; a percentage is rounded up."""
    return -(-total * int(given[:-1]) // 100) if isinstance(given, str) else given
