"""What nobody has planned: two faults at once, other names, other namespaces, other vendors, words in other scripts.

Each example is changed in ways that change nothing about its cause, and the cause must still be found.
"""

from __future__ import annotations

import copy
import random
import re
from typing import Any

import pytest

from kgpu.doctor.model import Finding, Report
from kgpu.doctor.plan import diagnose
from kgpu.doctor.render import as_text
from kgpu.doctor.rules import by_id, is_named
from kgpu.doctor.smallest_change import fitting
from kgpu.doctor.snapshot import Snapshot
from tests.doctor.example import Example, all_examples

EXAMPLES = all_examples()
BY_NAME = {one.name: one for one in EXAMPLES}
ALONE = {
    "OPR-09": "a pod of the other half comes from the public registry, so that it can be reached",
    "OPR-13": "the other half has a GPU node",
    "TNT-05": "the other half has labels of feature discovery",
    "TNT-06": "the other half has a PCI label of the usual shape",
    "AMD-12": "the other half has AMD's operator",
    "DRA-20": "the other half has a device plugin for the resource",
    "TS-03": "the other half has a node with shares",
    "RUN-02_event": "the other half has the kind that its event is about, so that it is known not to exist",
}
"""Rules and examples about what is nowhere in a cluster, and why beside another half they have nothing to say."""


def keys(objects: list[dict[str, Any]]) -> set[tuple[str, str, str]]:
    return {
        (one["kind"], one["metadata"].get("namespace", ""), one["metadata"].get("name", ""))
        for one in objects
        if one["kind"] not in ("Event", "PodLog")
    }


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


def pairs(count: int) -> list[tuple[Example, Example]]:
    """Of different rules and times alike, without an object that both have."""
    dice = random.Random("pairs")
    found: list[tuple[Example, Example]] = []
    while len(found) < count:
        first, second = dice.sample(EXAMPLES, 2)
        apart = first.taken == second.taken and first.rule != second.rule
        alone = {first.rule, second.rule, first.name, second.name} & set(ALONE)
        if apart and not alone and not keys(first.broken) & keys(moved(second.broken, "-b")):
            found.append((first, second))
    return found


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda one: one.name)
def test_other_names_change_nothing(example: Example) -> None:
    objects = moved(example.broken, "-zz9")
    report = diagnose(example.snapshot(objects), strict=True)
    assert report.findings, "nothing was found under other names"
    assert report.findings[0].id == example.rule, as_text(report)


@pytest.mark.parametrize("pair", pairs(250), ids=lambda pair: f"{pair[0].name}+{pair[1].name}")
def test_two_faults_at_once_are_both_found(pair: tuple[Example, Example]) -> None:
    """Both are roots, or one is below the other by what that rule declares. The second one's nodes, workloads and
    namespaces have other names.
    """
    first, second = pair
    objects = [*copy.deepcopy(first.broken), *moved(second.broken, "-b")]
    snapshot = Snapshot.of(objects, taken=first.taken, listed={*first.listed, *second.listed})
    report = diagnose(snapshot, strict=True)
    for one, suffix in ((first, ""), (second, "-b")):
        if not any(root.id == one.rule for root in report.findings) and not helped(one, suffix, snapshot, report):
            parents = {parent.id for root in report.findings for parent in above(root, one.rule)}
            declared = any(is_named(one.rule, by_id()[parent].explains) for parent in parents)
            below = by_id()[one.rule].last_resort and (bool(parents) or is_told_of(one, suffix, report))
            assert declared or below, f"{one.name} is not told:\n{as_text(report)}"


def is_told_of(one: Example, suffix: str, report: Report) -> bool:
    """Whether other findings name every node of a last resort: it speaks only of nodes that no other rule speaks of."""
    alone = diagnose(one.snapshot(one.broken), strict=True)
    nodes = {
        f"{node}{suffix}"
        for root in alone.findings
        for each in root.all()
        if each.id == one.rule
        for node in each.nodes
    }
    told = as_text(report).split()
    return bool(nodes) and all(node in told for node in nodes)


def above(root: Finding, rule: str) -> list[Finding]:
    """Those right below which a finding of a rule is."""
    return [each for each in root.all() if any(child.id == rule for child in each.consequences)]


def helped(one: Example, suffix: str, snapshot: Snapshot, report: Report) -> bool:
    """Whether the other half has cured a fault: pods that waited fit its nodes, or wait for another reason now."""
    waited = {pod.name for pod in one.snapshot(one.broken).pods.values() if pod.unplaced}
    pods = [pod for pod in snapshot.pods.values() if pod.unplaced and pod.name in {name + suffix for name in waited}]
    fits = any((view := snapshot.view(pod)) and fitting(view, snapshot.fit) for pod in pods)
    told = {path for root in report.findings for each in root.all() for path in each.pods}
    return fits or any(pod.path in told for pod in pods)


def with_labels(new: Any, old: Any) -> Any:
    """The new one with the labels and selectors of the old one: parts of a stack are known by them."""
    if isinstance(new, dict) and isinstance(old, dict):
        return {
            key: old[key] if key in ("labels", "selector") else with_labels(one, old.get(key))
            for key, one in new.items()
        }
    if isinstance(new, list) and isinstance(old, list):
        return [with_labels(one, other) for one, other in zip(new, old, strict=True)]
    return new


NAMED_FREELY = frozenset(
    {"DaemonSet", "Deployment", "Job", "CronJob", "ReplicaSet", "StatefulSet", "ResourceClaim", "PersistentVolumeClaim",
     "ResourceQuota", "LimitRange", "PodGroup", "NodePool"}
)  # fmt: skip


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda one: one.name)
def test_other_names_of_objects_and_namespaces_of_the_stack_change_nothing(example: Example) -> None:
    """Controllers, claims, quotas and owners, and the namespaces that charts suggest."""
    free = {one["metadata"].get("name") for one in example.broken if one["kind"] in NAMED_FREELY}
    owners = {row.get("name") for one in example.broken for row in one["metadata"].get("ownerReferences") or ()}
    names = {name: f"{name}-zz9" for name in free | owners if name}
    spaces = {"gpu-operator": "platform", "kube-system": "base"}
    objects = with_labels(renamed(copy.deepcopy(example.broken), names | spaces), example.broken)
    report = diagnose(example.snapshot(objects), strict=True)
    assert report.findings, "nothing was found under other names"
    assert report.findings[0].id == example.rule, as_text(report)


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda one: one.name)
def test_korean_text_in_annotations_of_everything_changes_nothing(example: Example) -> None:
    def noted(value: Any) -> Any:
        if isinstance(value, list):
            return [noted(one) for one in value]
        if not isinstance(value, dict):
            return value
        found = {key: noted(one) for key, one in value.items()}
        if isinstance(found.get("metadata"), dict):
            more = {"example.com/설명": "이 객체는 학습용입니다: 오류 없음", "note": "드라이버 오류 token 은 없음"}
            found["metadata"]["annotations"] = {**(found["metadata"].get("annotations") or {}), **more}
        return found

    report = diagnose(example.snapshot(noted(copy.deepcopy(example.broken))), strict=True)
    wanted = diagnose(example.snapshot(example.broken), strict=True)
    assert [(one.id, one.cause) for one in report.findings] == [(one.id, one.cause) for one in wanted.findings]
    assert not diagnose(example.snapshot(noted(copy.deepcopy(example.healthy))), strict=True).findings


OF_NVIDIA = frozenset({"SCH-00_nowhere", "SCH-02", "SCH-04", "SCH-04_elsewhere", "SCH-05", "SCH-06"})
"""What labels, slices or shared names of NVIDIA's make."""


@pytest.mark.parametrize(
    "example",
    [one for one in EXAMPLES if one.name.startswith(("SCH", "TNT", "QTA", "ASC", "POD", "NODE", "IMG")) and not {one.name, one.rule} & OF_NVIDIA],
    ids=lambda one: one.name,
)  # fmt: skip
@pytest.mark.parametrize("resource", ["amd.com/gpu", "habana.ai/gaudi", "gpu.intel.com/i915"])
def test_other_vendors_resources(example: Example, resource: str) -> None:
    def other(value: Any) -> Any:
        if isinstance(value, dict):
            return {resource if key == "nvidia.com/gpu" else key: other(one) for key, one in value.items()}
        return [other(one) for one in value] if isinstance(value, list) else value

    report = diagnose(example.snapshot(other(example.broken)), strict=True)
    assert report.findings
    assert report.findings[0].id == example.rule, as_text(report)
    assert not diagnose(example.snapshot(other(example.healthy)), strict=True).findings


def test_order_does_not_matter() -> None:
    for example in EXAMPLES:
        wanted = [one.data() for one in diagnose(example.snapshot(example.broken), strict=True).findings]
        objects = [one for one in example.broken if one["kind"] not in ("PodLog", "Event")][::-1]
        rest = [one for one in example.broken if one["kind"] in ("PodLog", "Event")]
        found = [one.data() for one in diagnose(example.snapshot([*objects, *rest]), strict=True).findings]
        assert {(one["id"], one["subject"]) for one in found} == {(one["id"], one["subject"]) for one in wanted}, (
            example.name
        )


def test_a_misspelt_resource_does_not_follow_from_what_is_wrong_with_a_node() -> None:
    objects = copy.deepcopy(BY_NAME["TNT-08"].broken)
    for one in objects:
        if one["kind"] == "Node":
            amounts = {"nvidia.com/gpu": "8", "cpu": "8", "pods": "9"}
            one["status"] |= {"capacity": amounts, "allocatable": amounts}
    objects.append(
        {
            "kind": "Pod",
            "metadata": {"name": "typo", "namespace": "ml"},
            "spec": {"containers": [{"name": "a", "image": "i", "resources": {"limits": {"nvidia.com/gpus": "1"}}}]},
            "status": {"phase": "Pending", "conditions": [{"type": "PodScheduled", "status": "False"}]},
        }
    )
    report = diagnose(Snapshot.of(objects), strict=True)
    assert [(one.id, one.subject.name) for one in report.findings] == [("TNT-08", "gpu-1"), ("SCH-00", "typo")]
