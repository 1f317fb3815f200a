"""Counters become stretches of time, whatever happens to order, boots, clocks and lines."""

from __future__ import annotations

import datetime as dt
import itertools
import random

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kgpu.formats.usage import RecordedGpu, UsageState, encode
from kgpu.usage.model import Segment
from kgpu.usage.recording import UsageRecording, parse
from kgpu.usage.segments import Timeline, timeline
from tests.budget import tries
from tests.usage.recordings import BEGIN_US, SECOND, Device, holder, lines, node, recording, timeline_of

KEY = ("n1", "GPU-1")


def replaced(line: RecordedGpu, **fields: object) -> RecordedGpu:
    return msgspec.structs.replace(line, **fields)


def of(*records: RecordedGpu) -> Timeline:
    return timeline(UsageRecording(devices=list(records)))


def told(times: Timeline) -> list[str]:
    return [advice.reason for advice in times.advice]


def held(segment: Segment) -> list[int]:
    return [use.held_us // SECOND for use in segment.holders]


def test_a_stretch_has_what_counters_grew_by() -> None:
    times = timeline_of(Device(energy_uj=5).spend(60, holder(), busy=0.5, watts=100).spend(30).spend(60, holder()))
    first, second, third = times.devices[KEY]
    assert (first.begin_us, first.length_us) == (BEGIN_US, 60 * SECOND)
    assert held(first) == [60]
    assert first.holders[0].busy_us == 30 * SECOND
    assert first.energy_uj == 6000 * SECOND
    assert (held(second), second.states_us[UsageState.FREE]) == ([], 30 * SECOND)
    assert (held(third), third.states_us[UsageState.BUSY]) == ([60], 60 * SECOND)
    assert third.states_us[UsageState.FREE] == 0
    assert not told(times)


def test_a_lost_line_loses_no_time() -> None:
    device = Device()
    for _ in range(6):
        device.spend(60, holder())
    (segment,) = of(device.lines[0], device.lines[-1]).devices[KEY]
    assert held(segment) == [360]
    assert segment.states_us == {UsageState.BUSY: 360 * SECOND}


def test_lines_out_of_order_are_put_in_order_and_told() -> None:
    device = Device().spend(60, holder()).spend(30).spend(60, holder())
    mixed = list(device.lines)
    random.Random(4).shuffle(mixed)
    assert mixed != device.lines
    assert of(*mixed).devices == of(*device.lines).devices
    assert told(of(*mixed)) == ["LinesOutOfOrder"]


def test_a_line_that_is_there_twice_counts_once() -> None:
    device = Device().spend(60, holder())
    assert of(*device.lines, device.lines[-1]).devices == of(*device.lines).devices


def test_counters_begin_anew_with_a_boot_and_the_time_between_is_nobodys() -> None:
    device = Device().spend(60, holder())
    device.boot, device.states, device.counters = "boot-2", {}, {}
    device.now_us += 100 * SECOND
    device.uptime_us = 20 * SECOND
    times = timeline_of(device.spend(10, holder("new")))
    first, second = times.devices[KEY]
    assert (second.begin_us, second.end_us) == (first.end_us, first.end_us + 110 * SECOND)
    assert held(second) == [10]
    assert second.states_us == {UsageState.BUSY: 10 * SECOND}
    assert not told(times)


def test_a_counter_that_is_reset_counts_from_zero_and_is_told() -> None:
    device = Device().spend(600, holder())
    device.states, device.counters = {}, {}
    times = timeline_of(device.spend(60, holder()))
    assert held(times.devices[KEY][1]) == [60]
    assert told(times) == ["CountersReset"]


@pytest.mark.parametrize("jump", [-7200, -61, 90, 86400])
def test_a_clock_that_is_set_changes_no_duration_and_is_told(jump: int) -> None:
    device = Device().spend(60, holder()).spend(60, holder()).spend(60)
    before = device.lines[:2]
    wrong = [replaced(line, at=line.at + dt.timedelta(seconds=jump)) for line in before]
    times = of(*wrong, *device.lines[2:])
    assert times.devices == of(*device.lines).devices
    assert told(times) == ["ClockJumped"]


def test_boots_that_overlap_by_their_clocks_never_count_time_twice() -> None:
    device = Device().spend(100, holder())
    device.boot, device.states, device.counters = "boot-2", {}, {}
    device.now_us, device.uptime_us = 50 * SECOND, 0
    device.spend(10).spend(100)
    times = timeline_of(device)
    segments = times.devices[KEY]
    assert all(one.end_us <= two.begin_us for one, two in itertools.pairwise(segments))
    assert sum(one.length_us for one in segments) == 160 * SECOND
    assert "TimesOverlap" in told(times)


@pytest.mark.parametrize("days", [-20_000, 20, 20_000])
def test_a_boot_with_a_clock_that_is_years_off_makes_no_years_of_cost(days: int) -> None:
    device = Device().spend(100, holder())
    device.boot, device.states, device.counters = "boot-2", {}, {}
    device.now_us, device.uptime_us = days * 86_400 * SECOND, 0
    device.spend(60).spend(60)
    times = timeline_of(device)
    assert sum(one.length_us for one in times.devices[KEY]) <= 220 * SECOND
    assert "LongBoot" in told(times)


def test_nodes_whose_lines_end_early_are_told_once() -> None:
    names = [f"n{at}" for at in range(2, 9)]
    gone = [Device(node=name).spend(60) for name in names]
    (one,) = timeline_of(Device().spend(60 + 3601), *gone).advice
    assert one.reason == "NodesSilent"
    assert "7 of 8 nodes" in one.what
    assert one.what.endswith("n2, n3, n4, n5, n6 and 2 more")
    assert timeline_of(Device().spend(60 + 3600), *gone).advice == ()


def test_states_with_more_time_than_passed_are_shortened_and_told() -> None:
    device = Device().spend(60)
    times = of(device.lines[0], replaced(device.lines[1], states_us={"free": 300 * SECOND, "down": 300 * SECOND}))
    assert times.devices[KEY][0].states_us == {"free": 30 * SECOND, "down": 30 * SECOND}
    assert told(times) == ["TimeExceeded"]


def test_nobody_held_it_longer_than_it_was() -> None:
    device = Device().spend(60)
    line = replaced(device.lines[1], holders=(holder(held_us=10**15, busy_us=10**15, sm_us=10**15),))
    (use,) = of(device.lines[0], line).devices[KEY][0].holders
    assert (use.held_us, use.busy_us, use.sm_us) == (60 * SECOND,) * 3


def test_a_node_has_as_many_gpus_as_its_lines_say_else_as_were_seen() -> None:
    devices = (Device(), Device(device="GPU-2"), Device(node="n2"))
    nodes = timeline_of(*devices, nodes=[node(gpus=8), node("n2")]).nodes
    assert {name: one.gpus for name, one in nodes.items()} == {"n1": 8, "n2": 1}
    assert timeline_of(*devices).nodes["n1"].gpus == 2


def test_a_nodes_line_counts_from_its_moment() -> None:
    later = node(instance_type="new", at=node().at + dt.timedelta(hours=1))
    history = timeline_of(Device(), nodes=[later, node(instance_type="old")]).nodes["n1"]
    types = [[*history.at(BEGIN_US + seconds * SECOND).labels.values()] for seconds in (-5, 0, 3599, 3600)]
    assert types == [["old"], ["old"], ["old"], ["new"]]


def test_a_part_of_a_stretch_has_its_amounts_in_proportion() -> None:
    (segment,) = timeline_of(Device(energy_uj=0).spend(60, holder(), busy=0.5, sm=0.25, watts=1)).devices[KEY]
    part = segment.within(BEGIN_US + 20 * SECOND, BEGIN_US + 30 * SECOND)
    assert part is not None
    (use,) = part.holders
    assert (use.held_us, use.busy_us, use.sm_us) == (10 * SECOND, 5 * SECOND, 2.5 * SECOND)
    assert (part.energy_uj, part.states_us) == (10 * SECOND, {UsageState.BUSY: 10 * SECOND})
    assert segment.within(0, BEGIN_US) is None
    assert segment.within(0, BEGIN_US + 10**12) is segment


@tries(100)
@given(st.lists(st.tuples(st.integers(1, 90), st.booleans()), min_size=1, max_size=12), st.data())
def test_time_is_the_same_whatever_lines_are_lost_or_mixed(steps: list[tuple[int, bool]], data: st.DataObject) -> None:
    device = Device()
    for seconds, busy in steps:
        device.spend(seconds, *([holder()] if busy else ()))
    written = lines(device)
    kept = [written[1], *data.draw(st.permutations(written[2:-1])), written[-1]]
    drop = data.draw(st.integers(0, max(0, len(kept) - 2)))
    kept = [kept[0], *kept[1 + drop :]] if drop < len(kept) - 1 else kept
    texts = [encode(line) for line in (written[0], *data.draw(st.permutations(kept)))]
    segments = timeline(parse(texts, source="f")).devices[KEY]
    assert sum(one.length_us for one in segments) == sum(seconds for seconds, _ in steps) * SECOND
    free = sum(one.states_us.get(UsageState.FREE, 0) for one in segments)
    assert free == sum(seconds for seconds, busy in steps if not busy) * SECOND


def test_a_recording_without_devices_has_no_time() -> None:
    assert timeline(recording()).devices == {}
