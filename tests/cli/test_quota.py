"""``kgpu quota``: on a dump, with a recording, its exit codes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from kgpu.cli.main import main
from kgpu.formats.usage import UsageState
from kgpu.kube.port import PODS
from tests.doctor.test_listing import OneNamespace
from tests.placement.clusters import GPU, Object, node, pod
from tests.quota.test_plan import quota
from tests.usage.recordings import Device, holder, write
from tests.usage.recordings import node as recorded_node


def dump(folder: Path, *objects: Object) -> Path:
    path = folder / "cluster.json"
    path.write_text(
        json.dumps({"kind": "List", "apiVersion": "v1", "items": [{"apiVersion": "v1", **one} for one in objects]})
    )
    return path


def run(capsys: pytest.CaptureFixture[str], *words: object) -> tuple[int, str, str]:
    code = main(["kgpu", "quota", *map(str, words)])
    out, err = capsys.readouterr()
    return code, out, err


def test_a_table_and_nothing_wrong(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    key = f"requests.{GPU}"
    path = dump(tmp_path, node("a"), pod("p", 8, "a"), quota("q", {key: "8"}, {key: "8"}))
    code, out, _ = run(capsys, "--snapshot", path)
    assert (code, out.splitlines()) == (0, [
        "NAMESPACE  RESOURCE        HARD  USED  HELD  WAITING  QUOTA",
        "ml         nvidia.com/gpu     8     8     8        0  q (used up)",
    ])  # fmt: skip


def test_what_the_doctor_says_of_quotas_is_told_with_its_remedy(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    defaults = {"kind": "LimitRange", "metadata": {"name": "l", "namespace": "ml"},
                "spec": {"limits": [{"type": "Container", "default": {GPU: "1"}}]}}  # fmt: skip
    mig = pod("m", 1, "a", resource="nvidia.com/mig-1g.10gb")
    path = dump(tmp_path, node("a"), mig, defaults, quota("q", {GPU: "8"}), quota("r", {f"requests.{GPU}": "8"}))
    code, out, _ = run(capsys, "--snapshot", path, "-o", "json")
    assert code == 3
    found: dict[str, Any] = json.loads(out)
    assert {one["id"] for one in found["findings"]} == {"QTA-05", "QTA-06", "QTA-07"}
    assert "kubectl -n ml patch resourcequota" in next(one["remedy"][0] for one in found["findings"])


def test_a_recording_says_what_is_busy(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    device = Device(node="a", device="GPU-0")
    who = holder("p", namespace="ml")
    device.spend(3600, who, busy=1)
    device.spend(3600, who, state=UsageState.HELD_IDLE, busy=0)
    recording = write(tmp_path / "usage.jsonl", device, nodes=[recorded_node("a")])
    path = dump(tmp_path, node("a"), pod("p", 1, "a"))
    code, out, _ = run(capsys, "--snapshot", path, "--from", recording, "-o", "json")
    assert code == 0
    assert json.loads(out)["use"] == {"ml": {"held": 1.0, "busy": 0.5, "idle": 0.5}}
    assert "BUSY  IDLE" in run(capsys, "--snapshot", path, "--from", recording)[1]


def test_a_namespace_that_is_not_there(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = run(capsys, "mll", "--snapshot", dump(tmp_path, node("a"), pod("p", 1, "a")))
    assert (code, out) == (2, "")
    assert "there is no namespace mll; did you mean" in err


@pytest.fixture
def tenant(monkeypatch: pytest.MonkeyPatch) -> OneNamespace:
    """An API server for who may list what is in the namespace ml."""
    api = OneNamespace()
    api.space = "ml"
    monkeypatch.setattr("kgpu.kube.client.connect", lambda *_args, **_kwargs: api)
    return api


@pytest.mark.usefixtures("tenant")
def test_an_empty_namespace_of_who_may_list_none_is_not_said_to_be_missing(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = run(capsys, "ml")
    assert (code, "there is no namespace" in err) == (0, False), out
    assert "of other namespaces than ml" in err


def test_who_may_not_read_the_cluster_sees_the_namespace_of_the_context(
    tenant: OneNamespace, capsys: pytest.CaptureFixture[str]
) -> None:
    tenant.namespace = "ml"
    tenant.put(PODS, pod("p", 2, "a"))
    code, out, err = run(capsys)
    assert (code, out.splitlines()[1].split()) == (0, ["ml", GPU, "-", "-", "2", "0"])
    note = err.splitlines()[0]
    assert "this is namespace ml alone, that of your kubeconfig's context; another: kgpu quota NAMESPACE" in note


@pytest.mark.usefixtures("tenant")
def test_where_that_may_not_be_read_either_a_namespace_has_to_be_named(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = run(capsys)
    assert (code, out) == (2, "")
    assert "neither the nodes and pods of the cluster nor the pods of namespace default" in err
    assert "name a namespace of yours: kgpu quota NAMESPACE" in err


def test_a_key_that_counts_nothing_is_told_also_beside_the_one_that_counts(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    keys = {f"requests.{GPU}": "4", f"limits.{GPU}": "2"}
    code, out, _ = run(capsys, "--snapshot", dump(tmp_path, node("a"), pod("p", 1, "a"), quota("q", keys)))
    assert code == 3
    assert f"q says 2 for limits.{GPU}, which is never counted: what holds is requests.{GPU}, 4" in out
    code, out, _ = run(
        capsys, "--snapshot", dump(tmp_path, node("a"), pod("p", 1, "a"), quota("q", {f"limits.{GPU}": "2"}))
    )
    assert (code, "QTA-05" in out, "QTA-06" in out) == (3, True, False), "it is not said to count"
