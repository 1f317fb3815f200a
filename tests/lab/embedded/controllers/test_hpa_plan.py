"""How many pods a horizontal pod autoscaler wants, and how fast it may get there.

The cases are those of Kubernetes' documentation of horizontal pod autoscaling, and what its replica calculator is known to do.
"""

from __future__ import annotations

import datetime as dt
from dataclasses import dataclass, field
from typing import Any

import pytest

from kgpu.kube.port import Object
from kgpu.lab.embedded.controllers import hpa_plan
from kgpu.lab.embedded.controllers.hpa_plan import History, Moment
from kgpu.lab.embedded.controllers.hpa_replicas_plan import NoReplicasError, Sample, Tolerance, UseTarget, replicas

NOW = dt.datetime(2026, 1, 1, 12, tzinfo=dt.UTC)
WINDOW = dt.timedelta(seconds=15)
HALF = UseTarget(utilization=50)


def pod(
    name: str, request: str | None = "1", *, phase: str = "Running", ready: bool = True, age: float = 3600,
    since: float = 3600, leaving: bool = False,
) -> Object:  # fmt: skip
    """``age`` of its start and ``since`` of its readiness' last change in seconds before NOW."""

    def stamp(seconds: float) -> str:
        return (NOW - dt.timedelta(seconds=seconds)).strftime("%Y-%m-%dT%H:%M:%SZ")

    requests = {} if request is None else {"requests": {"cpu": request, "memory": request}}
    condition = {"type": "Ready", "status": str(ready), "lastTransitionTime": stamp(since)}
    return {
        "metadata": {"name": name, **({"deletionTimestamp": stamp(0)} if leaving else {})},
        "spec": {"containers": [{"name": "c", "resources": requests}]},
        "status": {"phase": phase, "startTime": stamp(age), "conditions": [condition]},
    }  # fmt: skip


@dataclass
class Case:
    """``used``: thousandths by pod, None for no sample."""

    used: dict[str, int | None]
    expected: int
    current: int = 3
    target: UseTarget = HALF
    resource: str = "cpu"
    odd: dict[str, dict[str, Any]] = field(default_factory=dict)
    tolerance: Tolerance = field(default_factory=Tolerance)


CASES = {
    "ratio, rounded up": Case({"a": 600, "b": 800, "c": 900}, 5),
    "down": Case({"a": 100, "b": 200, "c": 300}, 2),
    "at the target": Case({"a": 500, "b": 500, "c": 500}, 3),
    "within a tenth above": Case({"a": 540, "b": 550, "c": 550}, 3),
    "within a tenth below": Case({"a": 460, "b": 450, "c": 450}, 3),
    "a behavior's own tolerance": Case({"a": 540, "b": 540, "c": 540}, 4, tolerance=Tolerance(up=0.02)),
    "average value": Case({"a": 600, "b": 600, "c": 900}, 4, target=UseTarget(average=600)),
    "no sample: nothing when going up": Case({"a": 1000, "b": 1000, "c": None}, 4),
    "no sample: up turns to nothing": Case({"a": 600, "b": 600, "c": None}, 3),
    "no sample: all of its request when going down": Case({"a": 100, "b": 100, "c": None}, 3),
    "no sample: down by less": Case({"a": 0, "b": 0, "c": 0, "d": None}, 2, current=4),
    "no sample, by average: the target when going down": Case(
        {"a": 100, "b": 100, "c": None}, 2, target=UseTarget(average=500)
    ),
    "not ready: nothing when going up": Case({"a": 900, "b": 900, "c": 100}, 4, odd={"c": {"ready": False, "age": 60, "since": 50}}),
    "not ready: not counted when going down": Case(
        {"a": 100, "b": 100, "c": 900}, 1, odd={"c": {"ready": False, "age": 60, "since": 50}}
    ),
    "ready, its sample from before that": Case(
        {"a": 900, "b": 900, "c": 900}, 4, odd={"c": {"age": 60, "since": 5}}
    ),
    "ready since more than a window": Case({"a": 900, "b": 900, "c": 900}, 6, odd={"c": {"age": 60, "since": 20}}),
    "not ready any more, long after its start": Case(
        {"a": 900, "b": 900, "c": 900}, 6, odd={"c": {"ready": False, "age": 3600, "since": 100}}
    ),
    "memory counts before a pod is ready": Case(
        {"a": 900, "b": 900, "c": 900}, 6, resource="memory", odd={"c": {"ready": False, "age": 60, "since": 50}}
    ),
    "pending": Case({"a": 900, "b": 900, "c": None}, 4, odd={"c": {"phase": "Pending"}}),
    "failed": Case({"a": 900, "b": 900, "c": None}, 4, odd={"c": {"phase": "Failed"}}),
    "being deleted": Case({"a": 900, "b": 900, "c": 0}, 4, odd={"c": {"leaving": True}}),
}  # fmt: skip


def ask(case: Case) -> int:
    pods = [pod(name, **case.odd.get(name, {})) for name in case.used]
    samples = {name: Sample(used, NOW, WINDOW) for name, used in case.used.items() if used is not None}
    return replicas(
        case.current, case.target, samples, pods, resource=case.resource, now=NOW, tolerance=case.tolerance
    ).replicas


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_the_replicas_that_the_pods_use_asks_for(case: Case) -> None:
    assert ask(case) == case.expected


def test_the_use_that_is_told() -> None:
    samples = {"a": Sample(300, NOW, WINDOW), "b": Sample(500, NOW, WINDOW)}
    found = replicas(2, HALF, samples, [pod("a"), pod("b", "3")], resource="cpu", now=NOW)
    assert (found.utilization, found.average) == (20, 400)


@pytest.mark.parametrize(
    ("pods", "samples", "text"),
    [
        ([], {}, "no pods returned by selector while calculating replica count"),
        ([pod("a")], {}, "did not receive metrics for targeted pods (pods might be unready)"),
        ([pod("a", None)], {"a": 1}, "missing request for cpu in container c of Pod a"),
        ([pod("a", phase="Pending")], {}, "did not receive metrics for targeted pods (pods might be unready)"),
    ],
)
def test_why_there_is_no_number(pods: list[Object], samples: dict[str, int], text: str) -> None:
    with pytest.raises(NoReplicasError) as refused:
        replicas(
            1, HALF, {name: Sample(used, NOW, WINDOW) for name, used in samples.items()}, pods, resource="cpu", now=NOW
        )
    assert str(refused.value) == text


# How fast

PODS = {"type": "Pods", "value": 4, "periodSeconds": 60}
PERCENT = {"type": "Percent", "value": 10, "periodSeconds": 60}


def behavior(up: Object | None = None, down: Object | None = None) -> Object:
    """As the API server completes one."""
    usual_up = {"stabilizationWindowSeconds": 0, "selectPolicy": "Max", "policies": [PODS]}
    usual_down = {"selectPolicy": "Max", "policies": [{"type": "Percent", "value": 100, "periodSeconds": 15}]}
    return {"behavior": {"scaleUp": usual_up | (up or {}), "scaleDown": usual_down | (down or {})}}


def decided(
    current: int, wanted: int, spec: Object | None = None, history: History | None = None, now: float = 1000
) -> tuple[int, str, str]:  # fmt: skip
    found = hpa_plan.decide(
        {"minReplicas": 2, "maxReplicas": 100} | (spec or {}), history or History(), current, wanted, now
    )
    assert found.limited == (found.limit[0] != "DesiredWithinRange")
    return found.replicas, found.able[0], found.limit[0]


@pytest.mark.parametrize(
    ("current", "wanted", "spec", "expected"),
    [
        (10, 15, {}, (15, "ReadyForNewScale", "DesiredWithinRange")),
        (10, 25, {}, (20, "ReadyForNewScale", "ScaleUpLimit")),
        (2, 50, {}, (4, "ReadyForNewScale", "ScaleUpLimit")),
        (3, 50, {"maxReplicas": 5}, (5, "ReadyForNewScale", "TooManyReplicas")),
        (3, 0, {}, (2, "ReadyForNewScale", "TooFewReplicas")),
        (10, 30, behavior(), (14, "ReadyForNewScale", "ScaleUpLimit")),
        (80, 30, behavior(down={"stabilizationWindowSeconds": 0, "policies": [PERCENT, PODS]}), (72, "ReadyForNewScale", "ScaleDownLimit")),
        (10, 3, behavior(down={"policies": [PERCENT, PODS]}), (6, "ReadyForNewScale", "ScaleDownLimit")),
        (80, 3, behavior(down={"policies": [PERCENT, PODS], "selectPolicy": "Min"}), (76, "ReadyForNewScale", "ScaleDownLimit")),
        (10, 3, behavior(down={"selectPolicy": "Disabled"}), (10, "ReadyForNewScale", "ScaleDownLimit")),
        (10, 30, behavior(up={"selectPolicy": "Disabled"}), (10, "ReadyForNewScale", "ScaleUpLimit")),
        (10, 200, {"maxReplicas": 12, **behavior()}, (12, "ReadyForNewScale", "TooManyReplicas")),
        (10, 0, behavior(), (2, "ReadyForNewScale", "TooFewReplicas")),
    ],
)  # fmt: skip
def test_bounds_and_policies(current: int, wanted: int, spec: Object, expected: tuple[int, str, str]) -> None:
    assert decided(current, wanted, spec) == expected


def test_down_waits_for_the_highest_recommendation_of_five_minutes() -> None:
    history = History(recommendations=[Moment(1000, 8)])
    for spec in ({}, behavior()):
        history.recommendations = [Moment(1000, 8)]
        assert decided(8, 3, spec, history, now=1299) == (8, "ScaleDownStabilized", "DesiredWithinRange")
        assert decided(8, 3, spec, history, now=1301)[:2] == (3, "ReadyForNewScale")


def test_up_waits_for_the_lowest_recommendation_of_its_window() -> None:
    history = History(recommendations=[Moment(1000, 5)])
    spec = behavior(up={"stabilizationWindowSeconds": 60})
    assert decided(4, 8, spec, history, now=1030)[:2] == (5, "ScaleUpStabilized")
    assert decided(5, 8, spec, history, now=1061)[:2] == (8, "ReadyForNewScale")


def test_a_policy_counts_what_was_changed_in_its_period() -> None:
    history, spec = History(), {"minReplicas": 2, "maxReplicas": 100, **behavior()}
    hpa_plan.remember_change(spec, history, 10, 13, 1000)
    assert decided(13, 50, spec, history, now=1030)[0] == 14
    assert decided(13, 50, spec, history, now=1061)[0] == 17


def test_a_behaviors_tolerance() -> None:
    assert hpa_plan.tolerance_of({}) == Tolerance()
    assert hpa_plan.tolerance_of(behavior(up={"tolerance": "50m"})) == Tolerance(up=0.05)
