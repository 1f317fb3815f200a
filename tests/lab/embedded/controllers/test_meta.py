"""Conditions that keep their place."""

from __future__ import annotations

from kgpu.lab.embedded.controllers.meta import set_condition


def test_a_condition_keeps_its_place_and_its_time_while_its_status_stays() -> None:
    first = {"type": "A", "status": "True", "reason": "one", "lastTransitionTime": "t1"}
    other = {"type": "B", "status": "False", "lastTransitionTime": "t1"}
    rows = set_condition(set_condition([], first), other)
    assert rows == [first, other]
    same = set_condition(rows, {**first, "reason": "two", "lastTransitionTime": "t2"})
    assert same == [{**first, "reason": "two"}, other]
    turned = set_condition(same, {**first, "status": "False", "lastTransitionTime": "t3"})
    assert turned == [{**first, "status": "False", "lastTransitionTime": "t3"}, other]
    assert rows == [first, other], "what was there is left alone"
