"""Wasted GPU hours: what ``kgpu usage`` says of the same lines, counted once whatever is cut or killed."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client.parser import text_string_to_metric_families

from kgpu.base.metric_text import page
from kgpu.formats.usage import RecordedGpu, RecordedNode, UsageState
from kgpu.usage.agents import UsageAgents
from kgpu.usage.history import UsageHistory
from kgpu.usage.hour_prices import HourPrices
from kgpu.usage.price_file import parse
from kgpu.usage.prices import PriceBook
from kgpu.usage.store import UsageStore
from kgpu.usage.wasted import MOST_SERIES, WASTED_KEY, WastedCounters, WastedTally, last_key, metric_lines
from tests.budget import tries
from tests.usage.recordings import BEGIN_US, HOUR, Device, holder, node, timeline_of
from tests.usage.test_history import NAMESPACE, PagedApi, opened
from tests.usage.test_plan import made

DOLLAR = PriceBook(parse("perGpuHour\n1\n", source="p.csv"))
TEAM = holder("pod")
OTHER = holder("b", namespace="other")
BEGAN = BEGIN_US / 1e6


class Kept:
    """A store that keeps what it is given, and a tally that can be killed at any moment."""

    def __init__(self, book: PriceBook = DOLLAR, since: float = BEGAN) -> None:
        self.values: dict[str, bytes] = {}
        self.book, self.since = book, since
        self.again()

    def again(self) -> None:
        self.tally = WastedTally(HourPrices(lambda _: self.book))
        self.tally.begin(self.values.get(WASTED_KEY), self.since)

    def take(self, lines: Sequence[RecordedNode | RecordedGpu], *, saved: bool = True) -> None:
        name = lines[0].node
        if not self.tally.knows(name):
            self.tally.recall(name, self.values.get(last_key(name)))
        kept = self.tally.take(name, lines)
        if saved:
            self.values.update(kept)
            self.tally.kept()

    @property
    def hours(self) -> dict[str, float]:
        assert self.tally.counters is not None
        return {key: us / HOUR for key, us in self.tally.counters.time_us.items()}

    @property
    def cost(self) -> dict[str, float]:
        assert self.tally.counters is not None
        return {key: amount / 3600 / 1e6 for key, amount in self.tally.counters.cost.items()}


EMPTY, IDLE, HUNG = UsageState.HELD_EMPTY, UsageState.HELD_IDLE, UsageState.HUNG
CASES = {
    "free": (Device().spend(7200), {"free/": 2.0}),
    "down, whoever held it": (Device().spend(3600, TEAM, state=UsageState.DOWN), {"down/": 1.0}),
    "held and empty": (Device().spend(3600, TEAM, state=EMPTY), {"held-empty/team": 1.0}),
    "held and idle": (Device().spend(3600, TEAM, state=IDLE), {"held-idle/team": 1.0}),
    "a gang that stands still": (Device().spend(3600, TEAM, state=HUNG), {"hung/team": 1.0}),
    "busy": (Device().spend(3600, TEAM), {}),
    "starved and inefficient are used": (
        Device().spend(60, TEAM, state=UsageState.STARVED).spend(60, TEAM, state=UsageState.INEFFICIENT), {}),
    "unknown": (Device().spend(3600, TEAM, state=UsageState.UNKNOWN), {}),
    "not watched": (Device().spend(3600, TEAM, watched=False), {}),
    "shared": (
        Device().spend(
            3600, holder("a", sharing="time-slicing", replicas=4),
            holder("b", namespace="other", sharing="time-slicing", replicas=4), state=IDLE,
        ),
        {"held-idle/team": 0.5, "held-idle/other": 0.5},
    ),
    "a partition, and the rest of the card": (
        Device(partitions=(("g1", "3g.20gb"),)).spend(7200, holder("a", partition="g1"), states={"g1": IDLE},
                                                      state=UsageState.FREE),
        {"held-idle/team": 1.0, "free/": 1.0},
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_what_is_wasted_and_whose(case: str) -> None:
    device, expected = CASES[case]
    kept = Kept()
    kept.take(device.lines)
    assert kept.hours == pytest.approx(expected)
    assert kept.cost == pytest.approx({f"USD/{key}": amount for key, amount in expected.items()})


STEPS = st.lists(
    st.tuples(st.integers(1, 4000), st.sampled_from(list(UsageState)), st.integers(0, 2), st.booleans()),
    min_size=1, max_size=12,
)  # fmt: skip


@tries(100)
@given(STEPS, st.lists(st.integers(1, 4), max_size=12), st.lists(st.sampled_from(("", "killed", "lost")), max_size=12))
def test_it_is_what_kgpu_usage_says_however_lines_come(
    steps: list[tuple[int, UsageState, int, bool]], cuts: list[int], ends: list[str]
) -> None:
    device = Device()
    for seconds, state, tenants, watched in steps:
        holders = [holder(f"p{at}", namespace=f"ns{at}", sharing="time-slicing", replicas=3) for at in range(tenants)]
        device.spend(seconds, *holders, state=state, watched=watched)
    kept, lines = Kept(), list(device.lines)
    for cut, end in zip([*cuts, len(lines)], [*ends, *[""] * 13], strict=False):
        part = lines[:cut]
        if not part:
            break
        if end == "killed":  # After it counted, and before that was kept.
            kept.take(part, saved=False)
            kept.again()
        kept.take(part)
        if end == "lost":
            kept.again()
        del lines[:cut]
    if lines:
        kept.take(lines)
    expected = made(timeline_of(device)).total.sums.wasted_us
    assert sum(kept.hours.values()) == pytest.approx(expected / HOUR, abs=1e-6)


def test_a_history_that_begins_anew_counts_from_now_on() -> None:
    device = Device().spend(36000).spend(3600)
    kept = Kept(since=BEGAN + 36000 + 1800)
    kept.take(device.lines)
    assert kept.hours == pytest.approx({"free/": 0.5})


def test_prices_are_those_of_the_node_when_it_is_counted() -> None:
    kept, device = Kept(PriceBook()), Device().spend(3600, TEAM, state=IDLE)
    kept.take([node(instance_type="p5.48xlarge", gpus=8), *device.lines])
    assert kept.cost == pytest.approx({"USD/held-idle/team": 6.88})
    kept.again()  # The node's line is remembered, too.
    kept.take(device.spend(3600, TEAM, state=IDLE).lines[-1:])
    assert kept.cost == pytest.approx({"USD/held-idle/team": 2 * 6.88})
    kept.book = PriceBook(parse("currency: EUR\nrows: [{perGpuHour: 5}]", source="p.yaml"))
    kept.take(Device(device="GPU-2").spend(3600, TEAM, state=IDLE).lines)
    assert kept.cost["EUR/held-idle/team"] == pytest.approx(5.0)


def test_namespaces_without_end_make_no_series_without_end() -> None:
    counters = WastedCounters(since_us=0)
    for number in range(MOST_SERIES + 500):
        counters.add("held-idle", f"ns-{number}", HOUR, 1_000_000, "USD")
    assert len(counters.time_us) == MOST_SERIES + 1
    assert counters.time_us["held-idle/__others__"] == 500 * HOUR


def test_the_metrics_page_is_prometheus() -> None:
    counters = WastedCounters(since_us=0)
    counters.add("held-idle", 'a"b\n\\', 3 * HOUR, 3_060_000, "USD")
    counters.add("free", "", HOUR, 3_060_000, "USD")
    families = {one.name: one for one in text_string_to_metric_families(page(metric_lines(counters)))}
    assert {(one.labels["reason"], one.labels["namespace"], one.value) for one in
            families["kgpu_wasted_gpu_hours"].samples} == {("held-idle", 'a"b\n\\', 3.0), ("free", "", 1.0)}  # fmt: skip
    (free, idle) = sorted(families["kgpu_wasted_cost"].samples, key=lambda one: one.value)
    assert (free.value, idle.value, idle.labels["currency"]) == (pytest.approx(3.06), pytest.approx(9.18), "USD")


async def test_the_history_counts_with_the_lines_that_it_stores(tmp_path: Path) -> None:
    api, agent = PagedApi(), opened(tmp_path / "a")
    api.agent("n1", agent)
    lines = Device().spend(3600, TEAM, state=IDLE).spend(3600, OTHER, state=EMPTY).lines
    agent.save(lines[:2])
    agents = UsageAgents(api, namespace=NAMESPACE, direct=False)

    def history(store: UsageStore) -> UsageHistory:
        return UsageHistory(
            agents, store, report=lambda _: None, now=lambda: BEGAN, prices=HourPrices(lambda _: DOLLAR)
        )

    first = history(opened(tmp_path / "h"))
    assert not first.metrics()
    await first.round(await agents.find())
    agent.save(lines[2:])
    second = history(opened(tmp_path / "h"))  # as after a restart
    for _ in range(2):
        await second.round(await agents.find())
    assert [line for line in second.metrics() if line.startswith("kgpu_wasted_gpu_hours_total{")] == [
        'kgpu_wasted_gpu_hours_total{reason="held-empty",namespace="other"} 1',
        'kgpu_wasted_gpu_hours_total{reason="held-idle",namespace="team"} 1',
    ]
