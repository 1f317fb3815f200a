"""What a plan reports: advice, which becomes Events and log lines, and the operator's metrics.

Texts are stable: the same problem always has the same text, so that it is reported once.
"""

from __future__ import annotations

from typing import Final

from kgpu.base.advice import Advice, Severity
from kgpu.base.errors import UserError
from kgpu.base.printable import one_line
from kgpu.formats import names
from kgpu.operator import versions
from kgpu.operator.labels import WORKLOADS, LabelRules, is_gpu
from kgpu.operator.model import ClusterNode, ObservedCluster
from kgpu.operator.policy_summary import has_feature_labels
from kgpu.operator.survey import Survey

OK, NOT_READY, NO_POLICY, BROKEN = 1.0, 0.0, -1.0, -2.0
"""Values of ``gpu_operator_reconciliation_status``."""

_UPGRADES: Final = {
    "gpu_operator_nodes_upgrades_done": "upgrade-done",
    "gpu_operator_nodes_upgrades_failed": "upgrade-failed",
    "gpu_operator_nodes_upgrades_pending": "upgrade-required",
}
_NOT_UPGRADING: Final = frozenset({"", "unknown", *_UPGRADES.values()})


def advice(survey: Survey, rules: LabelRules) -> tuple[Advice, ...]:
    """Return all advice about a policy in force, each once."""
    view = survey.view
    subject = f"ClusterPolicy/{view.policy.name}"
    advice = [warning_advice(subject, "ManifestWarning", warning) for warning in view.policy.warnings]
    advice += [
        warning_advice(f"NVIDIADriver/{driver.name}", "ManifestWarning", warning)
        for driver in view.observed.drivers
        if not driver.deleting
        for warning in driver.warnings
    ]
    advice += [_unrendered(name, error, subject) for name, error in survey.rendered.errors.items()]
    advice += [
        warning_advice(f"NVIDIADriver/{name}", "DriverNotReady", why.statement, why.remedy)
        for name, why in view.unusable_drivers.items()
        if f"NVIDIADriver/{name}" not in view.errors
    ]
    advice += survey.summary.advice
    advice += [record.printable() for record in survey.rendered.advice]
    advice += [_outside(finding, subject) for finding in survey.findings]
    advice += [_wrong_workload(node, rules) for node in view.gpu_nodes if _has_wrong_workload(node, rules)]
    return tuple(dict.fromkeys(advice))


def warning_advice(subject: str, reason: str, what: str, remedy: str = "") -> Advice:
    """Advice with severity warning; texts that it quotes are made printable."""
    return Advice(subject=subject, what=what, severity=Severity.WARNING, remedy=remedy, reason=reason).printable()


def plain_metrics(observed: ObservedCluster, status: float) -> dict[str, float]:
    """The metrics without a policy in force."""
    return {
        "gpu_operator_gpu_nodes_total": float(sum(map(is_gpu, observed.nodes))),
        "gpu_operator_reconciliation_status": status,
        "gpu_operator_reconciliation_has_nfd_labels": float(has_feature_labels(observed.nodes)),
    }


def metrics(survey: Survey, *, ready: bool) -> dict[str, float]:
    """The metrics of a policy in force. OpenShift's driver toolkit is -1: not there. kgpu upgrades no driver, whatever
    the policy says; the other figures of upgrades count labels that another operator has left.
    """
    view = survey.view
    broken = bool(view.errors) or survey.summary.failed
    states = [node.labels.get(names.DRIVER_UPGRADE_STATE_LABEL, "") for node in view.gpu_nodes]
    counts = {name: float(states.count(state)) for name, state in _UPGRADES.items()}
    return {
        **plain_metrics(view.observed, BROKEN if broken else OK if ready else NOT_READY),
        "gpu_operator_driver_auto_upgrade_enabled": 0.0,
        "gpu_operator_openshift_driver_toolkit_enabled": NO_POLICY,
        **counts,
        "gpu_operator_nodes_upgrades_in_progress": float(sum(state not in _NOT_UPGRADING for state in states)),
        "gpu_operator_nodes_upgrades_available": 0.0,
    }


def _unrendered(name: str, error: UserError, policy: str) -> Advice:
    subject = name if name.startswith("NVIDIADriver/") else policy
    return Advice.from_error(printable_error(error), subject=subject, reason="ReconcileFailed")


def _outside(finding: versions.Unsupported, policy: str) -> Advice:
    """A warning about an unsupported version. A single node is its subject and is not named in its text."""
    return warning_advice(
        finding.subject or policy,
        versions.REASON,
        finding.what if finding.subject else finding.on_nodes,
        finding.remedy,
    )


def printable_error(error: UserError) -> UserError:
    """The error with what it quotes of a manifest made printable."""
    return UserError(one_line(error.what), one_line(error.expected), one_line(error.remedy))


def _has_wrong_workload(node: ClusterNode, rules: LabelRules) -> bool:
    return rules.sandbox and node.labels.get(names.LABEL_WORKLOAD_CONFIG, rules.workload) not in WORKLOADS


def _wrong_workload(node: ClusterNode, rules: LabelRules) -> Advice:
    value = node.labels[names.LABEL_WORKLOAD_CONFIG]
    what = f'node {node.name}: the label {names.LABEL_WORKLOAD_CONFIG} is "{value}", so {rules.workload} is used'
    remedy = f"set it to one of {', '.join(WORKLOADS)}, or remove it"
    return warning_advice(f"Node/{node.name}", "InvalidWorkloadConfig", what, remedy)
