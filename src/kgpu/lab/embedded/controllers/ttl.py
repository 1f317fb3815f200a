"""Finished Jobs go ``ttlSecondsAfterFinished`` after their end."""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping

from kgpu.base.times import moment_of
from kgpu.kube.informer import Key
from kgpu.kube.port import Object, Resource
from kgpu.lab.embedded.controllers.controller import KeysOf, ObjectController, itself
from kgpu.lab.embedded.controllers.job_plan import end_condition
from kgpu.lab.embedded.controllers.kinds import JOBS
from kgpu.lab.embedded.controllers.meta import deleting, spec_of


def time_left(job: Object, now: dt.datetime) -> float | None:
    """Seconds until the Job may go; None while it isn't finished or has no time to live."""
    limit = spec_of(job).get("ttlSecondsAfterFinished")
    if limit is None or deleting(job):
        return None
    condition = end_condition(job)
    end = moment_of(condition.get("lastTransitionTime")) if condition is not None else None
    return None if end is None else float(limit) - (now - end).total_seconds()


class TtlAfterFinishedController(ObjectController):
    name = "ttl-after-finished-controller"
    workers = 1

    def sources(self) -> Mapping[Resource, KeysOf]:
        return {JOBS: itself}

    async def sync(self, key: Key) -> float | None:
        job = self.cluster.cache(JOBS).get(key)
        left = time_left(job, self.cluster.now()) if job is not None else None
        if job is None or left is None:
            return None
        if left > 0:
            return left
        await self.cluster.delete(JOBS, job, propagation="Foreground")
        return None
