"""Tracked quota usage equals what counting everything anew would give, after any history."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from kgpu.lab.embedded.status import Object
from kgpu.lab.embedded.types import quota as rules
from kgpu.lab.embedded.types.admission.usage_tracker import QuotaUsageTracker
from tests.budget import tries

PODS = ("", "pods")
HARD = {"pods": "10", "requests.cpu": "4", "limits.memory": "8Gi", "requests.nvidia.com/gpu": "8", "count/pods": "20"}
SPECS: list[Object] = [
    {"hard": HARD},
    {"hard": HARD, "scopes": ["BestEffort"]},
    {"hard": {"pods": "3"}, "scopeSelector": {"matchExpressions": [
        {"scopeName": "PriorityClass", "operator": "In", "values": ["high"]}]}},
]  # fmt: skip


def _pod(name: str, resources: Object, phase: str, ending: str, priority: str) -> Object:
    metadata: Object = {"name": name, "namespace": "n"}
    if ending:
        metadata |= {"deletionTimestamp": ending, "deletionGracePeriodSeconds": 30}
    spec: Object = {"containers": [{"name": "c", "resources": resources}]}
    if priority:
        spec["priorityClassName"] = priority
    return {"metadata": metadata, "spec": spec, "status": {"phase": phase}}


PODS_ = st.builds(
    _pod,
    st.sampled_from(["a", "b", "c"]),
    st.sampled_from([
        {},
        {"requests": {"cpu": "500m"}},
        {"requests": {"cpu": "1", "nvidia.com/gpu": "2"}, "limits": {"memory": "1Gi", "nvidia.com/gpu": "2"}},
        {"requests": {"cpu": "0.25"}, "limits": {"memory": "100M"}},
    ]),
    st.sampled_from(["Pending", "Running", "Succeeded", "Failed"]),
    st.sampled_from(["", "2020-01-01T00:00:00Z", "2999-01-01T00:00:00Z"]),
    st.sampled_from(["", "high", "low"]),
)  # fmt: skip
STEPS = st.lists(
    st.tuples(st.sampled_from(["put", "put", "drop", "ask", "spec"]), PODS_, st.integers(0, 2)), max_size=30
)


@tries(150)
@given(STEPS)
def test_any_history_adds_up(steps: list[tuple[str, Object, int]]) -> None:
    held: dict[str, Object] = {}
    counted: list[str] = []

    def every(group: str, plural: str, namespace: str) -> Any:
        counted.append(namespace)
        return list(held.values())

    tracker = QuotaUsageTracker(every)
    quota: Object = {"metadata": {"name": "q", "namespace": "n"}, "spec": SPECS[0]}
    for what, pod, number in [*steps, ("ask", {}, 0)]:
        name = pod.get("metadata", {}).get("name", "")
        if what == "put":
            held[name] = pod
            tracker.record(PODS, "n", name, pod)
        elif what == "drop" and held.pop(name, None) is not None:
            tracker.record(PODS, "n", name, None)
        elif what == "spec":
            quota = {**quota, "spec": SPECS[number]}
        elif what == "ask":
            found = tracker.of(quota, PODS)
            wanted = rules.quota_usage(quota, {PODS: held.values()})
            assert found == wanted


def test_objects_are_counted_once_and_then_followed() -> None:
    asked: list[str] = []

    def none(group: str, plural: str, namespace: str) -> list[Object]:
        asked.append(plural)
        return []

    tracker = QuotaUsageTracker(none)
    quota: Object = {"metadata": {"name": "q", "namespace": "n"}, "spec": {"hard": {"pods": "2"}}}
    for number in range(5):
        assert str(tracker.of(quota, PODS)["pods"]) == str(number)
        tracker.record(PODS, "n", f"p{number}", _pod(f"p{number}", {}, "Pending", "", ""))
        tracker.record(PODS, "elsewhere", f"p{number}", _pod(f"p{number}", {}, "Pending", "", ""))
    assert asked == ["pods"]
