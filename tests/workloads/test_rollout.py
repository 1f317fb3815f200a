"""How far new pods have come, as kubectl counts."""

from __future__ import annotations

import datetime as dt
from typing import Any

import pytest

from kgpu.kube.kinds import DAEMON_SETS, DEPLOYMENTS
from kgpu.workloads.rollout import RESTARTED, RolloutProgress, progress, replaces_by_itself, restarted
from tests.workloads.making import daemon_set


@pytest.mark.parametrize(
    ("status", "expected"),
    [
        ({}, RolloutProgress(new=2, wanted=2, done=True)),
        ({"observedGeneration": 0}, RolloutProgress(new=0, wanted=2, done=False)),
        ({"updatedNumberScheduled": 1}, RolloutProgress(new=1, wanted=2, done=False)),
        ({"numberAvailable": 1}, RolloutProgress(new=1, wanted=2, done=False)),
        ({"desiredNumberScheduled": 0, "updatedNumberScheduled": 0, "numberAvailable": 0},
         RolloutProgress(new=0, wanted=0, done=True)),
    ],
)  # fmt: skip
def test_a_daemon_set(status: dict[str, int], expected: RolloutProgress) -> None:
    assert progress(DAEMON_SETS, daemon_set(**status)) == expected


@pytest.mark.parametrize(
    ("status", "done"),
    [
        ({"updatedReplicas": 2, "availableReplicas": 2, "replicas": 2}, True),
        ({"updatedReplicas": 2, "availableReplicas": 2, "replicas": 3}, False),
        ({"updatedReplicas": 2, "availableReplicas": 1, "replicas": 2}, False),
        ({}, False),
        ({"updatedReplicas": "2", "availableReplicas": None, "replicas": []}, False),
    ],
)
def test_a_deployment(status: dict[str, Any], done: bool) -> None:
    obj = {"metadata": {"generation": 4}, "spec": {"replicas": 2}, "status": {"observedGeneration": 4, **status}}
    assert progress(DEPLOYMENTS, obj).done is done


def test_pods_that_only_deletion_replaces() -> None:
    assert replaces_by_itself(daemon_set())
    assert not replaces_by_itself(daemon_set(strategy="OnDelete"))


def test_the_change_is_kubectls() -> None:
    change = restarted(dt.datetime(2026, 11, 30, 12, 0, 1, tzinfo=dt.timezone(dt.timedelta(hours=1))))
    assert change["spec"]["template"]["metadata"]["annotations"] == {RESTARTED: "2026-11-30T11:00:01Z"}
