"""The agent's loop over a fake driver: what it tells, and what it survives."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest
from msgspec import structs

from kgpu.base.errors import HwError
from kgpu.formats.usage import UsageState
from kgpu.formats.usage_now import UsageSource
from kgpu.hw.port import Process
from kgpu.usage.live import HeardAgent, judged
from kgpu.usage.states import IdleRules
from kgpu.usage.store import UsageStore
from tests.usage.watched import POD, WatchedNode

S = UsageState


@pytest.fixture
async def agent(tmp_path: Path) -> WatchedNode:
    agent = WatchedNode(tmp_path)
    agent.busy(0.0)
    agent.holders.now = {"GPU-1": (POD,)}
    await agent.start()
    return agent


async def test_every_asker_judges_by_a_window_of_its_own(agent: WatchedNode) -> None:
    await agent.looks(300)
    assert await agent.state(IdleRules(window=1800.0, warm_up=0.0)) is S.HELD_IDLE
    assert await agent.state(IdleRules(window=2 * 3600.0, warm_up=0.0)) is S.BUSY, "younger than that"
    await agent.looks(600)
    assert await agent.state(IdleRules(window=2 * 3600.0, warm_up=0.0)) is S.HELD_IDLE, "by what is on the disk"
    agent.busy(80.0)
    await agent.looks(1)
    agent.busy(0.0)
    await agent.looks(1)
    assert await agent.state(IdleRules(window=1800.0, warm_up=0.0)) is S.BUSY, "one busy reading refutes it"


async def test_after_a_restart_a_holder_is_the_same_although_its_uid_is_not_known_yet(agent: WatchedNode) -> None:
    await agent.looks(600)
    assert await agent.state() is S.HELD_IDLE
    await agent.start()
    agent.holders.now = {"GPU-1": (structs.replace(POD, uid=POD.by_name, owner="", labels={}),)}
    await agent.looks(2)
    assert await agent.state() is S.HELD_IDLE
    agent.holders.now = {"GPU-1": (POD,)}
    await agent.looks(1)
    assert await agent.state() is S.HELD_IDLE
    (device,) = (await agent.said()).devices
    (holder,) = device.holders
    assert (holder.uid, holder.owner) == (POD.uid, POD.owner)
    agent.holders.now = {"GPU-1": (structs.replace(POD, uid="another"),)}
    await agent.looks(1)
    assert await agent.state() is S.BUSY, "a new pod of that name is another"


async def test_a_check_of_kgpus_own_is_nobodys_work(agent: WatchedNode) -> None:
    await agent.looks(600)
    for _ in range(9):
        await agent.looks(59)
        agent.busy(80.0)
        agent.reader.set_processes([Process(uuid="GPU-1", pid=7), Process(uuid="GPU-1", pid=8)])
        agent.checked_at = agent.now + 5.0
        await agent.looks(1)
        agent.busy(0.0)
        assert await agent.state() is S.HELD_IDLE
    await agent.looks(1)
    assert await agent.state(IdleRules(window=2 * 3600.0, idle_below=0.01)) is S.HELD_IDLE
    text = agent.watcher.metrics()
    assert (
        'kgpu_usage_busy_seconds_total{UUID="GPU-1",partition="",namespace="team",pod="p",container="main",uid="u1"} 0'
        in text
    )
    assert 'state="unknown"} 0' in text, "who held it pays for it, and the time was idle"


async def test_work_is_seen_although_kgpu_checks(agent: WatchedNode) -> None:
    await agent.looks(600)
    agent.busy(80.0)
    for _ in range(3):
        agent.checked_at = agent.now + 5.0
        await agent.looks(1)
        assert await agent.state() is not S.BUSY, "that may have been the check"
    await agent.looks(2)
    assert await agent.state() is S.BUSY


async def test_a_check_that_does_not_end_is_no_idleness(agent: WatchedNode) -> None:
    await agent.looks(600)
    for _ in range(10):
        agent.checked_at = agent.now + 10.0
        await agent.looks(1)
    assert await agent.state() is S.UNKNOWN


async def test_one_that_is_not_heard_any_more_is_unknown(agent: WatchedNode) -> None:
    await agent.looks(600)
    said = await agent.said()
    (device,) = judged([HeardAgent(said, 0.0)], IdleRules(), 61.0)
    assert device.verdict.state is S.UNKNOWN


async def test_a_hung_driver_call_is_unknown_never_idle(agent: WatchedNode) -> None:
    await agent.looks(600)
    assert await agent.state() is S.HELD_IDLE
    agent.reader.hung = True
    await agent.looks(1)
    assert 'kgpu_gpu_state{UUID="GPU-1",partition="",state="unknown"} 1' in agent.watcher.metrics()
    await agent.looks(7)
    assert await agent.state() is S.UNKNOWN
    assert agent.states[-1][0] is False
    agent.reader.hung = False


async def test_a_driver_that_is_gone_is_told_once(agent: WatchedNode) -> None:
    await agent.looks(3)
    agent.reader.set_down(HwError("no driver", "a driver", "load it"))
    await agent.looks(3)
    assert [one.reason for one in agent.advice] == ["DriverSilent"]
    assert agent.states[-1][0] is False


async def test_a_kill_between_two_looks_loses_nothing(agent: WatchedNode) -> None:
    agent.busy(50.0)
    await agent.looks(33)
    await agent.start()
    await agent.looks(60)
    _, lines = await agent.lines()
    assert {line.boot for line in lines} == {"boot-1/1000"}
    last = lines[-1]
    assert sum(last.states_us.values()) == last.uptime_us - lines[0].uptime_us
    (holder,) = last.holders
    assert holder.held_us == last.uptime_us - lines[0].uptime_us
    assert holder.busy_us == holder.held_us // 2


async def test_another_boot_begins_anew(agent: WatchedNode) -> None:
    await agent.looks(40)
    agent.boot, agent.now = "boot-2", 60.0
    await agent.start()
    await agent.looks(1)
    _, lines = await agent.lines()
    assert lines[-1].boot == "boot-2/60"
    assert lines[-1].states_us == {}


async def test_a_cursor_gives_what_is_new_and_that_of_another_store_all(agent: WatchedNode) -> None:
    await agent.looks(40)
    cursor, lines = await agent.lines()
    assert len(lines) > 1
    assert (await agent.lines(cursor))[1] == []
    await agent.looks(40)
    more = (await agent.lines(cursor))[1]
    assert more
    assert (await agent.lines("another:77"))[1] == [*lines, *more]
    assert (await agent.lines("%00%ff:x"))[1] == [*lines, *more]


async def test_a_disk_that_is_full_is_told_and_metrics_go_on(
    agent: WatchedNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    await agent.looks(3)

    def full(*_given: object, **_more: object) -> None:
        raise sqlite3.OperationalError("database or disk is full")

    with monkeypatch.context() as broken:
        broken.setattr(UsageStore, "_save", full)
        await agent.looks(100)
        assert [one.reason for one in agent.advice] == ["UsageNotSaved"]
        assert 'kgpu_usage_held_seconds_total{UUID="GPU-1"' in agent.watcher.metrics()
    await agent.looks(4)
    _, lines = await agent.lines()
    assert lines[-1].uptime_us - lines[0].uptime_us >= 900_000_000, "what could not be written is written later"


async def test_a_broken_file_is_set_aside(agent: WatchedNode) -> None:
    await agent.looks(3)
    await agent.watcher.end()
    (agent.folder / "u.sqlite").write_bytes(b"no database" * 1000)
    await agent.start()
    await agent.looks(4)
    assert [one.reason for one in agent.advice] == ["UsageHistoryLost"]
    assert (agent.folder / "u.sqlite.broken").exists()
    assert len((await agent.lines())[1]) >= 1


async def test_who_measures_is_told(agent: WatchedNode) -> None:
    await agent.looks(2)
    assert (await agent.said()).devices[0].source is UsageSource.UTILIZATION
