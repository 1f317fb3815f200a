"""A gang's GPUs that wait for another node's are no waste: stretches read together, against a count by the second."""

from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kgpu.formats.usage import UsageState
from kgpu.usage.grouping import grouping
from kgpu.usage.model import DeviceKey, Segment
from kgpu.usage.plan import UsageWish, report
from kgpu.usage.prices import PriceBook
from kgpu.usage.segments import Timeline
from kgpu.usage.states import WASTED, WORKING
from tests.budget import tries
from tests.usage.recordings import SECOND, Device, holder, timeline_of

S = UsageState
HOUR = 3600


def rank(at: int, *, gang: str = "JobSet/train", **fields: str) -> tuple[Device, object]:
    return Device(node=f"n{at}", device=f"GPU-{at}"), holder(f"rank-{at}", gang=gang, **fields)


def run(states: list[list[tuple[int, UsageState]]], **fields: str) -> Timeline:
    """One device a node; each holds a rank for stretches of seconds in a state."""
    devices = []
    for at, stretches in enumerate(states):
        device, who = rank(at, **fields)
        for seconds, state in stretches:
            device.spend(seconds, who, state=state)  # type: ignore[arg-type]
        devices.append(device)
    return timeline_of(*devices)


def sums(times: Timeline, node: str) -> dict[UsageState, int]:
    found: dict[UsageState, int] = {}
    for (name, _), segments in times.devices.items():
        for segment in segments if name == node else ():
            for state, amount in segment.states_us.items():
                found[state] = found.get(state, 0) + amount // SECOND
    return {state: amount for state, amount in found.items() if amount}


@pytest.mark.parametrize(
    ("states", "first"),
    [
        ([[(HOUR, S.HELD_IDLE)], [(HOUR, S.BUSY)]], {S.WAITING: HOUR}),
        ([[(HOUR, S.HUNG)], [(HOUR, S.INEFFICIENT)]], {S.WAITING: HOUR}),
        ([[(HOUR, S.HELD_IDLE)], [(HOUR, S.HELD_IDLE)]], {S.HELD_IDLE: HOUR}),
        ([[(HOUR, S.HELD_IDLE)], [(1800, S.BUSY), (1800, S.HELD_IDLE)]], {S.WAITING: 1800, S.HELD_IDLE: 1800}),
        # Lines of nodes lie at different moments.
        ([[(1000, S.BUSY), (2600, S.HELD_IDLE)], [(1800, S.BUSY), (1800, S.HELD_IDLE)]],
         {S.BUSY: 1000, S.WAITING: 800, S.HELD_IDLE: 1800}),
        # Its own work is no other's.
        ([[(1800, S.BUSY), (1800, S.HELD_IDLE)]], {S.BUSY: 1800, S.HELD_IDLE: 1800}),
        ([[(HOUR, S.UNKNOWN)], [(HOUR, S.BUSY)]], {S.UNKNOWN: HOUR}),
        ([[(HOUR, S.HELD_IDLE)], [(HOUR, S.UNKNOWN)]], {S.HELD_IDLE: HOUR}),
    ],
)  # fmt: skip
def test_what_waits_for_another_node_is_no_waste(
    states: list[list[tuple[int, UsageState]]], first: dict[UsageState, int]
) -> None:
    assert sums(run(states), "n0") == first


def test_pods_that_work_alone_are_not_excused_by_others() -> None:
    states = [[(HOUR, S.HELD_IDLE)], [(HOUR, S.BUSY)]]
    assert sums(run(states, gang=""), "n0") == {S.HELD_IDLE: HOUR}
    idle, who = rank(0)
    busy, other = rank(1, namespace="other-team")
    times = timeline_of(
        idle.spend(HOUR, who, state=S.HELD_IDLE),  # type: ignore[arg-type]
        busy.spend(HOUR, other, state=S.BUSY),  # type: ignore[arg-type]
    )
    assert sums(times, "n0") == {S.HELD_IDLE: HOUR}


def test_a_device_that_a_stranger_shares_is_judged_as_before() -> None:
    shared, who = rank(0)
    busy, other = rank(1)
    times = timeline_of(
        shared.spend(HOUR, who, holder("stranger"), state=S.HELD_IDLE),  # type: ignore[arg-type]
        busy.spend(HOUR, other, state=S.BUSY),  # type: ignore[arg-type]
    )
    assert sums(times, "n0") == {S.HELD_IDLE: HOUR}


def test_partitions_wait_too() -> None:
    cut = Device(node="n0", device="GPU-0", partitions=(("p", "3g.20gb"),))
    cut.spend(HOUR, holder("a", gang="JobSet/train", partition="p"), state=S.FREE, states={"p": S.HELD_IDLE})
    busy, who = rank(1)
    times = timeline_of(cut, busy.spend(HOUR, who, state=S.BUSY))  # type: ignore[arg-type]
    (segment,) = times.devices["n0", "GPU-0"]
    assert segment.partitions[0].states_us == {S.HELD_IDLE: 0, S.WAITING: HOUR * SECOND}


def test_the_report_counts_waiting_as_held_and_not_as_wasted() -> None:
    times = run([[(HOUR, S.HELD_IDLE)], [(HOUR, S.BUSY)], [(1800, S.HELD_IDLE)]])
    (row,) = report(times, PriceBook(), UsageWish(grouping=grouping("namespace", ()))).rows
    assert (row.sums.held_us, row.sums.wasted_us) == (2 * HOUR * SECOND + 1800 * SECOND, 0)
    alone = run([[(HOUR, S.HELD_IDLE)]])
    (row,) = report(alone, PriceBook(), UsageWish(grouping=grouping("namespace", ()))).rows
    assert row.sums.wasted_us == HOUR * SECOND


STRETCHES = st.lists(
    st.tuples(st.integers(1, 40), st.sampled_from([S.BUSY, S.HELD_IDLE, S.HELD_EMPTY, S.STARVED, S.UNKNOWN])),
    min_size=1, max_size=6,
)  # fmt: skip


@given(states=st.lists(STRETCHES, min_size=1, max_size=5))
@tries(200)
def test_it_equals_a_count_by_the_second(states: list[list[tuple[int, UsageState]]]) -> None:
    """Where each stretch has one state there is one answer: idle seconds in which any other one worked are waiting."""
    seconds = [[state for length, state in stretches for _ in range(length)] for stretches in states]
    times = run(states)
    for at, own in enumerate(seconds):
        others = [row for other, row in enumerate(seconds) if other != at]
        waits = sum(
            state in WASTED and any(second < len(row) and row[second] in WORKING for row in others)
            for second, state in enumerate(own)
        )
        found = sums(times, f"n{at}")
        assert found.get(S.WAITING, 0) == waits
        assert sum(found.values()) == len(own)


@given(states=st.lists(STRETCHES, min_size=2, max_size=4))
@tries(100)
def test_no_time_is_lost_however_stretches_are_mixed(states: list[list[tuple[int, UsageState]]]) -> None:
    """With several states in a stretch the sums stay, and no more waits than others worked."""
    devices = []
    for at, stretches in enumerate(states):
        device, who = rank(at)
        for seconds, state in stretches:
            device.spend(seconds, who, state=state)  # type: ignore[arg-type]
        device.lines = [device.lines[0], device.lines[-1]]
        devices.append(device)
    times = timeline_of(*devices)
    lengths = {key: segments[0].length_us for key, segments in times.devices.items()}
    worked = {key: _worked(segments[0]) for key, segments in times.devices.items()}
    for key, (segment,) in times.devices.items():
        assert sum(segment.states_us.values()) == lengths[key]
        assert min(segment.states_us.values()) >= 0
        most = max((_most(other, key, worked, lengths) for other in worked if other != key), default=0)
        waiting = segment.states_us.get(S.WAITING, 0)
        assert waiting <= sum(_most(other, key, worked, lengths) for other in worked if other != key)
        rounded = lengths[key] // 10**6 + len(states)
        assert waiting >= min(most - rounded, sum(segment.states_us.get(state, 0) for state in (*WASTED, S.WAITING)))


def _worked(segment: Segment) -> int:
    return sum(segment.states_us.get(state, 0) for state in WORKING)


def _most(other: DeviceKey, key: DeviceKey, worked: dict[DeviceKey, int], lengths: dict[DeviceKey, int]) -> int:
    """How long the other one worked within the stretch, if its work is spread evenly."""
    both = min(lengths[other], lengths[key])
    return int(Fraction(worked[other] * both, lengths[other]))
