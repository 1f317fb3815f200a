"""The history file: what is written together is there together, broken files, limits, orders."""

from __future__ import annotations

import os
import sqlite3
import time
from dataclasses import replace
from pathlib import Path

import pytest

from kgpu.base.errors import HostError
from kgpu.formats.xid.action import Action
from kgpu.health.history import HealthHistory, Remembered
from kgpu.health.model import CheckState, CounterSample, EvidenceSource, GpuEvidence, RememberedGpu
from kgpu.health.node import HealthOrder, HistoryNote

EVIDENCE = GpuEvidence(
    source=EvidenceSource.XID, key="79", what="lost", action=Action.REBOOT, first=1.5, last=2.5, text="x\x00y"
)
MEMORY = RememberedGpu(
    gpu="GPU-1", index=3, driver=570, events=(EVIDENCE,), samples=(CounterSample(at=1.0, pcie_replays=4),),
    conditions=(CheckState(evidence=EVIDENCE, since=1, last=2, raised=True),), episodes=(("xid:79", 1.5),),
    accepted={"a": 2.0},
)  # fmt: skip
STATE = Remembered(boot="b1", began=1234.5678901, sequence=77, memories={"GPU-1": MEMORY})


def note(name: str = "Xid 79", at: float = 1.0, **more: object) -> HistoryNote:
    return HistoryNote(**{"at": at, "gpu": "GPU-1", "kind": "xid", "name": name, "text": "t", **more})  # type: ignore[arg-type]


@pytest.fixture
def history(tmp_path: Path) -> HealthHistory:
    return HealthHistory(tmp_path / "state" / "health.db")


def test_nothing_is_remembered_at_first(history: HealthHistory) -> None:
    assert history.notes() == []
    assert history.load() == (Remembered(), [])


def test_what_was_saved_is_loaded_by_another_process(history: HealthHistory) -> None:
    history.save(STATE, [note()])
    assert HealthHistory(history.path).load() == (STATE, [])
    assert HealthHistory(history.path).notes() == [note()]
    history.save(replace(STATE, memories={}))
    assert HealthHistory(history.path).load()[0].memories == {}


def test_a_text_that_comes_later_is_added(history: HealthHistory) -> None:
    history.save(STATE, [note(text=""), note("Xid 13", text="")])
    history.save(STATE, [note(text="words", amends=True), note("Xid 14", text="new", amends=True)])
    assert [(one.name, one.text) for one in history.notes()] == [("Xid 79", "words"), ("Xid 13", ""), ("Xid 14", "new")]


def test_notes_are_chosen(history: HealthHistory) -> None:
    history.save(STATE, [note(str(at), at=at, gpu=f"GPU-{int(at) % 2}") for at in (1.0, 2.0, 3.0, 4.0)])
    assert [one.name for one in history.notes(gpus=["GPU-1"])] == ["1.0", "3.0"]
    assert [one.name for one in history.notes(since=3.0)] == ["3.0", "4.0"]
    assert [one.name for one in history.notes(limit=1)] == ["4.0"]


@pytest.mark.parametrize("content", [b"no database" * 100, b"SQLite format 3\x00" + b"\xff" * 4096])
def test_a_broken_file_is_set_aside_and_told(history: HealthHistory, content: bytes) -> None:
    history.path.parent.mkdir()
    history.path.write_bytes(content)
    found, advice = history.load()
    assert found == Remembered()
    assert [one.reason for one in advice] == ["HealthHistoryLost"]
    assert history.path.with_name("health.db.broken").read_bytes() == content
    history.save(STATE, [note()])
    assert history.load() == (STATE, [])


def test_pages_that_go_bad_later_are_found_too(history: HealthHistory) -> None:
    history.save(STATE, [note(str(number), text="x" * 200) for number in range(500)])
    size = history.path.stat().st_size
    with open(history.path, "r+b") as file:
        file.seek(100)
        file.write(os.urandom(size - 100))
    for ending in ("-wal", "-shm"):
        history.path.with_name(history.path.name + ending).unlink(missing_ok=True)
    found, advice = history.load()
    assert found == Remembered()
    assert [one.reason for one in advice] == ["HealthHistoryLost"]


def test_a_memory_of_another_release_costs_that_gpu_alone(history: HealthHistory) -> None:
    history.save(replace(STATE, memories={"GPU-1": MEMORY, "GPU-2": replace(MEMORY, gpu="GPU-2")}))
    with sqlite3.connect(history.path) as db:
        db.execute("UPDATE memory SET value = ? WHERE gpu = 'GPU-1'", (b'{"gpu": 5}',))
    db.close()
    found, advice = history.load()
    assert set(found.memories) == {"GPU-2"}
    assert "GPU-1" in advice[0].what


def test_a_folder_that_can_not_be_used_is_an_error_and_nothing_is_set_aside(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(HostError):
        HealthHistory(tmp_path / "file" / "health.db").load()
    (tmp_path / "health.db").mkdir()
    with pytest.raises(HostError):
        HealthHistory(tmp_path / "health.db").load()
    assert (tmp_path / "health.db").is_dir()


def test_old_and_many_notes_go(tmp_path: Path) -> None:
    path, day = tmp_path / "health.db", 86400.0
    HealthHistory(path).save(STATE, [note(str(at), at=at * day) for at in range(200)])
    kept = [int(one.name) for one in HealthHistory(path).notes(limit=1000)]
    assert kept == list(range(149 - 90, 200))
    HealthHistory(path, max_notes=10).save(STATE, [])
    assert [int(one.name) for one in HealthHistory(path).notes(limit=1000)] == list(range(190, 200))


def test_one_wrong_time_does_not_empty_it(history: HealthHistory) -> None:
    history.save(STATE, [note(str(at), at=at) for at in range(60)])
    HealthHistory(history.path).save(STATE, [note("wrong", at=4e9)])
    assert len(HealthHistory(history.path).notes(limit=1000)) == 61


def test_a_full_file_is_an_error_and_what_was_there_stays(tmp_path: Path) -> None:
    small = HealthHistory(tmp_path / "health.db", max_bytes=64 << 10)
    small.save(STATE, [note()])
    with pytest.raises(HostError, match="full"):
        small.save(STATE, [note(text="x" * 1000) for _ in range(500)])
    assert small.notes() == [note()]


def test_orders_wait_until_they_are_done(history: HealthHistory) -> None:
    first, second = (
        HealthOrder(kind="healthy", gpu="all", at=1.0, who="me"),
        HealthOrder(kind="maintenance", gpu="3", at=2.0),
    )
    history.put(first, second)
    waiting = history.orders()
    assert [order for _, order in waiting] == [first, second]
    history.save(STATE, done=[waiting[0][0]])
    assert [order for _, order in history.orders()] == [second]


def test_the_number_of_an_order_that_is_gone_does_not_come_again(
    history: HealthHistory, monkeypatch: pytest.MonkeyPatch
) -> None:
    order = HealthOrder(kind="healthy", gpu="all", at=1.0)
    history.put(order)
    [(gone, _)] = history.orders()
    history.save(STATE, done=[gone])
    history.put(order)
    [(number, _)] = history.orders()
    monkeypatch.setattr(time, "time_ns", lambda: 0)  # a clock that is set back keeps the order of what waits
    history.put(order)
    assert [one for one, _ in history.orders()] == [number, number + 1]
    assert number != gone
