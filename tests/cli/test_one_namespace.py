"""What commands about a whole cluster say to somebody who may read one namespace of it."""

from __future__ import annotations

from pathlib import Path

import pytest

from kgpu.cli.main import main
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
