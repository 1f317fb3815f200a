"""Texts of tenants that nobody bounds: what is kept of them, so that no rule's pattern has a megabyte to go through."""

from __future__ import annotations

from typing import Any

import pytest

from kgpu.doctor.objects import CLUSTER_POLICIES, MAX_TEXT, lean
from kgpu.doctor.plan import diagnose
from kgpu.doctor.snapshot import Snapshot

MUCH = 1_000_000


def alert(**fields: Any) -> dict[str, Any]:
    rule = {"alert": "A", "expr": "DCGM_FI_DEV_GPU_UTIL > 1", **fields}
    return {
        "kind": "PrometheusRule", "metadata": {"name": "r", "namespace": "tenant"},
        "spec": {"groups": [{"name": "g", "rules": [rule]}]},
    }  # fmt: skip


def pod(image: str) -> dict[str, Any]:
    limits = {"limits": {"nvidia.com/gpu": "1"}}
    return {
        "kind": "Pod", "metadata": {"name": "p", "namespace": "tenant", "uid": "u"},
        "spec": {"nodeName": "n", "containers": [{"name": "c", "image": image, "resources": limits}]},
        "status": {"phase": "Pending"},
    }  # fmt: skip


def longest(value: Any) -> int:
    if isinstance(value, str):
        return len(value)
    rows = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return max(map(longest, rows), default=0)


@pytest.mark.parametrize(
    "obj",
    [
        alert(expr="DCGM_FI_DEV_GPU_UTIL" + "GPU_UTIL{" * (MUCH // 9)),
        alert(annotations={"description": "{{" * (MUCH // 2)}),
        pod("nvidia/" * (MUCH // 7)),
    ],
    ids=["an expression", "a template", "an image"],
)
def test_no_text_keeps_the_doctor_for_minutes(obj: dict[str, Any]) -> None:
    assert longest(lean(obj)) <= MAX_TEXT
    monitor = {"kind": "ServiceMonitor", "metadata": {"name": "m", "namespace": "tenant"}, "spec": {}}
    diagnose(Snapshot.of([obj, monitor, {"kind": "Node", "metadata": {"name": "n"}}]), strict=True)


def test_usual_texts_stay_whole() -> None:
    text = "x" * MAX_TEXT
    assert longest(lean(alert(expr=text))) == longest(lean(pod(text))) == MAX_TEXT


@pytest.mark.parametrize(("name", "kept"), [(CLUSTER_POLICIES, True), ("prometheuses.monitoring.coreos.com", False)])
def test_only_schemas_that_rules_read_are_kept(name: str, kept: bool) -> None:
    version = {"name": "v1", "served": True, "schema": {"openAPIV3Schema": {"type": "object"}}}
    spec = {"group": "g", "versions": [version, "odd"]}
    given = {"kind": "CustomResourceDefinition", "metadata": {"name": name}, "spec": spec}
    first, odd = lean(given)["spec"]["versions"]
    assert (first["served"], "schema" in first, odd) == (True, kept, "odd")
    assert spec["versions"] == [version, "odd"], "the given one is not changed"
    assert "schema" in version


@pytest.mark.parametrize("spec", [None, "odd", [], {"versions": "odd"}, {"versions": [None]}, {}])
def test_a_definition_may_be_odd(spec: Any) -> None:
    given = {"kind": "CustomResourceDefinition", "metadata": {"name": "x"}, "spec": spec}
    assert lean(given)["spec"] == spec
