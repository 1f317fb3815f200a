"""What a look finds by a reader's answers: by what it is measured, what is not known, and that no time counts twice."""

from __future__ import annotations

import datetime as dt
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kgpu.formats.usage import HolderSharing, UsageState
from kgpu.formats.usage_now import UsageSource
from kgpu.hw.fake_reader import sample_inventory, sample_partitions
from kgpu.hw.port import Activity, Inventory, Process, Reading
from kgpu.usage.gathering import Gathered, Gathering
from kgpu.usage.looks import LookedDevice, LookedHolder, UsageLook
from kgpu.usage.reading import UsageAnswer, devices
from kgpu.usage.states import activity
from tests.budget import tries

ONE = sample_inventory(1)
GPU = ONE.accelerators[0]
PART = sample_partitions(GPU, count=1)[0]
CUT = replace(ONE, accelerators=(replace(GPU, mig_enabled=True, partitions=(PART,)),))
S = UsageSource


def now(**values: float) -> Reading:
    return Reading(uuid=GPU.uuid, values=values)


def part(**values: float) -> Reading:
    return Reading(uuid=GPU.uuid, gpu_instance=PART.gpu_instance, values=values)


def done(seconds: float = 10.0, peak: float | None = None, instance: int | None = None, **values: float) -> Activity:
    return Activity(
        uuid=GPU.uuid, gpu_instance=instance, values=values, sampled_seconds=seconds, peak_percent=peak, processes={}
    )


def look(answer: UsageAnswer, passed: float = 10.0) -> LookedDevice:
    (device,) = devices(answer, 100.0, passed)
    return device


@pytest.mark.parametrize(
    ("reading", "done", "source", "active", "peak"),
    [
        (now(utilization_percent=80), done(gpm_1=30, gpm_2=20, utilization_percent=40, peak=90), S.COUNTERS, 0.4, 0.9),
        (now(utilization_percent=80), done(gpm_1=30), S.COUNTERS, 0.8, 0.8),
        (now(utilization_percent=0), done(utilization_percent=4, peak=100), S.SAMPLES, 0.04, 1.0),
        (now(utilization_percent=70), done(utilization_percent=4, peak=60), S.SAMPLES, 0.04, 0.7),
        (now(utilization_percent=70), done(2.0, utilization_percent=4, peak=60), S.UTILIZATION, 0.7, 0.7),
        (now(utilization_percent=0), done(2.0, utilization_percent=4, peak=60), S.UTILIZATION, 0.0, 0.6),
        (now(utilization_percent=70), None, S.UTILIZATION, 0.7, 0.7),
        (now(power_w=70), None, S.NOTHING, None, None),
    ],
)  # fmt: skip
def test_what_goes_before_what(
    reading: Reading, done: Activity | None, source: UsageSource, active: float | None, peak: float | None
) -> None:
    device = look(UsageAnswer(ONE, [reading], [done] if done else []))
    assert device.source is source
    assert device.reading is not None
    assert [activity(device.reading), device.reading.peak] == [pytest.approx(one) for one in (active, peak)]


PID = Process(uuid=GPU.uuid, pid=7, gpu_instance=PART.gpu_instance)


@pytest.mark.parametrize(
    ("own", "done", "processes", "source", "active"),
    [
        ((part(memory_used_mib=16)), done(instance=PART.gpu_instance, gpm_1=30), (), S.COUNTERS, 0.3),
        (part(memory_used_mib=16), None, (), S.PROCESSES, 0.0),
        (part(memory_used_mib=16), None, (PID,), S.NOTHING, None),
        (part(memory_used_mib=160), None, (), S.NOTHING, None),
        (part(memory_used_mib=16), None, None, S.NOTHING, None),
        (part(), None, (), S.NOTHING, None),
    ],
)  # fmt: skip
def test_what_is_known_of_a_mig_instance(own, done, processes, source: UsageSource, active: float | None) -> None:
    answer = UsageAnswer(CUT, [now(power_w=70), own], [done] if done else [], processes)
    (found,) = look(answer).parts
    assert found.source is source
    assert found.reading is not None
    assert activity(found.reading) == active


def test_a_gpu_that_did_not_answer_is_not_idle() -> None:
    assert look(UsageAnswer(ONE, activity=[done(utilization_percent=0)])).reading is None


def holder(name: str, sm: float | None, **more) -> LookedHolder:
    return LookedHolder(namespace="t", pod=name, uid=name, sm=sm, **more)


class Counted:
    """Looks at one GPU, and what was counted by them."""

    def __init__(self) -> None:
        self.gathering = Gathering("n1", Gathered(boot="b"))
        self.us = 0

    def look(self, us: int, answer: UsageAnswer, *holders: LookedHolder) -> None:
        passed, self.us = us / 1e6, self.us + us
        self.gathering.take(
            UsageLook(
                at=dt.datetime.fromtimestamp(self.us / 1e6, dt.UTC), uptime_us=self.us,
                devices=devices(answer, self.us / 1e6, passed), holders={GPU.uuid: holders},
            )
        )  # fmt: skip

    def busy(self) -> dict[str, int | None]:
        return {one.who.pod: one.busy_us for one in self.gathering.gathered.devices[GPU.uuid].holders.values()}


def shared(name: str, sm: float | None) -> LookedHolder:
    return holder(name, sm, sharing=HolderSharing.TIME_SLICING, replicas=4)


def test_pods_that_share_a_gpu_have_together_what_it_has_done() -> None:
    node = Counted()
    answer = UsageAnswer(ONE, [now(utilization_percent=100)], [done(utilization_percent=20, peak=100)])
    for _ in range(2):
        node.look(10_000_000, answer, shared("a", 0.9), shared("b", 0.3), shared("c", 0.0))
    assert node.busy() == {"a": 1_500_000, "b": 500_000, "c": 0}
    tenants = node.gathering.gathered.devices[GPU.uuid].holders.values()
    assert [one.watch.open.peak for one in tenants if one.watch.open] == [0.9, 0.3, 0.0], "but each was so active once"


def test_pods_that_share_a_gpu_are_told_apart_where_it_is_measured_at_a_moment_alone() -> None:
    node = Counted()
    for _ in range(2):
        node.look(10_000_000, UsageAnswer(ONE, [now(utilization_percent=0)]), shared("a", 0.5), shared("b", None))
    assert node.busy() == {"a": 5_000_000, "b": None}


SOME = st.one_of(st.none(), st.floats(-10, 130))
ANSWERS = st.builds(
    lambda utilization, sampled, seconds, peak, engine: UsageAnswer(
        ONE,
        [now(**({} if utilization is None else {"utilization_percent": utilization}))],
        [
            Activity(
                uuid=GPU.uuid, sampled_seconds=seconds, peak_percent=peak,
                values={
                    key: value for key, value in (("utilization_percent", sampled), ("gpm_1", engine)) if value is not None
                },
            )
        ],
    ),
    SOME, SOME, st.floats(0, 100), SOME, SOME,
)  # fmt: skip


@tries(100)
@given(
    looks=st.lists(st.tuples(st.integers(1, 100_000_000), ANSWERS, st.lists(SOME, min_size=1, max_size=3)), max_size=30)
)
def test_nobody_is_busy_for_longer_than_it_held(looks) -> None:
    node = Counted()
    for us, answer, parts in looks:
        node.look(us, answer, *(shared(str(at), sm and sm / 100) for at, sm in enumerate(parts)))
        gpu = node.gathering.gathered.devices[GPU.uuid]
        assert sum(gpu.unit.states_us.values()) <= node.us
        for one in gpu.holders.values():
            assert 0 <= (one.busy_us or 0) <= one.held_us <= node.us


def test_an_instance_that_nothing_ever_had_open_is_held_empty_and_one_with_a_process_is_unknown() -> None:
    def states(inventory: Inventory, *processes: Process) -> UsageState:
        gathering = Gathering("n1", Gathered(boot="b"))
        for at in range(0, 6000, 10):
            answer = UsageAnswer(inventory, [now(power_w=70), part(memory_used_mib=16)], [], processes)
            gathering.take(
                UsageLook(
                    at=dt.datetime.fromtimestamp(at, dt.UTC), uptime_us=at * 1_000_000,
                    devices=devices(answer, float(at), 10.0), holders={GPU.uuid: (holder("a", None, partition=PART.uuid),)},
                )
            )  # fmt: skip
        return gathering.gathered.devices[GPU.uuid].parts[PART.uuid].state

    assert states(CUT) is UsageState.HELD_EMPTY
    assert states(CUT, PID) is UsageState.UNKNOWN
