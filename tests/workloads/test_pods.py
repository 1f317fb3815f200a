"""Which pods do the work, whose log matters, and what keeps a pod from being ready."""

from __future__ import annotations

from typing import Any

import pytest

from kgpu.workloads.pods import DEFAULT_CONTAINER, serving, state
from kgpu.workloads.rows import workload
from tests.workloads.making import PLUGIN, agent, ended, pod, running, waiting

ROW = workload("device-plugin")


def test_its_own_pods_and_the_agents_where_it_has_none() -> None:
    pods = [pod(PLUGIN, "b"), agent("b"), agent("a"), pod("web", "c")]
    found = serving(ROW, pods)
    assert [(one.node, one.shared) for one in found] == [("a", True), ("b", False)]
    assert [one.node for one in serving(ROW, pods, "a")] == ["a"]
    assert serving(workload("operator"), [agent("a")]) == ()


def test_what_no_role_does_is_not_the_agents() -> None:
    assert serving(workload("dcgm"), [agent("a")]) == ()


@pytest.mark.parametrize(
    ("made", "container"),
    [
        ({}, "main"),
        ({"before": (waiting("PodInitializing", "wait"),)}, "main"),
        ({"before": (running("wait"),)}, "wait"),
        ({"before": (ended(0, "copy"), waiting("CrashLoopBackOff", "wait", 3))}, "wait"),
        ({"before": (ended(1, "wait"),)}, "wait"),
        ({"before": (ended(0, "wait"),)}, "main"),
        ({"before": (running("side"),), "sidecars": ("side",)}, "main"),
        ({"containers": ("one", "two"), "annotations": {DEFAULT_CONTAINER: "two"}}, "two"),
        ({"containers": ("one",), "annotations": {DEFAULT_CONTAINER: "other"}}, "one"),
        ({"containers": ()}, ""),
    ],
)  # fmt: skip
def test_the_container_that_has_something_to_say(made: dict[str, Any], container: str) -> None:
    (found,) = serving(ROW, [pod(PLUGIN, "a", **made)])
    assert found.container == container


@pytest.mark.parametrize(
    ("made", "why"),
    [
        ({}, ""),
        ({"ready": False, "statuses": (waiting("CrashLoopBackOff"),)}, "CrashLoopBackOff"),
        ({"ready": False, "before": (waiting("ImagePullBackOff", "wait"),)}, "ImagePullBackOff"),
        ({"ready": False}, "Pending"),
        ({"deletionTimestamp": "2026-01-01T00:00:00Z"}, "Terminating"),
    ],
)
def test_what_keeps_a_pod_from_being_ready(made: dict[str, Any], why: str) -> None:
    assert state(pod(PLUGIN, "a", **made)) == why


@pytest.mark.parametrize("nonsense", [{}, {"metadata": None, "spec": 3, "status": []}, {"status": {"conditions": "x"}}])
def test_nonsense_is_no_pod_of_anything(nonsense: dict[str, Any]) -> None:
    assert serving(ROW, [nonsense]) == ()
    assert state(nonsense) == "Pending"
