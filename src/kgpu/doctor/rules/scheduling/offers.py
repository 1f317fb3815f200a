"""Rows SCH: what a pod asks for is offered under another name, as shares or as slices of MIG."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from kgpu.base.remedy import Remedy
from kgpu.doctor import cluster_policy, commands, edits, matching, smallest_change
from kgpu.doctor.kinds import Node
from kgpu.doctor.model import CERTAIN, Finding, Place
from kgpu.doctor.rule import rule
from kgpu.doctor.slices import price, priced
from kgpu.doctor.snapshot import Snapshot
from kgpu.doctor.stack_config import has_mig
from kgpu.doctor.waiting import AFFINITY, RESOURCES, TAINTS, Waiting, waiting
from kgpu.fit.explain import explain
from kgpu.formats import names


@rule(
    "SCH-04",
    "Shared GPUs have another name",
    Place.CLUSTER,
    explains=("SCH-14",),
    rests_on=("NVIDIA/k8s-device-plugin v0.20.0, source", "NVIDIA/dcgm-exporter#151"),
)
def renamed(snapshot: Snapshot) -> Iterator[Finding]:
    """With renameByDefault the device plugin offers time-sliced or MPS shares as nvidia.com/gpu.shared."""
    yield from _other_name(
        snapshot,
        lambda asked, there: there == asked + names.SHARED_SUFFIX,
        "the GPUs are shared and renamed (renameByDefault), so they are offered as {there}",
    )


@rule("SCH-05", "Slices are offered as plain GPUs", Place.CLUSTER)
def single_strategy(snapshot: Snapshot) -> Iterator[Finding]:
    """MIG strategy single offers slices as nvidia.com/gpu; only mixed offers nvidia.com/mig-*."""
    for pending in waiting(snapshot):
        if not matching.is_mig(pending.resource) or pending.view.gates:
            continue
        nodes = [
            node
            for node in matching.gpu_nodes(snapshot, matching.NVIDIA)
            if node.labels.get(names.LABEL_MIG_STRATEGY) == "single"
            and (node.allocatable(names.GPU_RESOURCE) or 0) > 0
            and _is_cut(snapshot, node)
        ]
        if not nodes or any((node.capacity(pending.resource) or 0) > 0 for node in snapshot.nodes.values()):
            continue
        node = nodes[0]
        yield Finding(
            cause=(
                f"{pending.who} asks for {pending.resource}, but the MIG strategy of node {node.name} is single: its "
                f"slices are offered as {names.GPU_RESOURCE}"
            ),
            evidence=(
                pending.asked(),
                node.cite(f"metadata.labels[{names.LABEL_MIG_STRATEGY}]"),
                node.cite(f"status.allocatable[{names.GPU_RESOURCE}]"),
            ),
            remedy=(
                *_ask_for(pending, names.GPU_RESOURCE),
                Remedy("or offer slices by their size:"),
                cluster_policy.change(snapshot, cluster_policy.MIXED),
            ),
            confidence=CERTAIN,
            **pending.shared(nodes=tuple(node.name for node in nodes)),
        )


def _is_cut(snapshot: Snapshot, node: Node) -> bool:
    """Whether a node has slices or its state is not known: the strategy alone makes none."""
    host = snapshot.hosts.get(node.name)
    return (
        has_mig(node)
        or not matching.product(node)
        or any(gpu.mig_enabled for gpu in (host.gpus if host else None) or ())
    )


@rule(
    "SCH-06",
    "All GPUs are partitioned",
    Place.CLUSTER,
    explains=("SCH-14",),
    rests_on=("NVIDIA/k8s-device-plugin v0.20.0, source",),
)
def all_partitioned(snapshot: Snapshot) -> Iterator[Finding]:
    """With strategy mixed a GPU in MIG mode offers slices alone, and no nvidia.com/gpu."""
    yield from _other_name(
        snapshot,
        lambda asked, there: asked == names.GPU_RESOURCE and matching.is_mig(there),
        "all GPUs there are partitioned (MIG, strategy mixed), so that only slices such as {there} are offered",
    )


def _other_name(snapshot: Snapshot, is_it: Callable[[str, str], bool], because: str) -> Iterator[Finding]:
    for pending in waiting(snapshot):
        offered = {
            node.name for node in snapshot.nodes.values() if pending.resource and node.allocatable(pending.resource)
        }
        if not pending.resource or pending.view.gates or any(_may_run(pending, node, is_it) for node in pending.nodes):
            continue
        offers = [
            (node, name)
            for node in matching.gpu_nodes(snapshot, matching.vendor_of(pending.resource))
            for name in sorted(node.resources())
            if is_it(pending.resource, name) and (node.allocatable(name) or 0) > 0
            and (not offered or _lacks_only(pending, node))  # offers where the pod may not run do not help
        ]  # fmt: skip
        if not offers:
            continue
        node, name = offers[0]
        renames = (c for c in pending.changes if c.kind == smallest_change.RENAME and c.value == name)
        change = next((priced(snapshot, pending.view, c) for c in renames), None)
        yield Finding(
            cause=(
                f"{pending.who} asks for {pending.resource}, which no node "
                f"{'where it may run ' if offered else ''}offers: " + because.format(there=name)
            ),
            evidence=(pending.asked(), node.cite(f"status.allocatable[{name}]"), *pending.said()),
            remedy=commands.steps(pending, change) if change else _ask_for(pending, name),
            confidence=CERTAIN,
            **pending.shared(nodes=tuple(dict.fromkeys(node.name for node, _ in offers))),
        )


def _ask_for(pending: Waiting, name: str) -> tuple[Remedy, ...]:
    """Steps to ask for the resource's other name, without a proof that the pod then fits."""
    cost = price(pending.snapshot, pending.resource, name) if matching.is_mig(name) else ""
    words = f"ask for {name} in place of {pending.resource}{', ' if cost else ''}{cost}"
    return commands.patched(pending, (edits.rename(pending.resource, name),), words, words=words)


def _may_run(pending: Waiting, node: Node, is_it: Callable[[str, str], bool]) -> bool:
    """Whether a node has the resource, and selector, affinity and taints let the pod there; taints of its state pass.

    A capacity with nothing allocatable, beside the other name, is left from before the GPUs were offered under that.
    """
    instead = any(is_it(pending.resource, name) and node.allocatable(name) for name in node.resources())
    has = node.allocatable(pending.resource) or (node.capacity(pending.resource) and not instead)
    passing = names.TAINT_NOT_READY.partition("/")[0] + "/"
    return bool(has) and not any(
        row.filter == AFFINITY or (row.filter == TAINTS and not row.subject.startswith(passing))
        for row in pending.reasons[node.name]
    )


def _lacks_only(pending: Waiting, node: Node) -> bool:
    """Whether a node would take the pod if it had the resource."""
    reasons = pending.reasons.get(node.name) or explain(pending.view, node.name, pending.snapshot.fit)
    return bool(reasons) and all(row.filter == RESOURCES and row.subject == pending.resource for row in reasons)
