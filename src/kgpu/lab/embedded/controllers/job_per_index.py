"""Indexed Jobs whose indexes fail one by one (``backoffLimitPerIndex``), and success policies. Pure.

How often an index has failed stands in an annotation of its latest pod. A failed pod therefore keeps its finalizer
until the pod that takes its place carries the count on.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Final

from kgpu.kube.port import Object, annotations_of
from kgpu.lab.embedded.controllers.job_failures import Failures, finished_at, judge
from kgpu.lab.embedded.controllers.job_indexes import index_of, parse
from kgpu.lab.embedded.controllers.meta import spec_of, uid_of

FAILURES: Final = "batch.kubernetes.io/job-index-failure-count"
IGNORED: Final = "batch.kubernetes.io/job-index-ignored-failure-count"
_MAX: Final = 2**31 - 1


def has_limit(job: Object) -> bool:
    spec = spec_of(job)
    return spec.get("backoffLimitPerIndex") is not None and spec.get("completionMode") == "Indexed"


def _number(pod: Object, name: str) -> int:
    """The annotation's number; 0 when it can't be one."""
    text = annotations_of(pod).get(name, "")
    number = int(text) if text.isdecimal() and len(text) <= len(str(_MAX)) else 0
    return number if number <= _MAX else 0


def _all_failures(pod: Object) -> int:
    return _number(pod, FAILURES) + _number(pod, IGNORED)


def has_failed_for_good(job: Object, pod: Object) -> bool:
    """Whether this failed pod was its index's last."""
    spec = spec_of(job)
    verdict = judge(spec.get("podFailurePolicy"), pod)
    return verdict.index_fails or (verdict.counts and _number(pod, FAILURES) >= int(spec["backoffLimitPerIndex"]))


def held_back(failed: Iterable[Object], over: Collection[int], active: Collection[int]) -> dict[int, Object]:
    """The last failed pod of each index that is neither over nor has an active pod. ``failed`` are tracked pods."""
    latest: dict[int, Object] = {}
    for pod in failed:
        index = index_of(pod)
        if index is None or index in over or index in active:
            continue
        known = latest.get(index)
        if known is None or (_all_failures(known) <= _all_failures(pod) and finished_at(pod) >= finished_at(known)):
            latest[index] = pod
    return latest


def annotations_after(job: Object, pod: Object | None) -> dict[str, str]:
    """For the pod that takes the place of ``pod``, None for an index's first."""
    if pod is None:
        return {FAILURES: "0"}
    counts = judge(spec_of(job).get("podFailurePolicy"), pod).counts
    ignored = _number(pod, IGNORED) + (not counts)
    annotations = {FAILURES: str(_number(pod, FAILURES) + counts)}
    return {**annotations, IGNORED: str(ignored)} if ignored else annotations


def ready_indexes(wanted: Sequence[int], held: Mapping[int, Object], now: dt.datetime) -> tuple[tuple[int, ...], float]:
    """Those whose pause after a failure is over; else the seconds until the first one is."""
    pauses = {
        index: Failures(_all_failures(pod) + 1, finished_at(pod)).pause(now) if pod is not None else 0.0
        for index in wanted
        for pod in (held.get(index),)
    }
    ready = tuple(index for index in wanted if not pauses[index])
    return ready, 0.0 if ready else min(pauses.values(), default=0.0)


def success(policy: Object | None, done: Collection[int], completions: int) -> str:
    """The message of the rule that the succeeded indexes fulfil, "" for none."""
    if not done:
        return ""
    for number, rule in enumerate((policy or {}).get("rules") or ()):
        count = rule.get("succeededCount")
        if rule.get("succeededIndexes") is not None:
            needed = parse(str(rule["succeededIndexes"]), completions)
            have = sum(index in needed for index in done)
            met = bool(needed) and (have == len(needed) or (count is not None and have >= int(count)))
        else:
            met = count is not None and len(done) >= int(count)
        if met:
            return f"Matched rules at index {number}"
    return ""


def uids(pods: Mapping[int, Object]) -> set[str]:
    return {uid_of(pod) for pod in pods.values()}
