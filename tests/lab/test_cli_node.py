"""``kgpu lab node``: what it says without a running cluster, and about nodes that can't be read."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace

import pytest

from kgpu.base.errors import LabError, UserError
from kgpu.cli.main import main
from kgpu.lab.embedded import ready
from kgpu.lab.embedded.model import STATE_FILE
from kgpu.lab.nodes import agents, manage
from kgpu.lab.nodes import folder as folder_of_node
from kgpu.lab.nodes.folder import REBOOT, mark_for_removal


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


@pytest.fixture
def up(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The same as if the lab were up; nobody hosts the nodes."""
    for name in (STATE_FILE, "kubeconfig"):
        (folder / name).touch()
    monkeypatch.setattr(manage, "start_host", lambda *_, **__: 0)
    return folder


@pytest.mark.parametrize("output", ["text", "json"])
def test_a_reboot_is_asked_for_and_listed(output: str, up: Path, capsys: pytest.CaptureFixture[str]) -> None:
    node = ["kgpu", "lab", "node"]
    asked = up / "nodes" / "cpu-1" / REBOOT
    assert main([*node, "reboot", "cpu-1", "cpu-1", "--dir", str(up), "-o", output]) == 0
    told = capsys.readouterr().out
    assert (json.loads(told) == {"nodes": ["cpu-1"]}) if output == "json" else told == "node cpu-1 reboots\n"
    assert asked.exists()
    assert main([*node, "list", "--dir", str(up)]) == 0
    assert "(rebooting)" in capsys.readouterr().out
    assert main([*node, "list", "--dir", str(up), "-o", "json"]) == 0
    assert json.loads(capsys.readouterr().out)["rebooting"] == ["cpu-1"]
    asked.unlink()
    assert main([*node, "list", "--dir", str(up)]) == 0
    assert "(rebooting)" not in capsys.readouterr().out


@pytest.mark.parametrize(("node", "what"), [("cpu-9", "cpu-9"), ("cpu-2", "node.json"), ("cpu-3", "being removed")])
def test_what_can_not_reboot_is_told_and_nothing_does(node: str, what: str, up: Path) -> None:
    manage.add(up, "cpu")
    (added,) = {"cpu-3"} & {path.name for path in (up / "nodes").iterdir()}
    mark_for_removal(up / "nodes" / added)
    with pytest.raises(LabError, match=what) as caught:
        manage.reboot(up, ["cpu-1", node])
    assert caught.value.expected
    assert caught.value.remedy
    assert not [*up.glob(f"nodes/*/{REBOOT}")]


@pytest.mark.parametrize(
    ("words", "what"),
    [
        (["add", "cpu"], "there is no lab"),
        (["add", "hgx-h10"], "there is no lab"),
        (["remove", "cpu-9"], "there is no simulated node cpu-9"),
        (["remove"], "neither or both"),
        (["reboot", "cpu-9"], "there is no simulated node cpu-9"),
        (["reboot", "cpu-1"], "there is no lab"),
        (["reboot"], "Missing argument"),
        (["hw-root", "cpu-1"], "no simulated hardware"),
    ],
)
def test_bad_input(words: list[str], what: str, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["kgpu", "lab", "node", words[0], "--dir", str(folder), *words[1:]]) == 2
    assert what in capsys.readouterr().err


def test_slices_that_do_not_fit_are_refused_at_once(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="Insufficient Resources"):
        manage.add(tmp_path, "dgx-a100-80g", gpus=1, mig=["0:1g.10gb*8"])
    assert manage.listing(tmp_path) == {}


def test_stories_use_the_node_with_most_whole_gpus(tmp_path: Path) -> None:
    assert manage.story_node(tmp_path) == ""
    manage.add(tmp_path, "cpu")
    assert manage.story_node(tmp_path) == "cpu-1"
    for profile, gpus, mig in (("l4", 2, ()), ("dgx-a100-80g", 1, ("0:7g.80gb",)), ("hgx-h100", 4, ())):
        (name,) = manage.add(tmp_path, profile, gpus=gpus, mig=mig)
        agents.make_hardware(manage.listing(tmp_path)[name], tmp_path / "nodes" / name / "hw")
    assert manage.story_node(tmp_path) == "hgx-h100-1"
    (first,) = manage.add(tmp_path, "hgx-h100", gpus=4, name_prefix="gpu-node")
    agents.make_hardware(manage.listing(tmp_path)[first], tmp_path / "nodes" / first / "hw")
    assert manage.story_node(tmp_path) == first
    (other,) = manage.add(tmp_path, "gaudi3")
    agents.make_hardware(manage.listing(tmp_path)[other], tmp_path / "nodes" / other / "hw")
    chosen = [manage.story_node(tmp_path, vendor) for vendor in ("", "nvidia", "gaudi")]
    assert chosen == [other, first, other]


def test_a_machine_is_switched_off_and_on_and_says_which_it_is(
    up: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def power(*words: str) -> str:
        assert main(["kgpu", "lab", "node", *words, "--dir", str(up)]) == 0
        return capsys.readouterr().out

    waited = []
    monkeypatch.setattr(manage, "wait_until_off", lambda lab, names, seconds: waited.append((lab, names)))
    assert power("stop", "cpu-1", "cpu-1") == "node cpu-1 is off\n"
    assert waited == [(up, ["cpu-1"])]
    assert folder_of_node.is_off(up / "nodes" / "cpu-1")
    told = power("list")
    assert "(off)" in told
    assert "(rebooting)" not in told
    with pytest.raises(LabError, match="cpu-1 is switched off") as caught:
        manage.reboot(up, ["cpu-1"])
    assert caught.value.remedy == "kgpu lab node start cpu-1"
    with pytest.raises(LabError, match="no simulated node cpu-7"):
        manage.stop(up, ["cpu-7"])
    assert power("start", "cpu-1") == "node cpu-1 starts\n"
    assert power("start", "cpu-1") == "node cpu-1 was not off\n"
    assert "(rebooting)" in power("list")


def test_who_waits_for_a_machine_that_is_off_is_told_at_once(up: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Empty:
        async def list(self, _: object) -> object:
            return SimpleNamespace(items=())

        async def close(self) -> None:
            pass

    monkeypatch.setattr(ready, "_connect", lambda _: Empty())
    manage.stop(up, ["cpu-1"])
    with pytest.raises(LabError, match="node cpu-1 is switched off"):
        ready.wait_for_nodes(up / "kubeconfig", {"cpu-1": False}, 600.0, up / "nodes")
