"""Commands name the ClusterPolicy that counts, whatever it is called."""

from __future__ import annotations

import copy
import re

import pytest

from kgpu.doctor import cluster_policy
from kgpu.doctor.plan import diagnose
from kgpu.doctor.snapshot import Snapshot
from tests.doctor.example import all_examples

NAMED = re.compile(r"clusterpolicy[ /](?!-)(\S+)")
EXAMPLES = [one for one in all_examples() if one.broken]


def policy(name: str, state: str = "ready") -> dict[str, object]:
    return {"kind": "ClusterPolicy", "metadata": {"name": name}, "spec": {}, "status": {"state": state}}


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda one: one.name)
def test_no_other_policy_is_named_than_one_that_is_there(example) -> None:
    objects = copy.deepcopy(example.broken)
    for one in objects:
        if one.get("kind") == "ClusterPolicy" and one["metadata"]["name"] == cluster_policy.USUAL:
            one["metadata"]["name"] = "gpu-cluster-policy"
    if not any(one.get("kind") == "ClusterPolicy" for one in objects):
        objects.append(policy("gpu-cluster-policy"))
    there = {one["metadata"]["name"] for one in objects if one.get("kind") == "ClusterPolicy"}
    report = diagnose(example.snapshot(objects), strict=True)
    steps = [step for root in report.findings for one in root.all() for step in one.remedy]
    assert {hit for step in steps for hit in NAMED.findall(step)} <= there


def test_an_ignored_policy_is_not_the_one() -> None:
    snapshot = Snapshot.of([policy("a", "ignored"), policy("b-c")])
    assert cluster_policy.name(snapshot) == "b-c"
    assert cluster_policy.change(snapshot, cluster_policy.MIXED) == (
        """kubectl patch clusterpolicy b-c --type merge -p '{"spec":{"mig":{"strategy":"mixed"}}}'"""
    )


def test_where_none_was_read_it_is_the_charts() -> None:
    assert cluster_policy.name(Snapshot.of([])) == cluster_policy.USUAL
