"""No step can be skipped: whatever is written and whenever it is looked at, nobody is stopped without a heard warning."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kgpu.usage.reclaim.ladder import EPISODE_SLACK, LadderStep, LadderView, next_step, same_episode
from kgpu.usage.reclaim.record import ActionState
from tests.budget import tries

IDLE = LadderView(now=10_000.0, grace=1800.0, episode=1000.0)
WARNED = replace(IDLE, deadline=9_000.0, of_episode=1000.0, shown=True, warned=True, delivered=7_000.0)
INTENDED = replace(WARNED, action=ActionState.INTENDED)
MARKED = replace(INTENDED, marked=True)


@pytest.mark.parametrize(
    ("view", "step"),
    [
        (replace(IDLE, episode=None), LadderStep.REST),
        (replace(IDLE, bars_warning="it is kept"), LadderStep.REST),
        (replace(IDLE, stopped=True), LadderStep.REST),
        (IDLE, LadderStep.WARN),
        (replace(IDLE, deadline=11_000.0, of_episode=1000.0), LadderStep.SHOW),
        (replace(IDLE, deadline=11_000.0, of_episode=1000.0, shown=True), LadderStep.TELL),
        (replace(WARNED, shown=False), LadderStep.SHOW),
        (replace(WARNED, shown=False, bars_warning="it is kept"), LadderStep.WITHDRAW),
        (replace(WARNED, delivered=None), LadderStep.WAIT),
        (replace(WARNED, delivered=8_000.0), LadderStep.POSTPONE),
        (replace(WARNED, deadline=10_500.0), LadderStep.WAIT),
        (replace(WARNED, bars_act="the budget is spent"), LadderStep.WAIT),
        (WARNED, LadderStep.INTEND),
        (replace(WARNED, episode=None), LadderStep.WITHDRAW),
        (replace(WARNED, bars_warning="it is kept"), LadderStep.WITHDRAW),
        (replace(WARNED, episode=5000.0), LadderStep.WARN),
        (replace(IDLE, episode=None, annotated=True), LadderStep.WITHDRAW),
        (INTENDED, LadderStep.MARK),
        (replace(INTENDED, bars_act="it is busy"), LadderStep.VOID),
        (replace(INTENDED, episode=5000.0), LadderStep.VOID),
        (replace(INTENDED, stopped=True), LadderStep.VOID),
        (MARKED, LadderStep.STOP),
        (replace(MARKED, bars_act="it is busy"), LadderStep.VOID),
        (replace(MARKED, changed=True), LadderStep.VOID),
        (replace(MARKED, stopped=True, bars_act="it holds no GPUs"), LadderStep.FINISH),
        (replace(MARKED, stopped=True, action=ActionState.DONE), LadderStep.REST),
        (replace(MARKED, action=ActionState.DONE), LadderStep.FORGET),
        (replace(MARKED, action=None), LadderStep.FORGET),
        (replace(MARKED, action=None, stopped=True), LadderStep.REST),
        (replace(IDLE, action=ActionState.DONE), LadderStep.FORGET),
    ],
)  # fmt: skip
def test_the_next_step(view: LadderView, step: LadderStep) -> None:
    assert next_step(view).step is step


def test_a_late_delivery_moves_the_deadline_by_the_whole_grace() -> None:
    assert next_step(replace(WARNED, delivered=9_500.0)).deadline == 11_300.0


MOMENT = st.one_of(st.none(), st.floats(0, 20_000))
VIEWS = st.builds(
    LadderView, now=st.floats(0, 20_000), grace=st.floats(300, 5000), episode=MOMENT, deadline=MOMENT, of_episode=MOMENT,
    marked=st.booleans(), changed=st.booleans(), stopped=st.booleans(), annotated=st.booleans(), shown=st.booleans(), warned=st.booleans(),
    delivered=MOMENT, action=st.sampled_from([None, *ActionState]), bars_warning=st.sampled_from(["", "no"]),
    bars_act=st.sampled_from(["", "no"]),
)  # fmt: skip


@tries(400)
@given(VIEWS)
def test_nothing_begins_without_a_heard_warning_its_grace_and_a_last_look(view: LadderView) -> None:
    step = next_step(view).step
    if step is LadderStep.INTEND:
        assert view.warned
        assert view.delivered is not None
        assert view.deadline is not None
        assert view.now >= view.deadline >= view.delivered + view.grace - 1
        assert same_episode(view.episode, view.of_episode)
    if step in {LadderStep.INTEND, LadderStep.MARK, LadderStep.STOP}:
        assert not view.bars_act
        assert not view.stopped
    if step in {LadderStep.MARK, LadderStep.STOP}:
        assert view.action is ActionState.INTENDED, "it is on record before it happens"
    if step is LadderStep.STOP:
        assert view.marked, "what it had is written before it goes"


@pytest.mark.parametrize(("apart", "same"), [(0, True), (EPISODE_SLACK, True), (EPISODE_SLACK + 1, False)])
def test_agents_clocks_are_read_with_a_delay(apart: float, same: bool) -> None:
    assert same_episode(1000.0, 1000.0 + apart) is same


def test_what_is_not_known_is_no_episode() -> None:
    missing: Any = None
    assert not same_episode(missing, missing)
