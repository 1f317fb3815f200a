"""Which NodeOperations bring nodes the driver that is asked for: those to make, and those to withdraw. Pure.

An operation's name follows from the node, the digest, and how often this node has been upgraded to it, so that making
it twice makes one. One that has begun is never withdrawn, whatever the policy says by then. One that has failed, or
that a person has cancelled, is not made again by itself: a person asks for it, or another driver is wanted first.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from typing import Final

from kgpu.formats import names
from kgpu.formats.crd.nodeoperation import OperationType
from kgpu.kube.kinds import NODE_OPERATIONS
from kgpu.operator.model import Object, UpgradeOperation, UpgradePlan
from kgpu.operator.upgrade_rules import UpgradeRules
from kgpu.operator.upgrades import AGAIN, NodeUpgrade, WantedDriver, is_over, is_pending

_MAX_NODE: Final = 200
"""Characters of the node's name in an operation's."""


def upgrade_plan(
    upgrades: Mapping[str, NodeUpgrade],
    rules: Mapping[str, UpgradeRules],
    operations: Iterable[UpgradeOperation],
    live: Mapping[str, WantedDriver],
) -> UpgradePlan:
    """What to make and to withdraw. ``upgrades`` are by node, ``rules`` by DaemonSet, ``live`` are the drivers that the
    DaemonSets ask for that the API server has: nothing is made before they ask for what is wanted.
    """
    every = tuple(operations)
    by_node: dict[str, list[UpgradeOperation]] = {}
    for operation in every:
        by_node.setdefault(operation.node, []).append(operation)
    wanted = {
        upgrade.node: (upgrade, rules[upgrade.wanted.daemon_set])
        for upgrade in upgrades.values()
        if upgrade.needed and not (upgrade.skipped or upgrade.stranger) and upgrade.wanted.daemon_set in rules
    }
    withdraw = tuple(
        operation
        for operation in every
        if operation.requested_by == names.DRIVER_UPGRADE_REQUESTER
        and is_pending(operation)
        and _is_moot(operation, wanted.get(operation.node))
    )
    create = [
        _operation(upgrade, rule, by_node.get(node, []))
        for node, (upgrade, rule) in sorted(wanted.items())
        if rule.problem is None
        and live.get(upgrade.wanted.daemon_set) == upgrade.wanted
        and _is_due(upgrade.wanted, [one for one in by_node.get(node, []) if one.node_uid in ("", upgrade.node_uid)])
    ]
    return UpgradePlan(create=tuple(create), withdraw=withdraw)


def without_drivers(operations: Iterable[UpgradeOperation]) -> UpgradePlan:
    """The plan where no driver is wanted any more."""
    return UpgradePlan(
        withdraw=tuple(
            operation
            for operation in operations
            if operation.requested_by == names.DRIVER_UPGRADE_REQUESTER and is_pending(operation)
        )
    )


def _is_moot(operation: UpgradeOperation, wanted: tuple[NodeUpgrade, UpgradeRules] | None) -> bool:
    """Whether an operation that has not begun is about something that is no longer wanted, or not in this way."""
    if wanted is None:
        return True
    upgrade, rules = wanted
    if operation.node_uid != upgrade.node_uid or rules.problem is not None:
        return True
    if (operation.daemon_set, operation.digest) != (upgrade.wanted.daemon_set, upgrade.wanted.digest):
        return True
    if operation.approved and not operation.approved_by_policy:
        return False  # a person has let this very operation begin
    in_the_way = (operation.spec.get("rollout"), operation.spec.get("drain"), operation.approved)
    return not _agrees(in_the_way, (rules.rollout, rules.drain, rules.auto))


def _agrees(live: tuple[object, ...], wanted: tuple[object, ...]) -> bool:
    """Whether the live values have what is wanted; the API server adds the defaults of fields that were not given."""
    for there, asked in zip(live, wanted, strict=True):
        if isinstance(asked, Mapping):
            if not isinstance(there, Mapping):
                return not asked
            if not _agrees(tuple(there.get(key) for key in asked), tuple(asked.values())):
                return False
        elif there != asked:
            return False
    return True


def _is_due(wanted: WantedDriver, operations: list[UpgradeOperation]) -> bool:
    """Whether a node that needs an upgrade gets an operation now: none is under way, and the last one allows it."""
    if any(not is_over(operation) for operation in operations):
        return False
    last = max(operations, key=lambda one: (one.created, one.name), default=None)
    is_same = last is not None and (last.daemon_set, last.digest) == (wanted.daemon_set, wanted.digest)
    return last is None or not is_same or last.result in AGAIN


def operation_name(node: str, node_uid: str, wanted: WantedDriver, attempt: int) -> str:
    """The name of a node's ``attempt``-th upgrade to a driver, from 0."""
    key = f"{node_uid}/{wanted.namespace}/{wanted.daemon_set}/{wanted.digest}/{attempt}"
    return f"driver-{node[:_MAX_NODE].rstrip('.-')}-{hashlib.sha256(key.encode()).hexdigest()[:10]}"


def _operation(upgrade: NodeUpgrade, rules: UpgradeRules, known: Iterable[UpgradeOperation]) -> Object:
    wanted, taken = upgrade.wanted, {operation.name for operation in known}
    attempt = 0
    while (name := operation_name(upgrade.node, upgrade.node_uid, wanted, attempt)) in taken:
        attempt += 1
    metadata: Object = {"name": name}
    if rules.auto:
        metadata["annotations"] = {names.APPROVED_BY: names.APPROVED_BY_POLICY}
    now = f"driver {wanted.release}" if wanted.release else f"image {wanted.image}"
    return {
        "apiVersion": NODE_OPERATIONS.api_version,
        "kind": NODE_OPERATIONS.kind,
        "metadata": metadata,
        "spec": {
            "nodeName": upgrade.node,
            "nodeUID": upgrade.node_uid,
            "type": str(OperationType.DRIVER_UPGRADE),
            "requestedBy": names.DRIVER_UPGRADE_REQUESTER,
            "reason": f"{rules.asked_by} asks for {now}"[:1024],
            "driver": {
                "namespace": wanted.namespace,
                "daemonSet": wanted.daemon_set,
                "digest": wanted.digest,
                "image": wanted.image,
                "version": wanted.release,
                "fromVersion": upgrade.running if upgrade.running[:1].isdigit() else "",
            },
            "rollout": rules.rollout,
            "drain": rules.drain,
            "approved": rules.auto,
        },
    }
