"""Counts for how long annotations of tenants keep idle workloads, and tells them where that is shorter than they wrote.

The count is on record, begins at the first look that finds an idle workload kept, and goes on until its GPUs are used;
an annotation that is taken off, changed or written anew does not set it back.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Final, TypeAlias

import msgspec

from kgpu.base.advice import Advice, Severity
from kgpu.base.times import stamp_of
from kgpu.kube.events import ClusterEvents
from kgpu.kube.port import PODS, KubeRefusedError, Object
from kgpu.usage.reclaim import writing
from kgpu.usage.reclaim.guards import GuardFacts, span
from kgpu.usage.reclaim.keeps import KeepFound, keeps_of
from kgpu.usage.reclaim.model import HeldWorkload, ReclaimPolicy, WorkloadRef
from kgpu.usage.reclaim.owners import StopTarget, StopWay, target_by
from kgpu.usage.reclaim.reading import ClusterLook
from kgpu.usage.reclaim.record import KeepEntry, ReclaimRecord
from kgpu.usage.states import NOT_IDLE

Watched: TypeAlias = tuple[HeldWorkload, ReclaimPolicy]
"""A workload as its policy judges it."""
REASON: Final = "KeepLimited"


def keep_ends(record: ReclaimRecord, ref: WorkloadRef, policy: ReclaimPolicy) -> float | None:
    """When a workload's time of being kept ends; None where it has not begun."""
    entry = record.keep(ref)
    return None if entry is None else entry.since + policy.longest_keep


async def count_keeps(
    look: ClusterLook, events: ClusterEvents, record: ReclaimRecord, found: Iterable[Watched], now: float
) -> tuple[ReclaimRecord, dict[WorkloadRef, KubeRefusedError]]:
    """The record with what is kept now and without what works, and what could not be read. Raises KubeError but for
    refusals.
    """
    refused: dict[WorkloadRef, KubeRefusedError] = {}
    for workload, policy in found:
        if workload.state in NOT_IDLE:
            record = record.without_keep(workload.ref) if record.keep(workload.ref) is not None else record
        if not workload.idle:
            continue
        try:
            facts = await look.facts(workload, policy, now)
            record = await _counted(events, record, facts)
        except KubeRefusedError as error:
            refused[workload.ref] = error
    return record, refused


async def _counted(events: ClusterEvents, record: ReclaimRecord, facts: GuardFacts) -> ReclaimRecord:
    ref, policy = facts.workload.ref, facts.policy
    limited = [one for one in keeps_of(facts.objects, policy, facts.now) if one.limited]
    if not limited:
        return record
    entry = record.keep(ref) or KeepEntry(kind=ref.kind, namespace=ref.namespace, name=ref.name, since=facts.now)
    end = entry.since + policy.longest_keep
    cut = next((one for one in limited if one.outlasts(end)), None)
    told = "" if cut is None else f"{cut.key}={cut.value}"[:100]
    if cut is not None and told != entry.told:
        await events.publish(limited_keep(facts, cut, end), _about(facts))
    entry = msgspec.structs.replace(entry, told=told or entry.told)
    return record if entry == record.keep(ref) else record.with_keep(entry)


def limited_keep(facts: GuardFacts, cut: KeepFound, end: float) -> Advice:
    """The Event that an annotation counts for less than it says."""
    policy = facts.policy
    over = "was kept until" if end <= facts.now else "is kept until"
    return Advice(
        subject=facts.workload.ref.title, reason=REASON, severity=Severity.WARNING,
        what=f"it {over} {stamp_of(end)} at the longest, unless its GPUs are used",
        why=f"{cut.sentence}, and GPUUsagePolicy {policy.name} lets nothing keep an idle workload for longer than "
            f"{span(policy.longest_keep)}",
        remedy="use its GPUs or give them back; who runs the cluster can allow more (spec.reclaim.longestKeep)",
    )  # fmt: skip


def _about(facts: GuardFacts) -> Object:
    """What would be stopped, else a pod of the workload."""
    target = facts.target
    if not isinstance(target, StopTarget):
        target = target_by(StopWay.EVICT, PODS, facts.pods[0])
    return writing.about(target)


def with_keep_end(facts: GuardFacts, record: ReclaimRecord) -> GuardFacts:
    """The same, and when its time of being kept ends."""
    return replace(facts, keep_ends=keep_ends(record, facts.workload.ref, facts.policy))
