"""What a plan reports: advice, which becomes Events and log lines, and the operator's metrics.

Texts are stable: the same problem always has the same text, so that it is reported once.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Final

from kgpu.base.advice import Advice, Severity
from kgpu.base.errors import UserError
from kgpu.base.printable import one_line
from kgpu.formats import names
from kgpu.operator import versions
from kgpu.operator.causes import CauseView
from kgpu.operator.device_configs import Selection
from kgpu.operator.labels import WORKLOADS, LabelRules, has_accelerators, is_gpu
from kgpu.operator.model import ClusterNode, NodeLabels, ObservedCluster
from kgpu.operator.objects import toolkit_state
from kgpu.operator.policy_summary import has_feature_labels
from kgpu.operator.survey import Survey
from kgpu.operator.upgrade_slots import upgrade_slots
from kgpu.operator.upgrades import AT_REST, UpgradeState

MANIFEST_WARNING: Final = "ManifestWarning"
OK, NOT_READY, NO_POLICY, BROKEN = 1.0, 0.0, -1.0, -2.0
"""Values of ``gpu_operator_reconciliation_status``."""


def advice(survey: Survey, rules: LabelRules) -> tuple[Advice, ...]:
    """Return all advice about a policy in force, each once."""
    view = survey.view
    subject = f"ClusterPolicy/{view.policy.name}"
    advice = [warning_advice(subject, MANIFEST_WARNING, warning) for warning in view.policy.warnings]
    advice += [
        warning_advice(f"NVIDIADriver/{driver.name}", MANIFEST_WARNING, warning)
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


def of_device_configs(observed: ObservedCluster, selection: Selection) -> Iterator[Advice]:
    """What is wrong with AMD's DeviceConfigs, and their fields without effect."""
    for config in observed.device_configs:
        if config.deleting:
            continue
        subject, who = f"DeviceConfig/{config.key}", f"DeviceConfig {config.key}: "
        problem = selection.problems.get(config.key)
        if problem is not None:
            yield warning_advice(subject, problem.reason, f"{who}{problem.what}", problem.remedy)
        for warning in config.warnings:
            yield warning_advice(subject, MANIFEST_WARNING, f"{who}{warning}")


def warning_advice(subject: str, reason: str, what: str, remedy: str = "") -> Advice:
    """Advice with severity warning; texts that it quotes are made printable."""
    return Advice(subject=subject, what=what, severity=Severity.WARNING, remedy=remedy, reason=reason).printable()


def plain_metrics(observed: ObservedCluster, status: float) -> dict[str, float]:
    """The metrics without a policy in force."""
    return {
        "gpu_operator_gpu_nodes_total": float(sum(map(has_accelerators, observed.nodes))),
        "gpu_operator_reconciliation_status": status,
        "gpu_operator_reconciliation_has_nfd_labels": float(has_feature_labels(observed.nodes)),
    }


def metrics(survey: Survey, *, ready: bool) -> dict[str, float]:
    """The metrics of a policy in force."""
    view = survey.view
    broken = bool(view.errors) or survey.summary.failed
    return {
        **plain_metrics(view.observed, BROKEN if broken else OK if ready else NOT_READY),
        **toolkit_state.figures(toolkit_state.toolkit_state(view.policy, view.observed)),
        **_of_upgrades(view),
    }


def _of_upgrades(view: CauseView) -> dict[str, float]:
    """The metrics of driver upgrades; 1 for auto if any node with a driver pod is upgraded by itself."""
    rows = view.upgrades.values()
    counts = Counter(upgrade.state for upgrade in rows if upgrade.state is not None)
    auto = any(rules.auto for rules in view.upgrade_rules.values()) and view.settings.operations
    return {
        "gpu_operator_driver_auto_upgrade_enabled": float(auto),
        "gpu_operator_nodes_upgrades_in_progress": float(
            sum(count for state, count in counts.items() if state not in AT_REST)
        ),
        "gpu_operator_nodes_upgrades_done": float(counts[UpgradeState.DONE]),
        "gpu_operator_nodes_upgrades_failed": float(counts[UpgradeState.FAILED]),
        "gpu_operator_nodes_upgrades_pending": float(counts[UpgradeState.REQUIRED]),
        "gpu_operator_nodes_upgrades_available": float(
            upgrade_slots(rows, view.upgrade_rules, _down(view.nodes)) if view.settings.operations else 0
        ),
    }


def _down(nodes: Iterable[ClusterNode]) -> frozenset[str]:
    """The nodes that can't be used now."""
    return frozenset(node.name for node in nodes if node.unschedulable or not node.ready)


def upgrade_steps(before: Iterable[ClusterNode], changes: Iterable[NodeLabels]) -> tuple[Advice, ...]:
    """What is told of nodes whose upgrade has got further, as the change of their label."""
    key = names.DRIVER_UPGRADE_STATE_LABEL
    old = {node.name: node.labels.get(key, "") for node in before}
    steps = []
    for change in changes:
        was, now = old.get(change.name, ""), change.labels.get(key, "")
        # Thousands of nodes need an upgrade at once, and as many are adopted as they are: their conditions tell of it.
        if now in ("", was, UpgradeState.REQUIRED) or (not was and now == UpgradeState.DONE):
            continue
        steps.append(
            Advice(
                subject=f"Node/{change.name}",
                what=f"node {change.name}: its driver's upgrade is at {now}",
                reason=names.DRIVER_UPGRADE_EVENT,
                severity=Severity.WARNING if now == UpgradeState.FAILED else Severity.INFO,
            )
        )
    return tuple(steps)


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
    wanted = node.labels.get(names.LABEL_WORKLOAD_CONFIG, rules.workload)
    return rules.sandbox and is_gpu(node) and wanted not in WORKLOADS


def _wrong_workload(node: ClusterNode, rules: LabelRules) -> Advice:
    value = node.labels[names.LABEL_WORKLOAD_CONFIG]
    what = f'node {node.name}: the label {names.LABEL_WORKLOAD_CONFIG} is "{value}", so {rules.workload} is used'
    remedy = f"set it to one of {', '.join(WORKLOADS)}, or remove it"
    return warning_advice(f"Node/{node.name}", "InvalidWorkloadConfig", what, remedy)
