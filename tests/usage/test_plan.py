"""Reports: what rows add up, who pays for idle GPUs, and that all costs sum to what the GPUs cost."""

from __future__ import annotations

from collections.abc import Iterable
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kgpu.base.errors import ConfigError
from kgpu.formats import names
from kgpu.formats.usage import HolderSharing, UsageState
from kgpu.usage.grouping import grouping
from kgpu.usage.plan import HOUR_US, IdlePolicy, UsageReport, UsageWish, report, waste_ratio
from kgpu.usage.price_file import parse
from kgpu.usage.prices import PriceBook
from kgpu.usage.segments import Timeline
from kgpu.usage.shares import Basis, PayerKind, SharingMode
from tests.budget import tries
from tests.usage.recordings import BEGIN_US, HOUR, SECOND, Device, holder, node, timeline_of

DOLLAR = 1_000_000
ONE_DOLLAR = PriceBook(parse("perGpuHour\n1\n", source="p.csv"))
ODD = PriceBook(parse("product,perGpuHour\n,3.060001\nB*,0.333333\n", source="p.csv"))


def made(times: Timeline, by: str = "namespace", book: PriceBook = ONE_DOLLAR, **wish: object) -> UsageReport:
    return report(times, book, UsageWish(grouping=grouping(by, ("team",)), **wish))


def costs(found: UsageReport) -> dict[str, float]:
    assert sum(row.cost for row in found.rows) == found.total.cost
    return {row.name: row.cost / DOLLAR for row in found.rows}


def pool(name: str, label: str) -> object:
    return node(name, labels={names.LABEL_EKS_NODE_GROUP: label})


def two_pools() -> Timeline:
    """Pool a: team x holds 3 of 4 hours of one GPU, y 1; the other is free. Pool b: nobody holds any."""
    x, y = holder("x1", namespace="x"), holder("y1", namespace="y")
    first = Device(node="a1").spend(3 * 3600, x).spend(3600, y)
    return timeline_of(
        first, Device(node="a2", device="GPU-2").spend(4 * 3600), Device(node="b1", device="GPU-3").spend(2 * 3600),
        nodes=[pool("a1", "a"), pool("a2", "a"), pool("b1", "b")],
    )  # fmt: skip


IDLE = {
    IdlePolicy.SEPARATE: {"x": 3.0, "y": 1.0, "__idle__": 6.0},
    IdlePolicy.PLATFORM: {"x": 3.0, "y": 1.0, "__platform__": 6.0},
    IdlePolicy.WEIGHTED: {"x": 6.0, "y": 2.0, "__idle__": 2.0},
    IdlePolicy.EVEN: {"x": 5.0, "y": 3.0, "__idle__": 2.0},
}


@pytest.mark.parametrize("policy", IdlePolicy)
def test_who_pays_for_what_nobody_held(policy: IdlePolicy) -> None:
    found = made(two_pools(), idle=policy)
    assert costs(found) == IDLE[policy]
    laid = {row.name: row.idle_cost / DOLLAR for row in found.rows if row.kind is PayerKind.HELD}
    assert laid == {name: IDLE[policy][name] - alone for name, alone in (("x", 3.0), ("y", 1.0))}


def test_down_and_unknown_have_rows_of_the_platform() -> None:
    device = Device().spend(3600, holder(), state=UsageState.DOWN).spend(3600, holder(), watched=False)
    found = made(timeline_of(device.spend(3600, holder())), idle=IdlePolicy.WEIGHTED)
    assert costs(found) == {"team": 1.0, "__down__": 1.0, "__unknown__": 1.0}
    assert waste_ratio(found) == pytest.approx(1 / 3)


BY = {
    "namespace": {"ml": 2.0, "web": 1.0, "__idle__": 1.0},
    "owner": {"ml/Job/train": 1.0, "ml/Pod/b": 1.0, "web/Deployment/llama": 1.0, "__idle__": 1.0},
    "node": {"n1": 3.0, "n1 __idle__": 1.0},
    "pool": {"(no pool)": 3.0, "(no pool) __idle__": 1.0},
    "product": {"NVIDIA-A100-SXM4-40GB": 3.0, "NVIDIA-A100-SXM4-40GB __idle__": 1.0},
    "label:team": {"red": 1.0, "(no label)": 2.0, "__idle__": 1.0},
}


@pytest.mark.parametrize("by", BY)
def test_rows_are_about_what_was_asked_for(by: str) -> None:
    device = Device().spend(3600, holder("a", namespace="ml", owner="Job/train", labels={"team": "red"}))
    device.spend(3600, holder("b", namespace="ml")).spend(3600)
    device.spend(3600, holder("c", namespace="web", owner="Deployment/llama", labels={"team": ""}))
    assert costs(made(timeline_of(device), by)) == BY[by]


@pytest.mark.parametrize(
    ("by", "todo"),
    [("namespaces", 'did you mean "namespace"?'), ("label:tema", 'did you mean "team"?'), ("", "correct --by"),
     ("label:", "choose another --by, or record with that label")],
)  # fmt: skip
def test_rows_by_what_there_is_not_are_refused(by: str, todo: str) -> None:
    with pytest.raises(ConfigError) as caught:
        grouping(by, ("team",))
    assert caught.value.remedy == todo


def test_a_row_has_what_was_held_used_and_wasted() -> None:
    device = Device(energy_uj=0).spend(3600, holder("a", starting_us=0), busy=0.5, sm=0.25, watts=400)
    device.spend(3600, holder("a"), state=UsageState.HELD_IDLE, busy=0, sm=0, watts=100).spend(1800, watts=50)
    found = made(timeline_of(device))
    row, idle = found.rows
    sums = row.sums
    assert (sums.held_us, sums.busy_us, sums.sm_us) == (2 * HOUR, HOUR // 2, HOUR // 4)
    assert (row.cost, row.wasted_cost) == (2 * DOLLAR, DOLLAR)
    assert (sums.energy_uj, idle.sums.energy_uj) == (500 * HOUR, 25 * HOUR)
    assert waste_ratio(found) == pytest.approx(1.5 / 2.5)


def test_what_is_not_measured_is_not_0() -> None:
    found = made(timeline_of(Device().spend(60, holder())))
    for row in (*found.rows, found.total):
        assert (row.sums.watched_us, row.sums.measured_us, row.sums.metered_us) == (0, 0, 0)
        assert (row.sums.energy_uj, row.sums.memory_mib_ms) == (None, None)


def test_energy_of_some_gpus_is_that_of_those() -> None:
    metered = Device(device="GPU-2", energy_uj=0).spend(3600, holder("b"), watts=100)
    sums = made(timeline_of(Device().spend(3600, holder("a")), metered)).total.sums
    assert (sums.energy_uj, sums.metered_us, sums.gpu_us) == (100 * HOUR, HOUR, 2 * HOUR)


def test_a_window_has_what_lies_in_it() -> None:
    times = timeline_of(Device().spend(3600, holder("a", namespace="a")).spend(3600, holder("b", namespace="b")))
    found = made(times, begin_us=BEGIN_US + HOUR // 2, end_us=BEGIN_US + HOUR + HOUR // 4)
    assert costs(found) == {"a": 0.5, "b": 0.25}
    assert made(times, begin_us=BEGIN_US + 2 * HOUR).rows == ()
    assert costs(made(times, begin_us=0, end_us=BEGIN_US + 10 * HOUR)) == {"a": 1.0, "b": 1.0}


def test_who_held_nothing_has_no_row() -> None:
    times = timeline_of(Device().spend(60, holder(namespace="a")).spend(0, holder(namespace="b")).spend(60))
    assert [row.name for row in made(times, begin_us=BEGIN_US + 61 * SECOND).rows] == ["__idle__"]
    reserved = holder(namespace="kai", sharing=HolderSharing.RESERVATION)
    (row, _) = made(timeline_of(Device().spend(60, reserved))).rows
    assert (row.name, row.cost, row.sums.held_us) == ("kai", 0, 60 * SECOND)


def test_an_assumed_price_is_told() -> None:
    found = made(timeline_of(Device(product="Quadro").spend(60)), book=PriceBook())
    assert [one.reason for one in found.advice] == ["PriceAssumed"]
    assert "Quadro" in found.advice[0].what
    assert "--prices" in found.advice[0].remedy


# A GPU's churn: seconds, who holds it (bits), whether it is down, how busy, and if the stretch was watched.
step = st.tuples(st.integers(1, 50), st.integers(0, 7), st.booleans(), st.sampled_from([None, 0.0, 0.3]), st.booleans())
churn = st.lists(st.lists(step, min_size=1, max_size=8), min_size=1, max_size=3)


def churned(steps: Iterable[tuple[int, int, bool, float | None, bool]], number: int) -> Device:
    device = Device(node=f"n{number % 2}", device=f"GPU-{number}", product="AB"[number % 2])
    for seconds, who, down, busy, watched in steps:
        tenants = [
            holder(f"p{at}", namespace=f"ns{at}", sharing=HolderSharing.TIME_SLICING, replicas=3)
            for at in range(3) if who & 1 << at
        ]  # fmt: skip
        device.spend(seconds, *tenants, state=UsageState.DOWN if down else None, busy=busy, watched=watched)
    return device


@tries(150)
@given(
    steps=churn,
    begin=st.integers(-10, 400),
    length=st.integers(1, 400),
    by=st.sampled_from(list(BY)),
    wish=st.fixed_dictionaries({
        "idle": st.sampled_from(list(IdlePolicy)), "basis": st.sampled_from(list(Basis)),
        "sharing": st.sampled_from(list(SharingMode)),
    }),
)  # fmt: skip
def test_all_rows_sum_to_price_times_time(
    *, steps: list[list[tuple[int, int, bool, float | None, bool]]], begin: int, length: int, by: str,
    wish: dict[str, object],
) -> None:  # fmt: skip
    times = timeline_of(*(churned(one, number) for number, one in enumerate(steps)))
    window = {"begin_us": BEGIN_US + begin * SECOND, "end_us": BEGIN_US + (begin + length) * SECOND}
    found = made(times, by, ODD, **wish, **window)
    exact = Fraction(0)
    for number, one in enumerate(steps):
        passed = sum(seconds for seconds, *_ in one)
        inside = max(0, min(passed, begin + length) - max(0, begin))
        exact += Fraction(inside * SECOND * (3_060_001, 333_333)[number % 2], HOUR_US)
    assert found.total.sums.cost == exact * HOUR_US
    assert sum(row.sums.cost for row in found.rows) == exact * HOUR_US
    assert sum(row.cost for row in found.rows) == found.total.cost == round(exact)
    assert all(min(row.cost, row.wasted_cost, row.idle_cost, row.sums.gpu_us) >= 0 for row in found.rows)
    assert all(abs(row.cost - Fraction(row.sums.cost, HOUR_US)) <= 1 for row in found.rows)
