"""The manifests of ``docs/samples`` are what the programs that read them accept, by their own definitions.

The definitions are those that the programs publish (``crds``); the embedded API server's rules judge by them, as it would
with ``kubectl apply --validate=strict``.
"""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import pytest

from kgpu.advise.pool_text import as_data
from kgpu.advise.pools import facts
from kgpu.formats import yaml
from tests.lab.embedded.crd.asking import Api
from tests.placement.clusters import node

Object = dict[str, Any]
SAMPLES = Path(__file__).parents[2] / "docs" / "samples"
CRDS = Path(__file__).parent / "crds"
OF_PROGRAMS = ("keda.yaml", "karpenter.yaml", "kueue.yaml")


def objects(file: str) -> list[Object]:
    return [one for one in yaml.load_all((SAMPLES / file).read_text()) if isinstance(one, dict)]


@functools.cache
def api() -> Api:
    """With every definition, whose own rules are checked with them."""
    made = Api()
    for path in sorted(CRDS.glob("*.yaml")):
        made.install(yaml.load(path.read_text()))
    return made


def defined() -> set[str]:
    return {crd["spec"]["names"]["kind"] for crd in api().crds}


def answer(obj: Object) -> Object:
    """What the API server says, in the namespace that kubectl takes where none is said."""
    if api().kind_of(obj).namespaced:
        obj["metadata"].setdefault("namespace", "default")
    return api().create(obj, validation="Strict")


def sample(kind: str) -> Object:
    (found,) = (one for file in OF_PROGRAMS for one in objects(file) if one["kind"] == kind)
    return found


KINDS = ("ScaledObject", "NodePool", "ResourceFlavor", "ClusterQueue", "LocalQueue")
BY_ADVICE = "NodeOverlay"


def test_there_is_a_sample_for_every_definition() -> None:
    assert defined() == {*KINDS, BY_ADVICE}


@pytest.mark.parametrize("kind", KINDS)
def test_a_sample_is_accepted_and_nothing_in_it_is_unknown(kind: str) -> None:
    said = answer(sample(kind))
    assert (said["code"], said.get("warnings")) == (201, None), said


def edited(kind: str, path: str, value: Any) -> Object:
    """A sample with one value changed; ``path`` has the numbers of rows in it."""
    found = sample(kind)
    *steps, last = (int(step) if step.isdecimal() else step for step in path.split("."))
    inner: Any = found
    for step in steps:
        inner = inner[step]
    inner[last] = value
    return found


@pytest.mark.parametrize(
    ("kind", "path", "value", "words"),
    [
        ("ScaledObject", "spec.fallback.behavior", "guess", "Unsupported value"),
        ("ScaledObject", "spec.minReplicas", 1, 'unknown field "spec.minReplicas"'),
        ("NodePool", "spec.disruption.consolidateAfter", "soon", "should match"),
        ("NodePool", "spec.disruption.budgets.0.reasons", ["Idle"], "Unsupported value"),
        ("NodePool", "spec.template.spec.requirements.0.key", "karpenter.sh/nodepool", "is restricted"),
        ("NodePool", "spec.template.spec.taint", [], 'unknown field "spec.template.spec.taint"'),
        ("ClusterQueue", "spec.resourceGroups.0.coveredResources", ["cpu"], "the same number of resources"),
        ("ClusterQueue", "spec.cohort", "research", 'unknown field "spec.cohort"'),
        ("ResourceFlavor", "spec.nodeTaints.0.effect", "Never", "supported taint effect values"),
        ("LocalQueue", "spec.clusterQueue", "Team_ML", "should match"),
    ],
)
def test_what_is_wrong_would_be_refused(kind: str, path: str, value: Any, words: str) -> None:
    said = answer(edited(kind, path, value))
    assert said["code"] in {400, 422}
    assert words in str(said)


def advised(resource: str) -> Object:
    """What ``kgpu advise nodepool`` says of a pool of Karpenter's whose nodes offer 32 of that."""
    labels = {"karpenter.sh/nodepool": "gpu", "node.kubernetes.io/instance-type": "p5.48xlarge"}
    one = node("a", 8, labels=labels, taints=sample("NodePool")["spec"]["template"]["spec"]["taints"])
    one["status"]["allocatable"] = {"cpu": "96", "memory": "1000Gi", "pods": "110", resource: "32"}
    found: Object = as_data(facts("gpu", [one], ()))["set"]
    return found


def test_karpenter_accepts_what_is_advised_of_a_pool_whose_gpus_are_shared() -> None:
    said = advised("nvidia.com/gpu.shared")
    assert answer(said["nodeOverlay"])["code"] == 201
    pool, own = sample("NodePool"), said["nodePool"]["spec"]
    pool["spec"]["disruption"] |= own.get("disruption", {})
    pool["spec"]["template"]["spec"] |= own["template"]["spec"]
    assert answer(pool)["code"] == 201
