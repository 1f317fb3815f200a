"""What there should be in the cluster, from what is there: the operator's one decision, a pure function.

Start reading here. ``plan`` never raises for what a cluster contains and asks nobody: the same observation gives the
same plan, whatever the order of nodes, and once a plan has been applied the next one changes nothing. Steps: choose
the policy in force (``active_policy``), decide the labels of Nodes (``labels``, ``drivers``), render the objects for a
fleet with these labels (``rendering``), and judge what is ready and why not (``operand_verdicts``, ``policy_summary``).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable

from kgpu.base.advice import Advice
from kgpu.formats.crd.nodeoperation import STEADY_SECONDS
from kgpu.kube.kinds import NODE_OPERATIONS
from kgpu.operator import conditions, device_config_status, plan_report, versions
from kgpu.operator.active_policy import ActivePolicy, choose_policy, hands_off, ignored
from kgpu.operator.causes import CauseView
from kgpu.operator.device_configs import released
from kgpu.operator.driver_status import driver_statuses
from kgpu.operator.model import ClusterPlan, Object, ObservedCluster, OperatorSettings, Policy, UpgradePlan
from kgpu.operator.objects.common import Scene, has_kind
from kgpu.operator.objects.device_config_services import endpoint_slices
from kgpu.operator.objects.driver import orphans
from kgpu.operator.operands import exporter
from kgpu.operator.survey import LabelledCluster, daemon_sets, labelled, survey
from kgpu.operator.upgrade_operations import upgrade_plan, without_drivers
from kgpu.operator.upgrades import wanted_driver


def plan(observed: ObservedCluster, settings: OperatorSettings) -> ClusterPlan:
    """Make the whole plan for the observed cluster."""
    active = choose_policy(observed)
    if active.foreign:
        return _hands_off(observed, settings, active)
    policy = active.policy
    if policy is None:
        made = _without_policy(labelled(observed, None, settings), settings, active)
        return dataclasses.replace(made, released=released(observed, settings))
    if policy.problem is not None:
        return _unreadable(observed, settings, active, policy, policy.problem)
    made = _in_force(labelled(observed, policy, settings), settings, active, policy)
    steps = plan_report.upgrade_steps(observed.nodes, made.nodes)
    return dataclasses.replace(made, advice=(*made.advice, *steps), released=released(observed, settings))


def _in_force(
    cluster: LabelledCluster, settings: OperatorSettings, active: ActivePolicy, policy: Policy
) -> ClusterPlan:
    known = survey(cluster, settings, policy)
    summary = known.summary
    each = (*summary.conditions, versions.condition(known.findings), conditions.provided(policy.unbuilt))
    counts = conditions.counts(len(known.view.nodes), known.view.gpu_nodes)
    losers = (ignored(loser, policy) for loser in active.ignored)
    return ClusterPlan(
        objects=known.rendered.objects,
        keep=known.rendered.keep,
        orphan=orphans(policy, cluster.observed.daemon_sets, daemon_sets(known.rendered)),
        retry=frozenset(known.view.wanted.keys() & cluster.observed.failures.keys()),
        nodes=cluster.changes,
        upgrades=_upgrades(cluster.observed, settings, known.view),
        policy_status={
            policy.name: {
                **_status(settings, policy, summary.state, each),
                "nodes": counts,
                **conditions.refused(cluster.observed.apply_errors),
            },
            **_ignored(settings, active.ignored, policy),
        },
        endpoint_slices=endpoint_slices(
            cluster.observed, settings, exporter.listens(Scene(policy, settings, cluster.observed))
        ),
        driver_status=driver_statuses(known.view, cluster.assignment, cluster.rules),
        device_config_status=device_config_status.statuses(known.view, cluster.selection),
        advice=(
            *plan_report.advice(known, cluster.rules),
            *plan_report.of_device_configs(cluster.observed, cluster.selection),
            *losers,
        ),
        metrics=plan_report.metrics(known, ready=summary.state == conditions.STATE_READY),
        again_after=STEADY_SECONDS if any(upgrade.unsure for upgrade in known.view.upgrades.values()) else None,
    )


def _upgrades(observed: ObservedCluster, settings: OperatorSettings, view: CauseView) -> UpgradePlan:
    """The operations that exchange drivers, where there can be any."""
    if not settings.operations or not has_kind(observed, NODE_OPERATIONS):
        return UpgradePlan()
    live = {
        name: driver
        for name, daemon_set in observed.daemon_sets.items()
        if (driver := wanted_driver(daemon_set)) is not None
    }
    return upgrade_plan(view.upgrades, view.upgrade_rules, observed.upgrades, live)


def _hands_off(observed: ObservedCluster, settings: OperatorSettings, active: ActivePolicy) -> ClusterPlan:
    """The plan while another GPU operator works: say so on every policy, and touch nothing."""
    policies = ([active.policy] if active.policy else []) + list(active.ignored)
    each = {
        policy.name: hands_off(active.foreign, active.foreign_version, policy=policy.name).printable()
        for policy in policies
    }
    return ClusterPlan(
        hold=True,
        policy_status={policy.name: _failed(settings, policy, each[policy.name]) for policy in policies},
        device_config_status=device_config_status.held(
            observed, hands_off(active.foreign, active.foreign_version).printable()
        ),
        advice=tuple(each.values()),
        metrics=plan_report.plain_metrics(observed, plan_report.NOT_READY),
    )


def _unreadable(
    observed: ObservedCluster, settings: OperatorSettings, active: ActivePolicy, policy: Policy, problem: Advice
) -> ClusterPlan:
    """The plan for a policy that can't be read: everything stays as it is."""
    what = f"ClusterPolicy {policy.name} can't be read, so that everything stays as it is: {problem.statement}"
    warning = plan_report.warning_advice(f"ClusterPolicy/{policy.name}", "ReconcileFailed", what, problem.remedy)
    return ClusterPlan(
        hold=True,
        policy_status={
            policy.name: _failed(settings, policy, warning),
            **_ignored(settings, active.ignored, policy),
        },
        device_config_status=device_config_status.held(observed, warning),
        advice=(warning,),
        metrics=plan_report.plain_metrics(observed, plan_report.BROKEN),
    )


def _without_policy(cluster: LabelledCluster, settings: OperatorSettings, active: ActivePolicy) -> ClusterPlan:
    """The plan without a policy in force: every object of the operator goes."""
    lacks = Advice(
        what="there is no ClusterPolicy", remedy="make one, or install the chart with clusterPolicy.deployCR=true"
    )
    if active.leaving:
        lacks = Advice(what=f"ClusterPolicy {active.leaving[0].name} is being deleted")
    pair = conditions.failure("PrerequisiteNotMet", lacks.sentence)
    return ClusterPlan(
        nodes=cluster.changes,
        upgrades=without_drivers(cluster.observed.upgrades),
        driver_status={
            driver.name: conditions.status(
                conditions.STATE_NOT_READY,
                pair,
                namespace=settings.namespace,
                generation=driver.generation,
                before=driver.status,
            )
            for driver in cluster.observed.drivers
            if not driver.deleting
        },
        device_config_status=device_config_status.held(cluster.observed, lacks),
        metrics=plan_report.plain_metrics(cluster.observed, plan_report.NO_POLICY),
    )


def _status(settings: OperatorSettings, policy: Policy, state: str, each: Iterable[Object]) -> Object:
    return conditions.status(
        state, each, namespace=settings.namespace, generation=policy.generation, before=policy.status
    )


def _failed(settings: OperatorSettings, policy: Policy, why: Advice) -> Object:
    return _status(settings, policy, conditions.STATE_NOT_READY, conditions.failure(why.reason, why.sentence))


def _ignored(settings: OperatorSettings, policies: Iterable[Policy], winner: Policy) -> dict[str, Object]:
    statuses = {}
    for policy in policies:
        why = ignored(policy, winner)
        pair = conditions.failure(why.reason, why.sentence)
        statuses[policy.name] = _status(settings, policy, conditions.STATE_IGNORED, pair)
    return statuses
