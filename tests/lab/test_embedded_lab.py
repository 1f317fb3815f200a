"""The embedded lab as a whole: brought up twice, broken, restarted, taken down; and what it says when it can't."""

from __future__ import annotations

import json
import signal
import socket
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from kgpu.base.errors import LabError, UserError
from kgpu.lab import find, folders, processes, reset
from kgpu.lab.common import VOLUMES_FOLDER
from kgpu.lab.embedded import model
from kgpu.lab.embedded.lab import EmbeddedLab
from kgpu.lab.embedded.model import FirstNode
from kgpu.lab.embedded.ready import lacking
from kgpu.lab.nodes import manage
from kgpu.lab.progress import QuietProgress

pytestmark = pytest.mark.timeout(300)


@pytest.fixture
def made(kubectl: str, tmp_path: Path) -> Iterator[EmbeddedLab]:
    """An API server without nodes."""
    del kubectl
    lab = EmbeddedLab("made", tmp_path / "lab", QuietProgress())
    lab.up()
    yield lab
    lab.down()


def names(lab: EmbeddedLab, what: str) -> list[str]:
    done = lab.kubectl_run("get", what, "-o", "json")
    assert done.returncode == 0, done.stderr
    return sorted(item["metadata"]["name"] for item in json.loads(done.stdout)["items"])


def kill_server(lab: EmbeddedLab) -> None:
    server = lab.state.server
    assert server is not None
    assert processes.signal_process(server, signal.SIGKILL)
    until = time.monotonic() + 60
    while lab.running:
        assert time.monotonic() < until
        time.sleep(0.05)


def test_up_again_changes_nothing(made: EmbeddedLab) -> None:
    before = made.state
    made.up()
    assert made.state == before
    assert folders.kind_of(made.folder) == "embedded"
    assert find.find("made", made.folder).about.url == made.url


def test_gates_are_kept_and_what_they_serve_is_had_by_kubectl(kubectl: str, tmp_path: Path) -> None:
    del kubectl
    gates = "DRADeviceTaintRules=true"
    lab = EmbeddedLab("gated", tmp_path / "lab", QuietProgress(), gates=gates)
    try:
        lab.up()
        spec = {"deviceSelector": {"driver": "d.example.com"}, "taint": {"key": "a/b", "effect": "NoSchedule"}}
        rule = {
            "apiVersion": "resource.k8s.io/v1alpha3",
            "kind": "DeviceTaintRule",
            "metadata": {"name": "r"},
            "spec": spec,
        }
        done = lab.kubectl_run("apply", "-f", "-", stdin=json.dumps(rule))
        assert done.returncode == 0, done.stderr
        again = EmbeddedLab("gated", tmp_path / "lab", QuietProgress())
        kill_server(lab)
        again.up()
        assert again.state.gates == gates
        done = again.kubectl_run("get", "devicetaintrules")
        assert done.returncode == 0, done.stderr
        assert again.about.up_words[-2:] == ("--feature-gates", gates)
    finally:
        lab.down()


def test_up_with_other_settings_is_refused(made: EmbeddedLab) -> None:
    other = EmbeddedLab("made", made.folder, QuietProgress(), first=FirstNode(profile="l4"))
    with pytest.raises(LabError, match="already up with other settings"):
        other.up()
    with pytest.raises(LabError, match="already up with other settings"):
        EmbeddedLab("made", made.folder, QuietProgress(), gates="DRADeviceTaintRules=true").up()
    assert made.running


def test_a_real_lab_cannot_take_its_name(made: EmbeddedLab) -> None:
    with pytest.raises(LabError, match="is an embedded lab") as caught:
        find.find("made", made.folder, kind="real")
    assert "kgpu lab down --name made" in caught.value.remedy


def test_a_server_that_was_killed_comes_back_on_its_port_with_its_nodes(kubectl: str, tmp_path: Path) -> None:
    del kubectl
    first = FirstNode(profile="l4", gpus=2)
    lab = EmbeddedLab("crash", tmp_path / "lab", QuietProgress(), first=first)
    try:
        lab.up()
        url = lab.url
        kill_server(lab)
        with pytest.raises(LabError, match="no running lab"):
            _ = lab.state
        EmbeddedLab("crash", tmp_path / "lab", QuietProgress()).up()
        assert lab.url == url
        assert names(lab, "nodes") == ["gpu-node-1"]
        (node,) = lab.report()["nodes"]
        assert node["allocatable"] == {"nvidia.com/gpu": "2"}
        assert reset.leftovers(lab) == []
        manage.stop(lab.folder, ["gpu-node-1"])
        assert reset.reset(lab) == ["node gpu-node-1: switched off"]
        (node,) = lab.report()["nodes"]
        assert node["allocatable"] == {"nvidia.com/gpu": "2"}
        assert reset.leftovers(lab) == []
    finally:
        lab.down()
    assert not (tmp_path / "lab").exists()


def test_kept_data_is_there_after_a_crash_and_after_down(kubectl: str, tmp_path: Path) -> None:
    del kubectl
    data = tmp_path / "data"
    lab = EmbeddedLab("kept", tmp_path / "lab", QuietProgress(), data=data)
    try:
        lab.up()
        assert lab.kubectl_run("create", "configmap", "one").returncode == 0
        (lab.folder / VOLUMES_FOLDER / "pvc-1").mkdir()
        kill_server(lab)
        lab.up()
        assert "one" in names(lab, "configmaps")
        lab.down()
        assert data.is_dir()
        lab.up()
        assert "one" in names(lab, "configmaps")
        assert (lab.folder / VOLUMES_FOLDER / "pvc-1").is_dir()
    finally:
        lab.down()


def test_down_ends_a_server_that_no_state_file_names(made: EmbeddedLab) -> None:
    server = made.state.server
    assert server is not None
    (made.folder / model.STATE_FILE).write_text("{")
    assert made.down() is True
    assert not processes.alive(server)
    assert not made.folder.exists()
    assert made.down() is False


def test_removing_a_lab_ends_its_nodes(made: EmbeddedLab) -> None:
    manage.add(made.folder, "cpu", 2)
    host = processes.record(manage.start_host(made.folder, made.kubeconfig))
    assert processes.alive(host)
    made.down()
    assert not processes.alive(host)
    assert not made.folder.exists()


@pytest.mark.parametrize(
    ("profile", "gpus", "what"), [("hgx-h10", None, "no profile is named"), ("no/such/file.yaml", None, "no/such")]
)
def test_what_cannot_be_simulated_is_refused_before_anything_is_made(
    profile: str, gpus: int | None, what: str, tmp_path: Path
) -> None:
    lab = EmbeddedLab("x", tmp_path / "lab", QuietProgress(), first=FirstNode(profile=profile, gpus=gpus))
    with pytest.raises(UserError, match=what):
        lab.up()
    assert list(tmp_path.iterdir()) == []


def test_a_port_that_is_taken_is_refused_and_leaves_nothing_behind(kubectl: str, tmp_path: Path) -> None:
    del kubectl
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        lab = EmbeddedLab("x", tmp_path / "lab", QuietProgress(), port=port)
        with pytest.raises(LabError, match=f"can't listen on 127.0.0.1:{port}") as refused:
            lab.up()
    assert "free port" in refused.value.expected
    assert "--port" in refused.value.remedy
    assert not lab.running
    assert list(tmp_path.iterdir()) == []


READY = [{"type": "Ready", "status": "True"}]


@pytest.mark.parametrize(
    ("node", "gpus", "why"),
    [
        (None, True, "it has not registered"),
        ({"status": {"conditions": [{"type": "Ready", "status": "False"}]}}, False, "it is not Ready"),
        ({"status": {"conditions": READY}}, True, "it offers no GPUs"),
        ({"status": {"conditions": READY, "allocatable": {"nvidia.com/gpu": "0"}}}, True, "it offers no GPUs"),
        ({"status": {"conditions": READY, "allocatable": {"nvidia.com/gpu": "8"}}}, True, "it has no GPU labels"),
        ({"status": {"conditions": READY}}, False, ""),
    ],
)
def test_what_a_node_lacks(node: dict[str, object] | None, gpus: bool, why: str) -> None:
    assert lacking(node, gpus=gpus) == why


def test_a_node_of_an_earlier_boot_is_not_back_yet() -> None:
    node = {"status": {"conditions": [{"type": "Ready", "status": "True"}], "nodeInfo": {"bootID": "one"}}}
    assert lacking(node, gpus=False, boot="two") == "it has not come back after its reboot"
    assert lacking(node, gpus=False, boot="one") == lacking(node, gpus=False) == ""


def test_another_system_is_refused_at_once(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("sys.platform", "darwin")
    with pytest.raises(LabError, match="can't run on darwin"):
        EmbeddedLab("x", tmp_path / "lab", QuietProgress()).up()
    assert list(tmp_path.iterdir()) == []


def test_a_missing_extra_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None if name == "uvicorn" else object())
    with pytest.raises(LabError, match="uvicorn") as caught:
        EmbeddedLab("x", tmp_path / "lab", QuietProgress()).up()
    assert "kgpu[lab]" in caught.value.remedy
