"""Whatever well-formed lines say, a report is made of them: nothing crashes, nothing is negative, and all of it sums."""

from __future__ import annotations

import datetime as dt
import json

from hypothesis import given
from hypothesis import strategies as st

from kgpu.formats.usage import HolderSharing, RecordedGpu, RecordedPartition, UsageState
from kgpu.usage.grouping import BY_HOLDER, BY_PLACE, grouping
from kgpu.usage.plan import HOUR_US, IdlePolicy, UsageWish, report
from kgpu.usage.prices import PriceBook
from kgpu.usage.recording import UsageRecording
from kgpu.usage.render import EnergyTariff, as_csv, as_data, as_table
from kgpu.usage.segments import timeline
from kgpu.usage.shares import Basis, SharingMode
from tests.budget import tries
from tests.usage.recordings import SECOND, holder

AMOUNTS = st.sampled_from([0, 1, 5 * SECOND, 3600 * SECOND, 10**15, 2**63 - 1]) | st.integers(0, 10**11)
EARLY = dt.datetime.fromisoformat("0001-01-01T00:00:00+14:00")
LATE = dt.datetime.fromisoformat("9999-12-31T23:59:59-14:00")
MOMENTS = st.sampled_from([EARLY, LATE]) | st.datetimes(
    dt.datetime(2026, 7, 20), dt.datetime(2026, 7, 22), timezones=st.just(dt.UTC)
)
STATES = st.dictionaries(st.sampled_from(list(UsageState)), AMOUNTS, max_size=4)
NAMES = st.sampled_from(["a", "=1+1", "\x1b[2J", "\u202e", "x" * 500])
HOLDERS = st.lists(
    st.builds(
        holder, NAMES, namespace=NAMES, owner=NAMES, sharing=st.sampled_from(list(HolderSharing)),
        replicas=st.integers(4, 9), units=st.integers(1, 4), partition=st.sampled_from(["", "1"]), held_us=AMOUNTS,
        portions=st.dictionaries(st.just("memory"), st.integers(0, 10**6)), claim=st.sampled_from(["", "c"]),
        starting_us=AMOUNTS, busy_us=st.none() | AMOUNTS, sm_us=st.none() | AMOUNTS, memory_mib_ms=st.none() | AMOUNTS,
    ),
    max_size=4,
)  # fmt: skip
LINES = st.lists(
    st.builds(
        RecordedGpu, node=st.sampled_from(["n1", "n2"]), device=st.sampled_from(["GPU-1", "GPU-2"]), at=MOMENTS,
        boot=st.sampled_from(["b1", "b2"]), uptime_us=st.integers(0, 10**11) | st.just(3_153_600_000_000_000),
        product=st.sampled_from(["", "NVIDIA-A100-SXM4-40GB", "\x1b[2J"]), states_us=STATES,
        energy_uj=st.none() | AMOUNTS, holders=HOLDERS.map(tuple),
        partitions=st.sampled_from([(), (RecordedPartition(id="1", profile="3g.20gb", states_us={UsageState.BUSY: 9}),)]),
    ),
    max_size=8,
)  # fmt: skip
WISHES = st.fixed_dictionaries({
    "idle": st.sampled_from(list(IdlePolicy)), "basis": st.sampled_from(list(Basis)),
    "sharing": st.sampled_from(list(SharingMode)),
})  # fmt: skip


@tries(200)
@given(LINES, WISHES, st.sampled_from([*BY_HOLDER, *BY_PLACE]))
def test_a_report_is_made_and_sums(lines: list[RecordedGpu], wish: dict[str, object], by: str) -> None:
    times = timeline(UsageRecording(devices=lines))
    for segments in times.devices.values():
        ends = [(one.begin_us, one.end_us) for one in segments]
        assert ends == sorted(ends)
        assert all(begin < end for begin, end in ends)
    found = report(times, PriceBook(), UsageWish(grouping=grouping(by, ()), **wish))
    assert sum(row.sums.cost for row in found.rows) == found.total.sums.cost
    assert sum(row.cost for row in found.rows) == found.total.cost
    assert sum(row.sums.gpu_us for row in found.rows) == sum(
        one.length_us for segments in times.devices.values() for one in segments
    )
    assert found.total.sums.cost <= 27_040_000 * found.total.sums.gpu_us
    for row in found.rows:
        assert min(row.cost, row.wasted_cost, row.idle_cost, row.sums.gpu_us, row.sums.energy_uj or 0) >= 0
        assert row.sums.metered_us <= row.sums.gpu_us
        assert row.sums.wasted_us <= row.sums.gpu_us
        assert max(row.sums.busy_us, row.sums.sm_us, row.sums.starting_us) <= row.sums.held_us
        assert abs(row.cost * HOUR_US - row.sums.cost) <= HOUR_US
    shown = "\n".join([*as_table(found, by, EnergyTariff()), as_csv(found, EnergyTariff())])
    assert not {"\x1b", "\u202e"} & {*shown}
    json.dumps(as_data(found, by, EnergyTariff()), allow_nan=False)
