"""The cluster's own scheduler, when nothing is heard of it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from kgpu.base.remedy import Remedy
from kgpu.doctor import matching, remedies
from kgpu.doctor.kinds import Pod
from kgpu.doctor.model import CLUSTER, LIKELY, Evidence, Finding
from kgpu.doctor.objects import seconds
from kgpu.doctor.snapshot import Snapshot
from kgpu.doctor.waiting import Waiting, waiting

_NAME: Final = "default-scheduler"
_SPACE: Final = "kube-system"
_PROGRAM: Final = "kube-scheduler"
_QUIET: Final = 300.0
"""Seconds without a word: it says something of every pod within seconds."""
_SHOWN: Final = 3


def silent_scheduler(snapshot: Snapshot) -> Iterator[Finding]:
    """Pods that fit a node, or wait for claims alone, and of which it has said nothing, all in one finding."""
    pods = [
        pod
        for pending in waiting(snapshot)
        if _may_go(pending)
        for pod in pending.pods
        if _is_passed_over(snapshot, pod)
    ]
    if not pods or _is_at_work(snapshot, min(pod.created for pod in pods)):
        return
    first = min(pods, key=lambda pod: (pod.created, pod.key))
    minutes = int((snapshot.age(first.created) or 0.0) // 60)
    unwell = _unwell(snapshot)
    more = f" (and {len(pods) - 1} more)" if len(pods) > 1 else ""
    names = ", ".join(str(pod) for pod in unwell[:_SHOWN])
    why = f": {names} {'is' if len(unwell) == 1 else 'are'} not ready" if unwell else ""
    yield Finding(
        subject=CLUSTER,
        cause=f"no scheduler has said a word of {first}{more} for {minutes} minutes, in no condition and no event{why}",
        evidence=(
            Evidence(object=str(first), field="status.conditions (PodScheduled)", value="none", file=first.source),
            Evidence(object=str(first), field="events", value="none at all", file=first.source),
            *(_state(pod) for pod in unwell[:_SHOWN]),
        ),
        remedy=_steps(unwell),
        confidence=LIKELY,
        since=first.created,
        pods=tuple(pod.path for pod in pods),
    )


def _may_go(one: Waiting) -> bool:
    return not one.view.gates and bool(one.fits or one.view.claims) and one.pod.scheduler == _NAME


def _is_passed_over(snapshot: Snapshot, pod: Pod) -> bool:
    """Whether the scheduler has not said a word about the pod for a while. Never true for a pod that is known only from
    a table that kubectl has printed: its conditions are not known.
    """
    age = snapshot.age(pod.created)
    known = bool(pod.uid) and pod.source not in snapshot.texts
    said = pod.condition("PodScheduled") is not None or bool(snapshot.events(pod))
    return known and not said and age is not None and age >= _QUIET


def _is_at_work(snapshot: Snapshot, since: str) -> bool:
    """Whether it has placed, or looked at, another pod since then: then it is not silent, whatever it is at."""
    began = seconds(since) or 0.0
    return any(
        (found := pod.condition("PodScheduled")) is not None
        and (seconds(found.since) or 0.0) > began
        and pod.scheduler == _NAME
        and not pod.owner.startswith("Node/")
        for pod in snapshot.pods.values()
    )


def _unwell(snapshot: Snapshot) -> list[Pod]:
    """The scheduler's own pods that are not ready; no tenant makes pods in that namespace."""
    return [
        pod
        for pod in snapshot.pods.values()
        if pod.namespace == _SPACE
        and not pod.ready
        and not pod.ended
        and any(_PROGRAM in " ".join((one.image, *one.words)) for one in pod.containers)
    ]


def _state(pod: Pod) -> Evidence:
    at = matching.failing(pod)
    return at.cite_status() if at is not None else pod.cite("status.phase")


def _steps(unwell: list[Pod]) -> tuple[Remedy, ...]:
    if not unwell:
        return (
            Remedy("kubectl -n {} get pods -o wide", _SPACE),
            Remedy("kubectl -n {} get lease {} -o yaml", _SPACE, _PROGRAM),
        )
    pod = unwell[0]
    return (
        remedies.describe(_SPACE, "pod", pod.name),
        remedies.logs(_SPACE, pod.name, "--all-containers", "--tail=50"),
    )
