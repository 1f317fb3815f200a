"""Roles fail, wait and recover alone; shutdown is bounded; cancellation always goes through."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal

import pytest

from kgpu.base.advice import Advice, Severity
from kgpu.base.backoff import BackoffPolicy
from kgpu.base.clock import VirtualClock, settle
from kgpu.base.errors import HwError
from kgpu.base.supervise import RoleHandle, RoleState, Supervisor, stop_on_signals
from tests.loop_clock import pass_seconds

POLICY = BackoffPolicy(first=1.0, cap=8.0, factor=2.0, jitter=0.0, healthy_after=60.0)


class World:
    def __init__(self) -> None:
        self.clock = VirtualClock()
        self.advice: list[Advice] = []
        self.supervisor = Supervisor(clock=self.clock, policy=POLICY, on_advice=self.advice.append)

    def status(self, name: str):
        return next(status for status in self.supervisor.statuses() if status.name == name)


@pytest.fixture
async def world():
    world = World()
    yield world
    assert await world.supervisor.stop(60) == ()


async def forever(handle: RoleHandle) -> None:
    handle.running("all good")
    await asyncio.Event().wait()


async def test_a_role_that_reports_running_is_ready(world):
    world.supervisor.start("good", forever)
    assert world.status("good").state is RoleState.STARTING
    await settle()
    assert world.status("good").ready
    assert world.status("good").reason == "all good"


async def test_a_crash_restarts_only_that_role_with_growing_capped_waits(world):
    starts: list[float] = []

    async def crash(handle: RoleHandle) -> None:
        starts.append(world.clock.monotonic())
        raise ZeroDivisionError("nothing left")

    world.supervisor.start("bad", crash)
    world.supervisor.start("good", forever)
    await world.clock.advance(1 + 2 + 4 + 8 + 8)
    assert starts == [0, 1, 3, 7, 15, 23]
    assert world.status("bad").state is RoleState.FAILED
    assert world.status("bad").reason == "ZeroDivisionError: nothing left"
    assert world.status("bad").restarts == 6
    assert world.status("good").ready
    assert world.status("good").restarts == 0
    assert [advice.reason for advice in world.advice] == ["RoleFailed"]


async def test_a_healthy_period_starts_the_waits_over(world):
    starts: list[float] = []
    lives = iter([0.0, 0.0, 100.0, 0.0, 0.0])

    async def flaky(handle: RoleHandle) -> None:
        starts.append(world.clock.monotonic())
        handle.running()
        await world.clock.sleep(next(lives))
        raise OSError("gone")

    world.supervisor.start("flaky", flaky)
    await world.clock.advance(105)
    # lives of 0 s: waits 1 and 2; then it lived 100 s and waits 1 again
    assert starts[:4] == [0, 1, 3, 104]


async def test_the_same_failure_after_a_healthy_time_is_told_again(world):
    async def flaky(handle: RoleHandle) -> None:
        handle.running()
        await world.clock.sleep(10)
        raise OSError("gone")

    world.supervisor.start("flaky", flaky)
    await world.clock.advance(23)
    assert [advice.why for advice in world.advice] == ["OSError: gone"] * 2


async def test_time_spent_waiting_does_not_count_as_healthy(world):
    starts: list[float] = []

    async def stalls(handle: RoleHandle) -> None:
        starts.append(world.clock.monotonic())
        handle.waiting("no kubelet")
        await world.clock.sleep(100)
        raise OSError("gone")

    world.supervisor.start("stalls", stalls)
    await world.clock.advance(400)
    assert starts == [0, 101, 203, 307]


async def test_an_obstacle_is_waiting_not_failed_and_is_told_once(world):
    async def obstructed(handle: RoleHandle) -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(raise_obstacle())

    async def raise_obstacle() -> None:
        raise HwError("libnvidia-ml.so.1 was not found", "the driver's library", "install the driver")

    world.supervisor.start("hw", obstructed)
    await world.clock.advance(20)
    status = world.status("hw")
    assert status.state is RoleState.WAITING
    assert "libnvidia-ml.so.1 was not found" in status.reason
    assert status.remedy.startswith("install the driver")
    assert status.line == f"{status.reason}; to do: {status.remedy}"
    assert [advice.reason for advice in world.advice] == ["RoleWaiting"]
    assert world.advice[0].severity is Severity.WARNING
    assert world.advice[0].remedy == "install the driver"


async def test_waiting_holds_until_the_role_itself_says_that_it_runs(world):
    present = False

    async def needs(handle: RoleHandle) -> None:
        if not present:
            raise HwError("nothing", "something", "wait")
        await forever(handle)

    world.supervisor.start("hw", needs)
    await world.clock.advance(2)
    assert world.status("hw").state is RoleState.WAITING
    present = True
    await world.clock.advance(10)
    assert world.status("hw").ready


async def test_a_mixed_group_is_a_defect_not_an_obstacle(world):
    async def mixed(handle: RoleHandle) -> None:
        raise ExceptionGroup("both", [HwError("a", "b", "c"), KeyError("k")])

    world.supervisor.start("mixed", mixed)
    await settle()
    assert world.status("mixed").state is RoleState.FAILED
    assert "KeyError" in world.status("mixed").reason


async def test_returning_without_being_asked_is_a_failure(world):
    async def returns(handle: RoleHandle) -> None:
        return

    world.supervisor.start("short", returns)
    await settle()
    assert world.status("short").state is RoleState.FAILED
    assert "returned" in world.status("short").reason


async def test_a_cancellation_that_leaks_from_inside_is_restarted(world):
    starts = 0

    async def leaks(handle: RoleHandle) -> None:
        nonlocal starts
        starts += 1
        if starts == 1:
            raise asyncio.CancelledError
        await forever(handle)

    world.supervisor.start("leaky", leaks)
    await world.clock.advance(2)
    assert starts == 2
    assert world.status("leaky").ready


async def test_stop_lets_roles_clean_up_and_marks_them_stopped():
    world = World()
    cleaned = []

    async def tidy(handle: RoleHandle) -> None:
        try:
            await forever(handle)
        finally:
            await asyncio.sleep(0)
            cleaned.append(True)

    world.supervisor.start("tidy", tidy)
    await settle()
    assert await world.supervisor.stop(60) == ()
    assert cleaned == [True]
    assert world.status("tidy").state is RoleState.STOPPED


@pytest.mark.parametrize("ending", [None, OSError("while cleaning up"), ExceptionGroup("", [ValueError()])])
async def test_a_role_that_swallows_its_cancellation_ends_all_the_same(ending):
    world = World()

    async def swallows(handle: RoleHandle) -> None:
        with contextlib.suppress(asyncio.CancelledError):
            await forever(handle)
        if ending is not None:
            raise ending

    world.supervisor.start("swallows", swallows)
    await settle()
    assert await world.supervisor.stop(60) == ()
    assert world.clock.deadlines == []


async def test_a_lost_cancellation_is_asked_for_again():
    world = World()

    async def loses_one(handle: RoleHandle) -> None:
        with contextlib.suppress(asyncio.CancelledError):
            await forever(handle)
        await forever(handle)

    world.supervisor.start("loses", loses_one)
    await settle()
    stopping = asyncio.create_task(world.supervisor.stop(60))
    await pass_seconds(31)
    assert await stopping == ()


async def test_stop_names_a_role_that_does_not_end():
    world = World()
    release = asyncio.Event()

    async def stubborn(handle: RoleHandle) -> None:
        try:
            await forever(handle)
        finally:
            while not release.is_set():
                with contextlib.suppress(asyncio.CancelledError):
                    await release.wait()

    world.supervisor.start("stubborn", stubborn)
    world.supervisor.start("good", forever)
    await settle()
    stopping = asyncio.create_task(world.supervisor.stop(60))
    for _ in range(2):
        await pass_seconds(31)
    assert await stopping == ("stubborn",)
    release.set()
    assert await world.supervisor.stop(60) == ()


async def test_stop_ends_a_role_that_waits_for_its_next_attempt():
    world = World()

    async def crash(handle: RoleHandle) -> None:
        raise OSError("no")

    world.supervisor.start("bad", crash)
    await settle()
    assert world.clock.deadlines == [1.0]
    assert await world.supervisor.stop(60) == ()


async def test_a_name_can_be_used_once(world):
    world.supervisor.start("one", forever)
    with pytest.raises(ValueError, match="one is started twice"):
        world.supervisor.start("one", forever)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_signals_set_the_stop_event(number):
    stop = asyncio.Event()
    with stop_on_signals(stop, signal.SIGTERM, signal.SIGINT):
        os.kill(os.getpid(), number)
        await asyncio.wait_for(stop.wait(), 60)
