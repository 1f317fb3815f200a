"""``kgpu lab node``: what it says without a running cluster, and about nodes that can't be read."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from kgpu.cli.main import main
from kgpu.lab.nodes import manage


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A lab's folder with two nodes, one of them damaged; no lab runs."""
    manage.add(tmp_path, "cpu", 2)
    (tmp_path / "nodes" / "cpu-2" / "node.json").write_text("{")
    return tmp_path


def test_nodes_and_problems_are_listed(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["kgpu", "lab", "node", "list", "--dir", str(folder)]) == 0
    told = capsys.readouterr()
    assert "cpu-1" in told.out
    assert "host: not running" in told.out
    assert "cpu-2" in told.err
    assert main(["kgpu", "lab", "node", "list", "--dir", str(folder), "-o", "json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert [one["name"] for one in report["nodes"]] == ["cpu-1"]
    assert len(report["problems"]) == 1


def test_all_of_them_can_be_removed(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["kgpu", "lab", "node", "remove", "--all", "--dir", str(folder)]) == 0
    assert "2 simulated nodes removed" in capsys.readouterr().out
    assert manage.listing(folder) == {}
    assert manage.broken(folder) == {}


@pytest.mark.parametrize(
    ("words", "what"),
    [
        (["add", "cpu"], "there is no lab"),
        (["add", "hgx-h10"], "there is no lab"),
        (["remove", "cpu-9"], "there is no simulated node cpu-9"),
        (["remove"], "neither or both"),
        (["hw-root", "cpu-1"], "no simulated hardware"),
    ],
)
def test_bad_input(words: list[str], what: str, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["kgpu", "lab", "node", words[0], "--dir", str(folder), *words[1:]]) == 2
    assert what in capsys.readouterr().err
