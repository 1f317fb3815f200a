"""What a device is doing, by readings over a window; each way in which readings mislead has a test here."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from kgpu.formats.usage import UsageState
from kgpu.usage.states import (
    STATES,
    WASTED,
    WORKING,
    YOUNG,
    IdleRules,
    UsageReading,
    UsageVerdict,
    WatchedDevice,
    activity,
    covered,
    judge,
    judge_gang,
    judge_tenant,
    looks_kept_busy,
    mass_idle,
    ratio,
)

S = UsageState
NOW = 100_000.0
EVERY = 30.0
HELD = WatchedDevice(held_since=0.0, memory_mib=40_000, idle_floor_w=60)
FREE = replace(HELD, held_since=None)
RESTING: dict[str, Any] = {"gr_engine": 0.0, "gpu_util": 0.0, "sm": 0.0, "memory_mib": 8000, "power_w": 55,
                           "processes": frozenset({"p1"})}  # fmt: skip


def readings(last: float = 3600 + 2 * EVERY, **fields: Any) -> list[UsageReading]:
    """Readings of the last seconds, until now."""
    count = int(last / EVERY)
    return [UsageReading(at=NOW - EVERY * at, **{**RESTING, **fields}) for at in range(count, -1, -1)]


def once(at: float, before: list[UsageReading] | None = None, **fields: Any) -> list[UsageReading]:
    """Readings of which the one so many seconds ago is another."""
    found = before or readings()
    return [replace(one, **fields) if one.at == NOW - at else one for one in found]


def state(seen: list[UsageReading], device: WatchedDevice = HELD, rules: IdleRules | None = None) -> UsageVerdict:
    return judge(seen, NOW, device, rules or IdleRules())


EMPTY = readings(processes=frozenset(), memory_mib=12)
BUSY = {"gr_engine": 0.9, "gpu_util": 1.0, "sm": 0.7, "power_w": 300}
CASES = {
    "free": (EMPTY, FREE, S.FREE),
    "held, nothing on it": (EMPTY, HELD, S.HELD_EMPTY),
    "held, the driver's own memory on it": (readings(processes=frozenset(), memory_mib=390), HELD, S.HELD_EMPTY),
    "held, nothing known of what is on it": (readings(processes=None, memory_mib=None), HELD, S.HELD_IDLE),
    "held, memory without a process that is seen": (readings(processes=None), HELD, S.HELD_IDLE),
    "held, not active": (readings(), HELD, S.HELD_IDLE),
    "busy": (readings(**BUSY), HELD, S.BUSY),
    "encoding": (readings(encoder=0.5), HELD, S.BUSY),
    "memory traffic alone": (readings(dram=0.4), HELD, S.BUSY),
    "starved, data comes in": (readings(gr_engine=0.1, host_to_device_mib_s=900), HELD, S.STARVED),
    "starved, the CPU works": (readings(gr_engine=0.1, cpu=0.9), HELD, S.STARVED),
    "a little active, nothing comes in": (readings(gr_engine=0.1), HELD, S.BUSY),
    "one thread is 100%": (readings(gr_engine=1.0, gpu_util=1.0, sm=0.01), HELD, S.INEFFICIENT),
    "one thread is 100%, multiprocessors not known": (readings(gr_engine=None, gpu_util=1.0, sm=None), HELD, S.BUSY),
    "health takes it out": (readings(**BUSY), replace(HELD, usable=False), S.DOWN),
    "memory without a pod": (readings(processes=frozenset()), FREE, S.DOWN),
    "a process without a pod": (readings(memory_mib=10), FREE, S.DOWN),
    "no readings": ([], HELD, S.UNKNOWN),
    "no readings now": ([one for one in readings() if one.at < NOW - 90], HELD, S.UNKNOWN),
    "readings without activity": (readings(gr_engine=None, gpu_util=None, sm=None), HELD, S.UNKNOWN),
    "engines 0 for weeks, utilisation is not": (readings(gpu_util=0.8), HELD, S.UNKNOWN),
    "engines 0 for weeks, power is not": (readings(power_w=250), HELD, S.UNKNOWN),
    "the same on a free one": (readings(power_w=250), FREE, S.UNKNOWN),
    "engines 0 and utilisation at odds an hour ago": (once(3000, gpu_util=0.8), HELD, S.UNKNOWN),
    "engines not known, power is not an idle one's": (readings(gr_engine=None, power_w=250), HELD, S.UNKNOWN),
    "power a little above the floor": (readings(power_w=68), HELD, S.HELD_IDLE),
    "power not known": (readings(power_w=None), HELD, S.HELD_IDLE),
    "floor not known": (readings(power_w=250), replace(HELD, idle_floor_w=None), S.HELD_IDLE),
    "a peak in the window": (once(3000, gr_engine=0.9), HELD, S.BUSY),
    "a peak before the window": (once(3630, gr_engine=0.9), HELD, S.HELD_IDLE),
    "noise below the threshold": (readings(gr_engine=0.04), HELD, S.HELD_IDLE),
    "at the threshold": (readings(gr_engine=0.05), HELD, S.BUSY),
    "a process began in the window": (once(0, processes=frozenset({"p1", "p2"})), HELD, S.BUSY),
    "readings of half the window": (readings(last=1800), HELD, S.UNKNOWN),
    "a hole of a tenth and more": ([one for one in readings() if not 900 < NOW - one.at < 1500], HELD, S.UNKNOWN),
    "a hole of less": ([one for one in readings() if not 900 < NOW - one.at < 1100], HELD, S.HELD_IDLE),
    "a pod that is young": (readings(), replace(HELD, held_since=NOW - 3600), S.BUSY),
    "a pod as old as window and warm-up": (readings(), replace(HELD, held_since=NOW - 4500), S.HELD_IDLE),
    "the CPU's load proves no use": (readings(cpu=1.0), HELD, S.HELD_IDLE),
    "readings of the future": ([*readings(), UsageReading(at=NOW + 60, **BUSY)], HELD, S.HELD_IDLE),
}


def test_a_young_pod_that_has_worked_is_busy_and_one_that_has_not_too_young() -> None:
    young = replace(HELD, held_since=NOW - 3600)
    assert state(readings(), young).why == YOUNG
    assert state(once(600, gr_engine=0.9), young).why == "it was active"
    assert state(once(600, gr_engine=0.9), replace(young, held_since=NOW - 300)).why == YOUNG, "its predecessor was"


@pytest.mark.parametrize("name", CASES)
def test_a_state_follows_from_its_readings(name: str) -> None:
    seen, device, expected = CASES[name]
    verdict = state(seen, device)
    assert verdict.state is expected, verdict.why
    assert verdict.why


def test_every_state_has_a_row_and_one_who_pays() -> None:
    assert [row.state for row in STATES] == list(UsageState)
    payers = {row.state: row.payer for row in STATES}
    assert {payers[one] for one in WASTED | WORKING} == {"holder"}
    assert payers[S.UNKNOWN] == payers[S.DOWN] == "platform"


@pytest.mark.parametrize(
    ("value", "expected"), [(0.5, 0.5), (1.04, 1.0), (1.2, None), (-0.1, None), (float("nan"), None), (None, None)]
)
def test_outliers_are_no_readings(value: float | None, expected: float | None) -> None:
    assert ratio(value) == expected


def test_a_flicker_between_0_and_100_is_activity() -> None:
    flickering = [replace(one, gpu_util=at % 2, gr_engine=None) for at, one in enumerate(readings())]
    assert state(flickering).state is S.BUSY
    assert activity(UsageReading(at=0, gpu_util=1.18, sm=0.2)) == 0.2


def test_a_workload_that_compiles_for_long_has_its_own_window() -> None:
    compiling = once(4980, readings(last=9000), gr_engine=0.9)
    assert state(compiling).state is S.HELD_IDLE
    assert state(compiling, rules=IdleRules(window=7200)).state is S.BUSY


def test_idle_since_is_the_end_of_the_last_busy_reading() -> None:
    assert state(once(3630, gr_engine=0.9)).idle_since == NOW - 3600
    assert state(once(7200, readings(last=9000), gr_engine=0.9)).idle_since == NOW - 7170
    assert state(readings()).idle_since is None


def test_a_server_with_requests_and_a_notebook_with_a_user_are_kept() -> None:
    assert state(readings()).kept == ()
    for device in (replace(HELD, requests=3), replace(HELD, user_seen=NOW - 60)):
        verdict = state(readings(), device)
        assert verdict.state is S.HELD_IDLE
        assert len(verdict.kept) == 1
    assert state(readings(), replace(HELD, requests=0, user_seen=NOW - 7200)).kept == ()


def test_coverage_is_what_readings_stand_for() -> None:
    assert covered(readings(), NOW) == 1.0
    assert covered(readings(last=1800), NOW) == pytest.approx(0.5, abs=0.01)
    assert covered([UsageReading(at=NOW - 600, sm=0.0)], NOW) == pytest.approx(60 / 3600)


def verdicts(**states: UsageState) -> dict[str, UsageVerdict]:
    return {name: UsageVerdict(state=one, why="") for name, one in states.items()}


def test_a_gang_is_judged_together() -> None:
    def judged(were_busy: str, **states: UsageState) -> list[UsageState]:
        return [one.state for one in judge_gang(verdicts(**states), were_busy).values()]

    assert judged("ab", a=S.BUSY, b=S.HELD_IDLE, c=S.HELD_EMPTY) == [S.BUSY, S.WAITING, S.WAITING]
    assert judged("ab", a=S.STARVED, b=S.HELD_IDLE) == [S.STARVED, S.WAITING]
    assert judged("ab", a=S.UNKNOWN, b=S.HELD_IDLE) == [S.UNKNOWN, S.UNKNOWN]
    assert judged("abc", a=S.UNKNOWN, b=S.HELD_IDLE, c=S.BUSY) == [S.UNKNOWN, S.WAITING, S.BUSY]
    assert judged("abc", a=S.DOWN, b=S.HELD_IDLE, c=S.HELD_IDLE) == [S.DOWN, S.HUNG, S.HUNG]
    assert judged("ab", a=S.HELD_IDLE, b=S.HELD_IDLE) == [S.HUNG, S.HUNG]
    assert judged("abc", a=S.HELD_IDLE, b=S.HELD_IDLE, c=S.HELD_EMPTY) == [S.HUNG, S.HUNG, S.HELD_EMPTY]
    assert judged("a", a=S.HELD_IDLE, b=S.HELD_IDLE) == [S.HELD_IDLE, S.HELD_IDLE]
    assert judged("", a=S.HELD_IDLE, b=S.HELD_IDLE) == [S.HELD_IDLE, S.HELD_IDLE]


def test_a_tenant_of_a_shared_gpu_is_judged_by_its_own_processes() -> None:
    busy = UsageVerdict(state=S.BUSY, why="", coverage=1.0)
    assert judge_tenant(busy, None).state is S.UNKNOWN
    assert judge_tenant(busy, [0.0, 0.01]).state is S.HELD_IDLE
    assert judge_tenant(busy, [0.0, 0.5]).state is S.BUSY
    assert judge_tenant(replace(busy, coverage=0.5), [0.0]).state is S.BUSY
    for one in (S.HELD_IDLE, S.DOWN, S.UNKNOWN):
        assert judge_tenant(UsageVerdict(state=one, why=""), None).state is one


def test_many_that_turn_idle_at_once_stop_all_that_is_done() -> None:
    def said(before: dict[str, str], after: dict[str, str]) -> str:
        keys = {node: [(node, str(at)) for at in range(len(text))] for node, text in before.items()}
        letters = {"b": S.BUSY, "i": S.HELD_IDLE, "f": S.FREE, "u": S.UNKNOWN, "e": S.HELD_EMPTY}

        def states(rows: dict[str, str]) -> dict[tuple[str, str], UsageState]:
            return {
                key: letters[char] for node, text in rows.items() for key, char in zip(keys[node], text, strict=True)
            }

        worked = {key for key, state in states(before).items() if state in WORKING}
        found = mass_idle(worked, worked, states(after))
        return found.why if found else ""

    assert (
        said({"n1": "bbbb", "n2": "b" * 16}, {"n1": "iiii", "n2": "b" * 16})
        == "all GPUs of node n1 turned idle at once"
    )
    assert said({"n1": "bbff", "n2": "b" * 16}, {"n1": "iiff", "n2": "b" * 16}) != ""
    assert said({"n1": "b" * 10}, {"n1": "iiii" + "b" * 6}) == "4 of 10 GPUs turned idle at once"
    assert said({"n1": "b" * 10}, {"n1": "iii" + "b" * 7}) == ""
    assert said({"n1": "bbbb", "n2": "b" * 16}, {"n1": "iiiu", "n2": "b" * 16}) != "", (
        "one that is silent proves nothing"
    )
    assert said({"n1": "b" * 10}, {"n1": "iiib" + "u" * 6}) == "3 of 4 GPUs turned idle at once"
    assert said({"n1": "iiii", "n2": "b"}, {"n1": "iiii", "n2": "b"}) == ""
    assert said({"n1": "b", "n2": "bbbb"}, {"n1": "i", "n2": "bbbb"}) == ""
    assert said({"n1": "bbbb", "n2": "b" * 16}, {"n1": "eeee", "n2": "b" * 16}) == "", "their processes are gone, too"
    assert said({"n1": "b" * 10}, {"n1": "e" * 10}) == ""
    assert said({}, {}) == ""


def test_a_program_that_only_keeps_a_gpu_busy_is_flagged() -> None:
    keeper = readings(gr_engine=0.3, gpu_util=0.4, sm=0.3, tensor=0.0, memory_mib=700)
    assert looks_kept_busy(keeper, HELD)
    for fields in ({"tensor": 0.2}, {"tensor": None}, {"memory_mib": 30_000}, {"host_to_device_mib_s": 500}):
        assert not looks_kept_busy([replace(one, **fields) for one in keeper], HELD)
    assert not looks_kept_busy(once(600, keeper, gr_engine=0.0, gpu_util=0.0, sm=0.0), HELD)
    assert not looks_kept_busy([], HELD)
