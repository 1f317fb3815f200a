"""What nobody has planned: two faults at once, other names, other namespaces, other vendors, words in other scripts.

Each example is changed in ways that change nothing about its cause, and the cause must still be found.
"""

from __future__ import annotations

import copy
import itertools
import random
import re
from typing import Any

import pytest
from doctor.example import Example, all_examples

from kgpu.doctor.plan import diagnose
from kgpu.doctor.render import as_text
from kgpu.doctor.snapshot import Snapshot

EXAMPLES = all_examples()
BY_NAME = {one.name: one for one in EXAMPLES}
CLUSTER_WIDE = {"ClusterPolicy", "RuntimeClass", "DeviceClass", "CustomResourceDefinition", "PriorityClass"}
PAIRS = [
    pair
    for pair in itertools.combinations(sorted(EXAMPLES, key=lambda one: random.Random(one.name).random()), 2)
    if pair[0].taken == pair[1].taken
][:: max(1, len(EXAMPLES) // 3)][:120]


def every(snapshot: Snapshot) -> set[str]:
    return {each.id for root in diagnose(snapshot, strict=True).findings for each in root.all()}


def renamed(value: Any, names: dict[str, str]) -> Any:
    """The same with whole words of ``names`` replaced: in every text, and keys that are one of them."""
    if not names:
        return value
    if isinstance(value, str):
        return _words(names).sub(lambda hit: names[hit[0]], value)
    if isinstance(value, dict):
        return {names.get(key, key): renamed(one, names) for key, one in value.items()}
    if isinstance(value, list):
        return [renamed(one, names) for one in value]
    return value


def _words(names: dict[str, str]) -> re.Pattern[str]:
    return re.compile(
        "|".join(rf"(?<![\w./-]){re.escape(name)}(?![\w/-]|\.\w)" for name in sorted(names, key=len)[::-1])
    )


def moved(objects: list[dict[str, Any]], suffix: str) -> list[dict[str, Any]]:
    """A cluster's objects under other names: nodes, workloads and their namespaces."""
    nodes = {one["metadata"]["name"] for one in objects if one["kind"] in ("Node", "HostFacts")}
    pods = {one["metadata"]["name"] for one in objects if one["kind"] == "Pod"}
    spaces = {
        one["metadata"]["namespace"]
        for one in objects
        if one["metadata"].get("namespace") not in (None, "", "default", "kube-system", "gpu-operator")
    }
    return renamed(copy.deepcopy(objects), {name: f"{name}{suffix}" for name in {*nodes, *pods, *spaces} if name})


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda one: one.name)
def test_other_names_change_nothing(example: Example) -> None:
    objects = moved(example.broken, "-zz9")
    report = diagnose(example.snapshot(objects), strict=True)
    assert report.findings, "nothing was found under other names"
    assert report.findings[0].id == example.rule, as_text(report)


@pytest.mark.parametrize("pair", PAIRS, ids=lambda pair: f"{pair[0].name}+{pair[1].name}")
def test_two_faults_at_once_are_both_found(pair: tuple[Example, Example]) -> None:
    """The second cluster's nodes and workloads have other names; what exists once per cluster is the first one's."""
    first, second = pair
    have = {(one["kind"], one["metadata"].get("name")) for one in first.broken}
    other = [
        one
        for one in moved(second.broken, "-b")
        if one["kind"] not in CLUSTER_WIDE or (one["kind"], one["metadata"].get("name")) not in have
    ]
    snapshot = Snapshot.of(
        [*copy.deepcopy(first.broken), *other], taken=first.taken, listed={*first.listed, *second.listed}
    )
    found = every(snapshot)
    assert found & {first.rule, second.rule}, found


@pytest.mark.parametrize("name", ["SCH-08", "SCH-01", "TNT-01", "QTA-04"])
@pytest.mark.parametrize("resource", ["amd.com/gpu", "habana.ai/gaudi", "gpu.intel.com/i915"])
def test_other_vendors_resources(name: str, resource: str) -> None:
    example = BY_NAME[name]

    def other(value: Any) -> Any:
        if isinstance(value, dict):
            return {resource if key == "nvidia.com/gpu" else key: other(one) for key, one in value.items()}
        return [other(one) for one in value] if isinstance(value, list) else value

    report = diagnose(example.snapshot(other(example.broken)), strict=True)
    assert report.findings
    assert report.findings[0].id == example.rule, as_text(report)


def test_order_does_not_matter() -> None:
    for example in EXAMPLES:
        wanted = [one.data() for one in diagnose(example.snapshot(example.broken), strict=True).findings]
        objects = [one for one in example.broken if one["kind"] not in ("PodLog", "Event")][::-1]
        rest = [one for one in example.broken if one["kind"] in ("PodLog", "Event")]
        found = [one.data() for one in diagnose(example.snapshot([*objects, *rest]), strict=True).findings]
        assert {(one["id"], one["subject"]) for one in found} == {(one["id"], one["subject"]) for one in wanted}, (
            example.name
        )
