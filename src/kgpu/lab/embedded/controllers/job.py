"""Jobs: pods until enough have succeeded or too many failed, each counted once."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from typing import Any, Final

from kgpu.base.errors import KubeError
from kgpu.formats.names import JOB_INDEX_LABEL
from kgpu.kube.informer import Key
from kgpu.kube.port import PODS, KubeRefusedError, Object, Resource, name_of, namespace_of
from kgpu.lab.embedded.controllers import job_per_index as per_index
from kgpu.lab.embedded.controllers import ownership
from kgpu.lab.embedded.controllers.cache import Cache
from kgpu.lab.embedded.controllers.cluster import ControllerContext
from kgpu.lab.embedded.controllers.controller import KeysOf, ObjectController
from kgpu.lab.embedded.controllers.job_failures import Failures
from kgpu.lab.embedded.controllers.job_plan import FINALIZER, JobStep, JobStepOutcome, JobSync, is_finished, is_tracked
from kgpu.lab.embedded.controllers.kinds import JOBS
from kgpu.lab.embedded.controllers.meta import controller_of, copy_of, key_of, owner_reference, spec_of, uid_of
from kgpu.lab.embedded.controllers.podcontrol import create_pods, delete_pods
from kgpu.lab.embedded.controllers.pods import is_ready, pod_from_template

ENV_INDEX: Final = "JOB_COMPLETION_INDEX"
_MAX_PREFIX: Final = 58  # characters of a generateName that are kept
_MANAGED_BY: Final = "kubernetes.io/job-controller"


def new_pod(job: Object, index: int | None, after: Object | None = None) -> Object:
    """A pod of the Job, of that completion index if it has indexes; ``after``: the failed one that it replaces."""
    pod = pod_from_template(spec_of(job).get("template") or {}, job, owner_reference(JOBS, job))
    metadata = pod["metadata"]
    metadata["finalizers"] = list(dict.fromkeys([*metadata.get("finalizers", ()), FINALIZER]))
    if index is None:
        return pod
    for field in ("labels", "annotations"):
        metadata[field] = {**metadata.get(field, {}), JOB_INDEX_LABEL: str(index)}
    if per_index.has_limit(job):
        metadata["annotations"] |= per_index.annotations_after(job, after)
    suffix = f"-{index}-"
    metadata["generateName"] = name_of(job)[: _MAX_PREFIX - len(suffix)] + suffix
    spec = pod["spec"] = copy_of(pod["spec"])
    spec["hostname"] = f"{name_of(job)}-{index}"
    for container in (*(spec.get("initContainers") or ()), *(spec.get("containers") or ())):
        env = container.setdefault("env", [])
        if all(variable.get("name") != ENV_INDEX for variable in env):
            source = {"fieldRef": {"fieldPath": f"metadata.labels['{JOB_INDEX_LABEL}']"}}
            env.append({"name": ENV_INDEX, "valueFrom": source})
    return pod


class JobController(ObjectController):
    name = "job-controller"

    def __init__(self, cluster: ControllerContext) -> None:
        super().__init__(cluster)
        self._jobs: Cache = cluster.cache(JOBS)
        self._pods: Cache = cluster.cache(PODS)
        self._failures: dict[str, Failures] = {}
        ownership.index_orphans(self._pods)
        self._owners = ownership.owner_keys(self._jobs, "Job")

    def sources(self) -> Mapping[Resource, KeysOf]:
        # Keys of Jobs are (namespace, name), keys of pods whose Job is gone have "pod" before that.
        return {JOBS: self._job_keys, PODS: self._pod_keys}

    def _job_keys(self, old: Object | None, new: Object | None) -> Iterable[tuple[str, ...]]:
        if new is not None:
            return [key_of(new)]
        if old is None:
            return []
        self._failures.pop(uid_of(old), None)
        return [("pod", *key_of(pod)) for pod in self._pods.select("controller", uid_of(old)) if is_tracked(pod)]

    def _pod_keys(self, old: Object | None, new: Object | None) -> Iterable[tuple[str, ...]]:
        if new is not None and is_tracked(new):
            holder = controller_of(new)
            job = self._jobs.get((namespace_of(new), str(holder.get("name")))) if holder else None
            if job is None or (holder and uid_of(job) != holder.get("uid")) or is_finished(job):
                # A Job may adopt it before its finalizer is removed.
                return [*(self._owners(old, new) if holder is None else ()), ("pod", *key_of(new))]
        return self._owners(old, new)

    async def sync(self, key: tuple[str, ...]) -> float | None:
        if len(key) == 3:
            await self._free_orphan((key[1], key[2]))
            return None
        job = self._jobs.get((key[0], key[1]))
        if job is None or spec_of(job).get("managedBy", _MANAGED_BY) != _MANAGED_BY:
            return None
        if is_finished(job):
            self._failures.pop(uid_of(job), None)
            return None
        candidates = ownership.candidates(self._pods, job)
        pods = await ownership.settle_claims(self.cluster, JOBS, job, self._pods, candidates, finalizer=FINALIZER)
        gone = frozenset(uid_of(pod) for pod in pods if self._pods.is_doomed(pod))
        failures = self._failures.get(uid_of(job), Failures())
        look = JobSync(job, pods, gone, failures, self.cluster.now())
        step = look.step()
        outcome, error = await self._perform(job, step)
        look.record(outcome)
        await self._write(job, look)
        if error is not None:
            raise error
        return step.again

    async def _perform(self, job: Object, step: JobStep) -> tuple[JobStepOutcome, KubeError | None]:
        outcome = JobStepOutcome()
        error: KubeError | None = None
        for pod in step.delete:
            if step.untrack:
                await self._untrack(pod)
            problem = await delete_pods(self, job, [pod])
            if problem is None:
                outcome.deleted += 1
                outcome.deleted_ready += is_ready(pod)
            error = error or problem
        if step.create:
            outcome.created, error = await create_pods(
                self,
                job,
                [new_pod(job, index, step.after.get(index) if index is not None else None) for index in step.create],
            )
        return outcome, error

    async def _write(self, job: Object, look: JobSync) -> None:
        """Write the status with uncounted pods, then remove their finalizers, then write the counts."""
        first = look.flush()
        await self.cluster.set_status(JOBS, job, first)
        self._failures[uid_of(job)] = look.failures
        stripped = set()
        for pod in look.strip:
            if await self._untrack(pod):
                stripped.add(uid_of(pod))
            await asyncio.sleep(0)
        second = look.close(stripped)
        await self.cluster.set_status(JOBS, {**job, "status": first}, second)
        for event in look.events:
            self.emit(job, event.type, event.reason, event.message)

    async def _untrack(self, pod: Object) -> bool:
        """Remove the finalizer; False when that failed and the pod is still there."""
        rest = [finalizer for finalizer in pod["metadata"].get("finalizers") or () if finalizer != FINALIZER]
        known: Any = self._pods.get(key_of(pod))
        version = (known or pod)["metadata"]["resourceVersion"]
        change = {"metadata": {"uid": uid_of(pod), "resourceVersion": version, "finalizers": rest or None}}
        try:
            await self.cluster.patch(PODS, key_of(pod), change)
        except KubeRefusedError as refused:
            if refused.code == 404:
                return True
            if refused.code == 409:
                return False
            raise
        return True

    async def _free_orphan(self, key: Key) -> None:
        """Remove the finalizer of a pod whose Job is gone or finished."""
        pod = self._pods.get(key)
        if pod is None or not is_tracked(pod):
            return
        holder = controller_of(pod)
        if holder is not None:
            if holder.get("kind") != "Job":
                return
            job = self._jobs.get((key[0], str(holder.get("name"))))
            if job is not None and uid_of(job) == holder.get("uid") and not is_finished(job):
                return
        await self._untrack(pod)
