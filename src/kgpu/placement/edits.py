"""Changes made to the state: nodes that come and go, layouts, shares, replicas, pods. What each does is one sentence.

A pod whose node is emptied, or whose devices go, is made anew by its controller and needs a node; one without a
controller is lost, which is said. Nothing is changed anywhere but in the state.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any, Final

from kgpu.base.errors import ConfigError
from kgpu.base.plain import mapping, text
from kgpu.base.printable import counted, one_line
from kgpu.base.suggest import did_you_mean, one_of
from kgpu.fit.model import BudgetView, NodeView, PodView
from kgpu.fit.selectors import Taint
from kgpu.formats.accelerators import is_accelerator
from kgpu.formats.names import LABEL_HOSTNAME, TAINT_UNSCHEDULABLE
from kgpu.placement import layouts, quotas, scaling, workloads
from kgpu.placement.model import (
    AddNodes,
    Change,
    CutGpus,
    DrainNode,
    GangWish,
    Origin,
    PodToPlace,
    ScaleWorkload,
    SetQuota,
    ShareGpus,
    SubmitPods,
)
from kgpu.placement.state import PlacementState

MAX_NODES: Final = 5000
"""The most nodes that one question adds."""
_SHOWN: Final = 5
_CORDONED: Final = Taint(TAINT_UNSCHEDULABLE, "", "NoSchedule")
"""What Kubernetes puts on a node that is cordoned: spreading may honour it."""


def apply(state: PlacementState, changes: Iterable[Change]) -> tuple[str, ...]:
    """Make the changes in their order. Raises ConfigError for one that can't be."""
    return tuple(_APPLY[type(change)](state, change) for change in changes)


def _node(state: PlacementState, name: str) -> NodeView:
    found = state.snapshot.nodes.get(name)
    if found is None:
        near = did_you_mean(name, state.snapshot.nodes)
        raise ConfigError(
            f"there is no node {one_line(name, 80)}" + (f"; {near}" if near else ""),
            one_of(name, state.snapshot.nodes) if state.snapshot.nodes else "a node",
            "correct the name: kubectl get nodes",
        )  # fmt: skip
    return found.view


def _add(state: PlacementState, change: AddNodes) -> str:
    template = change.template
    if not 1 <= change.count <= MAX_NODES:
        raise ConfigError(f"{change.count} nodes to add", f"1 to {MAX_NODES}", "correct --add-nodes")
    base = template.view.name or template.what.rpartition(" ")[2]
    number = 0
    for _ in range(change.count):
        number += 1
        while (name := f"{base}-new-{number}") in state.snapshot.nodes:
            number += 1
        labels = {**template.view.labels, LABEL_HOSTNAME: name}
        view = replace(template.view, name=name, labels=labels)
        state.snapshot.put(view)
        state.came[name] = {
            "metadata": {"name": name, "labels": labels}, "spec": {"providerID": template.provider_id},
        }  # fmt: skip
        for pod in template.daemons:
            state.snapshot.put(replace(state.copy_of(pod, f"{pod.name}-{name}"), node=name))
    state.notes += template.assumed
    return f"add {counted(change.count, 'node')} like {template.what}"


def _drain(state: PlacementState, change: DrainNode) -> str:
    view = _node(state, change.node)
    taints = tuple(dict.fromkeys((*view.taints, _CORDONED)))
    state.snapshot.put(replace(view, unschedulable=True, taints=taints))
    state.went[change.node] = state.get("Node", change.node) or {}
    _empty(state, change.node, lambda pod: not pod.owner.startswith("DaemonSet/") and not state.is_mirror(pod))
    return f"drain node {change.node}"


def _empty(state: PlacementState, node: str, leaves: Callable[[PodView], bool]) -> None:
    """The pods that leave the node need another one; what that breaks is noted."""
    pods = sorted(filter(leaves, state.snapshot.nodes[node].pods.values()), key=lambda pod: (pod.created, pod.key))
    for pod in pods:
        if pod.deleting and not pod.owner.startswith("StatefulSet/"):  # the one that follows it is there already
            state.end(pod)
    pods = [pod for pod in pods if pod.id in state.snapshot.pods]
    _note_budgets(state, [pod for pod in pods if not pod.deleting], node)
    lost: list[str] = []
    for pod in pods:
        again = state.evict(pod, Origin.DRAINED)
        if again is None:
            lost.append(str(pod))
        else:
            state.waiting.append(again)
    if lost:
        more = f" and {len(lost) - _SHOWN} more" if len(lost) > _SHOWN else ""
        state.notes.append(
            f"they leave node {node} for good, as no controller makes them: {', '.join(lost[:_SHOWN])}{more}"
        )


def _note_budgets(state: PlacementState, pods: Iterable[PodView], node: str) -> None:
    going = list(pods)
    for budget in state.snapshot.shelf.budgets.values():
        hit = [pod for pod in going if _protects(budget, pod)]
        if len(hit) > budget.allowed:
            state.notes.append(
                f"PodDisruptionBudget {budget.namespace}/{budget.name} allows {budget.allowed} disruptions now, and "
                f"{len(hit)} of its pods leave node {node}: each waits until others are ready, or for ever"
            )


def _protects(budget: BudgetView, pod: PodView) -> bool:
    return budget.namespace == pod.namespace and bool(pod.labels) and budget.selector.matches(pod.labels)


def _cut(state: PlacementState, change: CutGpus) -> str:
    view = _node(state, change.node)
    after = layouts.cut(view, change.layout)
    _empty(state, change.node, lambda pod: any(is_accelerator(name) for name, many in pod.used.items() if many)
           and not pod.owner.startswith("DaemonSet/"))  # fmt: skip
    state.snapshot.put(after)
    return f"cut the GPUs of node {change.node} as {change.layout}: it offers {_listed(after)}"


def _share(state: PlacementState, change: ShareGpus) -> str:
    view = _node(state, change.node)
    after = layouts.shared(view, change.replicas)
    state.snapshot.put(after)
    for name, used in state.snapshot.nodes[change.node].used.items():
        offered = after.allocatable.get(name, 0)
        if is_accelerator(name) and used > offered:
            state.notes.append(f"pods on node {change.node} hold {used} {name} already, and it would offer {offered}")
    return f"share each device of node {change.node} {change.replicas} times: it offers {_listed(after)}"


def _listed(node: NodeView) -> str:
    return ", ".join(f"{amount} {name}" for name, amount in sorted(node.allocatable.items()) if is_accelerator(name))


def _submit(state: PlacementState, change: SubmitPods) -> str:
    makers = [obj for obj in change.objects if text(obj.get("kind")) not in workloads.BESIDE]
    for obj in change.objects:
        if obj not in makers:
            _bring(state, obj, change.namespace)
    if not makers:
        raise ConfigError("the manifest has no pods", f"one of {', '.join(workloads.MADE_OF)}", "correct -f")
    pods = [
        pod
        for run in range(change.count)
        for obj in makers
        for pod in workloads.pods_of_manifest(state, obj, change.namespace, run)
    ]
    if len(pods) > workloads.MAX_PODS:
        raise ConfigError(f"{len(pods)} pods to submit", f"at most {workloads.MAX_PODS}", "ask for fewer")
    gang = f"of {len(pods)} pods" if change.gang else ""
    if gang:
        state.gangs[gang] = GangWish(scheduled=True, least=len(pods))
    state.waiting += [PodToPlace(pod=pod, origin=Origin.SUBMITTED, gang=gang) for pod in pods]
    return f"submit {counted(len(pods), 'pod')}" + (", all or none" if change.gang else "")


def _bring(state: PlacementState, obj: Mapping[str, Any], namespace: str) -> None:
    """An object that comes with pods: it is there before them."""
    metadata = mapping(obj.get("metadata"))
    cluster_wide = obj.get("kind") in ("PriorityClass", "Namespace")
    space = "" if cluster_wide else text(metadata.get("namespace")) or namespace
    state.bring({**obj, "metadata": {**metadata, "namespace": space}})


_APPLY: Final[Mapping[type, Callable[[PlacementState, Any], str]]] = {
    AddNodes: _add,
    DrainNode: _drain,
    CutGpus: _cut,
    ShareGpus: _share,
    SetQuota: quotas.apply,
    ScaleWorkload: scaling.apply,
    SubmitPods: _submit,
}
