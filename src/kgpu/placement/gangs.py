"""A gang that finds no room: how many of it have some, and which domain is too small for it. Pure.

The domain is what its pods ask to be together in (required pod affinity), else the NVLink domain, by the nodes' label.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import Final

from kgpu.base.printable import one_line
from kgpu.fit import PodView, verdict
from kgpu.formats import names
from kgpu.placement import quality
from kgpu.placement.gang_room import more_nodes, more_quota
from kgpu.placement.model import GangOutcome, PodOutcome
from kgpu.placement.state import Chooser, PlacementState

_WORDS: Final = {
    names.LABEL_GPU_CLIQUE: "NVLink domain", names.LABEL_ZONE: "zone", names.LABEL_HOSTNAME: "node",
}  # fmt: skip


def told(
    state: PlacementState, outcomes: Sequence[PodOutcome], running: int, choose: Chooser, *, helps: bool = True
) -> GangOutcome:
    """What came of a gang of which so many ran before. Of one that does not start no pod is placed when this is asked,
    and ``room`` says where each had some. ``helps``: say what would have room for all.
    """
    name = outcomes[0].gang
    wish = state.gangs[name]
    found = GangOutcome(
        name=name, pods=len(outcomes), room_for=sum(bool(outcome.node or outcome.room) for outcome in outcomes),
        running=running, least=wish.least, scheduled=wish.scheduled,
    )  # fmt: skip
    landed = [state.snapshot.nodes[outcome.node].view for outcome in outcomes if outcome.node]
    if found.fits_whole and landed:
        return replace(found, quality=quality.of_gang(landed))
    found = replace(found, quality=quality.of_gang(landed) if landed else ())
    untried = [outcome for outcome in outcomes if not (outcome.node or outcome.room or outcome.counts)]
    if untried:
        first = next((outcome for outcome in untried if outcome.reasons), untried[0])
        unmade = [outcome.pod for outcome in untried if outcome.pod.id not in state.snapshot.pods and outcome.reasons]
        return replace(found, blocked_by=first.message, makes_room=more_quota(state, unmade) if helps else ())
    room = _room_made(state, outcomes) if helps else ()
    return replace(found, blocked_by=_blocked(state, outcomes, choose), makes_room=room)


def _room_made(state: PlacementState, outcomes: Sequence[PodOutcome]) -> tuple[str, ...]:
    """With all that had room where it was."""
    held = [outcome for outcome in outcomes if outcome.room and not outcome.node]
    for outcome in held:
        state.bind(outcome.pod, outcome.room)
    found = more_nodes(state, [outcome.pod for outcome in outcomes if not (outcome.node or outcome.room)])
    for outcome in reversed(held):
        state.unbind(outcome.pod)
    return found


def _blocked(state: PlacementState, outcomes: Sequence[PodOutcome], choose: Chooser) -> str:
    pods = [outcome.pod for outcome in outcomes]
    room = sum(bool(outcome.node or outcome.room) for outcome in outcomes)
    cluster = f"the cluster has room for {room} of {len(pods)}"
    if any(outcome.node for outcome in outcomes):
        return cluster
    key = next((term.topology_key for pod in pods for term in pod.affinity), names.LABEL_GPU_CLIQUE)
    nodes = ((node.name, node.labels) for node in state.snapshot.nodes.values())
    found = quality.domains(nodes, key)
    if not found:
        return cluster
    rooms = {name: room_in(state, pods, members, choose) for name, members in sorted(found.items())}
    best = max(rooms, key=lambda name: rooms[name])
    words = _WORDS.get(key, key)
    return f"the largest {words}, {one_line(best, 80)}, has room for {rooms[best]} of {len(pods)}; {cluster}"


def room_in(state: PlacementState, pods: Sequence[PodView], nodes: Collection[str], choose: Chooser) -> int:
    """How many of the pods have room on these nodes at once."""
    placed: list[PodView] = []
    for pod in pods:
        fits = [name for name in verdict(pod, state.snapshot).fits if name in nodes]
        if fits:
            state.bind(pod, choose(pod, fits, state.snapshot))
            placed.append(pod)
    for pod in reversed(placed):
        state.unbind(pod)
    return len(placed)
