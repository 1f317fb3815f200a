"""Nodes that change the object of their driver: which of them keep the driver of before, and until when. Pure.

A driver's DaemonSet finds its nodes by the label of their NVIDIADriver, so a label that changes ends the driver's pod
at once, whoever uses its GPUs. So a node keeps its label while a pod of the driver of before is there, until its
upgrade's operation says that the node is empty and its agent has let go (``DRIVER_RELEASED``). That is on record, so
whoever leads next goes on from there. Then the label changes, the former DaemonSet's controller ends its pod, and the
next one's makes another.

Pods of the ClusterPolicy's DaemonSet go on without it (they are orphaned) once NVIDIADrivers are used, as the replaced
operator has it; their nodes get the label of their NVIDIADriver in the same way. Where nobody is to install a driver
any more, the label and the driver go at once, as with the replaced operator.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from kgpu.formats import names
from kgpu.formats.crd.nodeoperation import OperationPhase
from kgpu.operator.drivers import Assignment
from kgpu.operator.labels import LabelRules
from kgpu.operator.model import ClusterNode, NodeDriverPod, ObservedCluster
from kgpu.operator.node_selectors import is_driver, node_selector


def moving(observed: ObservedCluster, rules: LabelRules, assignment: Assignment) -> dict[str, str]:
    """The nodes that keep their driver for now, with the NVIDIADriver that they are to belong to, "" for the
    ClusterPolicy.
    """
    if not rules.driver:
        return {}
    owners = _owners(observed)
    pods: dict[str, list[NodeDriverPod]] = {}
    for pod in observed.driver_pods:
        pods.setdefault(pod.node, []).append(pod)
    released = _released(observed)
    found = {}
    for node in observed.nodes:
        wanted, now = assignment.of(node.name), node.labels.get(names.LABEL_DRIVER_OWNER, "")
        if wanted is None or wanted == now or (rules.driver_crd and not wanted) or node.name in released:
            continue
        if _keeps(node, pods.get(node.name, ()), owners):
            found[node.name] = wanted
    return found


def handed_over(observed: ObservedCluster, rules: LabelRules) -> frozenset[str]:
    """The nodes whose label names an NVIDIADriver with a DaemonSet although the ClusterPolicy installs the drivers: the
    label has to go for its driver, even where the replaced operator has set it.
    """
    if rules.driver_crd:
        return frozenset()
    known = set(_owners(observed).values()) - {""}
    return frozenset(node.name for node in observed.nodes if node.labels.get(names.LABEL_DRIVER_OWNER) in known)


def _keeps(node: ClusterNode, pods: Iterable[NodeDriverPod], owners: Mapping[str, str]) -> bool:
    """Whether another label would take a driver away, or bring one beside it. A pod of a DaemonSet that is not known
    counts: nothing is lost by waiting.
    """
    now = node.labels.get(names.LABEL_DRIVER_OWNER, "")
    return any(pod.holds and owners.get(pod.daemon_set, now) == now for pod in pods)


def _owners(observed: ObservedCluster) -> dict[str, str]:
    """The NVIDIADriver of each live DaemonSet of drivers, "" for the ClusterPolicy's."""
    return {
        name: node_selector(live).get(names.LABEL_DRIVER_OWNER, "")
        for name, live in observed.daemon_sets.items()
        if is_driver(live)
    }


def _released(observed: ObservedCluster) -> frozenset[str]:
    """The nodes that an operation has emptied of all that uses the driver, and holds."""
    uids = {node.name: node.uid for node in observed.nodes}
    return frozenset(
        operation.node
        for operation in observed.upgrades
        if operation.released
        and operation.phase == OperationPhase.ACTING
        and operation.node_uid in ("", uids.get(operation.node))
    )
