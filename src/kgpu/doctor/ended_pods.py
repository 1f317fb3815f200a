"""Pods that have ended and whose work nobody does again: refused, ended by others, or failed for good."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from kgpu.base.plain import mapping, text
from kgpu.base.remedy import Remedy
from kgpu.doctor import matching, remedies
from kgpu.doctor.kinds import UNSTARTED, Container, Pod
from kgpu.doctor.model import CERTAIN, Finding, Level
from kgpu.doctor.objects import Condition, Obj
from kgpu.doctor.snapshot import Snapshot
from kgpu.formats import names

NEWS: Final = 3600.0
"""Seconds for which a failure is news: as long as the API server keeps events."""


@dataclass(frozen=True, slots=True)
class PodFailure:
    """Why a pod has failed for good, the container that it failed by, and since when."""

    why: str
    at: Container
    since: str


def by_others(snapshot: Snapshot, pod: Pod) -> bool:
    """Whether the kubelet, the engine or a controller has ended a pod, and nobody does its work since."""
    if pod.phase != "Failed" or matching.superseded(snapshot, pod):
        return False
    return bool(pod.reason or pod.message) or any(container.end_reason in UNSTARTED for container in pod.containers)


def for_good(snapshot: Snapshot, pod: Pod) -> PodFailure | None:
    """Why the work of a failed pod will not be done again: it has no owner, or its Job (or its index of an Indexed Job)
    has failed too. None where it may be done again.
    """
    bad = next((container for container in pod.blamed if container.exit_code), None)
    if pod.phase != "Failed" or bad is None:
        return None
    ended = text(mapping(mapping(bad.status.get("state")).get("terminated")).get("finishedAt"))
    if not pod.owner:
        return PodFailure("nobody makes it anew", bad, ended)
    kind, _, name = pod.owner.partition("/")
    job = snapshot.get(kind, name, pod.namespace) if kind == "Job" else None
    failed = job.holding("Failed") if job is not None else None
    if failed is not None:
        return PodFailure(f"its Job has failed ({failed.reason or 'Failed'})", bad, failed.since)
    if job is not None and is_in(index_of(pod), job.text("status.failedIndexes")):
        return PodFailure(f"index {index_of(pod)} of its Job has failed for good", bad, ended)
    return None


def index_of(pod: Pod) -> str:
    """Which part of an Indexed Job's work a pod does, "" for none."""
    return pod.labels.get(names.JOB_INDEX_LABEL) or pod.annotations.get(names.JOB_INDEX_LABEL, "")


def is_in(index: str, indexes: str) -> bool:
    """Whether an index is one of a Job's list of them: ``1,3-5,7``."""
    return (
        index.isascii() and index.isdecimal() and any(_covers(part.strip(), int(index)) for part in indexes.split(","))
    )


def _covers(part: str, index: int) -> bool:
    first, _, last = part.partition("-")
    return first.isdecimal() and int(first) <= index <= int(last if last.isdecimal() else first)


def lost_work(snapshot: Snapshot) -> Iterator[Finding]:
    """Jobs for GPUs that have failed, or run on although an index has failed for good, where no pod is left to tell."""
    for job in snapshot.all("Job"):
        failed_indexes = job.text("status.failedIndexes")
        failed = job.holding("Failed")
        if not (failed_indexes or failed) or job.deleting or not matching.makes_accelerator_pods(job):
            continue
        if any(for_good(snapshot, pod) or by_others(snapshot, pod) for pod in snapshot.pods_of(job)):
            continue
        if failed is None and failed_indexes:
            yield _lost(snapshot, job, failed_indexes)
        elif failed is not None and snapshot.knows("Pod") and not _done_since(snapshot, job):
            yield _failed(snapshot, job, failed)


def _done_since(snapshot: Snapshot, job: Obj) -> bool:
    """Whether its CronJob has made a later one, which has not failed."""
    jobs = snapshot.makers_by_owner.get((job.namespace, job.owner), ())
    return any(later.created > job.created and later.holding("Failed") is None for _, later in jobs)


def _failed(snapshot: Snapshot, job: Obj, failed: Condition) -> Finding:
    """After a Job's deadline the controller deletes its pods: only the Job itself says what became of them."""
    age = snapshot.age(failed.since)
    why = ": ".join(filter(None, (failed.reason, failed.message)))
    return Finding(
        subject=job.subject,
        cause=f"{job} has failed{f' ({why})' if why else ''}, and no failed pod of it is left",
        evidence=(failed.cite(), job.cite("status.failed")),
        remedy=(
            remedies.describe(job.namespace, "job", job.name),
            Remedy("a Job that has failed does not run again: make it anew once the reason is gone"),
        ),
        confidence=CERTAIN,
        level=Level.PROBLEM if age is not None and age < NEWS else Level.NOTE,
        since=failed.since,
    )


def _lost(snapshot: Snapshot, job: Obj, failed_indexes: str) -> Finding:
    pods = [pod for pod in snapshot.pods_of(job) if pod.phase == "Failed"]
    return Finding(
        subject=job.subject,
        cause=f"{job}: its indexes {failed_indexes} have failed for good, and nobody makes pods for them again",
        evidence=(job.cite("status.failedIndexes"), job.cite("spec.backoffLimitPerIndex")),
        remedy=(remedies.describe(job.namespace, "job", job.name),),
        confidence=CERTAIN,
        level=Level.PROBLEM if job.number("status.active") else Level.NOTE,
        pods=tuple(pod.path for pod in pods),
    )
