"""What there is and what there should be, before anything is written: what plans and ``kgpu status`` share.

``labelled`` applies the planned labels to the observed nodes; ``survey`` renders the objects for such a fleet and
judges every operand.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Final

from kgpu.base.advice import Advice
from kgpu.base.plain import mapping
from kgpu.formats import names
from kgpu.formats.crd.clusterpolicy import Cdi
from kgpu.formats.names import NVIDIA
from kgpu.operator import driver_moves, upgrade_marks, versions
from kgpu.operator.allocation import allocation_rules
from kgpu.operator.causes import Cause, CauseView
from kgpu.operator.device_configs import Selection, by_claims, select, switched_off
from kgpu.operator.drivers import Assignment, assign
from kgpu.operator.labels import NO_MARKS, LabelRules, applied, has_accelerators, has_agent, is_gpu, label_plan
from kgpu.operator.model import ClusterNode, NodeLabels, Object, ObservedCluster, OperatorSettings, Policy
from kgpu.operator.objects.common import Rendered
from kgpu.operator.operand_verdicts import judge
from kgpu.operator.policy_summary import Summary, summarize
from kgpu.operator.rendering.render import render
from kgpu.operator.upgrades import node_upgrades
from kgpu.operator.vendors import seen
from kgpu.operator.verdict import OperandVerdict

DAEMON_SET: Final = "DaemonSet"


@dataclass(frozen=True, slots=True, kw_only=True)
class LabelledCluster:
    """The cluster as it will be once ``changes`` are written, which follow from ``rules``, ``assignment`` and
    ``selection``.
    """

    observed: ObservedCluster
    changes: tuple[NodeLabels, ...]
    rules: LabelRules
    assignment: Assignment
    selection: Selection


@dataclass(frozen=True, slots=True, kw_only=True)
class Survey:
    """Everything that is known about a policy in force."""

    view: CauseView
    rendered: Rendered
    verdicts: tuple[OperandVerdict, ...]
    summary: Summary
    findings: tuple[versions.Unsupported, ...]


def labelled(observed: ObservedCluster, policy: Policy | None, settings: OperatorSettings) -> LabelledCluster:
    """Plan the labels of Nodes, under this policy or without one, and apply them. Nodes are sorted by name."""
    rules = LabelRules.of(policy, settings, allocation_rules(settings, observed))
    assignment = Assignment()
    if rules.driver_crd:
        assignment = assign(observed.drivers, (node for node in observed.nodes if is_gpu(node)))
    changes, nodes, unmarked = [], [], []
    chosen = Selection()
    if policy is not None:
        chosen = select(observed.device_configs, observed.nodes, settings, claims=rules.allocation.claims)
    moving, handed_over = driver_moves.moving(observed, rules, assignment), driver_moves.handed_over(observed, rules)
    seen = [_chosen(settings, node, moving.get(node.name), chosen) for node in observed.nodes]
    marks = upgrade_marks.of_nodes(dataclasses.replace(observed, nodes=tuple(seen)), policy)
    for node in sorted(seen, key=lambda node: node.name):
        own = marks.get(node.name, NO_MARKS)
        own = dataclasses.replace(own, handed_over=node.name in handed_over)
        change = label_plan(node, rules, _owner_of(node, assignment), own)
        if change is not None:
            changes.append(change)
        nodes.append(applied(node, change))
        if has_agent(nodes[-1]) and not has_agent(node):
            unmarked.append(node.name)
    after = dataclasses.replace(observed, nodes=tuple(nodes), unmarked=frozenset(unmarked))
    return LabelledCluster(observed=after, changes=tuple(changes), rules=rules, assignment=assignment, selection=chosen)


def _chosen(settings: OperatorSettings, node: ClusterNode, next_owner: str | None, selection: Selection) -> ClusterNode:
    outside = not settings.agent_selector.items() <= node.labels.items()
    vendor = seen(node.labels, node.report) or node.labels.get(names.LABEL_VENDOR, "") or NVIDIA
    config = selection.of.get(node.name)
    if not outside and next_owner is None and vendor in settings.vendors and config is None:
        return node
    return dataclasses.replace(
        node,
        aside=outside,
        served=settings.vendors,
        next_owner=next_owner,
        device_config="" if config is None else config.name,
        without=frozenset() if config is None else switched_off(config, node),
        by_claims=config is not None and by_claims(config, node),
    )


def _owner_of(node: ClusterNode, assignment: Assignment) -> str | None:
    """The owner that the node's label is to name: as it does while the node keeps its driver."""
    return assignment.of(node.name) if node.next_owner is None else node.labels.get(names.LABEL_DRIVER_OWNER, "")


def survey(cluster: LabelledCluster, settings: OperatorSettings, policy: Policy) -> Survey:
    """Render and judge the policy in force."""
    observed = cluster.observed
    rendered = render(policy, settings, observed)
    wanted = daemon_sets(rendered)
    asking = {**_kept(observed, rendered), **wanted}
    view = CauseView(
        observed=observed,
        settings=settings,
        policy=policy,
        nodes=observed.nodes,
        gpu_nodes=tuple(node for node in observed.nodes if has_accelerators(node)),
        wanted=wanted,
        errors=rendered.errors,
        unusable_drivers=_unusable_drivers(rendered, cluster.assignment),
        upgrades=node_upgrades(observed.nodes, asking, observed.driver_pods, observed.upgrades),
        upgrade_rules=upgrade_marks.rules_by_daemon_set(asking, policy, observed.drivers),
    )
    verdicts = judge(view, cluster.rules)
    return Survey(
        view=view,
        rendered=rendered,
        verdicts=verdicts,
        summary=summarize(view, verdicts, _prerequisites(policy)),
        findings=versions.check(observed, policy),
    )


def daemon_sets(rendered: Rendered) -> dict[str, Object]:
    """The DaemonSets of a rendering by name."""
    return {str(obj["metadata"]["name"]): obj for obj in rendered.objects if obj["kind"] == DAEMON_SET}


def _kept(observed: ObservedCluster, rendered: Rendered) -> dict[str, Object]:
    """The live DaemonSets that stay as they are because of what could not be rendered."""
    return {
        name: live
        for name, live in observed.daemon_sets.items()
        if mapping(mapping(live.get("metadata")).get("labels")).get(names.LABEL_OPERATOR_STATE) in rendered.keep
    }


def _prerequisites(policy: Policy) -> list[Cause]:
    """Combinations of settings that can't work, checked on every pass."""
    spec = policy.spec
    cdi = spec.cdi or Cdi()
    if not cdi.nri_plugin_enabled:
        return []
    wrong = []
    for off, what, field in (
        (not cdi.enabled, "CDI", "cdi.enabled"),
        (spec.toolkit.enabled is False, "the Container Toolkit", "toolkit.enabled"),
    ):
        if off:
            text = f"the NRI Plugin cannot be enabled when {what} is disabled"
            remedy = f"set {field}: true or cdi.nriPluginEnabled: false in ClusterPolicy {policy.name}"
            wrong.append(Cause(reason="PrerequisiteNotMet", what=text, remedy=remedy, cluster=True))
    return wrong


def _unusable_drivers(rendered: Rendered, assignment: Assignment) -> dict[str, Advice]:
    """Why NVIDIADrivers install no driver, by name."""
    errors = {
        name.partition("/")[2]: Advice.from_error(error) for name, error in rendered.errors.items() if "/" in name
    }
    return {**errors, **assignment.problems}
