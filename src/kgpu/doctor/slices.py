"""MIG slices that nobody offers: which GPUs are cut into them or could be, how, and what asking otherwise costs.

By labels, products and what the nodes' drivers say; a card of which nobody knows whether it can is not promised.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

from kgpu.base.remedy import Remedy
from kgpu.doctor import cluster_policy, matching, remedies
from kgpu.doctor.kinds import Node
from kgpu.doctor.model import Evidence
from kgpu.doctor.smallest_change import FittingChange
from kgpu.doctor.snapshot import Snapshot
from kgpu.doctor.stack_config import mig_config, mig_state, mig_strategy, profile_of, wanted_mig
from kgpu.fit.model import PodView
from kgpu.formats import names
from kgpu.formats.mig_geometry import find, geometry_of

_SHOWN: Final = 3


@dataclass(frozen=True, slots=True)
class Slices:
    """What goes on after "no node offers ...": in words, what shows it, and the steps."""

    words: str
    evidence: tuple[Evidence, ...]
    steps: tuple[Remedy, ...]


def makeable(snapshot: Snapshot, resource: str) -> Slices:
    """For a resource ``nvidia.com/mig-PROFILE``."""
    wanted = resource.removeprefix(names.MIG_RESOURCE_PREFIX)
    nodes = matching.gpu_nodes(snapshot, matching.NVIDIA)
    if cut := [cut_node for node in nodes if (cut_node := _cut(snapshot, node, wanted))]:
        return _idle(snapshot, cut)
    able = [node for node in nodes if _is_capable(snapshot, node)]
    if not able:
        products = sorted({matching.product(node) or "of unknown product" for node in nodes})
        models = f"; its GPUs are {', '.join(products[:_SHOWN])}" if products else ""
        return Slices(f"no GPU of this cluster can be cut into MIG slices{models}", _shown(nodes), ())
    right = [node for node in able if _has(node, wanted)]
    if not right:
        known = filter(None, (geometry_of(matching.product(node)) for node in able))
        sizes = sorted({geometry.smallest.name for geometry in known})
        models = f", of {' or '.join(sizes)} and larger ones" if sizes else ""
        return Slices(f"{_named(able)} can be cut into MIG slices{models}, but not into {wanted}", _shown(able), ())
    words = f"no GPU is cut into {wanted} yet, and {_named(right)} could be"
    return Slices(words, _shown(right), _steps(snapshot, min(right, key=lambda node: _users(snapshot, node)), wanted))


def swapped(pod: PodView, change: FittingChange) -> tuple[str, str]:
    """The accelerator resource that a change takes out of what a pod asks for and the one that it puts in; "" twice."""
    after = (change.pod(pod) if change.pod else pod).requests
    old = next((name for name in pod.requests if matching.is_accelerator(name) and name not in after), "")
    new = next((name for name in after if matching.is_accelerator(name) and name not in pod.requests), "")
    return (old, new) if old and new else ("", "")


def priced(snapshot: Snapshot, pod: PodView, change: FittingChange) -> FittingChange:
    """A change to another resource with what it costs, where a slice takes a GPU's place or the other way round."""
    cost = price(snapshot, *swapped(pod, change))
    return replace(change, what=f"{change.what}, {cost}") if cost else change


def price(snapshot: Snapshot, old: str, new: str) -> str:
    """What is given up by asking for ``new`` in place of ``old``, to stand behind a comma; "" for nothing known."""
    profile = profile_of(new.removeprefix(names.MIG_RESOURCE_PREFIX)) if matching.is_mig(new) else None
    if profile is not None and not matching.is_mig(old):
        return (
            f"which gives up the whole GPU: a slice has {profile.g} of its compute slices and {profile.gb} GB of its "
            "memory, and a process sees one slice only"
        )
    if not matching.is_mig(old) or new != names.GPU_RESOURCE:
        return ""
    wanted = old.removeprefix(names.MIG_RESOURCE_PREFIX)
    cut = [
        node.name
        for node in matching.gpu_nodes(snapshot, matching.NVIDIA)
        if node.allocatable(new) and mig_strategy(snapshot, node) in ("", "none") and _cut(snapshot, node, wanted)
    ]
    many = "s" if len(cut) > 1 else ""
    on = f" (on node{many} {', '.join(cut[:_SHOWN])} it may be one that is cut)" if cut else ""
    return f"which takes a whole GPU for each slice{on}"


@dataclass(frozen=True, slots=True)
class _Cut:
    """A node with slices of a size; ``count`` is 0 where nobody says how many."""

    node: Node
    count: int
    evidence: tuple[Evidence, ...]


def _cut(snapshot: Snapshot, node: Node, wanted: str) -> _Cut | None:
    """By the node's driver where that has been asked, else by the labels that count slices, else by its MIG layout."""
    host = snapshot.hosts.get(node.name)
    if host is not None and host.gpus:
        count = sum(_is(name, wanted) for gpu in host.gpus for name in gpu.instances)
        instances = "; ".join(f"GPU {gpu.index}: {', '.join(gpu.instances)}" for gpu in host.gpus if gpu.instances)
        return _Cut(node, count, (host.cite("gpus", instances),)) if count else None
    key = f"{names.MIG_RESOURCE_PREFIX}{wanted}{names.LABEL_COUNT}"
    count = node.number(f"metadata.labels[{key}]")
    if count > 0:
        return _Cut(node, count, (node.cite(f"metadata.labels[{key}]"),))
    rows = (mig_config(snapshot).layouts or {}).get(wanted_mig(node), ())
    if mig_state(node) == "success" and any(row.enabled and _is(name, wanted) for row in rows for name in row.profiles):
        keys = (names.MIG_CONFIG_LABEL, names.MIG_CONFIG_STATE_LABEL)
        return _Cut(node, 0, tuple(node.cite(f"metadata.labels[{key_}]") for key_ in keys))
    return None


def _is(name: str, wanted: str) -> bool:
    """Whether a profile is the one of a resource, in which ``+`` is a dot."""
    return name.replace("+", ".").replace(",", ".") == wanted


def _idle(snapshot: Snapshot, cut: list[_Cut]) -> Slices:
    """Slices that are there already."""
    nodes = [
        f"node {cut_node.node.name} has {f'{cut_node.count} ' if cut_node.count else ''}slices"
        for cut_node in cut[:_SHOWN]
    ]
    more = f" and so have {len(cut) - _SHOWN} more nodes" if len(cut) > _SHOWN else ""
    node = cut[0].node
    strategy = mig_strategy(snapshot, node) or "none"
    known = cluster_policy.in_force(snapshot)
    evidence = tuple(piece for cut_node in cut[:_SHOWN] for piece in cut_node.evidence)
    if names.LABEL_MIG_STRATEGY in node.labels:
        evidence += (node.cite(f"metadata.labels[{names.LABEL_MIG_STRATEGY}]"),)
    elif known is not None:
        evidence += (known.cite("spec.mig.strategy"),)
    words = f"{', '.join(nodes)} of that size{more}, which nobody offers"
    if strategy == "mixed":
        return Slices(f"{words}, though mig.strategy is mixed", evidence, (remedies.ask_doctor(node.name),))
    then = "device plugins start anew, offer slices by their size, and no GPU that is cut as a whole one"
    step = (
        cluster_policy.change(snapshot, cluster_policy.MIXED, then)
        if known is not None
        else Remedy(
            "give the device plugin the MIG strategy mixed (MIG_STRATEGY, or migStrategy in its chart): {}", then
        )
    )
    return Slices(f"{words} because mig.strategy is {strategy}", evidence, (step,))


def _users(snapshot: Snapshot, node: Node) -> int:
    """Pods that have GPUs of a node: a GPU that is cut must have none."""
    return sum(
        not pod.ended and matching.uses_accelerators(pod) for pod in snapshot.pods_by_node.get(node.name, ())
    )  # fmt: skip


def _is_capable(snapshot: Snapshot, node: Node) -> bool:
    said = node.labels.get(names.LABEL_MIG_CAPABLE)
    host = snapshot.hosts.get(node.name)
    if said is not None:
        return said == "true"
    if host is not None and host.gpus:
        return any(gpu.mig_capable for gpu in host.gpus)
    return geometry_of(matching.product(node)) is not None


def _has(node: Node, wanted: str) -> bool:
    """Whether a node's card has a profile; one whose sizes nobody knows may have it."""
    profile, geometry = profile_of(wanted), geometry_of(matching.product(node))
    return profile is None or geometry is None or find(geometry, profile) is not None


def _named(nodes: list[Node]) -> str:
    shown = [f"{node.name} ({matching.product(node) or 'product unknown'})" for node in nodes[:_SHOWN]]
    more = f" and {len(nodes) - _SHOWN} more" if len(nodes) > _SHOWN else ""
    return f"the GPUs of node{'s' if len(nodes) > 1 else ''} {', '.join(shown)}{more}"


def _shown(nodes: list[Node]) -> tuple[Evidence, ...]:
    keys = (names.LABEL_GPU_PRODUCT, names.LABEL_MIG_CAPABLE)
    return tuple(
        node.cite(f"metadata.labels[{key}]") for node in nodes[:_SHOWN] for key in keys if key in node.labels
    )  # fmt: skip


def _steps(snapshot: Snapshot, node: Node, wanted: str) -> tuple[Remedy, ...]:
    layouts = mig_config(snapshot).layouts or {}
    manager = matching.pods_of_part(snapshot, matching.MIG_MANAGER)
    layout = next(
        (name for name, rows in layouts.items() if any(row.enabled and wanted in row.profiles for row in rows)), ""
    )
    strategy = mig_strategy(snapshot, node)
    mixed = (Remedy("and offer slices by their size:"), cluster_policy.change(snapshot, cluster_policy.MIXED))
    if manager and layout:
        end = "ends what is on its GPUs"
        label = remedies.label(node.name, names.MIG_CONFIG_LABEL, layout, anew=True).why(end)
        cut: tuple[Remedy, ...] = (label,)
    else:
        cut = (
            Remedy("cut a GPU that nobody uses, on node {}, with its number in place of INDEX:", node.name),
            Remedy("nvidia-smi -i INDEX -mig 1 && nvidia-smi mig -i INDEX -cgi {} -C", wanted),
        )
    return (*cut, *(() if strategy == "mixed" else mixed))
