"""Status of every NVIDIADriver, from its checks and the DaemonSets that were made for it."""

from __future__ import annotations

from typing import Final

from kgpu.formats import names
from kgpu.operator import conditions
from kgpu.operator.causes import View, not_applied
from kgpu.operator.checks import node_selector, rolled_out
from kgpu.operator.drivers import Assignment
from kgpu.operator.judges import Finding, told
from kgpu.operator.labels import Rules
from kgpu.operator.model import Driver, Object

READY: Final = "NVIDIADriver is ready as all resources have been successfully reconciled"


def driver_statuses(view: View, assignment: Assignment, rules: Rules) -> dict[str, Object]:
    """By name; of those that are being deleted, none."""
    found = {}
    for driver in view.observed.drivers:
        if not driver.deleting:
            state, pair = _state(view, driver, assignment, rules)
            whole = conditions.status(
                state, pair, namespace=view.settings.namespace, generation=driver.generation, before=driver.status
            )
            owned = [node for node in view.gpu_nodes if node.labels.get(names.LABEL_DRIVER_OWNER) == driver.name]
            found[driver.name] = {**whole, "nodes": conditions.counts(len(view.nodes), owned)}
    return found


def _state(view: View, driver: Driver, assignment: Assignment, rules: Rules) -> tuple[str, list[Object]]:
    if not rules.driver_crd:
        message = (
            f"NVIDIADriver {driver.name} is not used: ClusterPolicy {view.policy.name} does not have "
            "driver.useNvidiaDriverCRD: true (and driver.enabled)"
        )
        return conditions.STATE_DISABLED, conditions.failure("Disabled", message)
    problem = assignment.problems.get(driver.name)
    if problem is not None:
        return conditions.STATE_NOT_READY, conditions.failure(problem.reason, problem.message)
    error = view.errors.get(f"NVIDIADriver/{driver.name}")
    if error is not None:
        return conditions.STATE_NOT_READY, conditions.failure("ReconcileFailed", error.one_line())
    mine = {
        name: node_selector(one)
        for name, one in view.wanted.items()
        if node_selector(one).get(names.LABEL_DRIVER_OWNER) == driver.name
    }
    refused = view.observed.apply_errors
    wrong = [
        not_applied(f"DaemonSet/{name}", refused[f"DaemonSet/{name}"])
        for name in sorted(mine)
        if f"DaemonSet/{name}" in refused
    ]
    if wrong:
        return conditions.STATE_NOT_READY, conditions.failure("ReconcileFailed", wrong[0].line())
    waiting = [name for name in sorted(mine) if not rolled_out(view.observed.daemon_sets.get(name, {}))]
    if not waiting:
        return conditions.STATE_READY, conditions.success("Reconciled", READY)
    findings = []
    for node in view.gpu_nodes:
        for name in waiting:
            if all(node.labels.get(key) == value for key, value in mine[name].items()):
                cause = view.pod(node, name, running=False)
                findings += [Finding(node.name, cause)] if cause is not None else []
    extra = f"; {told(findings)}" if findings else ""
    message = f"Waiting for driver pods to be ready: DaemonSet {', '.join(waiting)}{extra}"
    return conditions.STATE_NOT_READY, conditions.failure("DriverNotReady", message)
