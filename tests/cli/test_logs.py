"""``kgpu logs``: one pod, many, as JSON, followed, and what can't be."""

from __future__ import annotations

import json

import pytest

from kgpu.cli.main import main
from tests.cli.operand_cluster import OperandCluster
from tests.workloads.making import PLUGIN


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> OperandCluster:
    found = OperandCluster()
    monkeypatch.setattr("kgpu.kube.client.connect", lambda *_args, **_kwargs: found)
    return found


def run(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str, str]:
    code = main(["kgpu", "logs", *words])
    out, err = capsys.readouterr()
    return code, out, err


def test_lines_of_several_nodes_are_marked(cluster: OperandCluster, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = run(capsys, "device-plugin", "--since", "10m", "--tail", "7")
    assert (code, err) == (0, "")
    assert out.splitlines() == [f"[a] hello from {PLUGIN}-a-0", f"[b] hello from {PLUGIN}-b-0"]
    assert [(one["sinceSeconds"], one["tailLines"]) for one in cluster.queries] == [("600", "7")] * 2


@pytest.mark.usefixtures("cluster")
def test_of_one_node_they_are_as_they_are(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(capsys, "nvidia-device-plugin-daemonset", "--node", "b")[1] == f"hello from {PLUGIN}-b-0\n"


@pytest.mark.usefixtures("cluster")
def test_as_data_each_line_says_whose_it_is(capsys: pytest.CaptureFixture[str]) -> None:
    _, out, _ = run(capsys, "device-plugin", "-o", "json", "--node", "a")
    assert json.loads(out) == {
        "node": "a", "namespace": "gpu-operator", "pod": f"{PLUGIN}-a-0", "container": "main",
        "line": f"hello from {PLUGIN}-a-0",
    }  # fmt: skip


def test_followed_until_every_container_has_ended(cluster: OperandCluster, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = run(capsys, "device-plugin", "-f")
    assert (code, len(out.splitlines())) == (0, 2)
    assert err.count("its container has ended") == 2
    assert {one.get("tailLines") for one in cluster.queries} == {"100"}


def test_all_lines_are_asked_for_without_a_number(cluster: OperandCluster, capsys: pytest.CaptureFixture[str]) -> None:
    run(capsys, "device-plugin", "--tail", "-1", "--node", "a")
    assert "tailLines" not in cluster.queries[0]


@pytest.mark.usefixtures("cluster")
@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("nothing",), "nothing of kgpu is called nothing"),
        (("device-plugin", "-f", "-p"), "--follow and --previous"),
        (("device-plugin", "--since", "soon"), "invalid duration"),
        (("device-plugin", "-c", "side"), "has no container side"),
        (("toolkit",), "no pod of the container toolkit is in namespace gpu-operator"),
        (("device-plugin", "--node", "c"), "no pod of the device plugin on node c"),
    ],
)
def test_what_cannot_be_shown_is_told(capsys: pytest.CaptureFixture[str], words: tuple[str, ...], said: str) -> None:
    code, out, err = run(capsys, *words)
    assert (code, out) == (2, "")
    assert said in err
    assert "to do: " in err
