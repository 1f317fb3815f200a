"""Pods with claims for devices: what they give back when they leave a node, and get where they land."""

from __future__ import annotations

import pytest

from kgpu.placement.answer import answer
from kgpu.placement.model import WhatIfAnswer
from kgpu.placement.question import WhatIfQuestion
from tests.lab.embedded.scheduler import device_stories as make
from tests.placement.clusters import Object, by_name, node, pod

pytest.importorskip("cel_expr_python")
TEMPLATE = {
    "apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaimTemplate", "metadata": {"name": "one", "namespace": "ml"},
    "spec": {"spec": {"devices": {"requests": [make.exactly()]}}},
}  # fmt: skip


def asking(name: str, **more: object) -> Object:
    """A pod with a claim of its own by the template."""
    claims = [{"name": "gpu", "resourceClaimTemplateName": "one"}]
    return pod(name, 0, resourceClaims=claims, **more)  # type: ignore[arg-type]


def with_devices(name: str, count: int) -> list[Object]:
    return [node(name, 0), make.pieces(name, [make.device(f"gpu-{at}") for at in range(count)])]


def running(name: str, on: str, device: str) -> list[Object]:
    """A pod on a node, and its claim, which holds a device there."""
    found = asking(name, on=on)
    claim = f"{name}-gpu-x"
    found["status"]["resourceClaimStatuses"] = [{"name": "gpu", "resourceClaimName": claim}]
    taken = {"request": "gpu", "driver": make.DRIVER, "pool": on, "device": device}
    terms = [{"matchFields": [{"key": "metadata.name", "operator": "In", "values": [on]}]}]
    metadata = {
        "name": claim, "namespace": "ml", "uid": f"uid-{claim}",
        "ownerReferences": [{"kind": "Pod", "name": name, "uid": f"uid-{name}", "controller": True}],
    }  # fmt: skip
    status = {
        "allocation": {"devices": {"results": [taken]}, "nodeSelector": {"nodeSelectorTerms": terms}},
        "reservedFor": [{"resource": "pods", "name": name, "uid": f"uid-{name}"}],
    }  # fmt: skip
    spec = {"devices": {"requests": [make.exactly()]}}
    return [found, {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim", "metadata": metadata, "spec": spec,
                    "status": status}]  # fmt: skip


def ask(*objects: Object, **question: object) -> WhatIfAnswer:
    return answer(WhatIfQuestion(**question), [make.device_class(), TEMPLATE, *objects])  # type: ignore[arg-type]


def submitted(count: int, *objects: Object, **question: object) -> list[str]:
    new = asking("new", owner="")
    return sorted(by_name(ask(*objects, manifests=(new,), count=count, **question).outcomes).values())


def test_no_device_is_given_twice() -> None:
    assert submitted(3, *with_devices("a", 2)) == ["", "a", "a"]
    assert submitted(3, *with_devices("a", 2), *running("p", "a", "gpu-0")) == ["", "", "a"]


def test_a_drained_pod_gets_a_device_elsewhere_and_leaves_its_own() -> None:
    cluster = [*with_devices("a", 1), *running("p", "a", "gpu-0"), *with_devices("b", 1)]
    assert by_name(ask(*cluster, drain=("a",)).outcomes) == {"p": "b"}
    assert submitted(1, *cluster, drain=("a",)) == ["", "b"]


def test_a_gang_that_does_not_start_holds_no_devices() -> None:
    cluster = with_devices("a", 2)
    assert submitted(3, *cluster, gang=True) == ["", "", ""]
    assert submitted(2, *cluster, gang=True) == ["a", "a"]


def test_a_template_that_is_not_known_is_said() -> None:
    new = asking("new", owner="")
    new["spec"]["resourceClaims"][0]["resourceClaimTemplateName"] = "other"
    (one,) = ask(*with_devices("a", 1), manifests=(new,)).without_node
    assert "the template has not been followed" in one.message
