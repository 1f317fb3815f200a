"""How long the operator rests between two plans."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kgpu.operator.pace import REST_MOST, SAVED_MOST, SHARE, SHARE_BUSY, Pace


def test_the_first_steps_do_not_wait_for_each_other() -> None:
    pace = Pace(0.0)
    for step in range(10):
        assert pace.rest(step * 0.05, busy=False) == 0
        pace.spent(step * 0.05 + 0.04, 0.04)


@pytest.mark.parametrize(("busy", "share"), [(False, SHARE), (True, SHARE_BUSY)])
def test_news_without_end_is_planned_for_in_a_share_of_a_core(busy: bool, share: float) -> None:
    pace, now, planned = Pace(0.0), 0.0, 0.0
    while now < 600:
        now += pace.rest(now, busy=busy)
        now, planned = now + 0.05, planned + 0.05
        pace.spent(now, 0.05)
    assert share * now * 0.9 < planned < share * now * 1.2 + SAVED_MOST


def test_after_quiet_it_plans_at_once_again() -> None:
    pace = Pace(0.0)
    for _ in range(50):
        pace.spent(1.0, 0.2)
    assert pace.rest(1.0, busy=False) > 2
    assert pace.rest(1.0 + REST_MOST, busy=False) == 0


@given(st.lists(st.tuples(st.floats(0, 20), st.floats(0, 30), st.booleans()), max_size=30))
def test_no_rest_is_longer_than_the_longest(steps: list[tuple[float, float, bool]]) -> None:
    pace, now = Pace(0.0), 0.0
    for quiet, planned, busy in steps:
        now += quiet
        rest = pace.rest(now, busy=busy)
        assert 0 <= rest <= REST_MOST
        now += rest + planned
        pace.spent(now, planned)
