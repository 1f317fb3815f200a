"""Which MigChange operations nodes ask for, and what each node is told of its request. Pure.

A node's MIG manager writes a request; the operation's name follows from the Node's uid and the request's ID, so that
making it twice makes one. A node has one unfinished change at a time, and a request is carried out once, whatever comes
of it. Only one that ended before anything was done to its GPUs because the node asked for something else meanwhile, or
because the node rebooted, may be asked for again. A node that keeps changing its mind waits. What a node was told of a
request that is over stays there, though the request goes: by that it knows not to ask again.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from kgpu.base.printable import one_line
from kgpu.formats import mig_request, names
from kgpu.formats.crd.nodeoperation import (
    NodeOperationSpec,
    OperationMig,
    OperationMigLayout,
    OperationPhase,
    OperationType,
    Result,
)
from kgpu.formats.mig_request import MigProgress, MigRequest
from kgpu.formats.partition_mode import by_modes
from kgpu.operations.config import MigPolicy
from kgpu.operations.drain import named
from kgpu.operations.model import ENDED, Operation, TargetNode, moment_of
from kgpu.operations.records import outcome_of

PER_MINUTE: Final = 6
"""How many changes of a node are begun or made within a minute, for a node whose requests keep changing."""
MINUTE: Final = 60.0
NO_OPERATION: Final = ""
_MAX_NODE: Final = 80
"""Characters of the node's name in an operation's."""
_AGAIN: Final = frozenset({"RequestChanged", "Rebooted"})
"""Reasons of operations whose request may be carried out after all."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestedChange:
    """An operation to create."""

    name: str
    spec: NodeOperationSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class MigWord:
    """What to write on a Node about its request; None: nothing, what is there goes."""

    node: TargetNode
    progress: MigProgress | None


@dataclass(frozen=True, slots=True, kw_only=True)
class MigPlan:
    """What to create and what to tell, and when to look again if nothing changes."""

    create: tuple[RequestedChange, ...] = ()
    tell: tuple[MigWord, ...] = ()
    again_at: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Answer:
    """What follows from one request."""

    progress: MigProgress | None
    create: RequestedChange | None = None
    again_at: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Asking:
    """A node that asks, and what there is about it: ``own`` are its changes, for whichever request."""

    node: TargetNode
    asked: MigRequest
    own: Sequence[Operation]
    refused: str


def mig_plan(
    nodes: Mapping[str, TargetNode], operations: Iterable[Operation], policy: MigPolicy, now: float,
    refused: Mapping[str, str] | None = None,
) -> MigPlan:  # fmt: skip
    """What the requests of the nodes, by name, call for. ``refused`` says why the API server took an operation of a
    node for none.
    """
    changes: dict[str, list[Operation]] = {}
    for operation in operations:
        if operation.type is OperationType.MIG_CHANGE:
            changes.setdefault(operation.node, []).append(operation)
    create: list[RequestedChange] = []
    words: list[MigWord] = []
    times: list[float] = []
    for node in nodes.values():
        own = [row for row in changes.get(node.name, ()) if _uid(row) in ("", node.uid)]
        if node.mig_request is None:
            words += _without_request(node, own)
            continue
        why = (refused or {}).get(node.name, "")
        answer = _answer(_Asking(node=node, asked=node.mig_request, own=own, refused=why), policy, now)
        create += [answer.create] if answer.create is not None else []
        times += [answer.again_at] if answer.again_at is not None else []
        words += [MigWord(node=node, progress=answer.progress)] if answer.progress != node.mig_progress else []
    return MigPlan(create=tuple(create), tell=tuple(words), again_at=min(times, default=None))


def _without_request(node: TargetNode, own: Sequence[Operation]) -> list[MigWord]:
    """What is changed in what the node was told of a request that it has taken back."""
    word = node.mig_progress
    if word is None:
        return [MigWord(node=node, progress=None)] if node.mig_told else []
    of_request = _of_request(own, word.id)
    final = _final(of_request)
    if final is not None:
        word = progress_of(word.id, final)
    elif of_request or not _is_over(word, word.id):
        word = None  # nothing was carried out
    return [MigWord(node=node, progress=word)] if word != node.mig_progress else []


def _of_request(own: Sequence[Operation], key: str) -> list[Operation]:
    return [row for row in own if row.spec.mig is not None and row.spec.mig.request == key]


def _final(of_request: Sequence[Operation]) -> Operation | None:
    """The operation by which a request is carried out, None while there is none. Several may be made in one second."""
    final = (row for row in of_request if not _may_be_repeated(row))
    return max(final, key=lambda row: (not row.ended, row.created, row.name), default=None)


def _uid(operation: Operation) -> str:
    return operation.spec.node_uid or operation.status.node_uid


def _answer(asking: _Asking, policy: MigPolicy, now: float) -> _Answer:
    node, asked, own = asking.node, asking.asked, asking.own
    of_request = _of_request(own, asked.id)
    if (final := _final(of_request)) is not None:
        return _Answer(progress=progress_of(asked.id, final))
    if not of_request and _is_over(node.mig_progress, asked.id):
        return _Answer(progress=node.mig_progress)  # its record is gone; it was carried out all the same
    busy = next((row for row in own if not row.ended), None)
    if busy is not None:
        why = f"it waits until {busy.name} is over, which is for a request of before"
        return _Answer(progress=_pending(asked, busy.name, "NodeBusy", why))
    recent = sorted(moment for row in own if (moment := _latest(row)) > now - MINUTE)
    if len(recent) >= PER_MINUTE:
        why = f"the node has asked for {PER_MINUTE} changes within a minute; it waits"
        progress = _pending(asked, NO_OPERATION, "TooManyRequests", why)
        return _Answer(progress=progress, again_at=recent[-PER_MINUTE] + MINUTE)
    wanted = _change(node, asked, policy, {row.name for row in own})
    if asking.refused:
        return _Answer(progress=_pending(asked, NO_OPERATION, "NotMade", asking.refused), create=wanted)
    return _Answer(progress=_pending(asked, wanted.name, "Asked", "it is about to begin"), create=wanted)


def _may_be_repeated(operation: Operation) -> bool:
    return operation.ended and operation.status.result == Result.SUPERSEDED.value and operation.status.reason in _AGAIN


def _is_over(told: MigProgress | None, key: str) -> bool:
    """Whether the operator has said that this request is over, for good."""
    return told is not None and told.id == key and told.phase in ENDED and told.reason not in _AGAIN


def _latest(operation: Operation) -> float:
    """When it was last begun, ended or made."""
    status = operation.status
    stamps = (status.started_at, status.completed_at, status.phase_since)
    return max(operation.created, *(moment_of(stamp) or 0.0 for stamp in stamps))


def _pending(asked: MigRequest, operation: str, reason: str, why: str) -> MigProgress:
    return _word(asked.id, operation, OperationPhase.PENDING, reason, why)


def _word(key: str, operation: str, phase: OperationPhase, reason: str, message: str) -> MigProgress:
    """The word as it is read back, or it would be written again and again."""
    known = one_line(operation, mig_request.MAX_NAME)
    return mig_request.progress(key=key, operation=known, phase=phase, reason=reason, message=message)


def progress_of(key: str, operation: Operation) -> MigProgress:
    """What the node is told of an operation: while it is emptied, with the pods that are waited for and why."""
    status = operation.status
    reason, message = status.reason, status.message
    if operation.phase is OperationPhase.RESTORING:
        reason, message = outcome_of(operation)
    elif operation.phase is OperationPhase.DRAINING and status.drain is not None and status.drain.waiting:
        message = f"{message}; {named(status.drain.waiting)}"
    return _word(key, operation.name, operation.phase, reason, message)


def operation_name(node: str, node_uid: str, request: str, attempt: int = 0) -> str:
    """The name of a node's operation for a request. ``attempt`` counts those that were superseded, from 0."""
    key = f"{node_uid}/{request}/{attempt}"
    return f"mig-{node[:_MAX_NODE].rstrip('.-')}-{hashlib.sha256(key.encode()).hexdigest()[:10]}"


def _change(node: TargetNode, asked: MigRequest, policy: MigPolicy, taken: set[str]) -> RequestedChange:
    attempt = 0
    while (name := operation_name(node.name, node.uid, asked.id, attempt)) in taken:
        attempt += 1
    layouts = tuple(OperationMigLayout(gpu=row.gpu, enabled=row.enabled, devices=row.devices) for row in asked.layouts)
    mig = OperationMig(
        config=asked.config, request=asked.id, layouts=layouts, release=asked.release,
        drain=str(policy.drain),  # type: ignore[arg-type]
    )  # fmt: skip
    noun = "partition profile" if by_modes(layouts) else "MIG config"
    spec = NodeOperationSpec(
        node_name=node.name, node_uid=node.uid, type=str(OperationType.MIG_CHANGE),  # type: ignore[arg-type]
        gpus=tuple(row.gpu for row in asked.layouts), mig=mig, requested_by=names.MIG_REQUESTER,
        reason=f"its node asks for the {noun} {asked.config}", drain=policy.eviction,
    )  # fmt: skip
    return RequestedChange(name=name, spec=spec)
