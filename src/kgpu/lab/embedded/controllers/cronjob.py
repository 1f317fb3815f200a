"""CronJobs: a Job at each time of the schedule, as the concurrency policy and the deadlines allow."""

from __future__ import annotations

import datetime as dt
import email.utils
from collections.abc import Iterable, Mapping

from kgpu.base.errors import KubeError
from kgpu.base.times import moment_of
from kgpu.kube.informer import Key
from kgpu.kube.port import KubeRefusedError, Object, Resource, name_of, namespace_of
from kgpu.lab.embedded.controllers import cronjob_plan as plan
from kgpu.lab.embedded.controllers.cluster import ControllerContext
from kgpu.lab.embedded.controllers.controller import KeysOf, ObjectController, refusal_text
from kgpu.lab.embedded.controllers.cron_schedule import Schedule, ScheduleError, zone_of
from kgpu.lab.embedded.controllers.kinds import CRON_JOBS, JOBS
from kgpu.lab.embedded.controllers.meta import (
    controller_of,
    copy_of,
    deleting,
    key_of,
    spec_of,
    stamp,
    status_of,
    uid_of,
)
from kgpu.lab.embedded.controllers.podcontrol import namespace_is_ending


class CronJobController(ObjectController):
    name = "cronjob-controller"

    def __init__(self, cluster: ControllerContext) -> None:
        super().__init__(cluster)
        self._crons = cluster.cache(CRON_JOBS)
        self._jobs = cluster.cache(JOBS)

    def sources(self) -> Mapping[Resource, KeysOf]:
        return {CRON_JOBS: self._cron_keys, JOBS: self._job_keys}

    def _cron_keys(self, old: Object | None, new: Object | None) -> Iterable[Key]:
        if new is None:
            return []
        if old is not None and any(spec_of(old).get(key) != spec_of(new).get(key) for key in ("schedule", "timeZone")):
            # Past times of the new schedule are not caught up on.
            try:
                again = plan.next_in(new, self.cluster.now(), plan.schedule_of(new))
            except ScheduleError:
                text = f"unparseable schedule for cronjob: {spec_of(new).get('schedule')}"
                self.emit(new, "Warning", "UnParseableCronJobSchedule", text)
                return []
            if again is not None:
                self.queue.add_after(key_of(new), again)
            return []
        return [key_of(new)]

    def _job_keys(self, old: Object | None, new: Object | None) -> Iterable[Key]:
        for job in (old, new):
            holder = controller_of(job) if job is not None else None
            if job is None or holder is None or holder.get("kind") != CRON_JOBS.kind:
                continue
            cron = self._crons.get((namespace_of(job), str(holder.get("name"))))
            if cron is not None and uid_of(cron) == holder.get("uid"):
                yield key_of(cron)

    async def sync(self, key: Key) -> float | None:
        cron = self._crons.get(key)
        if cron is None:
            return None
        jobs = [
            job
            for job in self._jobs.select("namespace", key[0])
            if (holder := controller_of(job)) is not None and holder.get("name") == key[1]
        ]
        status = copy_of(status_of(cron))
        look = {**cron, "status": status}
        for job in plan.too_old(cron, jobs):
            if not self._jobs.is_doomed(job):
                await self._delete(look, job)
        try:
            self._follow(look, jobs)
            return None if deleting(cron) else await self._start(look)
        finally:
            await self._write(cron, status)

    async def _write(self, cron: Object, status: Object) -> None:
        if not status.get("active"):
            status.pop("active", None)
        try:
            await self.cluster.set_status(CRON_JOBS, cron, status)
        except KubeRefusedError as refused:
            if refused.code != 404:
                raise

    def _follow(self, cron: Object, jobs: list[Object]) -> None:
        """Update the status from the CronJob's Jobs."""
        status = cron["status"]
        active = {entry.get("uid") for entry in status.get("active") or ()}
        for job in jobs:
            listed, end = uid_of(job) in active, plan.end_of(job)
            if not end:
                if not listed:
                    text = f"Saw a job that the controller did not create or forgot: {name_of(job)}"
                    self.emit(cron, "Warning", "UnexpectedJob", text)
                continue
            if listed:
                _forget(status, uid_of(job))
                text = f"Saw completed job: {name_of(job)}, condition: {end}"
                self.emit(cron, "Normal", "SawCompletedJob", text)
            at, last = moment_of(status_of(job).get("completionTime")), moment_of(status.get("lastSuccessfulTime"))
            if end == "Complete" and at is not None and (last is None or at > last):
                status["lastSuccessfulTime"] = status_of(job)["completionTime"]
        known = {uid_of(job) for job in jobs}
        for entry in list(status.get("active") or ()):
            if entry.get("uid") not in known:
                self.emit(cron, "Normal", "MissingJob", f"Active job went missing: {entry.get('name')}")
                _forget(status, str(entry.get("uid")))

    async def _start(self, cron: Object) -> float | None:
        """Start what is due; seconds until the next time, None to wait for a change."""
        spec = spec_of(cron)
        zone = spec.get("timeZone")
        if zone is not None:
            try:
                zone_of(str(zone))
            except ScheduleError as error:
                self.emit(cron, "Warning", "UnknownTimeZone", f'invalid timeZone: "{zone}": {error}')
                return None
        if spec.get("suspend"):
            return None
        text = str(spec.get("schedule") or "")
        if "TZ" in text:
            about = "see https://kubernetes.io/docs/concepts/workloads/controllers/cron-jobs/ for more details"
            unsupported = f'CRON_TZ or TZ used in schedule "{text}" is not officially supported, {about}'
            self.emit(cron, "Warning", "UnsupportedSchedule", unsupported)
        try:
            schedule = plan.schedule_of(cron)
        except ScheduleError as error:
            self.emit(cron, "Warning", "UnparseableSchedule", f'unparseable schedule: "{text}" : {error}')
            return None
        now = self.cluster.now()
        try:
            due = plan.most_recent(cron, now, schedule, deadline=True)
        except ScheduleError as error:
            self.emit(cron, "Warning", "InvalidSchedule", f"invalid schedule: {text} : {error}")
            return None
        if due.at is None:
            return plan.next_in(cron, now, schedule)
        if due.missed is plan.Missed.MANY:
            many = "too many missed start times. Set or decrease .spec.startingDeadlineSeconds or check clock skew"
            self.emit(cron, "Warning", "TooManyMissedTimes", many)
        return await self._start_at(cron, due.at, schedule)

    async def _start_at(self, cron: Object, at: dt.datetime, schedule: Schedule) -> float | None:
        spec, status, now = spec_of(cron), cron["status"], self.cluster.now()
        limit, policy = spec.get("startingDeadlineSeconds"), spec.get("concurrencyPolicy")
        active = list(status.get("active") or ())
        name = plan.job_name(cron, at)
        if limit is not None and (now - at).total_seconds() > int(limit):
            missed = email.utils.format_datetime(at)
            self.emit(cron, "Warning", "MissSchedule", f"Missed scheduled time to start a job: {missed}")
        elif any(entry.get("name") == name for entry in active) or moment_of(status.get("lastScheduleTime")) == at:
            pass  # that Job was started already
        elif policy == "Forbid" and active:
            text = "Not starting job because prior execution is running and concurrency policy is Forbid"
            self.emit(cron, "Normal", "JobAlreadyActive", text)
        else:
            if policy == "Replace":
                await self._replace(cron, active)
            if not await self._create(cron, at):
                return None
        return plan.next_in(cron, now, schedule)

    async def _replace(self, cron: Object, active: list[Object]) -> None:
        for entry in active:
            job = self._jobs.get((str(entry.get("namespace")), str(entry.get("name"))))
            if job is not None and (error := await self._delete(cron, job)) is not None:
                raise error

    async def _delete(self, cron: Object, job: Object) -> KubeError | None:
        """Delete a Job and take it off the list of active ones; returns the error that prevented it."""
        try:
            await self.cluster.delete(JOBS, job, propagation="Background")
        except KubeError as error:
            self.emit(cron, "Warning", "FailedDelete", f"Deleted job: {refusal_text(error)}")
            return error
        _forget(cron["status"], uid_of(job))
        self.emit(cron, "Normal", "SuccessfulDelete", f"Deleted job {name_of(job)}")
        return None

    async def _create(self, cron: Object, at: dt.datetime) -> bool:
        """Create the Job of that start; False when a Job of that name belongs to another owner."""
        wanted = plan.new_job(cron, at)
        try:
            job = await self.cluster.create(JOBS, wanted)
        except KubeError as error:
            if isinstance(error, KubeRefusedError) and error.conflict:
                existing = await self.cluster.api.get(JOBS, name_of(wanted), namespace=namespace_of(cron))
                if existing is None or (controller_of(existing) or {}).get("uid") != uid_of(cron):
                    return False
                job = existing
            else:
                if not namespace_is_ending(error):
                    self.emit(cron, "Warning", "FailedCreate", f"Error creating job: {refusal_text(error)}")
                raise
        else:
            self.emit(cron, "Normal", "SuccessfulCreate", f"Created job {name_of(job)}")
        status = cron["status"]
        status["active"] = [*(status.get("active") or ()), plan.reference_to(job, JOBS)]
        status["lastScheduleTime"] = stamp(at)
        return True


def _forget(status: Object, uid: str) -> None:
    status["active"] = [entry for entry in status.get("active") or () if entry.get("uid") != uid]
