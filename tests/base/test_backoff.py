"""Waits grow, never exceed the cap, never undercut the jitter, and forget after a healthy time."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kgpu.base.backoff import Backoff, BackoffPolicy

policies = st.builds(
    lambda first, extra, factor, jitter: BackoffPolicy(first=first, cap=first + extra, factor=factor, jitter=jitter),
    st.floats(0.001, 10),
    st.floats(0, 1000),
    st.floats(1, 10),
    st.floats(0, 1),
)


@given(policies, st.lists(st.floats(0, 1, exclude_max=True), min_size=1, max_size=200))
def test_every_wait_is_within_its_bounds(policy, randoms):
    source = iter(randoms)
    backoff = Backoff(policy, uniform=lambda: next(source))
    for failures in range(len(randoms)):
        full = min(policy.cap, policy.first * policy.factor ** min(failures, 64))
        delay = backoff.next_delay()
        assert full * (1 - policy.jitter) <= delay * (1 + 1e-9)
        assert delay <= policy.cap


@given(policies)
def test_a_healthy_run_starts_over(policy):
    backoff = Backoff(policy, uniform=lambda: 0.0)
    first = backoff.next_delay()
    for _ in range(10):
        backoff.next_delay(ran_for=policy.healthy_after / 2)
    assert backoff.next_delay(ran_for=policy.healthy_after) == first
    assert backoff.failures == 1
    backoff.next_delay()
    backoff.reset()
    assert backoff.next_delay() == first


@pytest.mark.parametrize(
    "wrong", [{"first": 0.0}, {"first": 5.0, "cap": 1.0}, {"factor": 0.5}, {"jitter": 1.5}, {"healthy_after": 0.0}]
)
def test_an_impossible_policy_is_refused(wrong):
    with pytest.raises(ValueError, match="impossible backoff"):
        BackoffPolicy(**wrong)
