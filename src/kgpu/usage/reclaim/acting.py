"""Takes a workload's steps on the ladder: each looks anew, decides (``ladder.next_step``), and makes one write.

Killed after any write, the next process goes on from what is written. A refusal of the API server ends the steps of
that workload until the next round.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, replace
from typing import Final

import msgspec

from kgpu.base.times import stamp_of
from kgpu.formats import names
from kgpu.kube.events import ClusterEvents
from kgpu.kube.port import KubeApi, KubeRefusedError, annotations_of
from kgpu.usage.hour_prices import HourPrices
from kgpu.usage.reclaim import notices, writing
from kgpu.usage.reclaim.budget import brake, spent
from kgpu.usage.reclaim.delivery import warning_id
from kgpu.usage.reclaim.guards import ONLY_AT_THE_ACT, GuardFacts, obstacle
from kgpu.usage.reclaim.keep_count import with_keep_end
from kgpu.usage.reclaim.keeps import moment_of
from kgpu.usage.reclaim.ladder import LadderStep, LadderView, NextStep, next_step, same_deadline, same_episode
from kgpu.usage.reclaim.model import HeldWorkload, ReclaimPolicy, WorkloadRef
from kgpu.usage.reclaim.owners import StopTarget, StopWay, target_by
from kgpu.usage.reclaim.reading import ClusterLook
from kgpu.usage.reclaim.record import (
    MOST_WARNINGS,
    ActionState,
    NoticeKind,
    ReclaimAction,
    ReclaimRecord,
    StoredTarget,
    WarningEntry,
)
from kgpu.usage.reclaim.record_store import RecordStore

MOST_STEPS: Final = 8
"""Steps of a workload in one round."""
_ENDS: Final = frozenset({LadderStep.REST, LadderStep.WAIT})


@dataclass(frozen=True, slots=True, kw_only=True)
class ActingPorts:
    """What steps are taken with. ``own_namespace`` is kgpu's."""

    api: KubeApi
    store: RecordStore
    events: ClusterEvents
    prices: HourPrices
    evict: writing.EvictPod
    own_namespace: str


@dataclass(frozen=True, slots=True, kw_only=True)
class LadderCase:
    """A workload as it is now. ``workload`` is None for one that holds nothing any more; ``frozen`` is why nothing may
    be stopped; ``held`` are all GPUs that are held in the cluster; ``requests`` why requests keep it.
    """

    ref: WorkloadRef
    workload: HeldWorkload | None
    policy: ReclaimPolicy
    frozen: str
    held: float
    now: float
    requests: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class _StepInput:
    """What a step is taken on."""

    case: LadderCase
    record: ReclaimRecord
    target: StopTarget
    step: NextStep
    since: float

    @property
    def action(self) -> ReclaimAction | None:
        return self.record.action(self.case.ref)

    @property
    def warning(self) -> WarningEntry:
        warning = self.record.warning(self.case.ref)
        assert warning is not None, "it has a deadline"
        return warning


async def climb(ports: ActingPorts, case: LadderCase, record: ReclaimRecord) -> tuple[ReclaimRecord, NextStep]:
    """Take steps until one has to wait; returns the record as it was saved last, and that step. Raises KubeError."""
    step = NextStep(LadderStep.REST)
    for _ in range(MOST_STEPS):
        record, step = await _once(ports, case, record)
        if step.step in _ENDS:
            break
    return record, step


async def _once(ports: ActingPorts, case: LadderCase, record: ReclaimRecord) -> tuple[ReclaimRecord, NextStep]:
    look = ClusterLook(ports.api, ports.own_namespace)
    facts = None
    if case.workload is not None:
        facts = await look.facts(case.workload, case.policy, case.now, case.frozen)
        frozen = case.frozen or _brake(case, record)
        facts = replace(facts, spent=_spent(case, record), frozen=frozen, requests=case.requests)
        facts = with_keep_end(facts, record)
    target = await _target(look, case, record, facts)
    if target is None:
        return await _gone(ports, case, record)
    view = _view(case, record, target, facts)
    step = next_step(view)
    take = _STEPS.get(step.step)
    if take is None:
        return record, step
    since = view.of_episode if step.step is not LadderStep.WARN else view.episode
    seen = _StepInput(case=case, record=record, target=target, step=step, since=since or view.episode or case.now)
    return await take(ports, seen), step


def _spent(case: LadderCase, record: ReclaimRecord) -> str:
    own = record.action(case.ref)
    return spent(
        record.actions, case.policy.budget, namespace=case.ref.namespace, now=case.now, held=case.held,
        gpus=case.workload.gpus if case.workload else 0.0,
        but=own.id if own is not None and own.state is ActionState.INTENDED else "",
    )  # fmt: skip


def _brake(case: LadderCase, record: ReclaimRecord) -> str:
    return brake(record.actions, case.policy.name, case.policy.budget, case.now)


async def _target(
    look: ClusterLook, case: LadderCase, record: ReclaimRecord, facts: GuardFacts | None
) -> StopTarget | None:
    """What would be changed: that very object where an act is under way, else by the owners. None: it is not there."""
    action, warning = record.action(case.ref), record.warning(case.ref)
    stored = action.target if action is not None and action.state is ActionState.INTENDED else None
    stored = stored or (warning.target if warning is not None else None)
    if stored is None and facts is not None and isinstance(facts.target, StopTarget):
        return facts.target
    stored = stored or (action.target if action is not None else None)
    if stored is None:
        return None
    obj = await look.got(stored.resource, stored.namespace, stored.name)
    if obj is None or obj["metadata"].get("uid") != stored.uid:
        return None
    return target_by(StopWay(stored.way), stored.resource, obj)


async def _gone(ports: ActingPorts, case: LadderCase, record: ReclaimRecord) -> tuple[ReclaimRecord, NextStep]:
    """The object that was warned or stopped is not there any more: of an eviction, that is what was wanted."""
    action = record.action(case.ref)
    if action is not None and action.state is ActionState.INTENDED:
        evicted = action.target.way == StopWay.EVICT
        state = ActionState.DONE if evicted else ActionState.VOID
        record = record.with_action(msgspec.structs.replace(action, state=state, ended=case.now))
        if evicted:
            record = record.with_notices([notices.stopped_notice(action, case.policy, case.now)])
    record = record.without_warning(case.ref)
    await ports.store.save(record)
    return record, NextStep(LadderStep.REST, "it can't be stopped by kgpu, or is gone")


def _view(case: LadderCase, record: ReclaimRecord, target: StopTarget, facts: GuardFacts | None) -> LadderView:
    annotations = annotations_of(target.obj)
    warning, action = record.warning(case.ref), record.action(case.ref)
    workload = case.workload
    gone = "it holds no GPUs any more"
    deadline = warning.deadline if warning is not None else None
    full = warning is None and len(record.warnings) >= MOST_WARNINGS
    return LadderView(
        now=case.now, grace=case.policy.grace,
        episode=workload.idle_since if workload is not None and workload.idle else None,
        deadline=deadline, of_episode=warning.since if warning is not None else None,
        annotated=bool(set(writing.DEADLINE) & set(annotations)),
        shown=warning is not None and _shows(annotations, warning),
        marked=names.RECLAIM_ACTION in annotations,
        changed=annotations.get(names.ORIGINAL_REPLICAS, "") != target.remembered, stopped=target.stopped,
        warned=warning is not None and warning.announced, delivered=warning.delivered if warning is not None else None,
        action=action.state if action is not None and action.state is not ActionState.RESUMED else None,
        bars_warning=(obstacle(facts, without=ONLY_AT_THE_ACT) or ("too many have a deadline" if full else ""))
        if facts is not None else gone,
        bars_act=obstacle(facts) if facts is not None else gone,
    )  # fmt: skip


def _shows(annotations: Mapping[str, str], warning: WarningEntry) -> bool:
    """Whether a workload's annotations say what is on record."""
    deadline, since = moment_of(annotations.get(names.RECLAIM_AT)), moment_of(annotations.get(names.RECLAIM_EPISODE))
    return same_deadline(deadline, warning.deadline) and same_episode(since, warning.since)


async def _warn(ports: ActingPorts, seen: _StepInput) -> ReclaimRecord:
    """The deadline. It is on record before it is on the workload, so that it does not stay there for ever."""
    ref = seen.case.ref
    warning = WarningEntry(
        kind=ref.kind, namespace=ref.namespace, name=ref.name, since=float(int(seen.since)),
        deadline=seen.step.deadline, target=_stored(seen.target),
    )  # fmt: skip
    await ports.store.save(record := seen.record.with_warning(warning))
    return record


async def _show(ports: ActingPorts, seen: _StepInput) -> ReclaimRecord:
    """What is on record, for whoever looks at the workload."""
    await writing.set_deadline(ports.api, seen.target, seen.step.deadline, seen.since)
    return seen.record


async def _tell(ports: ActingPorts, seen: _StepInput) -> ReclaimRecord:
    """An Event and a message, whatever comes first when the process is killed in between."""
    case, warning = seen.case, seen.warning
    assert case.workload is not None, "who is told holds GPUs"
    await ports.events.publish(
        notices.warned(case.workload, seen.step.deadline, seen.since, case.now), writing.about(seen.target)
    )
    warning = msgspec.structs.replace(warning, announced=True, delivered=None if case.policy.receivers else case.now)
    record = seen.record.with_warning(warning)
    if case.policy.receivers:
        record = record.with_notices(
            [
                notices.warning_notice(
                    warning, case.workload, case.policy, ports.prices, now=case.now, deadline=seen.step.deadline
                )
            ]
        )
    await ports.store.save(record)
    return record


async def _postpone(ports: ActingPorts, seen: _StepInput) -> ReclaimRecord:
    record = seen.record.with_warning(msgspec.structs.replace(seen.warning, deadline=seen.step.deadline))
    await ports.store.save(record)
    return record


async def _withdraw(ports: ActingPorts, seen: _StepInput) -> ReclaimRecord:
    if set(writing.DEADLINE) & set(annotations_of(seen.target.obj)):
        await writing.annotate(ports.api, seen.target, writing.DEADLINE)
    case, record = seen.case, seen.record
    if (warning := record.warning(case.ref)) is not None:
        record = record.without_warning(case.ref)
        told = notices.plain_notice(
            NoticeKind.RESOLVED, case.policy, case.ref, f"it is not stopped: {seen.step.why}", case.now
        )
        waits = warning_id(warning)
        left = tuple(one for one in record.notices if one.id != waits)
        record = msgspec.structs.replace(record, notices=left)
        record = record.with_notices([told] if len(left) == len(seen.record.notices) else [])
        await ports.store.save(record)
    return record


async def _intend(ports: ActingPorts, seen: _StepInput) -> ReclaimRecord:
    case = seen.case
    assert case.workload is not None, "what is to be stopped holds GPUs"
    action = ReclaimAction(
        id=f"{seen.target.obj['metadata'].get('uid')}/{stamp_of(seen.since)}/{case.now:.0f}", policy=case.policy.name,
        kind=case.ref.kind, namespace=case.ref.namespace, name=case.ref.name, target=_stored(seen.target),
        gpus=case.workload.gpus, at=case.now, why=notices.why_of(case.workload, case.now),
        undo=notices.undo_command(case.ref) if seen.target.way is not StopWay.EVICT else "nothing: it had no owner",
    )  # fmt: skip
    await ports.store.save(record := seen.record.with_action(action))
    return record


async def _mark(ports: ActingPorts, seen: _StepInput) -> ReclaimRecord:
    await writing.remember(ports.api, seen.target)
    return seen.record


async def _stop(ports: ActingPorts, seen: _StepInput) -> ReclaimRecord:
    await writing.stop(ports.api, seen.target, seen.case.now, ports.evict)
    return seen.record


async def _finish(ports: ActingPorts, seen: _StepInput) -> ReclaimRecord:
    action = seen.action
    assert action is not None, "what is finished was intended"
    await ports.events.publish(notices.done(action), writing.about(seen.target))
    record = seen.record.with_action(msgspec.structs.replace(action, state=ActionState.DONE, ended=seen.case.now))
    record = record.without_warning(seen.case.ref)
    record = record.with_notices([notices.stopped_notice(action, seen.case.policy, seen.case.now)])
    await ports.store.save(record)
    return record


async def _void(ports: ActingPorts, seen: _StepInput) -> ReclaimRecord:
    """An act that was intended does not happen."""
    return await _close(ports, seen, ActionState.VOID)


async def _forget(ports: ActingPorts, seen: _StepInput) -> ReclaimRecord:
    """Somebody has brought it back: what it had is theirs to say."""
    return await _close(ports, seen, ActionState.RESUMED)


async def _close(ports: ActingPorts, seen: _StepInput, state: ActionState) -> ReclaimRecord:
    own = {**writing.MEMORY, **writing.DEADLINE}
    if set(own) & set(annotations_of(seen.target.obj)):
        await writing.annotate(ports.api, seen.target, own)
    record, action = seen.record.without_warning(seen.case.ref), seen.action
    if action is not None and action.state in {ActionState.INTENDED, ActionState.DONE}:
        record = record.with_action(msgspec.structs.replace(action, state=state, ended=seen.case.now))
    await ports.store.save(record)
    return record


_STEPS: Final[Mapping[LadderStep, Callable[[ActingPorts, _StepInput], Awaitable[ReclaimRecord]]]] = {
    LadderStep.WARN: _warn,
    LadderStep.SHOW: _show,
    LadderStep.TELL: _tell,
    LadderStep.POSTPONE: _postpone,
    LadderStep.WITHDRAW: _withdraw,
    LadderStep.INTEND: _intend,
    LadderStep.MARK: _mark,
    LadderStep.STOP: _stop,
    LadderStep.FINISH: _finish,
    LadderStep.VOID: _void,
    LadderStep.FORGET: _forget,
}


def _stored(target: StopTarget) -> StoredTarget:
    row = target.resource
    return StoredTarget(
        group=row.group, version=row.version, plural=row.plural, kind=row.kind, namespace=target.namespace,
        name=target.name, uid=_uid(target), way=str(target.way),
    )  # fmt: skip


def _uid(target: StopTarget) -> str:
    return str(target.obj["metadata"].get("uid") or "")


def refusal(error: KubeRefusedError) -> str:
    """What a refused write means to people."""
    if error.code == 403:
        return f"kgpu lacks a right: {error.message} (usage.reclaim.namespaces of the chart gives it)"
    return error.what
