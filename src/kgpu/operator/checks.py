"""Whether the role or pod of an operand runs on a node, and the cause where it does not."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from typing import Any

from kgpu.base.plain import mapping, number
from kgpu.base.suggest import did_you_mean
from kgpu.formats import names
from kgpu.formats.agent_report import has_ended
from kgpu.formats.mig_request import MigLabelState, MigReport
from kgpu.formats.operands import Operand
from kgpu.operator.causes import UNHEALTHY, Cause, CauseView, not_applied, word
from kgpu.operator.labels import deploy
from kgpu.operator.model import ClusterNode, DeviceConfig, NodeLayout


def pause_cause(operand: Operand, node: ClusterNode) -> Cause | None:
    """The cause while a driver upgrade pauses an operand on a node, None otherwise."""
    key = deploy(operand.deploy)
    if names.PAUSED_FOR_DRIVER_UPGRADE not in node.labels.get(key, ""):
        return None
    return Cause(
        reason="Paused",
        what="paused for a driver upgrade",
        remedy=f"if none is under way there: kubectl label node {node.name} {key}=true --overwrite",
        passing=True,
    )


def role_cause(view: CauseView, operand: Operand, node: ClusterNode) -> Cause | None:
    """Why an operand does not work on a node, as a role of the agent or in a pod of its own (always so the finder)."""
    stopped = pause_cause(operand, node)
    if stopped is not None:
        return stopped
    apart = operand.daemon_set == names.FINDER_DAEMON_SET and view.finder(node) == operand.daemon_set
    if view.settings.layout is NodeLayout.AGENT and not apart:
        return view.role_cause(node, operand.role)
    return own_pod_cause(view, operand, node)


def layout_cause(
    node: ClusterNode, label: str, report: MigReport | None, *, failed: str, pending: str
) -> Cause | None:  # fmt: skip
    """The cause if the layout of GPUs that a node's label names is not in force, by its agent's report; ``failed`` and
    ``pending`` are the reasons of a report that has none.
    """
    asked = node.labels.get(label, "")
    if report is None or not asked or report.config != asked or report.state is MigLabelState.SUCCESS:
        return None
    gave_up = report.state is MigLabelState.FAILED
    return Cause(
        reason=word(report.reason, failed if gave_up else pending),
        what=f'{label} is "{asked}", and the layout is {report.state}: {report.message}',
        passing=not gave_up,
    )


def named_map_cause(view: CauseView, field: str, name: str, keys: tuple[str, ...]) -> Cause | None:
    """The cause if a ConfigMap that a field names is missing in the operator's namespace, or has none of these keys."""
    there = view.observed.config_maps.get(name)
    if there is not None and not there.isdisjoint(keys):
        return None
    where, key = f"ConfigMap {view.settings.namespace}/{name}", " or ".join(keys)
    hint = did_you_mean(name, view.observed.config_maps) if there is None else ""
    wrong = "does not exist" if there is None else f"has no key {key}"
    return Cause(
        reason="ConfigMapMissing" if there is None else "ConfigKeyMissing",
        what=f"{field} names {where}, which {wrong}{'; ' if hint else ''}{hint}",
        remedy=f"make it: kubectl -n {view.settings.namespace} create configmap {name} --from-file={keys[0]}=FILE",
        cluster=True,
    )


def device_config_map_cause(view: CauseView, config: DeviceConfig, section: str, name: str, key: str) -> Cause | None:
    """The same for the ConfigMap, "" for none, that a section of a DeviceConfig names."""
    return named_map_cause(view, f"{section}.config of DeviceConfig {config.key}", name, (key,)) if name else None


def own_pod_cause(view: CauseView, operand: Operand, node: ClusterNode) -> Cause | None:
    live = view.observed.daemon_sets.get(operand.daemon_set, {})
    settled = rolled_out(live)
    cause = view.pod_cause(node, operand.daemon_set, running=settled)
    if cause is not None:
        # A pod that exists and is not ready reports itself what it waits for.
        if (cause.passing or cause.reason == UNHEALTHY) and _is_current(view, operand, node):
            return view.role_cause_alone(node, operand.role) or dataclasses.replace(cause, passing=True, remedy="")
        return cause
    if not settled and operand.daemon_set not in view.in_trouble:
        return Cause(reason="RollingOut", what=f"DaemonSet {operand.daemon_set} is being rolled out", passing=True)
    report = node.reports.get(operand.role)
    if report is None:
        return Cause(reason="RoleStarting", what=f"its {_who(operand)} has not reported yet", passing=True)
    if report.generation < view.policy.generation:
        return Cause(
            reason="OldConfiguration",
            what=f"its {_who(operand)} still acts on generation {report.generation} of the policy",
            passing=True,
        )
    return view.role_cause_alone(node, operand.role)


def _who(operand: Operand) -> str:
    """The name of an operand's pod in messages."""
    return "finder of node features" if operand.daemon_set == names.FINDER_DAEMON_SET else operand.title


def _is_current(view: CauseView, operand: Operand, node: ClusterNode) -> bool:
    """Whether a role's own process runs and acts on this generation of the policy, so that its report counts."""
    report = node.reports.get(operand.role)
    return report is not None and not has_ended(report) and report.generation >= view.policy.generation


def rolled_out(live: Mapping[str, Any]) -> bool:
    """True when all pods of a DaemonSet exist, are of its current generation and available."""
    status, metadata = mapping(live.get("status")), mapping(live.get("metadata"))
    desired = number(status.get("desiredNumberScheduled"))
    up_to_date = number(status.get("observedGeneration")) >= number(metadata.get("generation"))
    counts = {number(status.get("updatedNumberScheduled")), number(status.get("numberAvailable"))}
    return bool(status) and up_to_date and counts == {desired}


def all_available(live: Mapping[str, Any]) -> bool:
    """True when all pods of a DaemonSet exist and are available, of whichever of its generations: those of drivers are
    exchanged one by one, and only where another driver is wanted.
    """
    status, metadata = mapping(live.get("status")), mapping(live.get("metadata"))
    up_to_date = number(status.get("observedGeneration")) >= number(metadata.get("generation"))
    return bool(status) and up_to_date and status.get("numberAvailable", 0) == status.get("desiredNumberScheduled")


def refused_causes(view: CauseView, operand: Operand) -> Iterable[Cause]:
    """Causes for objects that an operand's pods need on every node and the API server refuses."""
    errors = view.observed.apply_errors
    subjects = [f"ConfigMap/{names.AGENT_CONFIG_MAP}"]
    if view.settings.layout is NodeLayout.OPERANDS:
        subjects.append(f"ServiceAccount/{operand.account}")
    for subject in subjects:
        if subject in errors and operand.role:
            yield not_applied(subject, errors[subject])
