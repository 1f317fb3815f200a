"""``kgpu restart``: everywhere, on one node, not waited for, and what can't be."""

from __future__ import annotations

import json

import pytest

from kgpu.cli.main import main
from kgpu.kube.kinds import DAEMON_SETS
from kgpu.kube.port import PODS
from kgpu.workloads.rollout import RESTARTED
from tests.cli.operand_cluster import OperandCluster
from tests.workloads.making import NAMESPACE, PLUGIN, daemon_set


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> OperandCluster:
    found = OperandCluster()
    monkeypatch.setattr("kgpu.kube.client.connect", lambda *_args, **_kwargs: found)
    return found


def run(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str, str]:
    code = main(["kgpu", "restart", *words])
    out, err = capsys.readouterr()
    return code, out, err


def test_progress_is_told(cluster: OperandCluster, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(capsys, "device-plugin")
    assert code == 0
    assert out.splitlines() == [f"restarting DaemonSet gpu-operator/{PLUGIN}: 2 pods", "  2 of 2 new ready"]
    (change,) = [call for call in cluster.calls if call[0] == "patch"]
    assert change[1:] == ("daemonsets", PLUGIN)


def templates(cluster: OperandCluster) -> dict[str, str]:
    """The annotations of the DaemonSet's pods."""
    found = cluster._objects[DAEMON_SETS, NAMESPACE, PLUGIN].shown()
    annotations: dict[str, str] = found["spec"]["template"]["metadata"].get("annotations", {})
    return annotations


def test_everywhere_the_template_is_marked_and_as_data_all_is_said(
    cluster: OperandCluster, capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, _ = run(capsys, "deviceplugin", "-o", "json")
    done = json.loads(out)
    assert (code, done["workloads"], done["nodes"], done["waited"]) == (0, [PLUGIN], ["a", "b"], True)
    assert templates(cluster).keys() == {RESTARTED}


def test_on_one_node_its_pod_alone_is_replaced(cluster: OperandCluster, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(capsys, "device-plugin", "--node", "a")
    assert code == 0
    assert out.splitlines()[0] == f"restarting pod gpu-operator/{PLUGIN}-a-0 on a"
    assert out.splitlines()[1].endswith(" is ready")
    assert [call[2] for call in cluster.calls if call[:2] == ("delete", "pods")] == [f"{PLUGIN}-a-0"]
    assert not templates(cluster)


def test_what_is_not_ready_in_time_is_told(cluster: OperandCluster, capsys: pytest.CaptureFixture[str]) -> None:
    cluster.put(DAEMON_SETS, daemon_set(updatedNumberScheduled=1))
    code, out, err = run(capsys, "device-plugin", "--timeout", "1s")
    assert code == 2
    assert "  1 of 2 new ready" in out
    assert "was restarted and is not ready after 1 s" in err
    assert "kgpu logs device-plugin" in err


def test_who_does_not_wait_is_told_no_more(cluster: OperandCluster, capsys: pytest.CaptureFixture[str]) -> None:
    cluster.put(DAEMON_SETS, daemon_set(updatedNumberScheduled=1))
    code, out, _ = run(capsys, "device-plugin", "--no-wait")
    assert (code, out) == (0, f"restarting DaemonSet gpu-operator/{PLUGIN}: 2 pods\n")
    assert templates(cluster).keys() == {RESTARTED}


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("driver",), "kgpu node upgrade-driver"),
        (("operator", "--node", "a"), "is not of a node"),
        (("device-plugin", "--timeout", "0s"), "--timeout is 0s"),
        (("gfd",), "no pod of the GPU feature discovery"),
    ],
)
def test_what_is_not_restarted_is_told_and_left_alone(
    cluster: OperandCluster, capsys: pytest.CaptureFixture[str], words: tuple[str, ...], said: str
) -> None:
    code, _, err = run(capsys, *words)
    assert code == 2
    assert said in err
    assert not [call for call in cluster.calls if call[0] in {"patch", "delete"}]
    assert {name for kind, _, name in cluster._objects if kind == PODS} == {f"{PLUGIN}-a-0", f"{PLUGIN}-b-0"}
