"""What would make room for a gang that has none: how many more nodes of a kind that is there, or how much quota. Pure.

Each answer was tried: the pods that lack a node are put on copies of a node, by the scheduler's filters, until all are
placed. It need not be the fewest. Nothing is said where copies would not help by themselves: pods that have to be in
one domain, and devices of claims, which no copied node offers.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Final

from kgpu.base.printable import counted, one_line
from kgpu.fit import PodView
from kgpu.fit.checks import FilterFaultError
from kgpu.fit.cycle import Cycle
from kgpu.fit.model import NodeView
from kgpu.fit.outside_scheduler import quota_amount, quota_asks
from kgpu.formats import names
from kgpu.placement import templates
from kgpu.placement.model import NodeTemplate
from kgpu.placement.state import PlacementState

MOST_NODES: Final = 256
MOST_KINDS: Final = 8
_APART: Final = frozenset({names.LABEL_HOSTNAME})
_SHOWN: Final = 3


def more_nodes(state: PlacementState, missing: Sequence[PodView]) -> tuple[str, ...]:
    """So many more nodes of each kind as have room for all of these pods, the fewest first. The state stays."""
    if any(term.topology_key not in _APART for pod in missing for term in pod.affinity):
        return ()
    found = [(count, words) for node in _kinds(state) if (count := _tried(state, node, missing))
             for words in [_words(node, count)]]  # fmt: skip
    return tuple(words for _, words in sorted(found)[:_SHOWN])


def more_quota(state: PlacementState, pods: Iterable[PodView]) -> tuple[str, ...]:
    """What quotas would have to allow for pods that do not exist yet."""
    rows = list(pods)
    if not rows:
        return ()
    asks: dict[str, int] = {}
    for pod in rows:
        for key, amount in quota_asks(pod).items():
            asks[key] = asks.get(key, 0) + amount
    namespace = rows[0].namespace
    found: list[str] = []
    for quota in state.snapshot.shelf.quotas.values():
        if quota.namespace == namespace and not quota.scoped:
            needed = {key: quota.used.get(key, 0) + asks[key] for key in sorted(quota.hard) if key in asks}
            where = f"quota {one_line(quota.name, 80)} of {one_line(namespace, 80)}"
            found += [
                f"{where} at {key}={quota_amount(key, all_of)}"
                for key, all_of in needed.items()
                if all_of > quota.hard[key]
            ]
    return tuple(found)


def _kinds(state: PlacementState) -> Iterator[NodeView]:
    """A node of each kind, those that offer the most GPUs first."""
    seen: dict[object, NodeView] = {}
    for one in sorted(state.snapshot.nodes.values(), key=lambda node: (node.view.unschedulable, node.name)):
        view = one.view
        kind = templates.instance_type(view) or tuple(sorted(view.allocatable.items()))
        seen.setdefault((kind, view.labels.get(names.LABEL_GPU_PRODUCT, "")), view)
    return iter(sorted(seen.values(), key=lambda view: (-_extended(view), view.name))[:MOST_KINDS])


def _extended(view: NodeView) -> int:
    return sum(many for name, many in view.allocatable.items() if "/" in name)


def _words(node: NodeView, count: int) -> str:
    kind = templates.instance_type(node)
    return one_line(f"{counted(count, 'more node')} like {node.name}" + (f" ({kind})" if kind else ""), 200)


def _tried(state: PlacementState, node: NodeView, missing: Sequence[PodView]) -> int:
    """How many copies of the node have room for all of the pods; 0 where one of them fits no copy."""
    template = templates.of_node(state, node, "")
    left, added, placed = list(reversed(missing)), list[str](), list[PodView]()
    daemons: list[PodView] = []
    try:
        while left and len(added) < MOST_NODES:
            name = _new(state, template, len(added), daemons)
            added.append(name)
            before = len(left)
            while left and _lands(state, left[-1], name):
                placed.append(left.pop())
            if len(left) == before:
                return 0
        return 0 if left else len(added)
    finally:
        for pod in reversed(placed):
            state.unbind(pod)
        for pod in daemons:
            state.snapshot.drop(pod)
        for name in reversed(added):
            state.snapshot.drop(state.snapshot.nodes[name].view)


def _new(state: PlacementState, template: NodeTemplate, at: int, daemons: list[PodView]) -> str:
    """An empty copy with its DaemonSets' pods."""
    name = f"{template.view.name}-more-{at + 1}"
    state.snapshot.put(replace(template.view, name=name, labels={**template.view.labels, names.LABEL_HOSTNAME: name}))
    for pod in template.daemons:
        own = replace(pod, name=f"{pod.name}-{name}", uid=f"what-if/{pod.id}/{name}", node=name)
        state.snapshot.put(own)
        daemons.append(own)
    return name


def _lands(state: PlacementState, pod: PodView, name: str) -> bool:
    """Whether the pod fits the node; then it is bound there."""
    cycle = Cycle(pod, state.snapshot)
    try:
        fits = cycle.rejection is None and cycle.judge(state.snapshot.nodes[name]) is None
    except FilterFaultError:
        return False
    if fits and (cycle.only is None or name in cycle.only):
        state.bind(pod, name)
        return True
    return False
