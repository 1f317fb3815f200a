"""What commands about a whole cluster say to somebody who may read one namespace of it."""

from __future__ import annotations

from pathlib import Path

import pytest

from kgpu.cli.main import main
from kgpu.kube.fake import FakeApi
from kgpu.kube.port import PODS
from tests.cli.test_doctor import Course, nothing
from tests.doctor.test_listing import OneNamespace
from tests.placement.clusters import pod

Said = pytest.CaptureFixture[str]


@pytest.fixture(autouse=True)
def tenant(monkeypatch: pytest.MonkeyPatch) -> OneNamespace:
    """Of the namespace ml, in which a pod waits; it is also that of the context."""
    api = OneNamespace()
    api.space = api.namespace = "ml"
    api.put(PODS, {"apiVersion": "v1", **pod("train", 2)})

    def connect(*_args: object, **_kwargs: object) -> OneNamespace:
        api.set_down(False)  # the one before has closed it
        return api

    monkeypatch.setattr("kgpu.kube.client.connect", connect)
    return api


def run(capsys: Said, *words: str) -> tuple[int, str, str]:
    code = main(["kgpu", *words])
    out, err = capsys.readouterr()
    return code, out, err


def test_the_doctor_looks_at_the_contexts_namespace_and_says_so(capsys: Said) -> None:
    code, out, err = run(capsys, "doctor", "-o", "json")
    assert code in (0, 1, 2)
    assert '"pods": 1' in out
    assert err.count("this is namespace ml alone, that of your kubeconfig's context; another: -n NS") == 1


def test_a_watching_doctor_says_it_once(capsys: Said, monkeypatch: pytest.MonkeyPatch) -> None:
    Course(monkeypatch, nothing, nothing)
    assert run(capsys, "doctor", "--watch", "--interval", "1")[2].count("this is namespace ml alone") == 1


def test_the_doctor_takes_a_pod_without_a_namespace_for_one_of_the_contexts(capsys: Said) -> None:
    assert "there is no Pod ml/trane in this cluster" in run(capsys, "doctor", "pod", "trane")[2]
    assert "there is no Pod" not in run(capsys, "doctor", "pod", "train")[2]


def test_a_wrong_name_is_answered_with_those_there_are(capsys: Said, tenant: OneNamespace) -> None:
    assert "expected: ml/train\n" in run(capsys, "doctor", "pod", "ml/nothing-like-it")[2]
    tenant.put(PODS, {"apiVersion": "v1", **pod("serve", 1)})
    assert "expected: one of ml/serve, ml/train\n" in run(capsys, "doctor", "pod", "ml/sreve")[2]


@pytest.mark.parametrize("words", [("whatif", "-f", "FILE"), ("advise", "nodepool", "a100")], ids=" ".join)
def test_what_depends_on_all_nodes_does_not_ask_for_a_namespace(
    words: tuple[str, ...], tmp_path: Path, capsys: Said
) -> None:
    manifest = tmp_path / "pod.yaml"
    manifest.write_text("{apiVersion: v1, kind: Pod, metadata: {name: p}, spec: {containers: [{name: c, image: i}]}}")
    code, out, err = run(capsys, *(str(manifest) if word == "FILE" else word for word in words))
    assert (code, out) == (2, "")
    assert "a namespace of yours is not enough" in err
    assert "the right to list nodes, and the pods of all namespaces: docs/how-to/doctor-rights.yaml" in err
    assert "for an archive of `kgpu collect`, and ask that with --snapshot FILE" in err
    assert "name a namespace" not in err


USAGE = "to list pods, and to get pods/proxy, in kgpu's namespace: docs/how-to/usage-rights.yaml"
LACKS = {
    ("usage",): USAGE,
    ("idle",): USAGE,
    ("advise", "workload", "ml/train"): USAGE,
    (
        "idle",
        "explain",
        "ml/train",
    ): "usage-rights.yaml, those of kgpu:idle-policies and kgpu:idle-explain, too",
    (
        "idle",
        "reclaim",
        "ml/train",
    ): "usage-rights.yaml, those of kgpu:idle-policies and kgpu:idle-explain, too",
    (
        "logs",
        "device-plugin",
    ): "to list pods, and to get pods/log, in kgpu's namespace: docs/how-to/operand-rights.yaml",
    ("restart", "device-plugin"): "the Role kgpu-restart of docs/how-to/operand-rights.yaml",
    ("advise", "sharing", "--node", "a"): "to list nodes and resourceslices: docs/how-to/doctor-rights.yaml",
}


@pytest.mark.parametrize("words", LACKS, ids=" ".join)
def test_who_lacks_rights_is_told_which_and_whom_to_ask(words: tuple[str, ...], capsys: Said) -> None:
    code, out, err = run(capsys, *words)
    assert (code, out) == (2, "")
    assert f"{LACKS[words]}\n  to do: ask whoever runs the cluster for it" in err
    shows = LACKS[words] is USAGE
    assert ("  Namespace ml: 0 of 1 pod with accelerators ready\n  POD " in err) == shows, "what may be seen is shown"


def test_agents_that_may_be_found_and_not_asked_are_no_want_of_agents(
    capsys: Said, monkeypatch: pytest.MonkeyPatch
) -> None:
    def connect(*_args: object, **_kwargs: object) -> FakeApi:
        api = FakeApi()
        about = {"name": "a", "namespace": "gpu-operator", "labels": {"app": "kgpu-agent"}}
        running = {"phase": "Running", "podIP": "10.0.0.1"}
        api.put(PODS, {"metadata": about, "spec": {"nodeName": "n"}, "status": running})
        api.refuse["proxy", "pods"] = 403
        return api

    monkeypatch.setattr("kgpu.kube.client.connect", connect)
    for words in ("usage", "idle"):
        code, _, err = run(capsys, words)
        assert (code, USAGE in err, "usage.enabled" in err) == (2, True, False), err
