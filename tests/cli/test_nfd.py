"""``kubectl-nfd`` and ``nfd``: the commands and flags of node feature discovery's programs, through the program's name."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml

from kgpu.cli.main import main
from kgpu.kube import client
from kgpu.kube.fake import FakeApi
from kgpu.kube.port import NODE_FEATURES

RULE = """
apiVersion: nfd.k8s-sigs.io/v1alpha1
kind: NodeFeatureRule
metadata: {name: mine}
spec:
  rules:
    - name: new
      labels: {example.com/new: "true"}
      matchFeatures: [{feature: kernel.version, matchExpressions: {major: {op: Ge, value: ["6"]}}}]
"""
NODE = {
    "kind": "NodeFeature",
    "metadata": {"name": "n1", "namespace": "nfd", "labels": {"nfd.node.kubernetes.io/node-name": "n1"}},
    "spec": {"features": {"attributes": {"kernel.version": {"elements": {"major": "6"}}}}},
}


@pytest.fixture
def rule(tmp_path: Path) -> Path:
    file = tmp_path / "rule.yaml"
    file.write_text(RULE)
    return file


def test_validate(rule, capsys):
    assert main(["/usr/bin/kubectl-nfd", "validate", "-f", str(rule)]) == 0
    assert capsys.readouterr().out == "1 rule, 0 errors, 0 warnings\n"
    rule.write_text(RULE.replace("Ge", "Gee"))
    assert main(["kubectl-nfd", "validate", "-f", str(rule)]) == 1
    assert main(["kubectl-nfd", "validate", "-f", str(rule.parent / "none.yaml")]) == 1


def test_dryrun(rule, capsys):
    node = rule.parent / "node.yaml"
    node.write_text(yaml.safe_dump(NODE))
    assert main(["kubectl-nfd", "dryrun", "-f", str(rule), "-n", str(node)]) == 0
    assert "label example.com/new=true" in capsys.readouterr().out


def test_test(rule, capsys, monkeypatch):
    api = FakeApi()
    api.put(NODE_FEATURES, NODE)
    monkeypatch.setattr(client, "connect", lambda _kubeconfig: api)
    assert main(["kubectl-nfd", "test", "-f", str(rule), "-n", "n1"]) == 0
    assert "label example.com/new=true" in capsys.readouterr().out


def test_export(tmp_path, capsys):
    assert main(["nfd", "export", "features"]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert "kernel.version" in printed["attributes"]
    assert main(["nfd", "export", "labels", "-p", str(tmp_path / "labels")]) == 0
    assert "feature.node.kubernetes.io/kernel-version.full" in json.loads((tmp_path / "labels").read_text())
    assert main(["nfd", "export", "labels", "-p", str(tmp_path)]) == 1
    assert "correct --path" in capsys.readouterr().err


def test_what_is_not_there_is_refused_with_what_is(capsys):
    assert main(["nfd", "compat", "validate-node", "--image", "x"]) == 1
    assert "does not check whether an image fits" in capsys.readouterr().err
