"""``kgpu lab hw`` finds the simulated machine of a lab's node, and says what to do where it can't."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from kgpu.cli.main import main
from kgpu.hw.simulator import operate
from kgpu.hw.simulator.create import create_root
from kgpu.lab import common
from kgpu.lab.nodes import agents, manage

Said = pytest.CaptureFixture[str]
HW = ("kgpu", "lab", "hw")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An embedded lab's folder, of which nothing runs."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    for name in ("KUBECONFIG", "KGPU_LAB", "KGPU_ROOT"):
        monkeypatch.delenv(name, raising=False)
    found = common.labs_root() / "mine"
    found.mkdir(parents=True)
    return found


@pytest.fixture
def add(folder: Path) -> Callable[[str], Path]:
    def add(profile: str) -> Path:
        (name,) = manage.add(folder, profile)
        root = folder / "nodes" / name / "hw"
        agents.make_hardware(manage.listing(folder)[name], root)
        return root

    return add


def hot(root: Path) -> list[int]:
    return [gpu["index"] for gpu in operate.snapshot(root)["gpus"] if gpu["temperature_c"] > 80]


def test_a_node_by_its_name_in_the_lab_that_the_shell_is_about(
    folder: Path, add: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    l4, _ = add("l4"), add("hgx-h100")
    monkeypatch.setenv("KGPU_LAB", str(folder))
    assert main([*HW, "inject", "--node", "l4-1", "hot", "--gpu", "1"]) == 0
    assert hot(l4) == [1]
    assert main([*HW, "clear", "--node", "l4-1"]) == 0
    assert hot(l4) == []


def test_the_only_node_needs_no_name(folder: Path, add: Callable[[str], Path]) -> None:
    root = add("l4")
    assert main([*HW, "inject", "--dir", str(folder), "hot", "--gpu", "0"]) == 0
    assert hot(root) == [0]


def test_of_several_none_is_guessed(folder: Path, add: Callable[[str], Path], capsys: Said) -> None:
    roots = [add("l4"), add("hgx-h100")]
    assert main([*HW, "inject", "--dir", str(folder), "hot", "--gpu", "0"]) == 2
    said = capsys.readouterr().err
    assert "hgx-h100-1, l4-1" in said
    assert "--node" in said
    assert [hot(root) for root in roots] == [[], []]


@pytest.mark.usefixtures("add")
def test_a_node_that_is_not_there(folder: Path, capsys: Said) -> None:
    manage.add(folder, "cpu")
    for node in ("l4-9", "cpu-1"):
        assert main([*HW, "show", "--dir", str(folder), "--node", node]) == 2
        assert f"node {node} has no simulated hardware" in capsys.readouterr().err
    assert main([*HW, "show", "--dir", str(folder)]) == 2
    assert "no running lab" in capsys.readouterr().err


def test_a_root_and_a_node_are_one_too_many(
    folder: Path, add: Callable[[str], Path], tmp_path: Path, capsys: Said, monkeypatch: pytest.MonkeyPatch
) -> None:
    root, other = add("l4"), create_root("t4", tmp_path / "other")
    words = (*HW, "inject", "--dir", str(folder), "--node", "l4-1", "hot", "--gpu", "0")
    assert main([*words, "--root", str(other)]) == 2
    assert "--root beside --node" in capsys.readouterr().err
    monkeypatch.setenv("KGPU_ROOT", str(other))
    assert main([*words]) == 0, "what is typed goes before the environment"
    assert (hot(root), hot(other)) == ([0], [])
    assert main([*HW, "inject", "hot", "--gpu", "0"]) == 0
    assert hot(other) == [0]


@pytest.fixture
def tab(folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: Said) -> Callable[..., list[str]]:
    (folder / common.EMBEDDED_STATE).write_text("{}")
    monkeypatch.setenv("_KGPU_COMPLETE", "bash_complete")

    def press(*words: str) -> list[str]:
        monkeypatch.setenv("COMP_WORDS", " ".join(("kgpu", *words)))
        monkeypatch.setenv("COMP_CWORD", str(len(words)))
        main(["kgpu"])
        found = capsys.readouterr()
        assert found.err == ""
        return [line.partition(",")[2] for line in found.out.splitlines() if line]

    return press


@pytest.mark.parametrize(
    ("words", "offered"),
    [
        (("lab", "status", "--name", ""), ["mine"]),
        (("lab", "hw", "inject", "--name", "mine", "--node", "l"), ["l4-1"]),
        (("lab", "hw", "show", "--name", "nobodys", "--node", ""), []),
        (("lab", "hw", "create", "hgx-h2"), ["hgx-h200"]),
        (("lab", "run", "first-"), ["first-gpu-pod"]),
        (("lab", "node", "add", "gau"), ["gaudi2", "gaudi3"]),
    ],
)
def test_tab_offers_what_there_is(
    words: tuple[str, ...], offered: list[str], add: Callable[[str], Path], tab: Callable[..., list[str]]
) -> None:
    add("l4")
    assert tab(*words) == offered
