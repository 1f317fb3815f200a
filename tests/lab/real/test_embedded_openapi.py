"""OpenAPI as kubectl uses it: ``explain`` and validation of manifests, on both labs with the same answers."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.lab.embedded.crd.cases import GROUP, SCHEMAS

from .both import Both, beside
from .conftest import Cluster, until

PATHS = [
    "pods", "pod.spec", "pod.spec.containers", "pod.spec.containers.resources", "pod.spec.containers.resources.limits",
    "pod.spec.affinity.nodeAffinity", "pod.spec.volumes.csi", "pod.spec.nope", "po.status.phase", "node.status.capacity",
    "node.spec.taints", "namespaces", "events", "events.series", "service.spec.ports.targetPort", "deployments",
    "deploy.spec.strategy.rollingUpdate.maxSurge", "daemonset.spec.template.spec.tolerations", "jobs.spec",
    "cronjobs.spec.jobTemplate", "leases.spec.renewTime", "crd.spec.versions.schema.openAPIV3Schema.properties",
    "resourceclaims.spec.devices.requests", "deviceclasses.spec.selectors.cel", "clusterroles.rules",
    "horizontalpodautoscalers.spec.metrics", "nothing", "pod..spec",
    f"limits.{GROUP}", f"limits.{GROUP}.spec", f"limits.{GROUP}.spec.port", f"rules.{GROUP}.spec.ports",
    f"parts.{GROUP}.status.state", f"prunes.{GROUP}.spec.strict", f"twos.{GROUP}.spec",
]  # fmt: skip
OPTIONS = [
    ("deployments", "--recursive"), ("pods", "--recursive"), ("pod.spec", "--recursive"),
    ("horizontalpodautoscalers.spec", "--api-version=autoscaling/v1"), ("events", "--api-version=events.k8s.io/v1"),
    (f"twos.{GROUP}", "--api-version", f"{GROUP}/v1beta1"), (f"rules.{GROUP}", "--recursive"),
    (f"prunes.{GROUP}", "--recursive"), (f"lists.{GROUP}", "--recursive"), ("pods", "--api-version=nope/v1"),
    ("pods.spec.containers", "--output=plaintext-openapiv2"), (f"parts.{GROUP}", "--output=plaintext-openapiv2"),
]  # fmt: skip
CRDS = json.dumps({"apiVersion": "v1", "kind": "List", "items": list(SCHEMAS.values())})


@pytest.fixture(scope="module")
def both(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Both]:
    """With the CRDs of the test cases."""
    folder = tmp_path_factory.mktemp("embedded") / "lab"
    with beside(cluster.lab.kubectl_program, cluster.lab.kubeconfig, folder) as found:
        yield from with_crds(found)


def with_crds(both: Both) -> Iterator[Both]:
    try:
        for kubeconfig in (both.real, both.embedded):
            both.run(kubeconfig, "apply", "--server-side", "-f", "-", stdin=CRDS)
        # The real server publishes some time after the CRD is established, and kubectl remembers what it found.
        for kubeconfig in (both.real, both.embedded):
            for path in (f"/openapi/v3/apis/{GROUP}/v1", f"/apis/{GROUP}/v1"):
                until(lambda at=kubeconfig, path=path: published(both.run(at, "get", "--raw", path)), path)
        yield both
    finally:
        for kubeconfig in (both.real, both.embedded):
            both.run(kubeconfig, "delete", "-f", "-", "--ignore-not-found", stdin=CRDS)


def published(document: str) -> bool:
    return all(f'"{definition["spec"]["names"]["kind"]}"' in document for definition in SCHEMAS.values())


@pytest.mark.parametrize("path", PATHS)
def test_explain_says_the_same(both: Both, path: str) -> None:
    assert both.difference("explain", path) == ""


@pytest.mark.parametrize("words", OPTIONS, ids=" ".join)
def test_explain_with_options_says_the_same(both: Both, words: tuple[str, ...]) -> None:
    assert both.difference("explain", *words) == ""


def test_the_older_form_has_the_same_definitions(both: Both) -> None:
    def older(kubeconfig: Path) -> dict[str, Any]:
        raw = both.run(kubeconfig, "get", "--raw", "/openapi/v2").removeprefix("exit 0\n")
        found: dict[str, Any] = json.loads(raw)["definitions"]
        return found

    until(lambda: f"{'.'.join(reversed(GROUP.split('.')))}.v1.Part" in older(both.real), "the CRDs in OpenAPI v2")
    real, embedded = older(both.real), older(both.embedded)
    assert real.keys() == embedded.keys()
    assert {name: one for name, one in embedded.items() if one != real[name]} == {}


POD = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "x"}, "spec": {"containers": [{"name": "a", "imag": 1}]}}
PART = {"apiVersion": f"{GROUP}/v1", "kind": "Part", "metadata": {"name": "x"}}
UNKNOWN = {"apiVersion": "nope.kgpu.dev/v1", "kind": "Nope", "metadata": {"name": "x"}}
MANIFESTS = {
    "unknown field": POD,
    "list with an unknown field": {"apiVersion": "v1", "kind": "List", "items": [POD]},
    "custom object with an unknown field": {**PART, "spec": {"replica": 1}},
    "custom object of the wrong type": {**PART, "spec": {"replicas": "x"}},
    "list of custom objects": {"apiVersion": "v1", "kind": "List", "items": [{**PART, "spec": {"replica": 1}}]},
    "unknown kind": UNKNOWN,
    "list of an unknown kind": {"apiVersion": "v1", "kind": "List", "items": [UNKNOWN]},
    "fine": {**PART, "spec": {"replicas": 1}},
}


@pytest.mark.parametrize("validation", ["strict", "warn", "ignore", "true", "false"])
@pytest.mark.parametrize("server_side", [False, True])
@pytest.mark.parametrize("name", MANIFESTS)
def test_manifests_are_validated_alike(both: Both, name: str, server_side: bool, validation: str) -> None:
    words = ["apply", "-f", "-", "--dry-run=server", f"--validate={validation}"]
    assert both.difference(*words, *(["--server-side"] if server_side else []), stdin=json.dumps(MANIFESTS[name])) == ""
