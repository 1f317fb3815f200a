"""Fleets whose drivers kgpu installs: nodes, the DaemonSets of their drivers, and pods made by an older or by the present
template.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import msgspec

from kgpu.formats import names
from kgpu.kube import kinds
from kgpu.operator.model import NodeDriverPod, Object, ObservedCluster, OperatorSettings, UpgradeOperation
from kgpu.operator.nodes import read_node
from kgpu.operator.projections import operation as read_operation
from kgpu.operator.upgrades import WantedDriver, wanted_driver
from tests.operator.world import SETTINGS, healthy_node, policy, report, settle

BASE = "nvidia-driver-daemonset"
OLD, NEW = "550.54.15", "570.86.15"
OPERATIONS = kinds.plural_and_group(kinds.NODE_OPERATIONS)


def spec(version: str, upgrade: Mapping[str, Any] | None = None, **more: Any) -> dict[str, Any]:
    """A ClusterPolicy's spec that asks for a driver."""
    driver = {"enabled": True, "repository": "example.org", "image": "driver", "version": version, **more}
    return {"driver": {**driver, **({"upgradePolicy": dict(upgrade)} if upgrade is not None else {})}}


def node_of(name: str, loaded: str = OLD, **changes: Any) -> Any:
    """A healthy GPU node whose driver is a pod's."""
    said = msgspec.structs.replace(report(), driver=loaded, driver_source="container")
    obj = healthy_node(name, report=said, **changes)
    obj["metadata"]["uid"] = f"uid-of-{name}"
    return read_node(obj)


def pod_of(made_by: Object, node: str, **changes: Any) -> NodeDriverPod:
    """The pod that a DaemonSet has made on a node."""
    wanted = wanted_driver(made_by)
    assert wanted is not None
    made = NodeDriverPod(
        name=f"{wanted.daemon_set}-{node}", node=node, daemon_set=wanted.daemon_set, digest=wanted.digest,
        digest_version=wanted.version, image=wanted.image, made="2026-01-01T00:00:00Z", ready=True,
    )  # fmt: skip
    return dataclasses.replace(made, **changes)


def fleet(
    *nodes: str, upgrade: Mapping[str, Any] | None = None, settings: OperatorSettings = SETTINGS, **more: Any
) -> ObservedCluster:
    """A cluster in which ``OLD`` runs everywhere and all is well."""
    before = settle(
        ObservedCluster(
            policies=(policy(spec=spec(OLD, upgrade)),),
            nodes=tuple(node_of(name, **more) for name in nodes),
            kinds=frozenset({OPERATIONS}),
        ),
        settings,
    )
    return settle(with_pods(before), settings)


def with_pods(observed: ObservedCluster) -> ObservedCluster:
    """Every node with a pod of the driver's DaemonSet as it is now."""
    daemon_set = observed.daemon_sets[BASE]
    on = frozenset(node.name for node in observed.nodes)
    return dataclasses.replace(
        observed,
        driver_pods=tuple(pod_of(daemon_set, node) for node in sorted(on)),
        pods=dict.fromkeys(observed.daemon_sets, on),
    )


def asks_for(
    observed: ObservedCluster, version: str = NEW, upgrade: Mapping[str, Any] | None = None, **more: Any
) -> ObservedCluster:
    """The same cluster when its policy asks for another driver and the DaemonSets have been applied."""
    changed = dataclasses.replace(observed, policies=(policy(spec=spec(version, upgrade, **more)),), daemon_sets={})
    return dataclasses.replace(changed, daemon_sets=settle(changed).daemon_sets)


def wanted_in(observed: ObservedCluster, name: str = BASE) -> WantedDriver:
    wanted = wanted_driver(observed.daemon_sets[name])
    assert wanted is not None
    return wanted


def operation(
    obj: Object, *, phase: str = "Pending", created: str = "2026-01-02T00:00:00Z", **status: Any
) -> UpgradeOperation:
    """A NodeOperation as it is once the API server has it, with its status."""
    metadata = {**obj["metadata"], "uid": f"uid-of-{obj['metadata']['name']}", "creationTimestamp": created}
    found: UpgradeOperation = read_operation({**obj, "metadata": metadata, "status": {"phase": phase, **status}})[
        "upgrade"
    ]
    return found


def with_operations(observed: ObservedCluster, *operations: UpgradeOperation) -> ObservedCluster:
    return dataclasses.replace(observed, upgrades=operations)


def label(observed_node: Any) -> str:
    return str(observed_node.labels.get(names.DRIVER_UPGRADE_STATE_LABEL, ""))
