"""Preemption: on which node would removing pods of lower priority make room, and which pods at least.

The scheduler's rules, tried on a copy of the node: all pods of lower priority are removed; if the pod fits then, they
are put back one by one, those that a disruption budget protects first and the important ones before the others, and one
that no longer fits is a victim. The best node is the one that breaks fewest budgets, then the one with the least
important victims, the smallest sum of priorities, the fewest victims, the youngest of the important ones.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from kgpu.fit.checks import Checker
from kgpu.fit.cycle import Cycle, FilterRefusal
from kgpu.fit.model import BudgetView, PodView, Preemption
from kgpu.fit.snapshot import NodeState

NEVER: Final = "not eligible due to preemptionPolicy=Never."
WAITING: Final = "not eligible due to a terminating pod on the nominated node."
NO_VICTIMS: Final = "No preemption victims found for incoming pod"
NO_HELP: Final = "Preemption is not helpful for scheduling"
# So many candidates are enough, as kube-scheduler's default arguments say; a tenth of the nodes if that is more.
_ENOUGH: Final = 100
_SHIFT: Final = 2**31
_LATE: Final = "~"  # sorts after every timestamp: not started yet


@dataclass(frozen=True, slots=True)
class Attempt:
    """What trying came to: a way to make room, or the phrases that say why there is none, by node."""

    found: Preemption | None = None
    ineligible: str = ""
    refusals: Mapping[str, tuple[str, ...]] | None = None


def attempt(cycle: Cycle, refused: Mapping[str, FilterRefusal], *, all_nodes: bool = False) -> Attempt:
    """Try for a pod that fits nowhere. ``all_nodes`` when it was refused before any node was looked at, resolvably."""
    pod, nodes = cycle.pod, cycle.snapshot.nodes
    if not pod.preempts:
        return Attempt(ineligible=NEVER)
    nominated = refused.get(pod.nominated)
    if pod.nominated in nodes and (nominated is None or nominated.resolvable):
        pods = nodes[pod.nominated].pods.values()
        if any(holder.priority < pod.priority and holder.deleting and holder.being_preempted for holder in pods):
            return Attempt(ineligible=WAITING)
    names = nodes if all_nodes else [name for name, refusal in refused.items() if refusal.resolvable]
    enough = max(_ENOUGH, len(nodes) // 10)
    budgets = list(cycle.snapshot.shelf.budgets.values())
    candidates: list[Preemption] = []
    why: dict[str, tuple[str, ...]] = {}
    for name in names:
        result = victims_on(cycle, nodes[name], budgets)
        if isinstance(result, Preemption):
            candidates.append(result)
            if len(candidates) >= enough and any(candidate.violations == 0 for candidate in candidates):
                break
        else:
            why[name] = result
    return Attempt(found=best(candidates), refusals=why)


def victims_on(cycle: Cycle, node: NodeState, budgets: Iterable[BudgetView]) -> Preemption | tuple[str, ...]:
    """The fewest pods to remove from the node, or the phrases that say why removing does not help."""
    pod = cycle.pod
    if node.lowest_priority >= pod.priority:
        return (NO_VICTIMS,)
    lower = [holder for holder in node.pods.values() if holder.priority < pod.priority]
    trial = node.copy()
    checkers: list[tuple[str, Checker]] = [(name, checker.fork()) for name, checker in cycle.checkers]
    for holder in lower:
        _shift(trial, checkers, holder, -1)
    refusal = cycle.judge_changed(trial, checkers)
    if refusal is not None:
        return tuple(miss.phrase for miss in refusal.misses)
    lower.sort(key=importance)
    guarded, free = _by_budget(lower, budgets)
    victims: list[PodView] = []
    violations = 0
    for group in (guarded, free):
        for holder in group:
            _shift(trial, checkers, holder, 1)
            if cycle.judge_changed(trial, checkers) is not None:
                _shift(trial, checkers, holder, -1)
                victims.append(holder)
                violations += group is guarded
    return Preemption(node.name, tuple(sorted(victims, key=importance)), violations) if victims else (NO_VICTIMS,)


def _shift(node: NodeState, checkers: list[tuple[str, Checker]], pod: PodView, sign: int) -> None:
    if sign > 0:
        node.add(pod)
    else:
        node.remove(pod)
    for _, checker in checkers:
        checker.moved(pod, node, sign)


def importance(pod: PodView) -> tuple[int, str]:
    """Sort key: more important pods first, by priority and then age."""
    return (-pod.priority, pod.started or _LATE)


def _by_budget(pods: list[PodView], budgets: Iterable[BudgetView]) -> tuple[list[PodView], list[PodView]]:
    """Those whose removal would break a budget, and the others; each in the order given."""
    left = [(budget, [budget.allowed]) for budget in budgets]
    guarded: list[PodView] = []
    free: list[PodView] = []
    for pod in pods:
        broken = False
        for budget, allowed in left if pod.labels else ():
            if budget.namespace != pod.namespace or pod.name in budget.disrupted:
                continue
            if budget.selector.matches(pod.labels):
                allowed[0] -= 1
                broken = broken or allowed[0] < 0
        (guarded if broken else free).append(pod)
    return guarded, free


def best(candidates: list[Preemption]) -> Preemption | None:
    """The candidate that hurts least; the first of equals."""
    return min(candidates, key=_harm, default=None)


def _harm(candidate: Preemption) -> tuple[int, int, int, int, tuple[int, ...]]:
    victims = candidate.victims
    highest = victims[0].priority
    oldest = min(pod.started or _LATE for pod in victims if pod.priority == highest)
    # Younger is better: the timestamp's characters, turned round.
    return (
        candidate.violations,
        highest,
        sum(pod.priority + _SHIFT for pod in victims),
        len(victims),
        tuple(-ord(character) for character in oldest),
    )
