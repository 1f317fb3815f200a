"""What a Job's controller does next, and how it counts: every ended pod once, with a finalizer until it is counted.

Follows kube-controller-manager 1.35: an interim condition (SuccessCriteriaMet, FailureTarget) first, the final one when
every pod has ended. Pure: ``JobSync`` never changes what it is given.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from kgpu.base.times import moment_of
from kgpu.kube.port import Object
from kgpu.lab.embedded.controllers import job_per_index as per_index
from kgpu.lab.embedded.controllers.job_failures import Failures, judge, restarts_exceed
from kgpu.lab.embedded.controllers.job_indexes import first_missing, index_of, parse, written
from kgpu.lab.embedded.controllers.meta import condition, copy_of, deleting, spec_of, stamp, status_of, uid_of
from kgpu.lab.embedded.controllers.pods import deletion_order, is_ready, is_terminal, phase_of

FINALIZER: Final = "batch.kubernetes.io/job-tracking"
_AT_ONCE: Final = 500  # pods to create, delete or count in one sync
INTERIM: Final = {"FailureTarget": "Failed", "SuccessCriteriaMet": "Complete"}


def end_condition(job: Object) -> Object | None:
    """The condition ``Complete`` or ``Failed`` of a Job that has ended, None while it goes on."""
    conditions = (condition(job, kind) for kind in INTERIM.values())
    return next((end for end in conditions if end is not None and end.get("status") == "True"), None)


def is_finished(job: Object) -> bool:
    return end_condition(job) is not None


def is_tracked(pod: Object) -> bool:
    return FINALIZER in (pod["metadata"].get("finalizers") or ())


def new_condition(kind: str, status: str, reason: str, message: str, now: dt.datetime) -> Object:
    at = stamp(now)
    return {
        "type": kind,
        "status": status,
        "lastProbeTime": at,
        "lastTransitionTime": at,
        "reason": reason,
        "message": message,
    }


def ensure_condition(conditions: list[Object], new: Object) -> bool:
    """Set a condition in place of the old one; False when nothing changes, or if it would be added as False."""
    for position, old in enumerate(conditions):
        if old.get("type") == new["type"]:
            if all(old.get(key) == new[key] for key in ("status", "reason", "message")):
                return False
            conditions[position] = new
            return True
    if new["status"] == "False":
        return False
    conditions.append(new)
    return True


@dataclass(frozen=True, slots=True, kw_only=True)
class JobStep:
    """Pods to delete (``untrack``: their finalizer goes first) or to create, by index where there is one; ``after``:
    the failed pods that they replace.
    """

    delete: tuple[Object, ...] = ()
    untrack: bool = False
    create: tuple[int | None, ...] = ()
    after: Mapping[int, Object] = field(default_factory=dict)
    again: float | None = None


@dataclass(slots=True)
class JobStepOutcome:
    """How the step went."""

    deleted: int = 0
    deleted_ready: int = 0
    created: int = 0
    failed: bool = False


@dataclass(frozen=True, slots=True)
class JobEvent:
    """An Event about the Job."""

    type: str
    reason: str
    message: str


@dataclass
class JobSync:
    """One sync of a Job: ``step``, ``record`` its outcome, ``flush``, remove finalizers of ``strip``, ``close``."""

    job: Object
    pods: Sequence[Object]
    gone: frozenset[str]
    """Uids of pods that are being deleted, or whose deletion was requested."""
    failures: Failures
    now: dt.datetime
    status: Object = field(init=False)
    events: list[JobEvent] = field(init=False, default_factory=list)
    strip: list[Object] = field(init=False, default_factory=list)
    finished: Object | None = field(init=False, default=None)

    def __post_init__(self) -> None:
        spec = spec_of(self.job)
        self.status = copy_of(status_of(self.job))
        self._spec = spec
        self._suspended = bool(spec.get("suspend"))
        self._completions: int | None = spec.get("completions")
        self._indexed = spec.get("completionMode") == "Indexed"
        self._policy = spec.get("podFailurePolicy")
        self._only_failed = spec.get("podReplacementPolicy") == "Failed" or self._policy is not None
        self._conditions: list[Object] = self.status.setdefault("conditions", [])
        counted = self.status.get("uncountedTerminatedPods") or {}
        self._uncounted_ok: list[str] = list(counted.get("succeeded") or ())
        self._uncounted_bad: list[str] = list(counted.get("failed") or ())
        self._active = [pod for pod in self.pods if not is_terminal(pod) and uid_of(pod) not in self.gone]
        self._ready = sum(is_ready(pod) for pod in self._active)
        self._terminating = sum(not is_terminal(pod) and uid_of(pod) in self.gone for pod in self.pods)
        fresh = [pod for pod in self.pods if is_tracked(pod) and self._has_index(pod)]
        ok = [pod for pod in fresh if phase_of(pod) == "Succeeded" and uid_of(pod) not in self._uncounted_ok]
        bad = [pod for pod in fresh if self._has_failed(pod) and uid_of(pod) not in self._uncounted_bad]
        self.failures = self.failures.then(ok, bad)
        self._succeeded = int(self.status.get("succeeded") or 0) + len(ok) + len(self._uncounted_ok)
        counting = [pod for pod in bad if judge(self._policy, pod).counts]
        self._failed = int(self.status.get("failed") or 0) + len(counting) + len(self._uncounted_bad)
        self._done_before: set[int] = set()
        self._done: set[int] = set()
        if self._indexed:
            self._done_before = parse(self.status.get("completedIndexes") or "", self._completions or 0)
            self._done = self._done_before | {i for pod in ok if (i := index_of(pod)) is not None}
            self._succeeded = len(self._done)
        self._failed_indexes: set[int] | None = None
        self._held: dict[int, Object] = {}
        if per_index.has_limit(self.job):
            failed = [pod for pod in fresh if self._has_failed(pod)]
            self._see_indexes(failed)
        if not self.status.get("startTime") and not self._suspended:
            self.status["startTime"] = stamp(self.now)
        self._managed = False

    def _see_indexes(self, failed: Sequence[Object]) -> None:
        known = parse(self.status.get("failedIndexes") or "", self._completions or 0)
        over = [pod for pod in failed if per_index.has_failed_for_good(self.job, pod)]
        self._failed_indexes = known | {i for pod in over if (i := index_of(pod)) is not None}
        active = {i for pod in self._active if (i := index_of(pod)) is not None}
        self._held = per_index.held_back(failed, self._done | self._failed_indexes, active)

    def _has_index(self, pod: Object) -> bool:
        if not self._indexed:
            return True
        index = index_of(pod)
        return index is not None and index < (self._completions or 0)

    def _has_failed(self, pod: Object) -> bool:
        if phase_of(pod) == "Failed":
            return True
        return not self._only_failed and uid_of(pod) in self.gone and phase_of(pod) != "Succeeded"

    # What to do

    def step(self) -> JobStep:
        """Decide which pods to create or delete now."""
        again = None
        self.finished = self._known_end() or self._failure()
        if self.finished is None:
            again = self._deadline_in()
            if again is not None and again <= 0:
                self.finished = self._failing("DeadlineExceeded", "Job was active longer than specified deadline")
        if self.finished is None and self._indexed:
            self.finished = self._index_failure() or self._success()
        if self.finished is not None:
            return JobStep(delete=tuple(self._active))
        if deleting(self.job):
            return JobStep()
        self._managed = True
        return self._manage(again)

    def _known_end(self) -> Object | None:
        """The interim condition from an earlier sync."""
        for kind in ("SuccessCriteriaMet", "FailureTarget"):
            interim = condition(self.status, kind)
            if interim is not None and interim.get("status") == "True":
                return interim
        return None

    def _failing(self, reason: str, message: str) -> Object:
        return new_condition("FailureTarget", "True", reason, message, self.now)

    def _failure(self) -> Object | None:
        if self._policy is not None:
            for pod in self.pods:
                if self._has_failed(pod) and (why := judge(self._policy, pod).job_fails):
                    return self._failing("PodFailurePolicy", why)
        if self._failed > int(self._spec.get("backoffLimit", 6)) or restarts_exceed(self.job, self.pods):
            return self._failing("BackoffLimitExceeded", "Job has reached the specified backoff limit")
        return None

    def _index_failure(self) -> Object | None:
        failed = self._failed_indexes
        if not failed:
            return None
        limit = self._spec.get("maxFailedIndexes")
        if limit is not None and len(failed) > int(limit):
            text = "Job has exceeded the specified maximal number of failed indexes"
            return self._failing("MaxFailedIndexesExceeded", text)
        if len(failed) + self._succeeded >= (self._completions or 0):
            return self._failing("FailedIndexes", "Job has failed indexes")
        return None

    def _success(self) -> Object | None:
        text = per_index.success(self._spec.get("successPolicy"), self._done, self._completions or 0)
        return new_condition("SuccessCriteriaMet", "True", "SuccessPolicy", text, self.now) if text else None

    def _deadline_in(self) -> float | None:
        limit, start = self._spec.get("activeDeadlineSeconds"), moment_of(self.status.get("startTime"))
        if limit is None or start is None or self._suspended:
            return None
        return float(limit) - (self.now - start).total_seconds()

    def _wanted(self) -> int:
        parallelism = int(self._spec.get("parallelism", 1))
        if self._completions is None:
            return len(self._active) if self._succeeded else parallelism
        return max(0, min(parallelism, self._completions - self._succeeded))

    def _manage(self, again: float | None) -> JobStep:
        if self._suspended:
            return JobStep(delete=tuple(self._active), untrack=True, again=again)
        active, wanted = len(self._active), self._wanted()
        surplus = self._surplus(max(0, active - wanted))
        if surplus:
            return JobStep(delete=tuple(surplus[:_AT_ONCE]), untrack=True, again=again)
        missing = wanted - active - (self._terminating if self._only_failed else 0)
        if missing <= 0:
            return JobStep(again=again)
        pause = self.failures.pause(self.now) if self._failed_indexes is None else 0.0
        if pause > 0:
            return JobStep(again=pause if again is None else min(again, pause))
        missing = min(missing, _AT_ONCE)
        if not self._indexed:
            return JobStep(create=(None,) * missing, again=again)
        held = [
            pod for pod in self.pods if not is_terminal(pod) and (self._only_failed or uid_of(pod) not in self.gone)
        ]
        used = self._done | {i for pod in held if (i := index_of(pod)) is not None} | (self._failed_indexes or set())
        pending = first_missing(used, missing, self._completions or 0)
        if self._failed_indexes is None:
            return JobStep(create=tuple(pending), again=again)
        ready, pause = per_index.ready_indexes(pending, self._held, self.now)
        if pause:
            again = pause if again is None else min(again, pause)
        return JobStep(create=ready, after=self._held, again=again)

    def _surplus(self, at_least: int) -> list[Object]:
        """Pods without an index or with a duplicate one, then the rest of the surplus."""
        ordered = deletion_order(self._active, (), self.now)
        surplus: list[Object] = []
        if self._indexed:
            indexes: set[int] = set()
            for pod in reversed(ordered):  # the best one of an index stays
                index = index_of(pod)
                if index is None or index >= (self._completions or 0) or index in indexes:
                    surplus.append(pod)
                else:
                    indexes.add(index)
        rest = [pod for pod in ordered if all(pod is not extra for extra in surplus)]
        return surplus + rest[: max(0, at_least - len(surplus))]

    # How it went

    def record(self, outcome: JobStepOutcome) -> None:
        """Take the step's outcome; may find that the Job is complete."""
        active = len(self._active) - outcome.deleted + outcome.created
        if self.finished is not None:
            if outcome.deleted != len(self._active):
                self.finished = None  # not over while a pod could not be deleted
        elif self._managed or deleting(self.job):
            done = self._succeeded > 0 if self._completions is None else self._succeeded >= self._completions
            if done and active == 0:
                message = "Reached expected number of succeeded pods"
                self.finished = new_condition("SuccessCriteriaMet", "True", "CompletionsReached", message, self.now)
            elif self._managed:
                self._note_suspension()
        self.status |= {
            "active": active or None,
            "ready": self._ready - outcome.deleted_ready,
            "terminating": self._terminating + outcome.deleted,
        }
        self._count()

    def _note_suspension(self) -> None:
        if self._suspended:
            if ensure_condition(
                self._conditions, new_condition("Suspended", "True", "JobSuspended", "Job suspended", self.now)
            ):
                self.events.append(JobEvent("Normal", "Suspended", "Job suspended"))
        elif ensure_condition(
            self._conditions, new_condition("Suspended", "False", "JobResumed", "Job resumed", self.now)
        ):
            self.events.append(JobEvent("Normal", "Resumed", "Job resumed"))
            self.status["startTime"] = stamp(self.now)

    def _count(self) -> None:
        """Note the pods that have ended and choose those whose finalizer may go."""
        self._drop_counted({uid_of(pod) for pod in self.pods if is_tracked(pod)})
        newly_done: set[int] = set()
        lost = self.finished is not None and self.finished["type"] != "SuccessCriteriaMet"
        held = per_index.uids(self._held)
        for pod in sorted(self.pods, key=lambda counted: index_of(counted) or 0) if self._indexed else self.pods:
            failed, phase = self._has_failed(pod), phase_of(pod)
            ended = phase == "Succeeded" or (failed and uid_of(pod) not in held)
            over = deleting(self.job) or self.finished is not None or ended
            if not is_tracked(pod) or not over:
                continue
            self.strip.append(pod)
            uid, index = uid_of(pod), index_of(pod)
            if phase == "Succeeded" and uid not in self._uncounted_bad:
                if not self._indexed:
                    if uid not in self._uncounted_ok:
                        self._uncounted_ok.append(uid)
                elif self._has_index(pod) and index is not None and index not in self._done_before:
                    newly_done.add(index)
            elif (failed or lost) and self._counts_as_failure(pod):
                self._uncounted_bad.append(uid)
            if len(newly_done) + len(self._uncounted_ok) + len(self._uncounted_bad) >= _AT_ONCE:
                self.finished = None  # the rest is counted in the next sync
                break
        if self._indexed:
            done = self._done_before | newly_done
            self.status["succeeded"] = len(done) or None
            self.status["completedIndexes"] = written(done) or None
        if self._failed_indexes is not None:
            self.status["failedIndexes"] = written(self._failed_indexes)
        if self.finished is not None and condition({"conditions": self._conditions}, self.finished["type"]) is None:
            self._conditions.append(self.finished)

    def _counts_as_failure(self, pod: Object) -> bool:
        return uid_of(pod) not in self._uncounted_bad and self._has_index(pod) and judge(self._policy, pod).counts

    def _drop_counted(self, tracked: set[str]) -> bool:
        """Add to the counters the ended pods that have lost their finalizer; True when that changed something."""
        changed = False
        for field_name, uids in (("succeeded", self._uncounted_ok), ("failed", self._uncounted_bad)):
            left = [uid for uid in uids if uid in tracked]
            if len(left) != len(uids):
                changed = True
                if field_name == "failed" or not self._indexed:
                    self.status[field_name] = int(self.status.get(field_name) or 0) + len(uids) - len(left)
                uids[:] = left
        return changed

    def flush(self) -> Object:
        """The status to write now."""
        counted = {"succeeded": self._uncounted_ok, "failed": self._uncounted_bad}
        status = {**self.status, "uncountedTerminatedPods": {key: list(v) for key, v in counted.items() if v}}
        return {key: copy_of(value) for key, value in status.items() if value is not None and value != []}

    def close(self, stripped: set[str]) -> Object:
        """The status after these pods lost their finalizer, with the final condition if nothing is left to wait for."""
        self._drop_counted({uid_of(pod) for pod in self.pods if is_tracked(pod)} - stripped)
        waiting = self._uncounted_ok or self._uncounted_bad or self.status.get("terminating")
        if self.finished is not None and not waiting:
            kind = INTERIM[self.finished["type"]]
            last = new_condition(kind, "True", self.finished["reason"], self.finished["message"], self.now)
            ensure_condition(self._conditions, last)
            if kind == "Complete":
                self.status["completionTime"] = last["lastTransitionTime"]
                too_many = self._completions is not None and int(self.status.get("succeeded") or 0) > self._completions
                if too_many:
                    text = "Too many succeeded pods running after completion count reached"
                    self.events.append(JobEvent("Warning", "TooManySucceededPods", text))
                self.events.append(JobEvent("Normal", "Completed", "Job completed"))
            else:
                self.events.append(JobEvent("Warning", last["reason"], last["message"]))
        return self.flush()
