"""What is counted between looks: every microsecond once, whatever comes, goes, hangs or is killed."""

from __future__ import annotations

import datetime as dt
from collections.abc import Sequence
from dataclasses import dataclass, field

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from kgpu.base.typed import decode as typed_decode
from kgpu.formats.usage import HolderSharing, RecordedGpu, RecordingHeader, UsageState, encode
from kgpu.formats.usage_now import UsageSource
from kgpu.usage.gathering import WRITE_US, Gathered, Gathering
from kgpu.usage.looks import LookedDevice, LookedHolder, LookedPart, UsageLook
from kgpu.usage.recording import parse
from kgpu.usage.segments import timeline
from kgpu.usage.shares import SharingMode, split
from kgpu.usage.states import UsageReading
from tests.budget import tries

S = UsageState
SECOND = 1_000_000
GPU = "GPU-1"
BEGIN = dt.datetime(2026, 7, 20, tzinfo=dt.UTC)
RESTING = UsageReading(at=0.0, gpu_util=0.0, power_w=60, memory_mib=8000, processes=frozenset({"7"}))
WORKING = replace(RESTING, gpu_util=1.0, sm=0.8, power_w=300)
BARE = replace(RESTING, memory_mib=10, processes=frozenset())


def pod(name: str = "p", **fields: object) -> LookedHolder:
    return LookedHolder(**{"namespace": "team", "pod": name, "uid": f"uid-{name}", "container": "main", **fields})  # type: ignore[arg-type]


@dataclass(slots=True)
class Node:
    """A node that is looked at every ten seconds, and what is written of it."""

    gathering: Gathering = field(default_factory=lambda: Gathering("n1", Gathered(boot="b/1")))
    now_us: int = 5000 * SECOND
    wall_off: float = 0.0
    lines: list[RecordedGpu] = field(default_factory=list)
    buckets: list[object] = field(default_factory=list)

    def look(
        self, reading: UsageReading | None = RESTING, *holders: LookedHolder, after: float = 10.0,
        known: bool = True, parts: Sequence[LookedPart] = (), there: bool = True, **device: object,
    ) -> UsageState:  # fmt: skip
        self.now_us += int(after * SECOND)
        shown = LookedDevice(
            **{"device": GPU, "product": "NVIDIA-A100-SXM4-40GB", "memory_mib": 40_000.0, "parts": tuple(parts),
               "reading": None if reading is None else replace(reading, at=self.now_us / SECOND),
               "source": UsageSource.UTILIZATION, **device}
        )  # type: ignore[arg-type]  # fmt: skip
        look = UsageLook(
            at=BEGIN + dt.timedelta(seconds=self.now_us / SECOND + self.wall_off), uptime_us=self.now_us,
            devices=(shown,) if there else (), holders={GPU: tuple(holders)} if known else None,
        )  # fmt: skip
        out = self.gathering.take(look)
        self.lines += out.lines
        self.buckets += out.buckets
        gpu = self.gathering.gathered.devices.get(GPU)
        return gpu.unit.state if gpu is not None else S.UNKNOWN

    def looks(
        self, count: int, reading: UsageReading | None = RESTING, *holders: LookedHolder, **more: object
    ) -> UsageState:
        state = S.UNKNOWN
        for _ in range(count):
            state = self.look(reading, *holders, **more)  # type: ignore[arg-type]
        return state

    @property
    def states(self) -> dict[UsageState, int]:
        return self.gathering.gathered.devices[GPU].unit.states_us

    def restart(self) -> None:
        """As after a kill: what goes on is what was saved."""
        saved = msgspec.json.encode(self.gathering.gathered)
        self.gathering = Gathering("n1", typed_decode(saved, Gathered), self.gathering.closed)


@pytest.fixture
def node() -> Node:
    node = Node()
    node.look(BARE)
    return node


HOUR = 366 + 90
"""Looks in the window and the warm-up."""


def test_a_held_gpu_is_idle_after_its_window_and_warm_up(node: Node) -> None:
    assert node.looks(3, BARE) is S.FREE
    assert node.looks(400, RESTING, pod()) is S.BUSY  # too young to be called idle
    assert node.looks(HOUR - 400 + 2, RESTING, pod()) is S.HELD_IDLE
    assert node.look(WORKING, pod()) is S.BUSY
    assert node.looks(350, RESTING, pod()) is S.BUSY, "the window has not passed since"
    assert node.looks(40, RESTING, pod()) is S.HELD_IDLE


def test_when_it_was_busy_last_is_known_long_after_its_window_and_a_restart(node: Node) -> None:
    node.looks(3, WORKING, pod())
    busy = node.now_us
    node.looks(3 * HOUR, RESTING, pod())
    unit = node.gathering.gathered.devices[GPU].unit
    assert (unit.state, unit.idle_since_us, unit.busy_us) == (S.HELD_IDLE, busy, busy)
    node.restart()
    node.look(RESTING, pod())
    assert node.gathering.gathered.devices[GPU].unit.idle_since_us == busy


def test_nothing_on_it_is_held_empty(node: Node) -> None:
    node.look(BARE, pod())
    assert node.looks(HOUR + 2, BARE, pod()) is S.HELD_EMPTY


def test_all_time_is_in_a_state_and_lines_come_every_five_minutes(node: Node) -> None:
    node.looks(200, WORKING, pod())
    first = node.lines[0].uptime_us
    assert sum(node.states.values()) == node.now_us - first
    assert all(
        late.uptime_us - early.uptime_us <= WRITE_US for early, late in zip(node.lines, node.lines[1:], strict=False)
    )


def test_a_holder_has_the_time_from_the_look_that_found_it_to_the_one_that_missed_it(node: Node) -> None:
    node.looks(2, BARE)
    node.look(WORKING, pod())  # found
    node.looks(5, WORKING, pod())
    node.look(BARE)  # missed
    (line,) = [line for line in node.lines if line.holders and line.uptime_us == node.now_us]
    (holder,) = line.holders
    assert holder.held_us == 60 * SECOND
    assert (holder.busy_us, holder.sm_us) == (50 * SECOND, 40 * SECOND)
    assert holder.memory_mib_ms == 8000 * 50_000 + 10 * 10_000
    node.look(BARE)
    assert not node.gathering.gathered.devices[GPU].holders


def test_one_that_is_not_read_is_unknown_and_its_holder_goes_on_holding(node: Node) -> None:
    node.looks(20, WORKING, pod())
    assert node.looks(7, None, pod()) is S.UNKNOWN
    assert node.gathering.gathered.devices[GPU].holders["uid-p/main/"].held_us == 260 * SECOND
    assert node.states[S.UNKNOWN] == 70 * SECOND


def test_an_hour_without_a_look_is_unknown_and_never_idle(node: Node) -> None:
    node.looks(100, RESTING, pod())
    node.look(RESTING, pod(), after=3600)
    assert node.states[S.UNKNOWN] == 3600 * SECOND
    assert node.look(RESTING, pod()) is S.UNKNOWN, "most of the window was not watched"


def test_who_holds_it_is_not_known(node: Node) -> None:
    node.looks(10, RESTING, pod())
    node.look(RESTING, known=False)
    assert node.look(RESTING, known=False) is S.UNKNOWN
    assert node.gathering.gathered.devices[GPU].holders, "nobody has said that it was given back"


def test_what_lingers_for_a_minute_is_no_leak(node: Node) -> None:
    node.looks(10, WORKING, pod())
    node.look(RESTING)
    assert node.looks(4, RESTING) is S.FREE
    assert node.looks(5, RESTING) is S.DOWN


def test_a_clock_that_is_set_changes_no_duration(node: Node) -> None:
    node.looks(100, RESTING, pod())
    node.wall_off = -86_400.0
    node.looks(100, RESTING, pod())
    node.wall_off = 7200.0
    node.looks(300, RESTING, pod())
    assert node.gathering.gathered.devices[GPU].unit.state is S.HELD_IDLE
    assert sum(node.states.values()) == node.now_us - node.lines[0].uptime_us


def test_a_state_that_flickers_writes_a_line_a_minute(node: Node) -> None:
    low = replace(WORKING, gpu_util=1.0, gr_engine=0.9, sm=0.1)
    node.look(WORKING, pod())
    before = len(node.lines)
    for _ in range(60):
        node.look(WORKING, pod())
        node.look(low, pod())
    assert len(node.lines) - before <= 21
    assert node.states[S.INEFFICIENT] == 600 * SECOND


def test_a_gang_that_stands_still_after_work_is_hung() -> None:
    gathering = Gathering("n1", Gathered(boot="b/1"))
    at, work, rest = 0, replace(WORKING), RESTING

    def look(reading: UsageReading) -> list[UsageState]:
        nonlocal at
        at += 10 * SECOND
        devices = tuple(
            LookedDevice(device=name, memory_mib=40_000.0, reading=replace(reading, at=at / SECOND))
            for name in ("a", "b")
        )
        gathering.take(UsageLook(at=BEGIN, uptime_us=at, devices=devices, holders={"a": (pod(),), "b": (pod(),)}))
        return [gathering.gathered.devices[name].unit.state for name in ("a", "b")]

    for _ in range(100):
        look(work)
    for _ in range(HOUR):
        found = look(rest)
    assert found == [S.HUNG, S.HUNG]


def test_a_restart_goes_on_where_it_was(node: Node) -> None:
    node.looks(HOUR - 10, RESTING, pod())
    node.restart()
    assert node.looks(20, RESTING, pod()) is S.HELD_IDLE
    assert sum(node.states.values()) == node.now_us - node.lines[0].uptime_us
    assert node.gathering.gathered.devices[GPU].holders["uid-p/main/"].held_us == (HOUR + 9) * 10 * SECOND


def test_partitions_have_states_and_holders_of_their_own(node: Node) -> None:
    def parts(first: UsageReading, second: UsageReading) -> list[LookedPart]:
        return [
            LookedPart(id=name, profile=profile, memory_mib=5000.0, reading=reading, source=UsageSource.COUNTERS)
            for name, profile, reading in (("m1", "3g.20gb", first), ("m2", "4g.20gb", second))
        ]

    node.look(None, parts=parts(BARE, BARE))
    for _ in range(HOUR + 2):
        node.look(WORKING, pod(partition="m1"), parts=parts(WORKING, BARE))
    gpu = node.gathering.gathered.devices[GPU]
    assert [(name, part.state) for name, part in gpu.parts.items()] == [("m1", S.BUSY), ("m2", S.FREE)]
    assert gpu.unit.state is S.FREE
    node.look(BARE)  # cut anew
    assert not gpu.parts
    assert not gpu.holders
    assert {part.id for part in node.lines[-1].partitions} == {"m1", "m2"}, "the line is about what was so until then"


def test_of_a_shared_card_each_tenants_own_part_counts(node: Node) -> None:
    tenants = [
        pod(name, sharing=HolderSharing.TIME_SLICING, replicas=4, sm=sm) for name, sm in (("a", 0.3), ("b", 0.0))
    ]
    tenants.append(pod("c", sharing=HolderSharing.TIME_SLICING, replicas=4))
    node.look(WORKING, *tenants)
    node.looks(10, WORKING, *tenants)
    holders = node.gathering.gathered.devices[GPU].holders
    assert [holders[f"uid-{name}/main/"].busy_us for name in "abc"] == [30 * SECOND, 0, None]


def test_energy_is_the_meters_which_may_begin_anew(node: Node) -> None:
    node.look(BARE, energy_mj=1000.0)
    node.look(BARE, energy_mj=1600.0)
    assert node.gathering.gathered.devices[GPU].energy_uj == 600_000
    node.look(BARE, energy_mj=50.0)
    assert node.gathering.gathered.devices[GPU].energy_uj == 650_000


STEPS = st.lists(
    st.tuples(
        st.sampled_from((RESTING, WORKING, BARE, None)), st.sets(st.sampled_from("abc"), max_size=3),
        st.sampled_from((10.0, 10.1, 59.999999, 300.0)), st.sampled_from(("", "", "", "restart", "unknown", "gone", "mig", "clock")),
    ),
    min_size=1, max_size=40,
)  # fmt: skip


@tries(120)
@given(STEPS, st.sampled_from(SharingMode))
def test_every_microsecond_is_somebodys_whatever_happens(
    steps: list[tuple[UsageReading | None, set[str], float, str]], mode: SharingMode
) -> None:
    node = Node()
    node.look(BARE)
    for reading, names, after, what in steps:
        if what == "restart":
            node.restart()
        node.wall_off += 40.0 if what == "clock" else 0.0
        cut = what == "mig"
        parts = [LookedPart(id="m1", profile="3g.20gb", reading=reading)] if cut else []
        tenants = [
            pod(name, sharing=HolderSharing.TIME_SLICING, replicas=4, partition="m1" if cut else "")
            for name in sorted(names)
        ]
        node.look(reading, *tenants, after=after, known=what != "unknown", there=what != "gone", parts=parts)
    node.looks(31, BARE)  # so that a last line is written
    recorded = parse([encode(RecordingHeader(version=1)), *map(encode, node.lines)], source="test")
    times = timeline(recorded)
    assert {one.reason for one in times.advice} <= {"ClockJumped"}
    (segments,) = times.devices.values()
    shares = [share for segment in segments for share in split(segment, mode)]
    assert sum(share.gpu_us for share in shares) == node.lines[-1].uptime_us - node.lines[0].uptime_us
    assert all(share.gpu_us >= 0 for share in shares)
