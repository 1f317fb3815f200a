"""Events: who has much to say does not keep others from being heard, and what is not written is counted."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from kgpu.base.advice import Advice, Severity
from kgpu.base.clock import VirtualClock
from kgpu.kube.port import EVENTS
from kgpu.operator.budget import BURST, QUEUE, REFILL, SUBJECT_BURST, SUBJECT_QUEUE, SUBJECT_REFILL, Budget
from kgpu.operator.model import ClusterPlan
from tests.operator.run.support import Wish, cluster, running


def told(node: str, number: int) -> Advice:
    return Advice(
        subject=f"Node/{node}", what=f"it broke {number}", why="", severity=Severity.WARNING, reason=f"Broken{number}"
    )


async def test_a_node_with_ever_new_reasons_does_not_keep_another_from_being_heard() -> None:
    api, wish = cluster(2), Wish()
    async with running(api, planner=wish) as run:
        for number in range(600):
            wish.want(run, ClusterPlan(advice=tuple(told("n0", 3 * number + more) for more in range(3))))
            await run.clock.advance(0.5)
        wish.want(run, ClusterPlan(advice=(told("n1", 0),)))
        await run.clock.advance(5)
        about = [one["involvedObject"]["name"] for one in (await api.list(EVENTS)).items]
        assert about.count("n1") == 1
        assert about.count("n0") <= SUBJECT_BURST + 300 / SUBJECT_REFILL + 1
        assert run.operator.working is not None
        written, waiting = about.count("n0"), len(run.operator.working.recorder._budget)
        assert waiting <= SUBJECT_QUEUE
        assert run.operator.figures.events_dropped == 1800 - written - waiting
        assert f"kgpu_operator_events_dropped_total {1800 - written - waiting}" in run.operator.figures.text()


@given(st.lists(st.tuples(st.sampled_from("abc"), st.floats(0, 20)), max_size=200))
def test_what_is_added_is_told_waits_or_is_counted(steps: list[tuple[str, float]]) -> None:
    clock = VirtualClock()
    budget, out = Budget(clock), list[Advice]()
    for number, (node, seconds) in enumerate(steps):
        budget.add(told(node, number))
        clock._now += seconds
        while (found := budget.next()[0]) is not None:
            out.append(found)
    assert len(out) + len(budget) + budget.dropped == len(steps)
    assert len(out) <= BURST + clock.monotonic() / REFILL + 1e-6
    for node in "abc":
        mine = [one.what for one in out if one.subject == f"Node/{node}"]
        assert len(mine) <= SUBJECT_BURST + clock.monotonic() / SUBJECT_REFILL + 1e-6
        numbers = [int(what.rpartition(" ")[2]) for what in mine]
        assert numbers == sorted(numbers)


@given(st.lists(st.sampled_from("abc"), max_size=60))
def test_after_the_time_that_it_names_something_is_told(subjects: list[str]) -> None:
    clock = VirtualClock()
    budget = Budget(clock)
    for number, node in enumerate(subjects):
        budget.add(told(node, number))
    while len(budget):
        advice, wait = budget.next()
        if advice is None:
            assert wait > 0
            clock._now += wait
            assert budget.next()[0] is not None


def test_subjects_take_turns_and_the_whole_is_bounded() -> None:
    budget = Budget(VirtualClock())
    for number in range(5):
        budget.add(told("a", number))
    budget.add(told("b", 0))
    assert [budget.next()[0] for _ in range(3)] == [told("a", 0), told("b", 0), told("a", 1)]
    for number in range(QUEUE + 10):
        budget.add(told(f"n{number}", 0))
    assert len(budget) == QUEUE
    assert budget.dropped == 3 + 10
