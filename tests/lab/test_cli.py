"""``kgpu lab``: what it says and its exit codes, without a cluster."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path

import pytest

from kgpu.cli.main import main
from kgpu.hw.simulator import build as hw_build
from kgpu.lab import find
from kgpu.lab.embedded.lab import EmbeddedLab
from kgpu.lab.embedded.model import FirstNode
from kgpu.lab.progress import QuietProgress
from kgpu.lab.real import build, cluster, hosttools, kgpu_image
from kgpu.lab.scenarios import model


@pytest.fixture(autouse=True)
def own_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("XDG_STATE_HOME", raising=False)


def test_scenarios_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["kgpu", "lab", "run", "--list"]) == 0
    assert "first-gpu-pod" in capsys.readouterr().out
    assert main(["kgpu", "lab", "run", "-o", "json"]) == 0
    assert {row["name"] for row in json.loads(capsys.readouterr().out)} == set(model.bundled())


def test_unknown_scenario_is_bad_input(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["kgpu", "lab", "run", "mig-mixt"]) == 2
    assert 'did you mean "mig-mixed"' in capsys.readouterr().err


def test_status_of_a_lab_that_is_not_up(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert main(["kgpu", "lab", "status", "-o", "json"]) == 3
    report = json.loads(capsys.readouterr().out)
    folder = str(tmp_path / ".local/state/kgpu/lab/lab")
    assert report == {"name": "lab", "kind": "embedded", "running": False, "folder": folder}


def test_kubectl_without_a_lab(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["kgpu", "lab", "kubectl", "get", "nodes"]) == 2
    assert 'no running lab "lab"' in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "what"),
    [
        (["up", "--gpus", "65"], "65"),
        (["up", "--name", "Bad Name"], "can't be a lab's name"),
        (["up", "--profile", "hgx-h10"], 'no profile is named "hgx-h10"'),
        (["up", "--real", "--no-node"], "--no-node with --real"),
        (["up", "--real", "--data", "d"], "--data with --real"),
        (["up", "--real", "--feature-gates", "DRADeviceTaintRules=true"], "--feature-gates with --real"),
        (["up", "--feature-gates", "Other=true"], "Other=true"),
        (["up", "--real", "--name", "Bad Name"], "can't be a lab's name"),
        (["up", "--real", "--gpus", "65"], "65"),
        (["up", "--real", "--profil", "t4"], "--profil"),
    ],
)
def test_bad_input(words: list[str], what: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["kgpu", "lab", *words]) == 2
    assert what in capsys.readouterr().err


def test_up_without_root_is_explained(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    assert main(["kgpu", "lab", "up", "--real"]) == 2
    assert "needs root" in capsys.readouterr().err


def test_up_without_the_machines_tools_names_them(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr(hosttools, "_SEARCH", "/nowhere")
    assert main(["kgpu", "lab", "up", "--real"]) == 2
    message = capsys.readouterr().err
    assert "conntrack" in message
    assert "apt-get install" in message


def test_a_refused_up_makes_nothing(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert main(["kgpu", "lab", "up", "--real", "--name", "b", "--profile", "hgx-h10"]) == 2
    message = capsys.readouterr().err
    assert 'no profile is named "hgx-h10"' in message or "needs root" in message
    assert list(tmp_path.iterdir()) == []


def test_status_tells_how_to_start_that_very_lab(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["kgpu", "lab", "status", "--name", "x"]) == 3
    assert "kgpu lab up --name x" in capsys.readouterr().out


@pytest.mark.parametrize("verb", ["down", "status"])
def test_no_lab_needs_no_root_to_be_told(
    verb: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    main(["kgpu", "lab", verb, "--name", "x"])
    told = capsys.readouterr()
    assert "needs root" not in told.err
    assert '"x"' in told.out
    assert "try sudo" in told.out


def test_interrupted_up_tells_what_is_left(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    def stopped(_: cluster.RealLab) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(cluster.RealLab, "up", stopped)
    assert main(["kgpu", "lab", "up", "--real", "--name", "x", "--gpus", "4"]) == 130
    message = capsys.readouterr().err
    assert "Nothing of the lab runs" in message
    monkeypatch.setattr(cluster.RealLab, "running", True)
    assert main(["kgpu", "lab", "up", "--real", "--name", "x", "--gpus", "4"]) == 130
    message = capsys.readouterr().err
    assert "kgpu lab up --real --gpus 4 --name x" in message
    assert "kgpu lab down --name x" in message


ASKED = (
    "--no-node",
    "--profile gaudi3 --gpus 2 --no-agent --operator --feature-gates DRADeviceTaintRules=true",
    "--profile l4 --operator --data /tmp/kept --port 45678",
    "--driver container --no-agent --operator",
    "--profile l4 --gpus 4 --usage",
)


@pytest.mark.parametrize("asked", ASKED)
def test_up_that_was_interrupted_before_anything_was_written_goes_on_with_all_that_was_asked_for(
    asked: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def stopped(_: EmbeddedLab) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(EmbeddedLab, "up", stopped)
    assert main(["kgpu", "lab", "up", *asked.split(), "--name", "x"]) == 130
    (told,) = re.findall(r"go on: +kgpu lab up (.*) --name x$", capsys.readouterr().err, re.MULTILINE)
    options = [set(re.findall(r"--[a-z-]+(?: [^-]\S*)?", words)) for words in (told, asked)]
    assert options[0] == options[1]


def test_an_operator_that_was_asked_for_is_known_to_the_next_command_however_early_the_interrupt_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stopped(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(EmbeddedLab, "_spawn", stopped)
    with pytest.raises(KeyboardInterrupt):
        EmbeddedLab("x", tmp_path / "x", QuietProgress(), first=FirstNode(profile="gaudi3"), operator=True).up()
    assert find.find("x", tmp_path / "x").about.up_words == ("--profile", "gaudi3", "--operator")


def test_advice_names_commands_that_exist(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    assert main(["kgpu", "lab", "up", "--real"]) == 2
    assert '"kgpu lab demo"' in capsys.readouterr().err
    assert main(["kgpu", "lab", "demo", "--help"]) == 0


def test_down_of_nothing_is_no_error(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    assert main(["kgpu", "lab", "down"]) == 0
    assert "nothing to do" in capsys.readouterr().out


def test_a_broken_state_file_is_explained(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    folder = tmp_path / ".local/state/kgpu/lab/lab"
    folder.mkdir(parents=True)
    (folder / "lab.json").write_text("{")
    assert main(["kgpu", "lab", "status"]) == 2
    assert "is not a lab's state file" in capsys.readouterr().err


def test_labs_are_listed(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert main(["kgpu", "lab", "list"]) == 0
    assert "There are no labs." in capsys.readouterr().out
    for name, text in (("one", '{"name": "one", "port": 1}'), ("two", "{")):
        folder = tmp_path / ".local/state/kgpu/lab" / name
        folder.mkdir(parents=True)
        (folder / "embedded.json").write_text(text)
    assert main(["kgpu", "lab", "list", "-o", "json"]) == 0
    one, two = json.loads(capsys.readouterr().out)
    assert one == {"name": "one", "kind": "embedded", "running": False, "api": "https://127.0.0.1:1"}
    assert "is not an embedded lab's state file" in two["api"]
    assert main(["kgpu", "lab", "list"]) == 0
    assert "one" in capsys.readouterr().out


@pytest.mark.parametrize("words", [["lab"], ["lab", "node"], ["lab", "hw"]])
def test_a_group_alone_tells_its_commands(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["kgpu", *words]) == 2
    told = capsys.readouterr().err
    assert told.startswith("Usage: ")
    assert "\nCommands:\n" in told


def test_an_empty_root_is_not_the_current_folder(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["kgpu", "lab", "hw", "clear", "--root", ""]) == 2
    assert "--root is empty" in capsys.readouterr().err


def test_build_prints_where_helm_is_and_nothing_else(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """As ``kgpu lab build --embedded --helm -o json | jq -r .helm`` reads it."""
    monkeypatch.setattr(hw_build, "native_dir", lambda: Path("/built/native"))
    monkeypatch.setattr(build, "ensure_kubectl", lambda _: "/built/kubectl")
    monkeypatch.setattr(build, "ensure_helm", lambda _: "/built/helm")
    assert main(["kgpu", "lab", "build", "--embedded", "--helm", "-o", "json"]) == 0
    assert json.loads(capsys.readouterr().out) == {
        "native": "/built/native",
        "kubectl": "/built/kubectl",
        "helm": "/built/helm",
    }


def test_an_image_is_written_where_one_asks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    cached = tmp_path / "cached.tar"
    cached.write_bytes(b"an image")
    monkeypatch.setattr(kgpu_image, "ensure_image", lambda _: cached)
    target = tmp_path / "kgpu.tar"
    assert main(["kgpu", "lab", "image", "build", "--output", str(target)]) == 0
    assert (target.read_bytes(), cached.exists()) == (b"an image", True)
    assert str(target) in capsys.readouterr().out
