"""``kgpu advise sharing``: with a cluster, without one, and asked wrongly."""

from __future__ import annotations

import json
from typing import Any

import pytest

from kgpu.cli.main import main
from kgpu.kube.fake import FakeApi
from kgpu.kube.port import NODES

Said = pytest.CaptureFixture[str]


@pytest.fixture
def api(monkeypatch: pytest.MonkeyPatch) -> FakeApi:
    api = FakeApi()
    for name, product, compute in (("gpu-1", "NVIDIA-A100-SXM4-80GB", ("8", "0")), ("gpu-2", "Tesla-T4", ("7", "5"))):
        labels = {
            "nvidia.com/gpu.product": product, "nvidia.com/gpu.compute.major": compute[0],
            "nvidia.com/gpu.compute.minor": compute[1],
        }  # fmt: skip
        api.put(NODES, {"metadata": {"name": name, "labels": labels}, "status": {"capacity": {"nvidia.com/gpu": "1"}}})
    api.put(NODES, {"metadata": {"name": "cpu-1"}, "status": {}})
    monkeypatch.setattr("kgpu.kube.client.connect", lambda *_args, **_kwargs: api)
    return api


def run(*words: str) -> int:
    return main(["kgpu", "advise", "sharing", *words])


@pytest.mark.usefixtures("api")
def test_the_table_and_the_cluster(capsys: Said) -> None:
    assert run() == 0
    out = capsys.readouterr().out
    assert "choose it when" in out
    assert "2 nodes with NVIDIA GPUs, 1 not known to have any" in out
    assert "7.5 is older than Ampere" in out
    assert "MPS control daemon: not provided" not in " ".join(out.split())


def test_without_a_cluster_it_is_the_table_and_nothing_is_asked(api: FakeApi, capsys: Said) -> None:
    assert run("--no-cluster") == 0
    out = capsys.readouterr().out
    assert ("choose it when" in out, "Nodes were not looked at: --no-cluster" in out, api.calls) == (True, True, [])


@pytest.mark.parametrize("break_it", ["down", "nodes", "kubeconfig"])
def test_where_no_cluster_answers_the_table_comes_alone_with_the_reason(
    break_it: str, api: FakeApi, capsys: Said, monkeypatch: pytest.MonkeyPatch, tmp_path: Any
) -> None:
    if break_it == "down":
        api.set_down(True)
    elif break_it == "nodes":
        api.refuse["list", "nodes"] = 403
    else:
        monkeypatch.undo()
        monkeypatch.setenv("KUBECONFIG", str(tmp_path / "none"))
        monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    assert run() == 0
    out = capsys.readouterr().out
    assert "choose it when" in out
    assert "Nodes were not looked at: " in out
    assert "to do:" in " ".join(out.split())


def test_named_nodes_without_a_cluster_are_an_error(api: FakeApi, capsys: Said) -> None:
    api.set_down(True)
    assert run("--node", "gpu-1") == 2
    assert "to do:" in capsys.readouterr().err


@pytest.mark.usefixtures("api")
def test_named_nodes_come_without_the_table(capsys: Said) -> None:
    assert run("--node", "gpu-2") == 0
    out = capsys.readouterr().out
    assert ("Tesla-T4" in out, "A100" in out, "choose it when" in out) == (True, False, False)
    assert "1 node with NVIDIA GPUs\n" in out


@pytest.mark.usefixtures("api")
def test_a_node_that_is_not_there_is_told_with_what_was_meant(capsys: Said) -> None:
    assert run("--node", "gpu-3\x1b") == 2
    err = capsys.readouterr().err
    assert ('did you mean "gpu-' in err, "\x1b" in err) == (True, False)


@pytest.mark.usefixtures("api")
def test_a_need(capsys: Said) -> None:
    assert run("--need", "isolation") == 0
    out = " ".join(capsys.readouterr().out.split())
    assert "take MIG, else whole GPU" in out
    assert "take: MIG (yes): up to 7 slices on each GPU, 1g.10gb the smallest" in out
    assert "take: whole GPU (in use)" in out
    assert "choose it when" not in out


def test_a_need_without_a_cluster_has_the_order_of_ways(capsys: Said) -> None:
    assert run("--need", "throughput", "--no-cluster") == 0
    assert "take MPS, else MIG, else time-slicing" in capsys.readouterr().out


@pytest.mark.usefixtures("api")
def test_json_has_the_table_always(capsys: Said) -> None:
    assert run("-o", "json", "--node", "gpu-1", "--need", "isolation") == 0
    data = json.loads(capsys.readouterr().out)
    assert [kind["nodes"] for kind in data["cluster"]["kinds"]] == [["gpu-1"]]
    assert data["advice"]["kinds"][0]["take"]["way"] == "mig"
    assert len(data["facts"]) > 10


def test_json_without_a_cluster(capsys: Said) -> None:
    assert run("--no-cluster", "-o", "json") == 0
    data = json.loads(capsys.readouterr().out)
    assert (data["cluster"], data["notLookedAt"]) == (None, "--no-cluster")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--node", "gpu-1", "--no-cluster"), "leave one out"),
        (("--need", "speed"), "isolation"),
        (("--kubeconfig", "/nowhere/config"), "correct --kubeconfig"),
        (("everything",), "see `kgpu advise sharing --help`"),
    ],
)
def test_what_is_asked_wrongly_is_told_in_three_parts(words: tuple[str, ...], said: str, capsys: Said) -> None:
    assert run(*words) == 2
    err = capsys.readouterr().err
    assert (said in err, "expected:" in err, "to do:" in err) == (True, True, True)


def test_help_has_examples_and_every_need(capsys: Said) -> None:
    assert run("--help") == 0
    out = capsys.readouterr().out
    assert ("kgpu advise sharing --need isolation" in out, "by-attribute" in out) == (True, True)
