"""``kgpu whatif``: on a dump, with each output, its exit codes, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from kgpu.cli.main import main
from tests.placement.clusters import node, pod


@pytest.fixture
def dump(tmp_path: Path) -> Path:
    labels = {"node.kubernetes.io/instance-type": "p5.48xlarge"}
    objects = [node("a", labels=labels), node("b", labels=labels), pod("p", 4, "a"), pod("q", 4, "b")]
    path = tmp_path / "cluster.json"
    path.write_text(json.dumps({"kind": "List", "apiVersion": "v1", "items": objects}))
    return path


@pytest.fixture
def manifest(tmp_path: Path) -> Path:
    path = tmp_path / "pods.json"
    path.write_text(json.dumps(pod("new", 8, owner="")))
    return path


def run(capsys: pytest.CaptureFixture[str], *words: object) -> tuple[int, str, str]:
    code = main(["kgpu", "whatif", *map(str, words)])
    out, err = capsys.readouterr()
    return code, out, err


def data(capsys: pytest.CaptureFixture[str], code: int, *words: object) -> dict[str, Any]:
    ended, out, err = run(capsys, *words, "-o", "json")
    assert ended == code, err
    found: dict[str, Any] = json.loads(out)
    return found


def test_a_drain_as_text(dump: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(capsys, "--snapshot", dump, "--drain", "a")
    assert code == 0
    assert out.startswith(
        "What if: drain node a\n\n1 of 1 pods that need a node get one:\n  ml/p -> b (drained, from a)"
    )
    assert "Cost: -55.04 USD an hour" in out


def test_pods_without_a_node_are_exit_code_3(dump: Path, manifest: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = data(capsys, 3, "--snapshot", dump, "-f", manifest)
    assert found["holds"] is False
    assert found["pods"][0]["nodesByReason"] == {"Insufficient nvidia.com/gpu": 2}
    assert (
        data(capsys, 0, "--snapshot", dump, "-f", manifest, "--add-nodes", "p5.48xlarge=1")["cost"]["perHour"] == 55.04
    )


def test_gang_and_plan(dump: Path, manifest: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = data(capsys, 3, "--snapshot", dump, "-f", manifest, "--count", 2, "--gang", "--add-nodes", "a=1")
    assert [(one["node"], one["roomOn"]) for one in found["pods"]] == [(None, "a-new-1"), (None, None)]
    assert found["gangs"][0]["blockedBy"] == "the cluster has room for 1 of 2"
    plan = data(capsys, 0, "--snapshot", dump, "--defrag-for", 8)["defrag"]
    assert plan["moves"] == [{"pod": "ml/p", "from": "a", "to": "b"}]
    assert run(capsys, "--snapshot", dump, "--defrag-for", 9)[0] == 3


def test_a_quota_and_a_gang_of_a_manifest(dump: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    template = {"spec": pod("x", 4, owner="")["spec"]}
    job = {
        "apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "train", "namespace": "ml"},
        "spec": {"parallelism": 3, "completions": 3, "completionMode": "Indexed", "template": template},
    }  # fmt: skip
    path = tmp_path / "job.json"
    path.write_text(json.dumps(job))
    found = data(capsys, 3, "--snapshot", dump, "-f", path)
    (gang,) = found["gangs"]
    assert (gang["name"], gang["fitsWhole"], gang["roomFor"]) == ("ml/Job/train", False, 2)
    assert gang["makesRoom"] == ["1 more node like a (p5.48xlarge)"]
    assert data(capsys, 0, "--snapshot", dump, "-f", path, "--add-nodes", "a=1")["gangs"][0]["fitsWhole"]
    limited = data(capsys, 3, "--snapshot", dump, "-f", path, "--quota", "ml", "pods=3", "--add-nodes", "a=1")
    assert "quota what-if of namespace ml allows 3 pods" in limited["gangs"][0]["blockedBy"]


def test_your_own_prices(dump: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    prices = tmp_path / "prices.csv"
    prices.write_text("instanceType,perNodeHour\np5.48xlarge,40\n")
    assert "Cost: +80.00" in run(capsys, "--snapshot", dump, "--add-nodes", "a=2", "--prices", prices)[1]


def test_nothing_is_asked(dump: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(capsys, "--snapshot", dump)
    assert (code, out.splitlines()[0]) == (0, "As it is")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--gang",), "--gang and --count are about submitted pods"),
        (("--resource", "x"), "--resource is for --defrag-for"),
        (("-f", "/nonexistent.yaml"), "can't be read"),
        (("--drain", "c"), "there is no node c"),
        (("--quota", "ml", "nvidia.com/gpu=4"), "Kubernetes counts requests of it alone"),
    ],
)
def test_what_is_refused(words: tuple[str, ...], said: str, dump: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = run(capsys, "--snapshot", dump, *words)
    assert (code, out) == (2, "")
    assert said in err


def test_a_snapshot_that_is_not_there_is_told_without_another_commands_option(
    capsys: pytest.CaptureFixture[str],
) -> None:
    code, _, err = run(capsys, "--snapshot", Path("/nonexistent.tar.gz"))
    assert code == 2
    assert "can't read /nonexistent.tar.gz" in err
    assert "--from" not in err


def test_a_model_without_mig_is_told_with_a_command_for_its_node(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (path := tmp_path / "l4.json").write_text(json.dumps(node("a", labels={"nvidia.com/gpu.product": "NVIDIA-L4"})))
    code, _, err = run(capsys, "--snapshot", path, "--mig", "a=all-1g.10gb")
    assert code == 2
    assert "kgpu advise sharing --node a" in err


def test_names_from_outside_stay_on_their_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    objects = [node("a"), pod("p\nCost: nothing\x1b[2J", 1)]
    path = tmp_path / "hostile.json"
    path.write_text(json.dumps({"kind": "List", "apiVersion": "v1", "items": objects}))
    _, out, _ = run(capsys, "--snapshot", path)
    assert "\x1b" not in out
    assert not any(line.startswith("Cost: nothing") for line in out.splitlines())
