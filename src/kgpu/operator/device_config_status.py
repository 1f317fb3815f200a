"""The statuses of AMD's DeviceConfigs: AMD's conditions and counts, from the same checks as the ClusterPolicy's."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Final

from kgpu.base.advice import Advice
from kgpu.formats.crd.deviceconfig import LEFT_TO_KMM
from kgpu.operator import conditions
from kgpu.operator.causes import CauseView
from kgpu.operator.device_configs import CLAIMS, EXPORTER, FAILED, LABELLER, PARTITIONS, PLUGIN, Selection
from kgpu.operator.labels import TRUE, deploy, is_taken
from kgpu.operator.model import ClusterNode, DeviceConfig, Object, ObservedCluster
from kgpu.operator.operands import OF_ROLE
from kgpu.operator.verdict import NodeCause, findings_text

READY: Final = "OperatorReady"
NO_NODES: Final = "NoMatchingNodes"
WAITING: Final = "NotReady"
_ROLES: Final = (
    (PLUGIN, "devicePlugin"),
    (CLAIMS, ""),
    (LABELLER, ""),
    (EXPORTER, "metricsExporter"),
    (PARTITIONS, "configManager"),
)
"""The roles that it is judged by, and the field of the status that counts each."""


def statuses(view: CauseView, selection: Selection) -> dict[str, Object]:
    """The status of every DeviceConfig that stays, by key."""
    nodes = {node.name: node for node in view.nodes}
    return {
        config.key: _status(view, config, selection, nodes)
        for config in view.observed.device_configs
        if not config.deleting
    }


def held(observed: ObservedCluster, why: Advice) -> dict[str, Object]:
    """The statuses while nothing is decided about nodes."""
    pair = conditions.failure(FAILED, why.sentence)
    return {config.key: _whole(config, pair, {}) for config in observed.device_configs if not config.deleting}


def _status(view: CauseView, config: DeviceConfig, selection: Selection, nodes: Mapping[str, ClusterNode]) -> Object:
    selected = selection.selected.get(config.key, ())
    mine = [nodes[name] for name in selected if selection.of.get(name) is config]
    findings: list[NodeCause] = []
    counts: Object = {"driver": _counts(selected, mine if config.spec.driver.enable else (), _with_driver(mine))}
    for role, field in _ROLES:
        spec = OF_ROLE[role]
        wanted = [node for node in mine if node.labels.get(deploy(spec.operand.deploy)) == TRUE]
        bad = [
            NodeCause(node.name, cause)
            for node in wanted
            if (cause := spec.check(view, spec.operand, node)) is not None
        ]
        findings += bad
        if field:
            broken = {finding.node for finding in bad}
            counts[field] = _counts(selected, wanted, [node for node in wanted if node.name not in broken])
    problem = selection.problems.get(config.key)
    if problem is not None:
        return _whole(config, conditions.failure(problem.reason, problem.sentence), counts)
    return _whole(config, _pair(config, selected, mine, tuple(findings)), counts)


def _pair(
    config: DeviceConfig, selected: Collection[str], mine: list[ClusterNode], findings: tuple[NodeCause, ...]
) -> list[Object]:
    taken = [node.name for node in mine if is_taken(node)]
    if not selected:
        message = "no node with AMD GPUs has the labels of selector"
        return [conditions.condition(kind, "False", NO_NODES, message) for kind in (conditions.READY, conditions.ERROR)]
    if taken:
        message = f"another device plugin offers the GPUs of {', '.join(taken[:5])}; remove it to have kgpu do so"
        return conditions.failure(FAILED, message)
    failed = tuple(finding for finding in findings if not finding.cause.passing)
    if failed:
        return conditions.failure(FAILED, findings_text(failed))
    if findings:
        waits = conditions.condition(conditions.READY, "False", WAITING, findings_text(findings))
        return [waits, conditions.condition(conditions.ERROR, "False", WAITING, "")]
    told = f"; driver.enable: {LEFT_TO_KMM}" if config.spec.driver.enable else ""
    return conditions.success(READY, f"{len(mine)} {'node is' if len(mine) == 1 else 'nodes are'} served{told}")


def _with_driver(nodes: Iterable[ClusterNode]) -> list[ClusterNode]:
    return [node for node in nodes if node.report is not None and node.report.driver]


def _counts(selected: Collection[str], wanted: Collection[ClusterNode], working: Collection[ClusterNode]) -> Object:
    return {
        "nodesMatchingSelectorNumber": len(selected),
        "desiredNumber": len(wanted),
        "availableNumber": len(working),
    }


def _whole(config: DeviceConfig, pair: list[Object], counts: Object) -> Object:
    each = [*pair, conditions.provided(config.unbuilt, "DeviceConfig")]
    status = conditions.status("", each, namespace="", generation=config.generation, before=config.status)
    return {"conditions": status["conditions"], "observedGeneration": config.generation, **counts}
