"""ResourceQuota: refuses writes that would use more than a namespace may.

Usage is added up exactly from what is stored now; ``status.used`` is the quota controller's. Attached to a core the
plugin keeps that sum up to date, otherwise it counts anew each time.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kgpu.base.quantity import ZERO, Quantity
from kgpu.lab.embedded.core.model import ObjectLookup, Review
from kgpu.lab.embedded.status import Object
from kgpu.lab.embedded.types import quota as rules
from kgpu.lab.embedded.types.admission.base import PODS, refused
from kgpu.lab.embedded.types.admission.usage_tracker import QuotaUsageTracker

if TYPE_CHECKING:
    from kgpu.lab.embedded.core import ApiCore


class ResourceQuota:
    """Counts creates and updates against every quota of the namespace that matches the object."""

    def __init__(self) -> None:
        self._tracker: QuotaUsageTracker | None = None

    def attach(self, core: ApiCore) -> None:
        """Follow the commits from now on."""
        reads = core.reads
        tracker = self._tracker = QuotaUsageTracker(reads.list)
        core.on_commit(
            lambda key, change, stored, _old: tracker.record(
                key, stored.namespace, stored.name, None if change == "DELETED" else stored.obj
            )
        )

    def admit(self, review: Review, reads: ObjectLookup) -> None:
        if review.operation not in {"CREATE", "UPDATE"} or not review.namespace or review.subresource:
            return
        kind = review.kind
        if review.operation == "UPDATE" and (kind.custom or (kind.key == PODS and not _moves(review))):
            return
        for quota in sorted(reads.list("", "resourcequotas", review.namespace), key=_name):
            if rules.matches(quota, kind.group, kind.plural, review.obj):
                self._check(review, reads, quota)

    def _check(self, review: Review, reads: ObjectLookup, quota: Object) -> None:
        kind, hard = review.kind, _limits(quota)
        if kind.key == PODS:
            missing = rules.missing_amounts(hard, review.obj["spec"])
            if missing:
                raise refused(review, f"failed quota: {_name(quota)}: {missing}")
        wanted = rules.object_usage(kind.group, kind.plural, review.obj)
        old = review.old
        if review.operation == "UPDATE" and old is not None and rules.matches(quota, kind.group, kind.plural, old):
            before = rules.object_usage(kind.group, kind.plural, old)
            wanted = {name: amount - before.get(name, ZERO) for name, amount in wanted.items()}
        wanted = {name: amount for name, amount in wanted.items() if name in hard and amount.nanos > 0}
        if not wanted:
            return
        if self._tracker is not None:
            used = self._tracker.of(quota, kind.key)
        else:
            used = rules.quota_usage(quota, {kind.key: reads.list(kind.group, kind.plural, review.namespace)})
        over = sorted(name for name, amount in wanted.items() if used[name] + amount > hard[name])
        if over:
            parts = ({name: amounts[name] for name in over} for amounts in (wanted, used, hard))
            requested, so_far, limited = (rules.amounts_text(part) for part in parts)
            why = f"exceeded quota: {_name(quota)}, requested: {requested}, used: {so_far}, limited: {limited}"
            raise refused(review, why)


def _moves(review: Review) -> bool:
    """Whether a pod gets or loses a deadline, which another quota may count: nothing else of its amounts can change."""
    return _has_deadline(review.obj) != _has_deadline(review.old or {})


def _has_deadline(pod: Object) -> bool:
    return (pod.get("spec") or {}).get("activeDeadlineSeconds") is not None


def _name(quota: Object) -> str:
    return str(quota["metadata"]["name"])


def _limits(quota: Object) -> dict[str, Quantity]:
    return {name: Quantity.parse(text) for name, text in (quota["spec"].get("hard") or {}).items()}
