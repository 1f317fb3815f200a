"""When a Job's pods have failed: the podFailurePolicy's verdict, and how long to wait before the next pod. Pure."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from kgpu.base.times import moment_of
from kgpu.kube.port import Object, name_of, namespace_of
from kgpu.lab.embedded.controllers.meta import condition, created_at, spec_of, status_of

FIRST_PAUSE: Final = 10.0  # seconds, doubled with each failure
LAST_PAUSE: Final = 600.0
_LONG_AGO: Final = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)


@dataclass(frozen=True, slots=True)
class PodFailureVerdict:
    """A policy's verdict on a failed pod: whether it counts, why the whole Job fails ("" when it does not), and whether
    the pod's index fails.
    """

    counts: bool = True
    job_fails: str = ""
    index_fails: bool = False


def _exited(pod: Object, rule: Object) -> Object | None:
    """The container whose exit code matches the rule."""
    wanted = rule.get("containerName")
    values, inside = rule.get("values") or (), rule.get("operator") == "In"
    status = status_of(pod)
    for container in (*(status.get("containerStatuses") or ()), *(status.get("initContainerStatuses") or ())):
        ended = (container.get("state") or {}).get("terminated")
        if ended is None or (wanted is not None and wanted != container.get("name")):
            continue
        code = int(ended.get("exitCode") or 0)
        if code and (code in values) is inside:
            exited: Object = container
            return exited
    return None


def judge(policy: Object | None, pod: Object) -> PodFailureVerdict:
    """Apply the first rule that matches."""
    for number, rule in enumerate((policy or {}).get("rules") or ()):
        action, where = rule.get("action"), f"{namespace_of(pod)}/{name_of(pod)}"
        if rule.get("onExitCodes"):
            container = _exited(pod, rule["onExitCodes"])
            if container is None:
                continue
            code = container["state"]["terminated"].get("exitCode")
            text = f"Container {container.get('name')} for pod {where} failed with exit code {code}"
        else:
            patterns = rule.get("onPodConditions") or ()
            match = next(
                (
                    entry
                    for entry in status_of(pod).get("conditions") or ()
                    for pattern in patterns
                    if entry.get("type") == pattern.get("type") and entry.get("status") == pattern.get("status", "True")
                ),
                None,
            )
            if match is None:
                continue
            text = f"Pod {where} has condition {match.get('type')}"
        if action == "FailJob":
            return PodFailureVerdict(job_fails=f"{text} matching {action} rule at index {number}")
        return PodFailureVerdict(counts=action != "Ignore", index_fails=action == "FailIndex")
    return PodFailureVerdict()


def finished_at(pod: Object) -> dt.datetime:
    """When it ended: its containers' end, else when it stopped being ready, else its deletion, else its creation."""
    ended = [
        moment_of(((container.get("state") or {}).get("terminated") or {}).get("finishedAt"))
        for container in status_of(pod).get("containerStatuses") or ()
    ]
    times = [at for at in ended if at is not None]
    if times and len(times) == len(ended):
        return max(times)
    ready = condition(pod, "Ready")
    if ready is not None and ready.get("status") == "False" and (at := moment_of(ready.get("lastTransitionTime"))):
        return at
    deleted = moment_of(pod["metadata"].get("deletionTimestamp"))
    if deleted is not None:
        return deleted - dt.timedelta(seconds=int(pod["metadata"].get("deletionGracePeriodSeconds") or 0))
    return moment_of(created_at(pod)) or _LONG_AGO


@dataclass(frozen=True, slots=True)
class Failures:
    """Failures since the last success, which lengthen the pause before new pods."""

    count: int = 0
    last: dt.datetime | None = None

    def then(self, succeeded: Sequence[Object], failed: Sequence[Object]) -> Failures:
        """With the pods that have just ended."""
        if not succeeded and not failed:
            return self
        times = sorted(finished_at(pod) for pod in failed)
        if not succeeded:
            return Failures(self.count + len(times), times[-1])
        success = max(finished_at(pod) for pod in succeeded)
        after = [at for at in times if at > success]
        return Failures(len(after), after[-1] if after else None)

    def pause(self, now: dt.datetime) -> float:
        """Seconds to wait before new pods."""
        if not self.count or self.last is None:
            return 0.0
        wait = min(LAST_PAUSE, FIRST_PAUSE * 2.0 ** min(self.count - 1, 30))
        return float(max(0.0, wait - (now - self.last).total_seconds()))


def restarts_exceed(job: Object, pods: Iterable[Object]) -> bool:
    """With restartPolicy OnFailure the kubelet's restarts count against the backoff limit."""
    spec = spec_of(job)
    if ((spec.get("template") or {}).get("spec") or {}).get("restartPolicy") != "OnFailure":
        return False
    total = 0
    for pod in pods:
        status = status_of(pod)
        if status.get("phase") in ("Running", "Pending"):
            for container in (*(status.get("containerStatuses") or ()), *(status.get("initContainerStatuses") or ())):
                total += int(container.get("restartCount") or 0)
    limit = int(spec.get("backoffLimit", 6))
    return total > 0 if limit == 0 else total >= limit
