"""Pods that have failed and whose work nobody does again are told, as a problem while it is news."""

from __future__ import annotations

from typing import Any

import pytest

from kgpu.doctor import matching
from kgpu.doctor.ended_pods import is_in
from kgpu.doctor.model import Level
from kgpu.doctor.objects import Obj
from kgpu.doctor.plan import diagnose
from kgpu.doctor.snapshot import Snapshot
from tests.doctor.small import EARLY, LATE, container, ended, found, node, plugin, pod, told

INDEX = "batch.kubernetes.io/job-completion-index"
OWNER = {"ownerReferences": [{"kind": "Job", "name": "tune", "controller": True}]}


def failed(name: str = "train", *, code: int = 1, when: str = LATE, **metadata: Any) -> dict[str, Any]:
    return pod(name, phase="Failed", seen=[container(state=ended(code, when))], spec=None, metadata=metadata)


def job(**status: Any) -> dict[str, Any]:
    asks = {"name": "main", "image": "i", "resources": {"limits": {"nvidia.com/gpu": "1"}}}
    return {
        "kind": "Job", "metadata": {"name": "tune", "namespace": "ml", "uid": "j"}, "status": status,
        "spec": {"completionMode": "Indexed", "backoffLimitPerIndex": 1, "template": {"spec": {"containers": [asks]}}},
    }  # fmt: skip


@pytest.mark.parametrize(("when", "level"), [(LATE, Level.PROBLEM), (EARLY, Level.NOTE)])
def test_a_pod_that_nobody_owns_and_that_has_failed(when: str, level: Level) -> None:
    assert told(failed(when=when)) == [("POD-00", level)]
    (one,) = found(failed(when=when))
    assert "has failed: container main: it has ended with exit code 1, and nobody makes it anew" in one.cause


def test_a_pod_whose_owner_may_make_it_anew_is_left_alone() -> None:
    assert told(failed(**OWNER), job(failed=1, active=1)) == []


def test_an_index_that_has_failed_for_good() -> None:
    first, second = (failed(name, labels={INDEX: "0"}, **OWNER) for name in ("tune-0-a", "tune-0-b"))
    (one,) = found(first, second, job(failed=2, active=3, failedIndexes="0"))
    assert (one.id, one.level, one.pods) == ("POD-00", Level.PROBLEM, ("ml/tune-0-a", "ml/tune-0-b"))
    assert "index 0 of its Job has failed for good" in one.cause


def test_an_index_that_is_tried_again_is_left_alone() -> None:
    assert (
        told(
            failed(labels={INDEX: "1"}, **OWNER),
            failed("b", labels={INDEX: "0"}, **OWNER),
            job(active=3, failedIndexes="0"),
        )[1:]
        == []
    )


@pytest.mark.parametrize(("active", "level"), [(3, Level.PROBLEM), (0, Level.NOTE)])
def test_an_index_of_which_no_pod_is_left(active: int, level: Level) -> None:
    (one,) = found(job(active=active, failedIndexes="0,3-5"))
    assert (one.id, one.level, str(one.subject)) == ("POD-00", level, "Job ml/tune")
    assert "indexes 0,3-5 have failed" in one.cause


def late(when: str) -> dict[str, Any]:
    message = "Job was active longer than specified deadline"
    return job(failed=1, conditions=[
        {"type": "Failed", "status": "True", "reason": "DeadlineExceeded", "message": message, "lastTransitionTime": when}
    ])  # fmt: skip


@pytest.mark.parametrize(("when", "level"), [(LATE, Level.PROBLEM), (EARLY, Level.NOTE)])
def test_a_job_that_has_failed_and_whose_pods_its_controller_has_deleted(when: str, level: Level) -> None:
    (one,) = found(node(), plugin(), late(when))
    assert (one.id, one.level, str(one.subject)) == ("POD-00", level, "Job ml/tune")
    assert "DeadlineExceeded: Job was active longer than specified deadline" in one.cause


def test_a_failed_job_is_told_once_and_not_where_nobody_has_looked_at_pods() -> None:
    assert told(failed(**OWNER), late(LATE)) == [("POD-00", Level.PROBLEM)]
    assert diagnose(Snapshot.of([late(LATE)]), strict=True).findings == ()


@pytest.mark.parametrize(("more", "levels"), [("2026-01-01T11:59:00Z", []), ("2025-12-01T00:00:00Z", [Level.PROBLEM])])
def test_a_failed_job_of_a_cron_job_that_has_run_since(more: str, levels: list[Level]) -> None:
    owner = [{"kind": "CronJob", "name": "nightly", "controller": True}]
    one, other = late(LATE), job(succeeded=1)
    one["metadata"] |= {"ownerReferences": owner, "creationTimestamp": "2026-01-01T11:00:00Z"}
    other["metadata"] |= {"ownerReferences": owner, "creationTimestamp": more, "name": "tune-2", "uid": "k"}
    assert [each.level for each in found(node(), plugin(), one, other)] == levels


@pytest.mark.parametrize(
    ("index", "said", "there"),
    [("0", "0", True), ("4", "1,3-5,7", True), ("6", "1,3-5,7", False), ("", "0", False), ("0", "", False),
     ("x", "x", False), ("1", "a-b,-,1-", True), ("2", "1-", False)],
)  # fmt: skip
def test_the_list_of_indexes(index: str, said: str, there: bool) -> None:
    assert is_in(index, said) is there


@pytest.mark.parametrize("field", ["containers", "initContainers"])
def test_pods_that_ask_for_gpus_in_a_sidecar_alone_count(field: str) -> None:
    asks = [{"name": "s", "restartPolicy": "Always", "resources": {"limits": {"nvidia.com/gpu": "1"}}}]
    spec = {"suspend": True, "template": {"spec": {"containers": [{"name": "c"}], field: asks}}}
    held = {"kind": "Job", "metadata": {"name": "held", "namespace": "ml"}, "spec": spec}
    assert matching.makes_accelerator_pods(Obj(held))
    assert told(held) == [("JOB-00", Level.NOTE)]
