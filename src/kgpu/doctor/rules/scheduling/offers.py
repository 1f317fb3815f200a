"""Rows SCH: what a pod asks for is offered under another name, as shares or as slices of MIG."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from kgpu.base.remedy import Remedy
from kgpu.doctor import cluster_policy, commands, edits, matching, whatif
from kgpu.doctor.kinds import Node
from kgpu.doctor.model import CERTAIN, Finding, Place
from kgpu.doctor.rule import rule
from kgpu.doctor.slices import price, priced
from kgpu.doctor.snapshot import Snapshot
from kgpu.doctor.stack_config import has_mig
from kgpu.doctor.waiting import AFFINITY, RESOURCES, TAINTS, Waiting, waiting
from kgpu.fit.explain import explain
from kgpu.formats import names


@rule("SCH-04", "Shared GPUs have another name", Place.CLUSTER, explains=("SCH-14",))
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
    for one in waiting(snapshot):
        if not matching.is_mig(one.resource) or one.view.gates:
            continue
        nodes = [
            node
            for node in matching.gpu_nodes(snapshot, matching.NVIDIA)
            if node.labels.get(names.LABEL_MIG_STRATEGY) == "single"
            and (node.allocatable(names.GPU_RESOURCE) or 0) > 0
            and _is_cut(snapshot, node)
        ]
        if not nodes or any((node.capacity(one.resource) or 0) > 0 for node in snapshot.nodes.values()):
            continue
        node = nodes[0]
        yield Finding(
            cause=(
                f"{one.who} asks for {one.resource}, but the MIG strategy of node {node.name} is single: its slices "
                f"are offered as {names.GPU_RESOURCE}"
            ),
            evidence=(
                one.asked(),
                node.cite(f"metadata.labels[{names.LABEL_MIG_STRATEGY}]"),
                node.cite(f"status.allocatable[{names.GPU_RESOURCE}]"),
            ),
            remedy=(
                *_ask_for(one, names.GPU_RESOURCE),
                Remedy("or offer slices by their size:"),
                cluster_policy.change(snapshot, cluster_policy.MIXED),
            ),
            confidence=CERTAIN,
            **one.shared(nodes=tuple(one.name for one in nodes)),
        )


def _is_cut(snapshot: Snapshot, node: Node) -> bool:
    """Whether there are slices, or nobody says what is there: the strategy alone makes none."""
    host = snapshot.hosts.get(node.name)
    return (
        has_mig(node)
        or not matching.product(node)
        or any(gpu.mig_enabled for gpu in (host.gpus if host else None) or ())
    )


@rule("SCH-06", "All GPUs are partitioned", Place.CLUSTER, explains=("SCH-14",))
def all_partitioned(snapshot: Snapshot) -> Iterator[Finding]:
    """With strategy mixed a GPU in MIG mode offers slices alone, and no nvidia.com/gpu."""
    yield from _other_name(
        snapshot,
        lambda asked, there: asked == names.GPU_RESOURCE and matching.is_mig(there),
        "all GPUs there are partitioned (MIG, strategy mixed), so that only slices such as {there} are offered",
    )


def _other_name(snapshot: Snapshot, is_it: Callable[[str, str], bool], because: str) -> Iterator[Finding]:
    for one in waiting(snapshot):
        offered = {node.name for node in snapshot.nodes.values() if one.resource and node.allocatable(one.resource)}
        if not one.resource or one.view.gates or any(_may_run(one, node, is_it) for node in one.nodes):
            continue
        found = [
            (node, there)
            for node in matching.gpu_nodes(snapshot, matching.vendor_of(one.resource))
            for there in sorted(node.resources())
            if is_it(one.resource, there) and (node.allocatable(there) or 0) > 0
            and (not offered or _lacks_only(one, node))  # what is offered where it may not run is of no use to it
        ]  # fmt: skip
        if not found:
            continue
        node, there = found[0]
        renames = (c for c in one.changes if c.kind == whatif.RENAME and c.value == there)
        change = next((priced(snapshot, one.view, c) for c in renames), None)
        yield Finding(
            cause=(
                f"{one.who} asks for {one.resource}, which no node {'where it may run ' if offered else ''}offers: "
                + because.format(there=there)
            ),
            evidence=(one.asked(), node.cite(f"status.allocatable[{there}]"), *one.said()),
            remedy=commands.steps(one, change) if change else _ask_for(one, there),
            confidence=CERTAIN,
            **one.shared(nodes=tuple(dict.fromkeys(node.name for node, _ in found))),
        )


def _ask_for(one: Waiting, there: str) -> tuple[Remedy, ...]:
    """The resource's other name, of which nobody can prove now that it is enough."""
    cost = price(one.snapshot, one.resource, there) if matching.is_mig(there) else ""
    words = f"ask for {there} in place of {one.resource}{', ' if cost else ''}{cost}"
    return commands.patched(one, (edits.rename(one.resource, there),), words, words=words)


def _may_run(one: Waiting, node: Node, is_it: Callable[[str, str], bool]) -> bool:
    """Whether a node has the resource, and selector, affinity and taints let the pod there; taints of its state pass.

    A count of which nothing can be used, beside the other name, is left from before the GPUs were offered by that.
    """
    instead = any(is_it(one.resource, name) and node.allocatable(name) for name in node.resources())
    has = node.allocatable(one.resource) or (node.capacity(one.resource) and not instead)
    passing = names.TAINT_NOT_READY.partition("/")[0] + "/"
    return bool(has) and not any(
        row.filter == AFFINITY or (row.filter == TAINTS and not row.subject.startswith(passing))
        for row in one.reasons[node.name]
    )


def _lacks_only(one: Waiting, node: Node) -> bool:
    """Whether a node would take the pod if it had the resource."""
    found = one.reasons.get(node.name) or explain(one.view, node.name, one.snapshot.fit)
    return bool(found) and all(row.filter == RESOURCES and row.subject == one.resource for row in found)
