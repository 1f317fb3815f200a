"""A Deployment's status and conditions, with kube-controller-manager's reasons and messages. Pure."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from kgpu.base.times import moment_of
from kgpu.kube.port import Object, name_of
from kgpu.lab.embedded.controllers.meta import (
    condition,
    generation_of,
    spec_of,
    stamp,
    status_of,
    with_condition,
    without_condition,
)

_UNLIMITED = 2**31 - 1
COUNTS = ("replicas", "updatedReplicas", "readyReplicas", "availableReplicas")


def _sum(sets: Iterable[Object], field: str) -> int:
    return sum(int(status_of(rs).get(field) or 0) for rs in sets)


def _deadline(deployment: Object) -> int | None:
    limit = spec_of(deployment).get("progressDeadlineSeconds")
    return None if limit is None or limit == _UNLIMITED else int(limit)


@dataclass(frozen=True, slots=True, kw_only=True)
class DeploymentView:
    """The input of a status: ``conditions`` as of this step, ``max_unavailable`` in pods."""

    deployment: Object
    sets: Sequence[Object]
    new: Object | None
    conditions: Sequence[Object]
    max_unavailable: int
    now: dt.datetime


def plan_status(view: DeploymentView) -> Object:
    """Counts and the Available condition."""
    deployment, sets, new = view.deployment, view.sets, view.new
    wanted = int(spec_of(deployment).get("replicas") or 0)
    available = _sum(sets, "availableReplicas")
    unavailable = max(0, sum(int(spec_of(rs).get("replicas") or 0) for rs in sets) - available)
    counts = {
        "observedGeneration": generation_of(deployment),
        "replicas": _sum(sets, "replicas"),
        "updatedReplicas": _sum([new], "replicas") if new is not None else 0,
        "readyReplicas": _sum(sets, "readyReplicas"),
        "availableReplicas": available,
        "unavailableReplicas": unavailable,
    }
    status: Object = {key: value for key, value in counts.items() if value}
    status["terminatingReplicas"] = _sum(sets, "terminatingReplicas")
    collisions = status_of(deployment).get("collisionCount")
    if collisions is not None:
        status["collisionCount"] = collisions
    enough = available >= wanted - view.max_unavailable
    at = stamp(view.now)
    status["conditions"] = with_condition(
        view.conditions,
        {
            "type": "Available",
            "status": "True" if enough else "False",
            "lastUpdateTime": at,
            "lastTransitionTime": at,
            "reason": "MinimumReplicasAvailable" if enough else "MinimumReplicasUnavailable",
            "message": "Deployment has minimum availability."
            if enough
            else "Deployment does not have minimum availability.",
        },
    )
    return status


def is_complete(deployment: Object, status: Object) -> bool:
    """Whether every replica is up to date and available, and no old one is left."""
    wanted = int(spec_of(deployment).get("replicas") or 0)
    return all(
        int(status.get(field) or 0) == wanted for field in ("updatedReplicas", "replicas", "availableReplicas")
    ) and int(status.get("observedGeneration") or 0) >= generation_of(deployment)


def _has_progressed(old: Object, new: Object) -> bool:
    before, after = ({key: int(status.get(key) or 0) for key in COUNTS} for status in (old, new))
    return (
        after["updatedReplicas"] > before["updatedReplicas"]
        or after["replicas"] - after["updatedReplicas"] < before["replicas"] - before["updatedReplicas"]
        or after["readyReplicas"] > before["readyReplicas"]
        or after["availableReplicas"] > before["availableReplicas"]
    )


def _timed_out(deployment: Object, current: Object | None, now: dt.datetime) -> bool:
    limit = _deadline(deployment)
    if limit is None or current is None:
        return False
    if current.get("reason") == "NewReplicaSetAvailable":
        return False
    if current.get("reason") == "ProgressDeadlineExceeded":
        return True
    since = moment_of(current.get("lastUpdateTime"))
    return since is not None and since + dt.timedelta(seconds=limit) < now


def rollout_status(view: DeploymentView) -> Object:
    """As ``plan_status``, with Progressing and ReplicaFailure."""
    status = plan_status(view)
    deployment, new = view.deployment, view.new
    conditions: list[Object] = status["conditions"]
    current = condition({"conditions": view.conditions}, "Progressing")
    if _deadline(deployment) is None:
        conditions = without_condition(conditions, "Progressing")
    elif not (
        int(status.get("replicas") or 0) == int(status.get("updatedReplicas") or 0)
        and current is not None
        and current.get("reason") == "NewReplicaSetAvailable"
    ):
        conditions = _progressing(view, status, conditions, current)
    failure = next(
        (
            failed
            for rs in (*([new] if new else ()), *view.sets)
            if (failed := condition(rs, "ReplicaFailure")) is not None
        ),
        None,
    )
    if failure is not None:
        conditions = with_condition(conditions, {**failure, "lastUpdateTime": failure.get("lastTransitionTime")})
    else:
        conditions = without_condition(conditions, "ReplicaFailure")
    return {**status, "conditions": conditions}


def _progressing(
    view: DeploymentView, status: Object, conditions: list[Object], current: Object | None
) -> list[Object]:
    deployment, new, now = view.deployment, view.new, view.now
    subject = f'ReplicaSet "{name_of(new)}"' if new is not None else f'Deployment "{name_of(deployment)}"'
    at = stamp(now)
    progressing = {"type": "Progressing", "status": "True", "lastUpdateTime": at, "lastTransitionTime": at}
    if is_complete(deployment, status):
        cause = {"reason": "NewReplicaSetAvailable", "message": f"{subject} has successfully progressed."}
        return with_condition(conditions, {**progressing, **cause})
    if _has_progressed(status_of(deployment), status):
        # The one condition whose lastUpdateTime changes although nothing else does: it is the sign of progress.
        if current is not None and current.get("status") == "True":
            progressing["lastTransitionTime"] = current.get("lastTransitionTime") or at
        cause = {"reason": "ReplicaSetUpdated", "message": f"{subject} is progressing."}
        return [*without_condition(conditions, "Progressing"), {**progressing, **cause}]
    if _timed_out(deployment, current, now):
        cause = {"reason": "ProgressDeadlineExceeded", "message": f"{subject} has timed out progressing."}
        return with_condition(conditions, {**progressing, "status": "False", **cause})
    return conditions


def progress_check_in(deployment: Object, status: Object, now: dt.datetime) -> float | None:
    """Seconds until the rollout may have timed out; None when it is done, timed out or has no deadline."""
    limit = _deadline(deployment)
    current = condition(status, "Progressing")
    if limit is None or current is None or is_complete(deployment, status):
        return None
    since = moment_of(current.get("lastUpdateTime"))
    if current.get("reason") == "ProgressDeadlineExceeded" or since is None:
        return None
    return max(0.0, (since + dt.timedelta(seconds=limit) - now).total_seconds()) + 1
