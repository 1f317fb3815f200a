"""What agents said, judged by the asker: tenants of shared devices, gangs, and what is never idle."""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from kgpu.formats.usage import HolderSharing, UsageState
from kgpu.formats.usage_now import BUCKET_US, DeviceSaid, HolderSaid, UsageBucket, UsageLast, UsageNow, UsageSource
from kgpu.usage.live import HeardAgents
from kgpu.usage.now import DeviceNow
from kgpu.usage.states import IdleRules

S = UsageState
UPTIME = 10 * 3600 * 1_000_000
RULES = IdleRules(window=3600.0)
HEARD = 1_000_000.0


def buckets(peak: float | None, *, count: int = 16, **fields: Any) -> tuple[UsageBucket, ...]:
    """Stretches without a gap until now."""
    found = [
        UsageBucket(
            begin_us=UPTIME - (number + 1) * BUCKET_US, end_us=UPTIME - number * BUCKET_US, mean=peak, peak=peak,
            watched_us=0 if peak is None else BUCKET_US, **fields,
        )
        for number in range(count)
    ]  # fmt: skip
    return tuple(reversed(found))


def holder(name: str = "a", **fields: Any) -> HolderSaid:
    return HolderSaid(**{"namespace": "team", "pod": name, "uid": name, "since_us": 0, **fields})


def device(active: float = 0.0, *holders: HolderSaid, name: str = "GPU-1", **fields: Any) -> DeviceSaid:
    last = UsageLast(at_us=UPTIME, gpu_util=active, memory_mib=9000.0, processes=("7",))
    return DeviceSaid(
        **{"device": name, "memory_mib": 40_000.0, "source": UsageSource.UTILIZATION, "last": last,
           "buckets": buckets(active), "holders": holders, **fields}
    )  # fmt: skip


def ask(*devices: DeviceSaid, rules: IdleRules = RULES, now: float = HEARD) -> list[DeviceNow]:
    return ask_nodes({"n1": devices}, rules=rules, now=now)


def ask_nodes(
    nodes: Mapping[str, Sequence[DeviceSaid]], *, rules: IdleRules = RULES, now: float = HEARD
) -> list[DeviceNow]:
    heard = HeardAgents()
    for node, devices in nodes.items():
        at = dt.datetime(1999, 1, 1, tzinfo=dt.UTC)
        said = UsageNow(version=1, node=node, at=at, boot="b", uptime_us=UPTIME, devices=tuple(devices))
        heard.heard(said, HEARD)
    return list(heard.devices(rules, now))


def one(*given: DeviceSaid, **how: Any) -> DeviceNow:
    (found,) = ask(*given, **how)
    return found


@pytest.mark.parametrize(
    ("said", "state"),
    [
        (device(0.0, holder()), S.HELD_IDLE),
        (device(0.6, holder()), S.BUSY),
        (device(0.0, holder(), buckets=(*buckets(0.0)[:-1], *buckets(0.7, count=1))), S.BUSY),
        (device(0.0, holder(), buckets=buckets(0.0, count=4)), S.UNKNOWN),
        (device(0.0, holder(), buckets=buckets(0.0, contradicted=True)), S.UNKNOWN),
        (device(0.0, holder(), buckets=buckets(0.0, changed=True)), S.BUSY),
        (device(0.0, holder(), buckets=buckets(0.0, power_w=350.0), idle_limit_w=300.0), S.UNKNOWN),
        (device(0.0, holder(), buckets=buckets(0.0, power_w=250.0), idle_limit_w=300.0), S.HELD_IDLE),
        (device(0.0, holder(), held=False), S.UNKNOWN),
        (device(0.0, holder(), usable=False), S.DOWN),
        (device(0.0, holder(), last=None), S.UNKNOWN),
        (device(0.0, holder(since_us=UPTIME - 60_000_000)), S.BUSY),
        (device(0.0, last=UsageLast(at_us=UPTIME, gpu_util=0.0, memory_mib=1.0, processes=())), S.FREE),
    ],
)  # fmt: skip
def test_a_device_is_judged_by_its_stretches(said: DeviceSaid, state: UsageState) -> None:
    assert one(said).verdict.state is state


@pytest.mark.parametrize(
    ("busy", "limit", "since"),
    [
        (None, 0.05, None),  # it was not while it was watched: since it was given to its pod
        (UPTIME - 3 * 3600 * 1_000_000, 0.05, HEARD - 3 * 3600),  # before all stretches that were asked for
        (UPTIME, 0.3, HEARD - 16 * BUCKET_US / 1e6),  # busy by the agent's limit all the time, and not by this one
    ],
)
def test_it_is_idle_since_it_was_busy_last_however_long_it_is_held(
    busy: int | None, limit: float, since: float | None
) -> None:
    found = one(
        device(0.0 if limit < 0.1 else 0.2, holder(), busy_us=busy), rules=IdleRules(window=3600.0, idle_below=limit)
    )
    assert found.verdict.state is S.HELD_IDLE
    assert found.verdict.idle_since == since


def test_what_is_old_says_nothing() -> None:
    assert one(device(0.0, holder()), now=HEARD + 61.0).verdict.state is S.UNKNOWN


def test_the_wall_clock_of_an_agent_counts_for_nothing() -> None:
    found = one(device(0.0, holder(since_us=UPTIME - 7200 * 1_000_000)))
    assert found.holders[0].held_since == HEARD - 7200
    assert found.read_at == HEARD


def test_most_nodes_clocks_say_what_time_it_is() -> None:
    """One node's clock, or one that lies, does not."""
    agents = HeardAgents()
    assert agents.clocks_ahead() == 0.0
    for number, ahead in enumerate((0.0, 1.0, 90_000.0)):
        at = dt.datetime.fromtimestamp(HEARD + 20.0 + ahead, dt.UTC)
        said = UsageNow(version=1, node=f"n{number}", at=at, boot="b", uptime_us=UPTIME)
        agents.heard(said, HEARD, answered=HEARD + 20.0)
    assert agents.clocks_ahead() == 1.0


def test_tenants_of_a_shared_card_are_judged_by_their_own_part() -> None:
    shared = {"sharing": HolderSharing.TIME_SLICING, "share": 250_000}
    found = one(
        device(
            0.8, holder("works", buckets=buckets(0.8), **shared), holder("rests", buckets=buckets(0.0), **shared),
            holder("unmeasured", **shared), holder("new", buckets=buckets(0.0, count=2), since_us=UPTIME - 600_000_000, **shared),
        )
    )  # fmt: skip
    assert {uid: verdict.state for uid, verdict in found.tenants} == {
        "works": S.BUSY, "rests": S.HELD_IDLE, "unmeasured": S.UNKNOWN, "new": S.UNKNOWN,
    }  # fmt: skip


def test_all_tenants_of_an_idle_card_are_idle() -> None:
    found = one(device(0.0, holder("a"), holder("b")))
    assert {verdict.state for _, verdict in found.tenants} == {S.HELD_IDLE}


def test_a_part_that_only_the_card_measures_is_idle_with_the_card_alone() -> None:
    parts = [device(0.5, holder(name), partition=name, source=UsageSource.CARD) for name in ("p1", "p2")]
    assert [found.tenants[0][1].state for found in ask(*parts)] == [S.UNKNOWN, S.UNKNOWN]
    assert one(device(0.0, holder(), partition="p1", source=UsageSource.CARD)).tenants[0][1].state is S.HELD_IDLE


def test_one_pods_devices_are_a_gang() -> None:
    pair = [device(active, holder(), name=name) for name, active in (("GPU-1", 0.0), ("GPU-2", 0.9))]
    assert [found.verdict.state for found in ask(*pair)] == [S.WAITING, S.BUSY]
    still = [device(0.0, holder(worked=True), name=name) for name in ("GPU-1", "GPU-2")]
    assert [found.verdict.state for found in ask(*still)] == [S.HUNG, S.HUNG]


def rank(name: str, active: float = 0.0, *others: HolderSaid, **fields: Any) -> DeviceSaid:
    return device(active, holder(name, gang="JobSet/train", **fields), *others)


def across(**nodes: DeviceSaid) -> list[UsageState]:
    return [found.verdict.state for found in ask_nodes({name: [said] for name, said in nodes.items()})]


@pytest.mark.parametrize(
    ("nodes", "states"),
    [
        ({"n1": rank("a"), "n2": rank("b", 0.9), "n3": rank("c")}, [S.WAITING, S.BUSY, S.WAITING]),
        ({"n1": rank("a"), "n2": rank("b")}, [S.HELD_IDLE, S.HELD_IDLE]),
        ({"n1": rank("a", worked=True), "n2": rank("b")}, [S.HUNG, S.HUNG]),
        # One that was just made keeps the others: it may still load.
        ({"n1": rank("a"), "n2": rank("b", since_us=UPTIME - 1)}, [S.WAITING, S.BUSY]),
        # What one of them does is not known: no idleness is told of the others.
        ({"n1": rank("a"), "n2": device(0.0, holder("b", gang="JobSet/train"), last=None)}, [S.UNKNOWN, S.UNKNOWN]),
        ({"n1": rank("a"), "n2": device(0.0, holder("b", gang="JobSet/train"), usable=False)}, [S.HELD_IDLE, S.DOWN]),
        # One of the same name elsewhere is another's.
        ({"n1": rank("a"), "n2": rank("b", 0.9, namespace="others")}, [S.HELD_IDLE, S.BUSY]),
        # A device that a rank shares with others may be busy by it.
        ({"n1": rank("a"), "n2": rank("b", 0.9, holder("x"))}, [S.WAITING, S.BUSY]),
        ({"n1": device(0.0, holder("a")), "n2": device(0.9, holder("b"))}, [S.HELD_IDLE, S.BUSY]),
    ],
)
def test_a_gang_is_judged_across_nodes(nodes: dict[str, DeviceSaid], states: list[UsageState]) -> None:
    assert across(**nodes) == states


def test_a_gang_whose_one_agent_is_silent_is_not_idle() -> None:
    nodes = {"n1": [rank("a")], "n2": [rank("b")]}
    late = HEARD + RULES.longest_gap + 1
    heard = HeardAgents()
    for node, devices in nodes.items():
        at = dt.datetime(1999, 1, 1, tzinfo=dt.UTC)
        said = UsageNow(version=1, node=node, at=at, boot="b", uptime_us=UPTIME, devices=tuple(devices))
        heard.heard(said, late if node == "n1" else HEARD)
    assert [found.verdict.state for found in heard.devices(RULES, late)] == [S.UNKNOWN, S.UNKNOWN]


def test_nodes_that_are_gone_are_forgotten() -> None:
    heard = HeardAgents()
    for node in ("n1", "n2"):
        said = UsageNow(
            version=1,
            node=node,
            at=dt.datetime.now(dt.UTC),
            boot="b",
            uptime_us=UPTIME,
            devices=(device(0.0, holder()),),
        )
        heard.heard(said, HEARD)
    heard.keep(["n2"])
    assert [found.node for found in heard.devices(RULES, HEARD)] == ["n2"]
