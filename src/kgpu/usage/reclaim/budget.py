"""Pure: whether one more workload may be stopped now, and whether people have shown that the policy is wrong.

Budgets count what is on record, what was only intended included, so that a restart opens no new budget.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from kgpu.formats.crd.usagepolicy import UsageBudget
from kgpu.usage.reclaim.record import ActionState, ReclaimAction

MINUTE: Final = 60.0
HOUR: Final = 3600.0
BRAKE: Final = 86_400.0
"""Seconds for which a policy stops nothing after people have brought back what it had stopped."""
_COUNTED: Final = frozenset({ActionState.INTENDED, ActionState.DONE, ActionState.RESUMED})


def spent(
    actions: Iterable[ReclaimAction],
    budget: UsageBudget,
    *,
    namespace: str,
    gpus: float,
    held: float,
    now: float,
    but: str = "",
) -> str:
    """Why no more may be stopped in the namespace now, "" where it may. ``gpus`` are those of the workload, ``held``
    those that are held in the cluster, those of the last hour's acts not included. ``but`` is the id of the act itself.
    """  # fmt: skip
    recent = [one for one in actions if one.state in _COUNTED and now - one.at < HOUR and one.id != but]
    if sum(now - one.at < MINUTE for one in recent) >= budget.per_minute:
        return f"{budget.per_minute} a minute may be stopped, which is spent"
    if sum(one.namespace == namespace for one in recent) >= budget.per_hour_per_namespace:
        return f"{budget.per_hour_per_namespace} an hour may be stopped in {namespace}, which is spent"
    stopped = sum(one.gpus for one in recent if one.state is not ActionState.RESUMED)
    allowed = (held + stopped) * budget.max_share_percent / 100
    if recent and stopped + gpus > allowed:
        return f"{budget.max_share_percent}% of the held GPUs an hour may be reclaimed, which is spent"
    return ""


def brake(actions: Iterable[ReclaimAction], policy: str, budget: UsageBudget, now: float) -> str:
    """Why the policy stops nothing for a day: people have brought back too much of what it stopped. "" if not so."""
    ends = sorted(
        one.ended
        for one in actions
        if one.policy == policy and one.state is ActionState.RESUMED and one.ended is not None
        if one.ended - one.at < BRAKE and 0 <= now - one.ended < BRAKE
    )
    count = budget.stop_after_resumes
    if any(ends[at + count - 1] - ends[at] <= HOUR for at in range(len(ends) - count + 1)):
        return f"people have brought back {count} or more workloads within an hour: the policy stops nothing for a day"
    return ""
