"""Whose a GPU's time is: each rule of sharing, and that all of it is somebody's and none of it twice."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kgpu.formats.usage import HolderSharing, RecordedHolder, UsageState
from kgpu.usage.apportion import apportion
from kgpu.usage.model import HolderUse, PartitionUse, Segment
from kgpu.usage.partitions import partition_parts
from kgpu.usage.shares import RIGHTS, Basis, PayerKind, SharingMode, TimeShare, split
from tests.budget import tries
from tests.usage.recordings import A100, HOUR, SECOND, Device, holder, timeline_of

BUSY, DOWN, IDLE = UsageState.BUSY, UsageState.DOWN, UsageState.HELD_IDLE
TURNS = HolderSharing.TIME_SLICING


def segment(*holders: RecordedHolder, states: dict[UsageState, int] | None = None, **fields: object) -> Segment:
    """An hour in which these held the device."""
    uses = tuple(HolderUse(holder=one, held_us=one.held_us or HOUR, busy_us=one.busy_us) for one in holders)
    known = {BUSY: HOUR} if states is None else states
    return Segment(
        **{"node": "n1", "device": "GPU-1", "begin_us": 0, "end_us": HOUR, "product": A100, "states_us": known,
           "holders": uses, **fields}
    )  # fmt: skip


def parts(shares: Sequence[TimeShare], length: int = HOUR) -> dict[str, Fraction]:
    """Which part of the hour each had, by pod or kind; the smallest pieces that rounding may move are left out."""
    found: Counter[str] = Counter()
    for share in shares:
        found[share.use.holder.pod if share.use else share.kind.value] += share.gpu_us
    assert sum(found.values()) == length
    assert min(found.values(), default=0) >= 0
    return {name: Fraction(amount, length).limit_denominator(1000) for name, amount in found.items() if amount}


def turns(name: str, units: int = 1, busy: int | None = None, held: int = 0) -> RecordedHolder:
    return holder(name, sharing=TURNS, units=units, replicas=4, busy_us=busy, held_us=held)


def part(name: str, kind: HolderSharing = HolderSharing.FRACTION, **portions: int) -> RecordedHolder:
    return holder(name, sharing=kind, portions=portions, replicas=4)


def claim(name: str, uid: str = "c1", **portions: int) -> RecordedHolder:
    return holder(name, sharing=HolderSharing.CLAIM, claim=uid, portions=portions)


RULES: dict[str, tuple[tuple[RecordedHolder, ...], dict[str, Any], str]] = {
    "a whole GPU": ((holder("a"),), {}, "a=1"),
    "free": ((), {}, "idle=1"),
    "held for half of it": ((holder("a", held_us=HOUR // 2),), {}, "a=1/2 idle=1/2"),
    "tenants that are present share all of it": ((turns("a"), turns("b")), {}, "a=1/2 b=1/2"),
    "one tenant alone pays all": ((turns("a"),), {}, "a=1"),
    "one with three shares pays three times as much": ((turns("a", 3), turns("b")), {}, "a=3/4 b=1/4"),
    "reserved": ((turns("a"), turns("b")), {"mode": SharingMode.RESERVE}, "a=1/4 b=1/4 idle=1/2"),
    "reserved, with two shares": ((turns("a", 2),), {"mode": SharingMode.RESERVE}, "a=1/2 idle=1/2"),
    "by use": ((turns("a", busy=3000), turns("b", busy=1000)), {"mode": SharingMode.USAGE}, "a=5/8 b=3/8"),
    "by use, never less than reserved": ((turns("a", busy=9), turns("b", busy=0)), {"mode": SharingMode.USAGE},
                                         "a=3/4 b=1/4"),
    "by use that is not known": ((turns("a"), turns("b")), {"mode": SharingMode.USAGE}, "a=1/4 b=1/4 idle=1/2"),
    "MPS without limits is as time-slicing": (
        (holder("a", sharing=HolderSharing.MPS, replicas=4), holder("b", sharing=HolderSharing.MPS, replicas=4)), {},
        "a=1/2 b=1/2"),
    "MPS by its limits, the dearer of memory and threads": (
        (part("a", HolderSharing.MPS, memory=250_000, threads=500_000),), {}, "a=1/2 idle=1/2"),
    "a claim is divided by the pods that use it": ((claim("a"), claim("b"), claim("c")), {}, "a=1/3 b=1/3 c=1/3"),
    "consumable capacity by its dearest dimension": (
        (claim("a", memory=400_000, cores=100_000), claim("b", "c2", memory=200_000)), {}, "a=2/5 b=1/5 idle=2/5"),
    "two pods on a claim of consumable capacity": (
        (claim("a", memory=400_000), claim("b", memory=400_000)), {}, "a=1/5 b=1/5 idle=3/5"),
    "HAMi's cores and memory": ((part("a", cores=300_000, memory=500_000), part("b", cores=250_000)), {},
                                "a=1/2 b=1/4 idle=1/4"),
    "KAI's fraction; its reservation pod costs nothing": (
        (part("a", fraction=500_000), holder("r", sharing=HolderSharing.RESERVATION)), {}, "a=1/2 idle=1/2"),
    "more asked for than there is": ((part("a", memory=900_000), part("b", memory=600_000)), {}, "a=3/5 b=2/5"),
    "two that claim to hold it whole": ((holder("a"), holder("b")), {}, "a=1/2 b=1/2"),
    "down, whoever held it": ((holder("a"),), {"states": {DOWN: HOUR}}, "down=1"),
    "down for a quarter": ((holder("a"),), {"states": {DOWN: HOUR // 4, BUSY: 3 * HOUR // 4}}, "down=1/4 a=3/4"),
    "not watched": ((holder("a"),), {"states": {}}, "unknown=1"),
    "free time is nobody's, also where lines between are lost": (
        (turns("a", held=HOUR // 2), turns("b", held=HOUR // 2)),
        {"states": {BUSY: HOUR // 2, UsageState.FREE: HOUR // 2}}, "a=1/4 b=1/4 idle=1/2"),
    "held all the time, whatever the state says": ((holder("a"),), {"states": {UsageState.FREE: HOUR}}, "a=1"),
    "contradictory": ((holder("a"),), {"states": {UsageState.UNKNOWN: HOUR}}, "unknown=1"),
    "busy basis": ((holder("a", busy_us=HOUR // 4),), {"basis": Basis.BUSY}, "a=1/4 idle=3/4"),
    "busy basis, activity not known": ((holder("a"),), {"basis": Basis.BUSY}, "a=1"),
    "Terminating and starting pods hold it": ((holder("a", starting_us=HOUR),), {}, "a=1"),
}  # fmt: skip


@pytest.mark.parametrize("rule", RULES)
def test_each_pays_its_share(rule: str) -> None:
    holders, more, expected = RULES[rule]
    mode, basis = more.get("mode", SharingMode.PRESENT), more.get("basis", Basis.HELD)
    found = parts(split(segment(*holders, states=more.get("states")), mode, basis))
    assert found == {name: Fraction(amount) for name, amount in (pair.split("=") for pair in expected.split())}


def test_every_kind_of_sharing_has_a_rule() -> None:
    assert set(RIGHTS) == set(HolderSharing)


MIG = {
    (A100, "1g.5gb"): "1/7",
    (A100, "1g.10gb"): "1/4",
    (A100, "2g.10gb"): "2/7",
    (A100, "3g.20gb"): "1/2",
    (A100, "7g.40gb"): "1",
    (A100, "3g.20gb", "3g.20gb"): "1/2 1/2",
    (A100, *["1g.5gb"] * 7): " ".join(["1/7"] * 7),
    (A100, "4g.20gb", "3g.20gb"): "8/15 7/15",
    ("NVIDIA-A30", "1g.6gb", "2g.12gb"): "1/4 1/2",
    ("NVIDIA-RTX-PRO-6000-Blackwell-Server-Edition", "1g.24gb"): "1/4",
    ("AMD Instinct MI300X", *["cpx"] * 8): " ".join(["1/8"] * 8),
    (A100, "9g.90gb", "1g.5gb"): "1/2 1/2",
    (A100, "hostile", "1g.5gb"): "1/2 1/2",
}


@pytest.mark.parametrize("case", MIG, ids=str)
def test_a_partition_is_its_part_of_the_gpu(case: tuple[str, ...]) -> None:
    product, *profiles = case
    assert list(partition_parts(product, tuple(profiles))) == [Fraction(one) for one in MIG[case].split()]


def test_partitions_are_paid_by_their_holders_and_the_rest_is_idle() -> None:
    cut = (
        PartitionUse(id="1", profile="3g.20gb", states_us={BUSY: HOUR}),
        PartitionUse(id="2", profile="2g.10gb", states_us={UsageState.FREE: HOUR}),
    )
    shares = split(segment(holder("a", partition="1"), partitions=cut, states={UsageState.FREE: HOUR}))
    assert parts(shares) == {"a": Fraction(1, 2), "idle": Fraction(1, 2)}


def test_tenants_of_a_partition_share_it_alone() -> None:
    cut = (PartitionUse(id="1", profile="3g.20gb", states_us={BUSY: HOUR}),)
    tenants = [holder(name, partition="1", sharing=TURNS, replicas=2) for name in "ab"]
    shares = split(segment(*tenants, partitions=cut, states={DOWN: HOUR}))
    assert parts(shares) == {"a": Fraction(1, 4), "b": Fraction(1, 4), "down": Fraction(1, 2)}


def test_what_is_wasted_is_of_what_is_paid() -> None:
    shares = split(segment(turns("a"), turns("b"), states={IDLE: HOUR // 2, BUSY: HOUR // 2}))
    assert [(share.gpu_us, share.wasted_us) for share in shares if share.use] == [(HOUR // 2, HOUR // 4)] * 2
    for state in (UsageState.HELD_EMPTY, UsageState.HUNG):
        (share,) = (one for one in split(segment(holder("a"), states={state: HOUR})) if one.use)
        assert share.wasted_us == HOUR
    for state in (BUSY, UsageState.STARVED, UsageState.INEFFICIENT):
        (share,) = (one for one in split(segment(holder("a"), states={state: HOUR})) if one.use)
        assert share.wasted_us == 0


def test_what_nobody_held_and_what_was_down_is_wasted() -> None:
    shares = split(segment(states={UsageState.FREE: HOUR // 2, DOWN: HOUR // 4}))
    found = {share.kind: (share.gpu_us, share.wasted_us) for share in shares}
    assert found == {
        PayerKind.IDLE: (HOUR // 2, HOUR // 2), PayerKind.DOWN: (HOUR // 4, HOUR // 4),
        PayerKind.UNKNOWN: (HOUR // 4, 0),
    }  # fmt: skip


def test_shares_that_others_could_hold_of_a_gpu_at_work_are_no_waste() -> None:
    work = split(segment(turns("a"), turns("b")), SharingMode.RESERVE)
    assert [(share.gpu_us, share.wasted_us) for share in work if share.kind is PayerKind.IDLE] == [(HOUR // 2, 0)]
    still = split(segment(turns("a"), turns("b"), states={IDLE: HOUR}), SharingMode.RESERVE)
    assert [share.wasted_us for share in still] == [share.gpu_us for share in still]


def test_a_pause_of_work_is_no_waste_where_busy_time_is_paid() -> None:
    states = {BUSY: HOUR // 2, IDLE: HOUR // 2}
    held, idle = split(segment(holder("a", busy_us=HOUR // 4), states=states), basis=Basis.BUSY)
    assert (held.gpu_us, held.wasted_us, idle.gpu_us, idle.wasted_us) == (HOUR // 4, 0, HOUR * 3 // 4, HOUR // 2)


@tries(200)
@given(st.integers(0, 10**13), st.lists(st.fractions(0, 10, max_denominator=50), min_size=1, max_size=9))
def test_parts_sum_to_the_whole_and_are_nearly_exact(total: int, weights: list[Fraction]) -> None:
    if not any(weights):
        weights = [*weights, Fraction(1)]
    found = apportion(total, weights)
    assert sum(found) == total
    for amount, weight in zip(found, weights, strict=True):
        assert abs(amount - total * weight / sum(weights)) < 1
        assert amount == 0 or weight > 0


amounts = st.integers(0, 3 * HOUR)
holders = st.builds(
    holder,
    st.sampled_from("abcdef"),
    partition=st.sampled_from(["", "1", "2"]),
    sharing=st.sampled_from(list(HolderSharing)),
    replicas=st.integers(4, 9),
    units=st.integers(1, 4),
    portions=st.dictionaries(st.sampled_from(["memory", "cores"]), st.integers(0, 10**6)),
    claim=st.sampled_from(["", "c1"]),
    held_us=amounts,
    busy_us=st.none() | amounts,
)
states = st.dictionaries(st.sampled_from(list(UsageState)), st.integers(0, HOUR // 9))


@tries(400)
@given(
    st.lists(holders, max_size=6), states, st.lists(st.tuples(st.sampled_from(["3g.20gb", "1g.5gb", "x"]), states),
    max_size=2), st.sampled_from(list(SharingMode)), st.sampled_from(list(Basis)),
)  # fmt: skip
def test_all_time_is_somebodys_and_none_is_negative_whatever_is_recorded(
    held: list[RecordedHolder], seen: dict[UsageState, int], cut: list[tuple[str, dict[UsageState, int]]],
    mode: SharingMode, basis: Basis,
) -> None:  # fmt: skip
    partitions = tuple(
        PartitionUse(id=str(at), profile=profile, states_us=known) for at, (profile, known) in enumerate(cut, start=1)
    )
    given_segment = segment(*held, states=seen, partitions=partitions)
    shares = split(given_segment, mode, basis)
    assert sum(share.gpu_us for share in shares) == HOUR
    assert all(0 <= share.wasted_us <= share.gpu_us for share in shares)
    assert all((share.use is not None) == (share.kind is PayerKind.HELD) for share in shares)
    # As much was wasted, whoever pays; but for a microsecond here and there.
    lost, usual = (sum(share.wasted_us for share in found) for found in (shares, split(given_segment)))
    assert lost == pytest.approx(usual, abs=3 * (len(held) + 3))


# What each second holds: nothing, a fault, or up to three tenants of a time-sliced GPU of four replicas.
seconds = st.lists(st.just("down") | st.sets(st.sampled_from("abc")).map("".join), min_size=1, max_size=25)


@tries(200)
@given(seconds, st.sampled_from([SharingMode.PRESENT, SharingMode.RESERVE]))
def test_churn_costs_what_a_count_by_the_second_says(held: list[str], mode: SharingMode) -> None:
    device = Device()
    expected: Counter[str] = Counter()
    for now in held:
        tenants = "" if now == "down" else "".join(sorted(now))
        device.spend(1, *(turns(name) for name in tenants), state=DOWN if now == "down" else None)
        each = Fraction(1, 4 if mode is SharingMode.RESERVE else max(1, len(tenants)))
        expected.update(dict.fromkeys(tenants, each))
        expected["down" if now == "down" else "idle"] += 1 - each * len(tenants)
    found: Counter[str] = Counter()
    for one in timeline_of(device).devices["n1", "GPU-1"]:
        for share in split(one, mode):
            found[share.use.holder.pod if share.use else share.kind.value] += share.gpu_us
    assert sum(found.values()) == len(held) * SECOND
    for name in expected | found:
        assert abs(found[name] - expected[name] * SECOND) <= len(held), name
