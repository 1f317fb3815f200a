"""Status of every NVIDIADriver, from its checks and the DaemonSets that were made for it."""

from __future__ import annotations

from typing import Final

from kgpu.formats import names
from kgpu.operator import conditions
from kgpu.operator.causes import CauseView, not_applied
from kgpu.operator.checks import all_available
from kgpu.operator.drivers import Assignment
from kgpu.operator.labels import LabelRules
from kgpu.operator.loaded_driver import other_driver
from kgpu.operator.model import ClusterNode, NvidiaDriver, Object
from kgpu.operator.node_selectors import node_selector
from kgpu.operator.upgrade_causes import upgrade_cause
from kgpu.operator.verdict import NodeCause, findings_text, most_frequent

READY: Final = "NVIDIADriver is ready as all resources have been successfully reconciled"


def driver_statuses(view: CauseView, assignment: Assignment, rules: LabelRules) -> dict[str, Object]:
    """Return the status of every NVIDIADriver by name, without those that are being deleted."""
    statuses = {}
    sets: dict[str, list[str]] = {}
    for name, daemon_set in view.wanted.items():
        sets.setdefault(node_selector(daemon_set).get(names.LABEL_DRIVER_OWNER, ""), []).append(name)
    nodes: dict[str, list[ClusterNode]] = {}
    for node in view.gpu_nodes:
        nodes.setdefault(node.driver_owner, []).append(node)
    for driver in view.observed.drivers:
        if not driver.deleting:
            owned = nodes.get(driver.name, [])
            state, pair = _state(view, driver, assignment, rules, mine=sorted(sets.get(driver.name, [])), owned=owned)
            entries = [*pair, conditions.provided(driver.unbuilt, "NVIDIADriver")]
            status = conditions.status(
                state, entries, namespace=view.settings.namespace, generation=driver.generation, before=driver.status
            )
            statuses[driver.name] = {**status, "nodes": conditions.counts(len(view.nodes), owned)}
    return statuses


def _state(
    view: CauseView,
    driver: NvidiaDriver,
    assignment: Assignment,
    rules: LabelRules,
    *,
    mine: list[str],
    owned: list[ClusterNode],
) -> tuple[str, list[Object]]:
    """The state and the two conditions of a driver. ``mine`` are its DaemonSets, ``owned`` its nodes."""
    if not rules.driver_crd:
        message = (
            f"NVIDIADriver {driver.name} is not used: ClusterPolicy {view.policy.name} does not have "
            "driver.useNvidiaDriverCRD: true (and driver.enabled)"
        )
        return conditions.STATE_DISABLED, conditions.failure("Disabled", message)
    problem = assignment.problems.get(driver.name)
    if problem is not None:
        return conditions.STATE_NOT_READY, conditions.failure(problem.reason, problem.sentence)
    error = view.errors.get(f"NVIDIADriver/{driver.name}")
    if error is not None:
        return conditions.STATE_NOT_READY, conditions.failure("ReconcileFailed", error.one_line())
    refused = view.observed.apply_errors
    wrong = [
        not_applied(f"DaemonSet/{name}", refused[f"DaemonSet/{name}"])
        for name in mine
        if f"DaemonSet/{name}" in refused
    ]
    if wrong:
        return conditions.STATE_NOT_READY, conditions.failure("ReconcileFailed", wrong[0].line())
    waiting = [name for name in mine if not all_available(view.observed.daemon_sets.get(name, {}))]
    others = [
        NodeCause(node.name, cause)
        for node in owned
        if (cause := upgrade_cause(view, node.name) or other_driver(view, node, view.drivers.of(node))) is not None
    ]
    if not waiting and others:
        return conditions.STATE_NOT_READY, conditions.failure(most_frequent(others), findings_text(others))
    if not waiting:
        return conditions.STATE_READY, conditions.success("Reconciled", READY)
    findings = list(others)
    late, told = frozenset(waiting), {finding.node for finding in others}
    for node in owned:
        for name in view.drivers.of(node):
            if name in late:
                cause = None if node.name in told else view.pod_cause(node, name, running=False)
                findings += [NodeCause(node.name, cause)] if cause is not None else []
    extra = f"; {findings_text(findings)}" if findings else ""
    message = f"Waiting for driver pods to be ready: DaemonSet {', '.join(waiting)}{extra}"
    return conditions.STATE_NOT_READY, conditions.failure("DriverNotReady", message)
