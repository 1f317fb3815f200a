"""The driver: not an agent role but the vendor's own container, for nodes that have no driver of their own."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from kgpu.base.advice import Advice, Severity
from kgpu.formats import names
from kgpu.formats.operands import BY_NAME, Operand
from kgpu.operator.causes import Cause, CauseView
from kgpu.operator.checks import all_available, pause_cause
from kgpu.operator.labels import deploy, serves
from kgpu.operator.loaded_driver import other_driver
from kgpu.operator.model import ClusterNode, ObservedCluster, OperatorSettings, Policy
from kgpu.operator.objects import driver
from kgpu.operator.objects.common import Scene
from kgpu.operator.objects.pools import is_rhcos
from kgpu.operator.operand_spec import SWITCHED_OFF, OperandSpec, section_enabled
from kgpu.operator.upgrade_causes import upgrade_cause
from kgpu.operator.verdict import SHOWN

OPERAND: Final = BY_NAME["driver"]


def _enabled(policy: Policy, _settings: OperatorSettings) -> bool:
    """Whether ClusterPolicy's driver is wanted; not if NVIDIADriver objects define the drivers."""
    return section_enabled(OPERAND, policy) and not policy.spec.driver.use_nvidia_driver_crd


def _wanted(view: CauseView) -> bool:
    """Whether drivers are wanted, by either kind of object."""
    return view.policy.spec.driver.enabled is not False


def _check(view: CauseView, operand: Operand, node: ClusterNode) -> Cause | None:
    report = node.report
    on_host = report is not None and report.driver_source == "host"
    if on_host or node.labels.get(deploy(operand.deploy)) == names.PRE_INSTALLED:
        return None
    stopped = pause_cause(operand, node)
    if stopped is not None:
        return stopped
    owner = node.driver_owner
    if view.policy.spec.driver.use_nvidia_driver_crd and owner in view.unusable_drivers:
        why = view.unusable_drivers[owner]
        what = f"its NVIDIADriver {owner} brings no driver: {why.statement}"
        return Cause(reason="DriverNotReady", what=what, remedy=why.remedy)
    fitting = view.drivers.of(node)
    if not fitting and _is_untold(view.observed, node):
        return Cause(
            reason="SystemUnknown",
            what=f"it does not tell its version of RHCOS: the label {names.NFD_OSTREE_VERSION} is missing",
            remedy=f"{_TELL}, and see that it labels this node: kubectl get node {node.name} --show-labels",
        )
    if not fitting:
        system = f"{node.os_id} {node.os_version}".strip() or "unknown"
        return Cause(
            reason="NoDriverForNode",
            what=f"no driver is meant for it (operating system {system}, kernel {node.kernel or 'unknown'})",
            remedy=(
                f"make an NVIDIADriver that selects it: kubectl get node {node.name} --show-labels"
                if view.policy.spec.driver.use_nvidia_driver_crd
                else "install a driver on the node, or set driver.image for its operating system"
            ),
        )
    upgrade = upgrade_cause(view, node.name) if node.ready else None
    if upgrade is not None:
        return upgrade
    loaded = report is not None and bool(report.driver)
    for name in fitting:
        cause = view.pod_cause(node, name, running=loaded)
        if cause is not None:
            return cause
    if report is not None and not report.driver:
        return Cause(reason="DriverNotReady", what="no driver is loaded on it yet", passing=True)
    if report is None and not all(all_available(view.observed.daemon_sets.get(name, {})) for name in fitting):
        return Cause(reason="RollingOut", what=f"DaemonSet {', '.join(fitting)} is being rolled out", passing=True)
    return other_driver(view, node, fitting)


_TELL: Final = "set nfd.enabled: true, or update the node feature discovery to one of OpenShift 4.9 or later"


def _is_untold(observed: ObservedCluster, node: ClusterNode) -> bool:
    """Whether no driver can be chosen for a node of OpenShift because it does not tell its version."""
    return observed.openshift is not None and is_rhcos(node) and not node.labels.get(names.NFD_OSTREE_VERSION)


def _why_off(view: CauseView) -> str:
    counts: dict[str, int] = {}
    nodes = [node for node in view.gpu_nodes if serves(OPERAND, node)]
    for node in nodes:
        if node.report is not None and node.report.driver:
            counts[node.report.driver[:40]] = counts.get(node.report.driver[:40], 0) + 1
    listed = ", ".join(f"{version} on {count}" for version, count in sorted(counts.items())[:SHOWN])
    suffix = f"; found: {listed} of {len(nodes)} GPU nodes" if listed else ""
    return f"{SWITCHED_OFF}: nodes use the driver that they have{suffix}"


def _waiting_nodes(scene: Scene) -> Iterator[Advice]:
    untold = {node.name for node in scene.observed.nodes if _is_untold(scene.observed, node)}
    for node in driver.policy_pools(scene).unlabelled:
        if node in untold:  # the policy is told of all of them at once
            continue
        yield Advice(
            subject=f"Node/{node}",
            what="no driver is installed on this node yet",
            why="the labels that say which operating system it has are missing",
            severity=Severity.INFO,
            remedy=f"wait for {names.NFD_OS_ID}; with nfd.enabled=false run a discovery that writes it",
            reason="SystemUnknown",
        )


SPEC: Final = OperandSpec(
    operand=OPERAND,
    enabled=_enabled,
    made_by=driver.of_policy,
    advice=_waiting_nodes,
    check=_check,
    wanted=_wanted,
    why_off=_why_off,
)
