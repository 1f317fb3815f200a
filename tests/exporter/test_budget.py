"""The series budget: it names the label to blame before the limit and takes it away past it, never a device's."""

from __future__ import annotations

from kgpu.exporter.budget import SeriesBudget

DEVICE = (("gpu", "0"), ("UUID", "GPU-0"))


def pod(number: int, **labels: str):
    return (*DEVICE, ("pod", f"p{number}"), *labels.items())


def test_the_same_series_are_counted_once_and_nothing_is_said():
    budget = SeriesBudget(1000)
    assert [budget.observe(float(n), [pod(1), pod(2)], 10) for n in range(50)] == [()] * 50
    assert budget.series == 20


def test_the_label_to_blame_is_told_before_the_limit_and_once():
    budget = SeriesBudget(100)
    told = [budget.observe(float(n), [pod(1, build=str(n))], 10) for n in range(9)]
    assert [bool(one) for one in told] == [False] * 7 + [True, False]
    assert 'label "build" had 8 values' in told[7][0].why
    assert budget.without == frozenset()


def test_past_the_limit_a_pods_own_label_is_taken_away():
    budget = SeriesBudget(100)
    for number in range(12):
        budget.observe(float(number), [pod(1, build=str(number))], 10)
    assert budget.without == {"build"}


def test_pods_themselves_are_only_told():
    budget = SeriesBudget(100)
    told = [one for number in range(12) for one in budget.observe(float(number), [pod(number)], 10)]
    assert len(told) == 2
    assert all('label "pod"' in one.why for one in told)
    assert budget.without == frozenset()


def test_an_hour_later_it_counts_anew():
    budget = SeriesBudget(100, period=3600.0)
    for number in range(9):
        budget.observe(0.0, [pod(number)], 10)
    budget.observe(3600.0, [pod(1)], 10)
    assert budget.series == 10
