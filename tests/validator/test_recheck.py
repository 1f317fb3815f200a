"""Which devices are tried again, and when a failure counts."""

from __future__ import annotations

import pytest

from kgpu.validator.checks.cuda import CudaTarget
from kgpu.validator.cuda import CudaOutcome
from kgpu.validator.model import DeviceResult, Status
from kgpu.validator.recheck import CONFIRM_SECONDS, Rechecks, idle
from tests.validator.made import device

PACE = 600.0
TARGET = CudaTarget(uuid="a", gpu="a", name="GPU a")
GOOD, BAD, BUSY = device("a"), device("a", Status.FAILED), device("a", Status.SKIPPED)
WELL, ILL = CudaOutcome(passed=True), CudaOutcome(code=719)
IDLE = {"utilization_percent": 0.0, "memory_utilization_percent": 0.0, "memory_used_mib": 4.0}


def rechecks(seconds: float = PACE) -> Rechecks:
    return Rechecks(seconds, uniform=lambda: 0.5)


def asked(made: Rechecks, now: float) -> bool:
    return made.asking([TARGET], now) == [TARGET]


@pytest.mark.parametrize(
    ("values", "found"),
    [
        (IDLE, True),
        ({**IDLE, "utilization_percent": 1.0}, False),
        ({**IDLE, "memory_utilization_percent": 1.0}, False),
        ({**IDLE, "memory_used_mib": 500.0}, False),
        ({"memory_used_mib": 4.0}, None),
        ({"memory_used_mib": 4000.0}, False),
        ({"utilization_percent": 0.0}, None),
        ({}, None),
    ],
)
def test_idle(values, found) -> None:
    assert idle(values) is found


def test_an_idle_device_has_its_turn_at_its_pace() -> None:
    made = rechecks()
    assert not asked(made, 1e9)
    assert made.judge(None, GOOD, WELL, 100.0) is GOOD
    assert (asked(made, 100.0 + PACE - 1), asked(made, 100.0 + PACE)) == (False, True)
    assert [made.allowed(TARGET, {"a": values}) for values in (IDLE, {**IDLE, "utilization_percent": 7.0}, {})] == [
        True,
        False,
        False,
    ]


@pytest.mark.parametrize(("uniform", "wait"), [(0.0, 480.0), (1.0, 720.0)])
def test_the_pace_is_spread(uniform, wait) -> None:
    made = Rechecks(PACE, uniform=lambda: uniform)
    made.judge(None, GOOD, WELL, 0.0)
    assert (asked(made, wait - 1), asked(made, wait + 1)) == (False, True)


def test_two_failures_in_a_row_count_and_one_does_not() -> None:
    made = rechecks()
    assert made.judge(GOOD, BAD, ILL, 0.0) is GOOD
    assert made.pause(1.0) == CONFIRM_SECONDS - 1.0
    assert asked(made, CONFIRM_SECONDS)
    assert made.judge(GOOD, GOOD, WELL, 10.0) is GOOD
    assert made.pause(10.0) == float("inf")
    assert made.judge(GOOD, BAD, ILL, 20.0) is GOOD
    assert made.judge(GOOD, BAD, ILL, 30.0) is BAD
    assert (made.pause(30.0), asked(made, 1e9)) == (float("inf"), False)


def test_a_process_that_is_never_given_back_counts_at_once() -> None:
    assert rechecks().judge(GOOD, BAD, CudaOutcome(hung=True, held=True), 0.0) is BAD


def test_what_failed_before_needs_no_second_failure() -> None:
    made = rechecks()
    assert made.judge(None, BAD, ILL, 0.0) is BAD
    assert made.judge(BAD, GOOD, WELL, 5.0) is GOOD


def test_what_is_proven_stays_so_while_it_cannot_be_tried() -> None:
    made = rechecks()
    assert made.judge(GOOD, BUSY, CudaOutcome(code=2), 0.0) is GOOD
    assert made.judge(BUSY, GOOD, WELL, 0.0) is GOOD


def test_a_doubt_is_settled_also_where_telemetry_tells_nothing() -> None:
    made = rechecks()
    made.judge(GOOD, BAD, ILL, 0.0)
    assert made.allowed(TARGET, {})
    assert not made.allowed(TARGET, {"a": {"utilization_percent": 50.0}})


def test_a_doubt_about_a_busy_device_waits_without_haste() -> None:
    made = rechecks()
    made.judge(GOOD, BAD, ILL, 0.0)
    assert made.pause(1000.0) == CONFIRM_SECONDS


def test_off_means_never_but_doubts_are_settled() -> None:
    made = rechecks(0.0)
    made.judge(None, GOOD, WELL, 0.0)
    assert not asked(made, 1e9)
    made.judge(GOOD, BAD, ILL, 0.0)
    assert asked(made, CONFIRM_SECONDS)


def test_a_gpu_in_exclusive_mode_is_left_to_its_users() -> None:
    made = rechecks()
    made.judge(None, GOOD, CudaOutcome(passed=True, compute_mode=3), 0.0)
    assert not asked(made, 1e9)
    made.judge(GOOD, GOOD, CudaOutcome(passed=True, compute_mode=0), 0.0)
    assert asked(made, 1e9)


def test_a_device_that_has_gone_is_forgotten() -> None:
    made = rechecks()
    known: dict[str, DeviceResult] = {"a": GOOD}
    made.judge(GOOD, BAD, ILL, 0.0)
    made.forget(known)
    assert asked(made, 1e9)
    made.forget({})
    assert (asked(made, 1e9), made.pause(0.0)) == (False, float("inf"))
