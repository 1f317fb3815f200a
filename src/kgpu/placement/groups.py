"""Which of the pods that need a node start or work together, and how many of a group start at least. Pure.

A group is what pods say of themselves (``kgpu.kube.owners``); how many is in the object that they name. Where that is
not there all pods of the group count, which is told.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, Final

from kgpu.base.plain import items, mapping, number, text
from kgpu.base.printable import one_line
from kgpu.fit import PodView
from kgpu.kube.owners import SCHEDULING_GROUP, PodGang
from kgpu.placement.model import GangWish
from kgpu.placement.state import Object, PlacementState


def join(state: PlacementState) -> None:
    """Give each pod that needs a node its group, and note what is not known of groups."""
    for at, row in enumerate(state.waiting):
        gang = state.groups.get(row.pod.id)
        if row.gang or gang is None:
            continue
        name = f"{row.pod.namespace}/{gang}"
        if name not in state.gangs:
            wish = _wish(state, row.pod, gang)
            if wish is None:
                continue
            state.gangs[name] = wish
        state.waiting[at] = replace(row, gang=name)
    _count_all(state)


def running(state: PlacementState) -> Counter[str]:
    """How many pods of each group have a node now."""
    bound = (pod for pod in state.snapshot.pods.values() if pod.node and pod.id in state.groups)
    return Counter(f"{pod.namespace}/{state.groups[pod.id]}" for pod in bound)


def _count_all(state: PlacementState) -> None:
    """Where nobody says how many, all that there are."""
    waiting, bound = Counter(row.gang for row in state.waiting), running(state)
    for name, wish in state.gangs.items():
        if wish.scheduled and not wish.least:
            state.gangs[name] = replace(wish, least=waiting[name] + bound[name])


def _wish(state: PlacementState, pod: PodView, gang: PodGang) -> GangWish | None:
    """None for pods that are a group by name alone."""
    if not gang.scheduled:
        return GangWish(scheduled=False, least=gang.pods)
    obj = state.get(f"{gang.kind}.{gang.group}", gang.name.partition("/")[0], pod.namespace)
    if obj is None:
        what = one_line(f"{gang.kind} {pod.namespace}/{gang.name} ({gang.group})", 200)
        state.notes.append(f"{what} was not seen: all pods that name it are taken to start together")
        return GangWish(scheduled=True)
    least = _LEAST.get((gang.group, gang.kind), _min_member)(mapping(obj.get("spec")), gang)
    return GangWish(scheduled=True, least=least) if least else None


def _min_member(spec: Object, gang: PodGang) -> int:
    """Volcano, KAI, coscheduling."""
    del gang
    return max(1, number(spec.get("minMember")))


def _policy(spec: Object, gang: PodGang) -> int:
    """Kubernetes 1.36 and later; 0 for the policy ``basic``."""
    del gang
    return max(0, number(mapping(mapping(spec.get("schedulingPolicy")).get("gang")).get("minCount")))


def _workload(spec: Object, gang: PodGang) -> int:
    """Kubernetes 1.35: the policy of one of the Workload's groups."""
    wanted = [*gang.name.split("/"), ""][1]
    for group in map(mapping, items(spec.get("podGroups"))):
        if text(group.get("name")) == wanted:
            return max(0, number(mapping(mapping(group.get("policy")).get("gang")).get("minCount")))
    return 0


_LEAST: Final[Mapping[tuple[str, str], Callable[[Any, PodGang], int]]] = {
    (SCHEDULING_GROUP, "PodGroup"): _policy,
    (SCHEDULING_GROUP, "Workload"): _workload,
}
