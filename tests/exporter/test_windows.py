"""Counts over windows: they forget in time, totals do not, and memory stays bounded."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from kgpu.exporter.model import Unit
from kgpu.exporter.windows import CLOCK_COUNT, CLOCK_TOTAL, MOST_EVENTS, XID_COUNT, XID_TOTAL, ClockWindow, Window, Xids

GPU, SLICE = Unit("GPU-0"), Unit("GPU-0", 7)


def test_xids_leave_the_window_and_stay_in_the_total():
    xids = Xids(window=300.0)
    xids.add(0.0, GPU, 79)
    xids.add(200.0, GPU, 79)
    xids.add(200.0, SLICE, 43)
    early, late = xids.samples(200.0, (GPU, SLICE)), xids.samples(301.0, (GPU, SLICE))
    assert [(one.unit, dict(one.labels).get("xid"), one.value) for one in early[XID_COUNT]] == [
        (GPU, "79", 2.0), (SLICE, "43", 1.0),
    ]  # fmt: skip
    assert {one.unit: one.value for one in late[XID_COUNT]} == {GPU: 1.0, SLICE: 1.0}
    assert {one.unit: one.value for one in late[XID_TOTAL]} == {GPU: 2.0, SLICE: 1.0}
    assert xids.last == {GPU: 79, SLICE: 43}


def test_a_unit_without_xids_has_a_zero_without_a_number():
    made = Xids(window=60.0).samples(0.0, (GPU,))
    assert [(one.labels, one.value) for one in made[XID_COUNT]] == [((("window_size_in_ms", "60000"),), 0.0)]
    assert made[XID_TOTAL] == ()


def test_clock_events_count_readings_and_beginnings():
    clocks = ClockWindow(window=10.0)
    for at, reasons in enumerate((0x4, 0x4, 0x0, 0x24, 0x4)):
        clocks.add(float(at), GPU, reasons)
    made = clocks.samples(4.0)
    counts, totals = (
        {dict(one.labels)["clock_event"]: one.value for one in made[name]} for name in (CLOCK_COUNT, CLOCK_TOTAL)
    )
    assert counts == {"power_cap": 4.0, "sw_thermal": 1.0}
    assert totals == {"power_cap": 1.0, "sw_thermal": 1.0}


def test_a_storm_takes_no_more_memory():
    window = Window(1e9)
    for number in range(MOST_EVENTS * 2):
        window.add(float(number), GPU, str(number))
    assert len(window.recent(0.0)) == MOST_EVENTS
    assert len(window.total) < MOST_EVENTS


@given(st.lists(st.tuples(st.floats(0, 50), st.integers(0, 3)), max_size=60), st.floats(0, 60))
def test_the_window_has_what_a_count_by_hand_has(events, span):
    window = Window(10.0)
    for at, what in sorted(events):
        window.add(at, GPU, str(what))
    now = 50.0 + span
    expected = [str(what) for at, what in events if at > now - 10.0]
    assert dict(window.recent(now)) == {(GPU, what): expected.count(what) for what in set(expected)}


def total(xids: Xids) -> dict[Unit, float]:
    return {one.unit: one.value for one in xids.samples(0.0, ())[XID_TOTAL]}


def test_a_restart_goes_on_with_what_was_counted_since_the_boot():
    xids = Xids()
    xids.recall({(GPU, "79"): 3, (SLICE, "43"): 1})
    assert total(xids) == {GPU: 3.0, SLICE: 1.0}
    # Both hear of the next one; it is one.
    xids.add(1.0, GPU, 79)
    assert total(xids)[GPU] == 3.0
    xids.recall({(GPU, "79"): 4, (SLICE, "43"): 1})
    assert total(xids) == {GPU: 4.0, SLICE: 1.0}


def test_counting_goes_on_alone_when_nobody_else_counts():
    xids = Xids()
    xids.recall({(GPU, "79"): 3})
    xids.add(1.0, GPU, 79)
    xids.recall({(GPU, "79"): 4})
    xids.recall(None)
    xids.add(2.0, GPU, 79)
    assert total(xids) == {GPU: 5.0}
    # Who comes back has read of it, or has forgotten everything.
    xids.recall({(GPU, "79"): 5})
    assert total(xids) == {GPU: 5.0}
    xids.recall({})
    assert total(xids) == {GPU: 5.0}


@given(st.lists(st.one_of(st.none(), st.just("xid"), st.integers(0, 20)), max_size=40))
def test_a_total_never_falls(steps: list[int | str | None]) -> None:
    xids, before = Xids(), 0.0
    for at, step in enumerate(steps):
        if step == "xid":
            xids.add(float(at), GPU, 79)
        else:
            xids.recall(None if step is None else {(GPU, "79"): int(step)})
        now = total(xids).get(GPU, 0.0)
        assert now >= before
        before = now
