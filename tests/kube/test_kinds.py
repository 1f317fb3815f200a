"""The table of kinds, and what a server's discovery documents mean."""

from __future__ import annotations

import pytest

from kgpu.kube import kinds
from kgpu.kube.client import aggregated, version_numbers
from kgpu.kube.port import NODES, Resource


def test_objects_find_their_kind() -> None:
    assert kinds.resource_of({"apiVersion": "v1", "kind": "Node"}) == NODES
    assert kinds.resource_of({"apiVersion": "apps/v1", "kind": "DaemonSet"}) == kinds.DAEMON_SETS
    old = kinds.resource_of({"apiVersion": "node.k8s.io/v1beta1", "kind": "RuntimeClass"})
    assert old == Resource("node.k8s.io", "v1beta1", "runtimeclasses", "RuntimeClass", namespaced=False)
    assert kinds.resource_of({"apiVersion": "x.example/v1", "kind": "Node"}) is None
    assert kinds.resource_of({}) is None


def test_kinds_by_plural_and_group() -> None:
    assert kinds.plural_and_group(NODES) == "nodes"
    assert kinds.plural_and_group(kinds.CLUSTER_POLICIES) == "clusterpolicies.nvidia.com"


def test_a_kind_is_taken_in_the_first_version_that_has_it() -> None:
    def version(name: str, *plurals: str) -> dict[str, object]:
        rows = [{"resource": one, "responseKind": {"kind": one.title()}, "scope": "Namespaced"} for one in plurals]
        return {"version": name, "resources": rows}

    document = {"items": [{"metadata": {"name": "x.io"}, "versions": [version("v2", "as"), version("v1", "as", "bs")]}]}
    assert aggregated(document) == (Resource("x.io", "v2", "as", "As"), Resource("x.io", "v1", "bs", "Bs"))


@pytest.mark.parametrize(
    ("text", "numbers"), [("v1.35.4", (1, 35)), ("v1.29.3-eks-a18cd3a", (1, 29)), ("1.30+", (1, 30)), ("None", (0, 0))]
)
def test_versions(text: str, numbers: tuple[int, int]) -> None:
    assert version_numbers(text) == numbers
