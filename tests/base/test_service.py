"""Tasks beside a block: they begin before it, end with it, and what they die of is heard."""

from __future__ import annotations

import asyncio
import contextlib

import pytest

from kgpu.base.advice import Advice
from kgpu.base.clock import settle
from kgpu.base.errors import UserError
from kgpu.base.service import Complaint, StandingAdvice, all_end, end, end_within, first_end, running
from tests.loop_clock import pass_seconds


async def forever(said: list[str]) -> None:
    said.append("begun")
    try:
        await asyncio.Event().wait()
    finally:
        said.append("ended")


async def fails() -> None:
    raise ValueError("gone")


async def test_tasks_begin_before_the_block_and_end_with_it() -> None:
    said: list[str] = []
    async with running(one=forever(said), two=forever(said)) as tasks:
        assert said == ["begun", "begun"]
        assert [task.get_name() for task in tasks] == ["one", "two"]
    assert said[2:] == ["ended", "ended"]
    assert asyncio.all_tasks() == {asyncio.current_task()}


async def test_whatever_ends_the_block_ends_them() -> None:
    said: list[str] = []

    async def work() -> None:
        async with running(one=forever(said)):
            await asyncio.Event().wait()

    for stop in (asyncio.CancelledError, KeyError):
        said.clear()
        task = asyncio.ensure_future(work())
        await settle()
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task
        with contextlib.suppress(stop):
            async with running(one=forever(said)):
                raise stop
        assert said == ["begun", "ended"] * 2


async def test_what_a_task_died_of_does_not_hide_what_ended_the_block() -> None:
    with pytest.raises(KeyError):
        async with running(one=fails()):
            raise KeyError


async def test_the_first_end_is_heard_and_so_is_what_it_was() -> None:
    said: list[str] = []
    async with running(one=forever(said), two=fails()) as tasks:
        with pytest.raises(ValueError, match="gone"):
            await first_end(tasks)
        assert not tasks[0].done(), "the others go on until the block ends"


async def test_a_stop_ends_the_wait_and_leaves_nothing_behind() -> None:
    said: list[str] = []
    stop = asyncio.Event()
    async with running(one=forever(said)) as tasks:
        asyncio.get_running_loop().call_soon(stop.set)
        await first_end(tasks, stop=stop)
        assert not tasks[0].done()
        assert asyncio.all_tasks() == {asyncio.current_task(), *tasks}


async def test_the_end_waits_for_what_takes_its_time() -> None:
    ended = []

    async def slow() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0.01)
            ended.append(True)

    task = asyncio.create_task(slow())
    await asyncio.sleep(0)
    await end(task)
    assert ended


def test_a_trouble_is_told_when_it_begins_and_when_it_becomes_another() -> None:
    told: list[Advice] = []
    complaint = Complaint(told.append, subject="disk", reason="Full")
    full, torn = UserError("it is full", "room", "make room"), UserError("it is torn", "a whole one", "mend it")
    assert not complaint.over()
    for problem in (full, full, torn, torn, full):
        complaint.of(problem)
    assert [one.what for one in told] == ["it is full", "it is torn", "it is full"]
    assert {(one.subject, one.reason) for one in told} == {("disk", "Full")}
    assert complaint.over()
    assert not complaint.over()
    complaint.of(full, reason="Again")
    assert told[-1].reason == "Again"


def test_advice_of_ones_own_is_told_once_until_the_problem_is_over() -> None:
    reported: list[Advice] = []
    complaint = Complaint(reported.append)
    absent = Advice(subject="socket", what="waiting for the kubelet", reason="NoKubelet")
    assert [complaint.tell(absent), complaint.tell(absent)] == [True, False]
    assert complaint.over()
    assert complaint.tell(absent)
    assert reported == [absent, absent]


def test_standing_advice_is_news_when_it_begins_and_when_it_comes_back() -> None:
    standing = StandingAdvice()
    first, second = Advice(what="first"), Advice(what="second")
    assert standing.news([first]) == (first,)
    assert standing.news([first, second]) == (second,)
    assert standing.news([second]) == ()
    assert standing.news([first, second]) == (first,)


async def test_a_task_that_has_nothing_more_to_do_ends_no_other_and_one_that_fails_does() -> None:
    failing = asyncio.Event()

    async def nothing() -> None:
        return

    async def fails_later() -> None:
        await failing.wait()
        raise ValueError("gone")

    said: list[str] = []
    async with running(nothing=nothing(), later=fails_later(), forever=forever(said)) as tasks:
        wait = asyncio.create_task(all_end(tasks))
        for _ in range(3):
            await asyncio.sleep(0)
        assert tasks[0].done()
        assert not wait.done()
        failing.set()
        with pytest.raises(ValueError, match="gone"):
            await wait
    assert said == ["begun", "ended"]


async def stubborn(asked: list[str], times: int) -> None:
    """It loses so many cancellations."""
    for _ in range(times):
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            asked.append("lost")
    await asyncio.Event().wait()


async def test_who_loses_a_cancellation_is_asked_once_more_and_who_does_not_end_is_named() -> None:
    asked: list[str] = []
    tasks = [asyncio.create_task(stubborn(asked, times), name=f"loses {times}") for times in (0, 1, 5)]
    await asyncio.sleep(0)
    ending = asyncio.create_task(end_within(60.0, *tasks))
    await pass_seconds(31.0)
    assert asked == ["lost", "lost", "lost"]
    await pass_seconds(31.0)
    assert await ending == ("loses 5",)
    while not tasks[2].done():
        tasks[2].cancel()
        await asyncio.sleep(0)


async def test_who_has_ended_is_not_waited_for() -> None:
    task = asyncio.create_task(fails())
    await asyncio.wait([task])
    assert await end_within(60.0, task) == ()
    assert isinstance(task.exception(), ValueError)
