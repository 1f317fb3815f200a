"""What an agent from before the report in an annotation left on a node is understood, and the other way round.

``older_agent.json`` is what such an agent wrote on a simulated node: GPU 1 was called healthy by a person after Xid 95,
GPU 3 fell off the bus, and GPU 5 did while somebody worked on it.
"""

from __future__ import annotations

import json
import sqlite3
from pathlib import Path
from typing import Any

import msgspec
import pytest

from kgpu.formats.xid.action import Action
from kgpu.health.history import HealthHistory
from kgpu.health.model import RememberedGpu
from kgpu.hw.verdicts import GpuVerdict, VerdictFile
from kgpu.operator.gpu_health import gpus_of
from kgpu.operator.nodes import read_node

WRITTEN: dict[str, Any] = json.loads((Path(__file__).parent / "older_agent.json").read_text())


def by_index(gpus: Any) -> dict[int, Any]:
    return {gpu.index: gpu for gpu in gpus}


@pytest.fixture
def history(tmp_path: Path) -> HealthHistory:
    """The file as the older agent made it."""
    history = HealthHistory(tmp_path / "health.db")
    history.load()
    with sqlite3.connect(history.path) as db:
        db.executemany("INSERT INTO state VALUES (?, ?)", WRITTEN["state"].items())
        db.executemany("INSERT INTO memory VALUES (?, ?)", [(k, json.dumps(v)) for k, v in WRITTEN["memory"].items()])
    return history


def test_memories_of_verdicts_mutes_and_maintenance_are_kept(history: HealthHistory) -> None:
    remembered, told = history.load()
    assert told == []
    gpus = by_index(remembered.memories.values())
    assert {index: gpu.action for index, gpu in gpus.items()} == {
        1: Action.IGNORE, 3: Action.REBOOT, 5: Action.IGNORE,
    }  # fmt: skip
    assert gpus[1].accepted
    assert gpus[3].xids == {"79": 1}
    assert gpus[5].maintenance_until > 1e11


def test_an_agent_that_is_rolled_back_keeps_what_a_later_one_remembers(history: HealthHistory) -> None:
    """Later agents may remember more of a GPU; verdicts, mutes and maintenance are read all the same."""
    known, _ = history.load()
    later = [(json.dumps({**gpu, "newField": {"a": [1]}}), key) for key, gpu in WRITTEN["memory"].items()]
    with sqlite3.connect(history.path) as db:
        db.executemany("UPDATE memory SET value = ? WHERE gpu = ?", later)
    assert history.load() == (known, [])
    assert len(known.memories) == len(later)


def test_an_older_agent_finds_its_fields_in_what_this_one_remembers() -> None:
    for written in WRITTEN["memory"].values():
        again = json.loads(msgspec.json.encode(msgspec.convert(written, RememberedGpu)))
        assert again.items() >= written.items()


def test_the_verdict_file_is_read_and_written_alike(tmp_path: Path) -> None:
    path = tmp_path / "verdicts.json"
    path.write_text(json.dumps(WRITTEN["verdicts"]))
    verdicts = VerdictFile(path, boot=WRITTEN["verdicts"]["boot"], uptime=lambda: WRITTEN["verdicts"]["uptime"]).read()
    assert verdicts is not None
    gpus = by_index(verdicts.gpus)
    assert (gpus[3].action, gpus[3].withdraws, gpus[3].remedy_key) == ("reboot", True, "bucket/RESTART_BM")
    assert (gpus[5].withdraws, gpus[5].muted) == (False, "in maintenance")
    assert not gpus[1].withdraws
    for written in WRITTEN["verdicts"]["gpus"]:
        again = json.loads(msgspec.json.encode(msgspec.convert(written, GpuVerdict)))
        assert again.items() >= written.items()


def test_the_operator_passes_its_condition_on() -> None:
    (condition,) = WRITTEN["conditions"]
    node = read_node({"metadata": {"name": "n"}, "status": {"conditions": [condition]}})
    gpus = gpus_of(node)
    assert gpus.bad == 1
    assert gpus.untold == condition["message"]
    assert "GPU 3" in gpus.untold
