"""What a CronJob does next: which start is due, the status that follows from its Jobs, which old Jobs go. Pure.

Follows kube-controller-manager 1.35, its Events' texts included.
"""

from __future__ import annotations

import datetime as dt
import enum
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from kgpu.base.times import moment_of
from kgpu.kube.port import Object, Resource, name_of, namespace_of
from kgpu.lab.embedded.controllers.cron_schedule import Schedule, ScheduleError, parse, zone_of
from kgpu.lab.embedded.controllers.job_plan import end_condition
from kgpu.lab.embedded.controllers.kinds import CRON_JOBS
from kgpu.lab.embedded.controllers.meta import (
    copy_of,
    created_at,
    owner_reference,
    spec_of,
    status_of,
    uid_of,
)

SCHEDULED_AT: Final = "batch.kubernetes.io/cronjob-scheduled-timestamp"
NO_INTERVAL: Final = "time difference between two schedules is less than 1 second"
_MANY: Final = 100  # missed starts that are worth a warning
_PADDING: Final = dt.timedelta(milliseconds=100)  # after the time itself, for clocks that differ


class Missed(enum.Enum):
    """How many starts have been missed."""

    NONE = 0
    FEW = 1
    MANY = 2


@dataclass(frozen=True, slots=True)
class Due:
    """The most recent start that is due (None for none), counted from ``earliest``."""

    earliest: dt.datetime
    at: dt.datetime | None
    missed: Missed


def most_recent(cron: Object, now: dt.datetime, schedule: Schedule, *, deadline: bool) -> Due:
    """The latest start up to now; ``deadline``: not before the starting deadline. Raises ScheduleError."""
    earliest = moment_of(status_of(cron).get("lastScheduleTime")) or moment_of(created_at(cron)) or now
    limit = spec_of(cron).get("startingDeadlineSeconds")
    if deadline and limit is not None:
        earliest = max(earliest, now - dt.timedelta(seconds=min(int(limit), 10**9)))
    first = schedule.after(earliest)
    second = schedule.after(first) if first is not None else None
    if first is None or second is None:
        raise ScheduleError(NO_INTERVAL)
    if now < first:
        return Due(earliest, None, Missed.NONE)
    if now < second:
        return Due(earliest, first, Missed.NONE)
    between = round((second - first).total_seconds())
    if between < 1:
        raise ScheduleError(NO_INTERVAL)
    count = int((now - first).total_seconds()) // between + 1
    latest: dt.datetime | None = None
    at = schedule.after(first + dt.timedelta(seconds=(count - 2) * between))
    while at is not None and at <= now:
        latest, at = at, schedule.after(at)
    return Due(earliest, latest, Missed.MANY if count > _MANY else Missed.FEW)


def next_in(cron: Object, now: dt.datetime, schedule: Schedule) -> float | None:
    """Seconds until the next start; None when there is none."""
    try:
        due = most_recent(cron, now, schedule, deadline=False)
    except ScheduleError:
        since = now
    else:
        since = due.at or (due.earliest if due.missed is Missed.NONE else now)
    at = schedule.after(since)
    return None if at is None else (at + _PADDING - now).total_seconds()


def schedule_of(cron: Object) -> Schedule:
    """The CronJob's schedule. Raises ScheduleError."""
    spec = spec_of(cron)
    text = str(spec.get("schedule") or "")
    zone = spec.get("timeZone")
    return parse(text, str(zone) if zone is not None and "TZ" not in text else None)


def job_name(cron: Object, at: dt.datetime) -> str:
    return f"{name_of(cron)}-{int(at.timestamp()) // 60}"


def new_job(cron: Object, at: dt.datetime) -> Object:
    """The Job of that start, to create. Raises ScheduleError for a zone that isn't known."""
    template = copy_of(spec_of(cron).get("jobTemplate") or {})
    metadata = template.get("metadata") or {}
    zone = zone_of(str(spec_of(cron).get("timeZone") or "UTC"))
    stamped = at.astimezone(zone).isoformat(timespec="seconds").replace("+00:00", "Z")
    job_metadata: Object = {
        "name": job_name(cron, at),
        "namespace": namespace_of(cron),
        "annotations": {**(metadata.get("annotations") or {}), SCHEDULED_AT: stamped},
        "ownerReferences": [owner_reference(CRON_JOBS, cron)],
    }
    if metadata.get("labels"):
        job_metadata["labels"] = metadata["labels"]
    return {"metadata": job_metadata, "spec": template.get("spec") or {}}


def reference_to(job: Object, resource: Resource) -> Object:
    """The Job's entry in ``status.active``."""
    return {
        "kind": resource.kind,
        "namespace": namespace_of(job),
        "name": name_of(job),
        "uid": uid_of(job),
        "apiVersion": resource.api_version,
        "resourceVersion": job["metadata"].get("resourceVersion"),
    }


def end_of(job: Object) -> str:
    """``Complete`` or ``Failed``, "" while it goes on."""
    end = end_condition(job)
    return "" if end is None else str(end["type"])


def too_old(cron: Object, jobs: Iterable[Object]) -> list[Object]:
    """Finished Jobs beyond the history limits, oldest first."""
    spec = spec_of(cron)
    known: Sequence[Object] = list(jobs)
    old: list[Object] = []
    for end, field in (("Complete", "successfulJobsHistoryLimit"), ("Failed", "failedJobsHistoryLimit")):
        limit = spec.get(field)
        if limit is None:
            continue
        ended = sorted((job for job in known if end_of(job) == end), key=_start)
        old += ended[: max(0, len(ended) - int(limit))]
    return old


def _start(job: Object) -> tuple[bool, str, str]:
    at = str(status_of(job).get("startTime") or "")
    return not at, at, name_of(job)
