"""The bill that the documents begin with, as a reader of its page makes it: by the agent's counting, to the cent."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from kgpu.cli.main import main
from kgpu.lab.idle_weekend import recording

PAGE = Path(__file__).resolve().parents[2] / "docs" / "tutorial" / "idle-weekend.md"
FIRST = ("--since", "2026-07-17T18:00:00Z", "--until", "2026-07-20T06:00:00Z")
SECOND = ("--since", "2026-07-24T18:00:00Z", "--until", "2026-07-27T06:00:00Z")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The recording of two weekends, and the contract's prices."""
    found = tmp_path_factory.mktemp("weekend")
    (found / "weekend.jsonl").write_bytes(b"".join(recording(weekends=2)))
    (found / "prices.csv").write_text("product,perGpuHour,source\n*A100*,3.06,the contract\n")
    return found


def usage(folder: Path, capsys: pytest.CaptureFixture[str], *words: str) -> str:
    files = ("--from", str(folder / "weekend.jsonl"), "--prices", str(folder / "prices.csv"))
    assert main(["kgpu", "usage", *files, *words]) == 0
    return capsys.readouterr().out


def test_both_weekends_cost_what_they_cost(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    costs: list[float] = []
    for window in (FIRST, SECOND):
        found: dict[str, Any] = json.loads(usage(folder, capsys, *window, "-o", "json"))
        (row,) = found["rows"]
        assert (row["name"], row["gpu_hours"], row["cost"]) == ("research", 128 * 60, 23_500.80)
        assert 58.5 * 128 < row["wasted_hours"] < 59.5 * 128, "an hour passes until a GPU is called idle"
        costs.append(row["cost"])
    assert sum(costs) == 47_001.60


def test_the_page_shows_what_is_printed(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert usage(folder, capsys, *FIRST) in PAGE.read_text()


def test_the_week_between_was_work(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    week = ("--since", FIRST[-1], "--until", SECOND[1], "-o", "json")
    (row,) = json.loads(usage(folder, capsys, *week))["rows"]
    assert row["wasted_hours"] == pytest.approx(0, abs=128 * 0.2)
    assert row["busy_ratio"] == pytest.approx(0.97, abs=0.01)


def test_the_command_writes_the_recording(capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    assert main(["kgpu", "lab", "idle-weekend", "--nodes", "1"]) == 0
    lines = capfdbinary.readouterr().out.splitlines(keepends=True)
    assert lines == list(recording(nodes=1))
    assert {line["node"] for line in map(json.loads, lines) if "node" in line} == {"gpu-00"}
