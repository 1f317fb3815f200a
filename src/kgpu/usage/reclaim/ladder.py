"""Pure: the next step towards stopping an idle workload, from what is written about it and the time.

Nobody is stopped who was not warned, whose warning was not delivered to all receivers, or whose time of grace since
then is not over; and at the end everything is looked at anew. What comes next is on record before it happens. Killed
anywhere, the next process goes on from what is written: the act happens once or not at all. Deadlines count as they are
on record: the annotations, which the workload's owner can change, only show them.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import Final

from kgpu.base.times import stamp_of
from kgpu.usage.reclaim.record import ActionState

EPISODE_SLACK: Final = 120.0
_SLACK: Final = 1.0
"""Deadlines are shown in whole seconds."""


class LadderStep(enum.StrEnum):
    """One write. In the order in which a workload meets them."""

    REST = "rest"
    WITHDRAW = "withdraw"
    WARN = "warn"
    SHOW = "show"
    TELL = "tell"
    WAIT = "wait"
    POSTPONE = "postpone"
    INTEND = "intend"
    VOID = "void"
    MARK = "mark"
    STOP = "stop"
    FINISH = "finish"
    FORGET = "forget"


@dataclass(frozen=True, slots=True, kw_only=True)
class LadderView:
    """What is known of a workload. Moments are in seconds since 1970.

    ``episode``: since when it is idle, None where it is not. ``deadline`` and ``of_episode``: those on record, None
    without a warning; ``warned``, ``delivered``: people were told of it, and all of them have heard it. ``annotated``:
    the workload has annotations of a deadline, ``shown``: they say the same. ``marked``: they say that kgpu stops it,
    and ``changed``: not from what it has now. ``stopped``: it has nothing running. ``action``: how far the last act on
    it is. ``bars_warning``, ``bars_act``: why it may not be warned, or not be stopped.
    """

    now: float
    grace: float
    episode: float | None = None
    deadline: float | None = None
    of_episode: float | None = None
    annotated: bool = False
    shown: bool = False
    marked: bool = False
    changed: bool = False
    stopped: bool = False
    warned: bool = False
    delivered: float | None = None
    action: ActionState | None = None
    bars_warning: str = ""
    bars_act: str = ""


@dataclass(frozen=True, slots=True)
class NextStep:
    """The step, why, and for a warning its deadline."""

    step: LadderStep
    why: str = ""
    deadline: float = 0.0


def same_episode(one: float | None, other: float | None) -> bool:
    """Whether two moments since which something is idle are the same: agents' clocks are read with a delay."""
    return one is not None and other is not None and abs(one - other) <= EPISODE_SLACK


def same_deadline(one: float | None, other: float | None) -> bool:
    """Whether two deadlines are the same, as they are shown."""
    return one is not None and other is not None and abs(one - other) <= _SLACK


def next_step(view: LadderView) -> NextStep:
    """The one thing to do now."""
    if view.marked:
        return _of_marked(view)
    if view.action is ActionState.INTENDED:
        if view.stopped or view.bars_act or not same_episode(view.of_episode, view.episode):
            return NextStep(LadderStep.VOID, view.bars_act or "it has changed since")
        return NextStep(LadderStep.MARK)
    if view.action is ActionState.DONE and not view.stopped:
        return NextStep(LadderStep.FORGET, "somebody has brought it back")
    if view.stopped or view.episode is None or view.bars_warning:
        known = view.deadline is not None or view.annotated
        return NextStep(LadderStep.WITHDRAW if known else LadderStep.REST, view.bars_warning or "it is not idle")
    return _towards_act(view)


def _of_marked(view: LadderView) -> NextStep:
    """It carries the memory of what it had: an act was begun, done, or taken back."""
    if view.action is ActionState.INTENDED:
        if view.stopped:
            return NextStep(LadderStep.FINISH)
        bars = view.bars_act or ("somebody has changed it meanwhile" if view.changed else "")
        return NextStep(LadderStep.VOID, bars) if bars else NextStep(LadderStep.STOP)
    if view.stopped:
        return NextStep(LadderStep.REST, "it was stopped")
    return NextStep(LadderStep.FORGET, "somebody has brought it back")


def _towards_act(view: LadderView) -> NextStep:
    if view.deadline is None or not same_episode(view.of_episode, view.episode):
        return NextStep(LadderStep.WARN, deadline=view.now + view.grace)
    if not view.shown:
        return NextStep(LadderStep.SHOW, "its annotations do not say what is on record", deadline=view.deadline)
    if not view.warned:
        return NextStep(LadderStep.TELL, deadline=view.deadline)
    if view.delivered is None:
        return NextStep(LadderStep.WAIT, "the warning has not been delivered")
    earliest = view.delivered + view.grace
    if view.deadline < earliest - _SLACK:
        return NextStep(LadderStep.POSTPONE, "the warning was delivered late", deadline=earliest)
    if view.now < view.deadline:
        return NextStep(LadderStep.WAIT, f"its time ends at {stamp_of(view.deadline)}")
    if view.bars_act:
        return NextStep(LadderStep.WAIT, view.bars_act)
    return NextStep(LadderStep.INTEND)
