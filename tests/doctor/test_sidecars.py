"""Sidecars run beside what a pod is for: the kubelet ends them after it, and they never hold up its start once started."""

from __future__ import annotations

from typing import Any

from kgpu.doctor import matching
from kgpu.doctor.kinds import Pod
from tests.doctor.small import EARLY, LATE, container, ended, found, pod

PROXY = {"initContainers": [{"name": "proxy", "image": "p", "restartPolicy": "Always"}]}
RUNS = {"running": {"startedAt": EARLY}}


def beside(seen: dict[str, Any], main: dict[str, Any], **more: Any) -> dict[str, Any]:
    return pod(seen=[main], initContainerStatuses=[seen], spec=PROXY, **more)


def test_a_failed_pod_is_not_told_as_its_sidecars_fault() -> None:
    owner = {"ownerReferences": [{"kind": "Job", "name": "j", "controller": True}]}
    over = {"type": "Failed", "status": "True", "reason": "BackoffLimitExceeded", "lastTransitionTime": LATE}
    job = {"kind": "Job", "metadata": {"name": "j", "namespace": "ml"}, "status": {"conditions": [over]}, "spec": {}}
    failed = beside(container("proxy", state=ended(143)), container(state=ended(1)), phase="Failed", metadata=owner)
    (one,) = found(failed, job)
    assert "container main: it has ended with exit code 1" in one.cause
    assert "logs train -c main" in one.remedy[0]
    assert matching.failing(Pod(failed)).name == "main"  # type: ignore[union-attr]


def test_a_sidecar_that_is_not_ready_holds_up_no_start() -> None:
    unready = beside(container("proxy", started=True, state=RUNS), container(ready=True, started=True, state=RUNS))
    (one,) = found(unready)
    assert "is not ready: container proxy: it runs, and has not been ready for 360 minutes" in one.cause
    assert matching.initialising(Pod(unready)) is None


def test_a_sidecar_that_has_not_started_does() -> None:
    main = container(state={"waiting": {"reason": "PodInitializing"}})
    stands = beside(container("proxy", started=False, state=RUNS), main, phase="Pending")
    assert matching.initialising(Pod(stands)).name == "proxy"  # type: ignore[union-attr]
    (one,) = found(stands)
    assert "does not start: container proxy: initialising for 360 minutes" in one.cause


def test_a_sidecar_that_keeps_ending_is_told_where_nothing_else_is_wrong() -> None:
    crashes = {"waiting": {"reason": "CrashLoopBackOff"}}
    main = container(state={"waiting": {"reason": "PodInitializing"}})
    (one,) = found(beside(container("proxy", state=crashes, lastState=ended(3)), main, phase="Pending"))
    assert "container proxy: CrashLoopBackOff: it ends with exit code 3" in one.cause
