"""A manifest with a field that there is not: `kgpu doctor -f` and `kgpu whatif -f` say what kubectl has from the server."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from kgpu.cli.main import main
from kgpu.formats import yaml
from kgpu.lab.embedded.lab import EmbeddedLab

MANIFESTS = {
    "limit": """
apiVersion: apps/v1
kind: Deployment
metadata: {name: train}
spec:
  selector: {matchLabels: {app: train}}
  template:
    metadata: {labels: {app: train}}
    spec:
      containers: [{name: main, image: i, resources: {limit: {nvidia.com/gpu: 1}}}]
""",
    "tmpl": """
apiVersion: batch/v1
kind: Job
metadata: {name: train}
spec: {tmpl: {spec: {containers: [{name: main, image: i}], restartPolicy: Never}}}
""",
    "in a CronJob": """
apiVersion: batch/v1
kind: CronJob
metadata: {name: nightly}
spec:
  schedule: "@daily"
  jobTemplate:
    spec:
      template: {spec: {containers: [{name: main, image: i, resources: {limit: {a: 1}}}], restartPolicy: Never}}
""",
    "several": """
apiVersion: v1
kind: Pod
metadata: {name: p, label: {a: b}}
spec:
  nodeSelectr: {a: b}
  containers: [{name: main, image: i, resource: {}, env: [{name: A, val: b}]}]
""",
    "a wrong type": """
apiVersion: apps/v1
kind: StatefulSet
metadata: {name: s}
spec: {replicas: "2", selector: {}, template: {spec: {containers: [{name: main, image: i}]}}}
""",
}


@pytest.mark.parametrize("manifest", MANIFESTS.values(), ids=MANIFESTS)
def test_the_words_are_those_that_kubectl_has(
    embedded: EmbeddedLab, manifest: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = str(tmp_path / "m.yaml")
    Path(path).write_text(manifest, encoding="utf-8")
    refused = embedded.kubectl_run("create", "--validate=strict", "--dry-run=server", "-f", path)
    words = refused.stderr.strip().rpartition(f'error when creating "{path}": ')[2]
    assert "cannot be handled as a" in words, refused.stderr
    kubeconfig = ("--kubeconfig", str(embedded.kubeconfig))
    assert main(["kgpu", "doctor", "-f", path, *kubeconfig]) == 1
    assert capsys.readouterr().out.rstrip() == f"✘ the API server would refuse it: {words}"
    assert main(["kgpu", "whatif", "-f", path, *kubeconfig]) == 2
    obj = yaml.load(manifest)
    told = f"kgpu: the API server would refuse {obj['kind']}/{obj['metadata']['name']}: {words}"
    assert capsys.readouterr().err.splitlines()[0] == told


def test_pods_that_name_no_namespace_are_of_the_kubeconfig_s(
    embedded: EmbeddedLab, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "pod.yaml"
    path.write_text("{apiVersion: v1, kind: Pod, metadata: {name: p}, spec: {containers: [{name: main, image: i}]}}")
    known = yaml.load(embedded.kubeconfig.read_text(encoding="utf-8"))
    known["contexts"][0]["context"]["namespace"] = "elsewhere"
    mine = tmp_path / "kubeconfig"
    mine.write_text(json.dumps(known), encoding="utf-8")
    for command in ("doctor", "whatif"):
        assert main(["kgpu", command, "-f", str(path), "--kubeconfig", str(mine)]) != 0
        assert 'namespaces "elsewhere" not found' in capsys.readouterr().out
