"""An operation on some GPUs of a node: the agent withdraws them, and only the pods that hold them go. Pure.

The node is not cordoned: pods with other GPUs go on. What the agent has to do stands in the order, which is written
with the hold and goes with it; how far it is, in the agent's answer (``kgpu.formats.node_order``).
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable
from typing import Final

from kgpu.formats.crd.nodeoperation import MigDrain, OperationPhase, Result, WaitingPod
from kgpu.formats.node_order import OrderAnswer, OrderStep
from kgpu.operations.drain import DrainState, Fate, PodFate, drain_state, fate
from kgpu.operations.emptying import empty, unread
from kgpu.operations.model import NodePod, Operation, Step, TargetNode, moment_of
from kgpu.operations.records import (
    CORDONED,
    deadline_of,
    give_back,
    over,
    present,
    record,
    unheld,
)
from kgpu.operations.world import World

AGENT_SECONDS: Final = 60.0
"""How long an agent may take to notice an order."""
UNASKED: Final = "nobody asks it to go (drain: none): it is waited for"
_UUID: Final = re.compile(r"[A-Za-z0-9][-A-Za-z0-9._:]{0,99}")


def refusal(operation: Operation, node: TargetNode) -> str:
    """Why these GPUs can't be operated on, "" if they can."""
    gpus = operation.spec.gpus
    wrong = next((uuid for uuid in gpus if not _UUID.fullmatch(uuid)), None)
    if wrong is not None or len(set(gpus)) < len(gpus):
        return f"{wrong or 'one of the GPUs'!r:.120} is no UUID, or is named twice; `nvidia-smi -L` lists the UUIDs"
    if not node.boot_id:
        return f"the Node {node.name} has no boot ID, so its agent could not tell an old order from a new one"
    if not node.has_gpus:
        return f"the node {node.name} has no GPUs"
    return ""


def withdrawing(operation: Operation, world: World) -> Step:
    """Hold the node and order its agent to offer these GPUs to no pod."""
    if operation.spec.cancel or operation.spec.resume:
        return give_back(operation, world, Result.CANCELLED, "Cancelled", "it was ended before its GPUs were empty")
    first = unheld(operation, world)
    if first is None:
        return record(
            operation, world, (CORDONED, "True", "Withdrawn", "its GPUs are offered to no pod"),
            phase=OperationPhase.DRAINING, limit=float(operation.spec.drain.timeout_seconds), reason="Draining",
            message="its GPUs are being emptied",
        )  # fmt: skip
    if over(operation, world):
        why = "the order to the node's agent could not be written; see the operator's log"
        return give_back(operation, world, Result.TRANSIENT_FAILURE, "NotHeld", why)
    return first


def draining(operation: Operation, world: World, emptied: Callable[[DrainState], Step]) -> Step:
    """Evict the pods to which the kubelet has given these GPUs."""
    if operation.spec.cancel or operation.spec.resume:
        return give_back(operation, world, Result.CANCELLED, "Cancelled", "it was ended before its GPUs were empty")
    if first := rebooted(operation, world) or unheld(operation, world):
        return first
    if (waits := unanswered(operation, world, OrderStep.WITHDRAW, "DrainTimeout")) is not None:
        return waits
    if world.pods is None:
        return unread(operation, world)
    return empty(operation, world, _holders(operation, world, world.pods), emptied)


def rebooted(operation: Operation, world: World) -> Step | None:
    """The step to take if the node has rebooted since the operation began: the order was for the boot before."""
    act = operation.status.act
    if act is None or present(world).boot_id in {"", act.boot_id}:
        return None
    if operation.spec.mig is not None:
        why = "the node has rebooted meanwhile; it asks again if its GPUs are not as wanted"
        return give_back(operation, world, Result.SUPERSEDED, "Rebooted", why)
    why = "the node has rebooted meanwhile, which also resets its GPUs"
    return give_back(operation, world, Result.CANCELLED, "Rebooted", why)


def answer_of(operation: Operation, world: World) -> OrderAnswer | None:
    """The agent's answer to this operation's order, None without one."""
    answer = present(world).answer
    return answer if answer is not None and answer.id == operation.act_id else None


def unanswered(
    operation: Operation, world: World, step: OrderStep, late: str, *, since: float | None = None
) -> Step | None:
    """The step to take while the agent has not done ``step``, None once it has. ``late`` is the reason if the phase's
    time is over; ``since`` is when the step was ordered if that was not with the phase.
    """
    answer = answer_of(operation, world)
    if answer is None or answer.step is not step:
        return _silent(operation, world, since)
    if answer.fulfils(operation.act_id, step):
        return None
    if answer.refused:
        return give_back(operation, world, Result.PERMANENT_FAILURE, "AgentRefused", answer.refused)
    if over(operation, world):
        return give_back(operation, world, Result.TRANSIENT_FAILURE, late, f"the node's agent waits: {answer.waits}")
    if world.tell_progress and answer.waits != operation.status.message:
        return record(operation, world, message=answer.waits)
    return Step(again_at=deadline_of(operation))


def _silent(operation: Operation, world: World, since: float | None) -> Step:
    """Wait for an agent that has not answered; a silent one does not run, or knows no such orders."""
    until = (since or moment_of(operation.status.phase_since) or 0.0) + AGENT_SECONDS
    if world.now < until:
        return Step(again_at=until)
    why = (
        f"the agent of {operation.node} has not answered within {AGENT_SECONDS:.0f} s: it does not run, or its version "
        "knows no such orders; `kgpu status` tells"
    )
    return give_back(operation, world, Result.TRANSIENT_FAILURE, "AgentSilent", why)


def problem_of(operation: Operation, world: World) -> str:
    """Why the GPUs are not well by the agent's last reading, "" if they are."""
    answer = answer_of(operation, world)
    read = {gpu.uuid: gpu for gpu in answer.gpus} if answer is not None else {}
    for uuid in operation.spec.gpus:
        if uuid not in read:
            return f"GPU {uuid} has not been read yet"
        if read[uuid].problem:
            return f"GPU {uuid}: {read[uuid].problem}"
    return ""


def _holders(operation: Operation, world: World, pods: tuple[NodePod, ...]) -> DrainState:
    """The drain's state by the pods that hold the GPUs. What would stay on a node that is emptied may not hold one."""
    answer = answer_of(operation, world)
    named = {(pod.namespace, pod.name) for pod in answer.holders} if answer is not None else set()
    holders = tuple(pod for pod in pods if (pod.namespace, pod.name) in named and not pod.ended)
    known = dataclasses.replace(world.evicted, cordoned_at=None)
    state = drain_state(
        holders, operation.spec.drain, known, node_ready=present(world).ready, now=world.now, monotonic=world.monotonic
    )
    staying = (fate(pod, operation.spec.drain, known) for pod in holders)
    stays = tuple(
        PodFate(pod=row.pod, fate=Fate.REFUSE, why=f"it holds a GPU, and stays: {row.why}")
        for row in staying
        if row.fate is Fate.LEAVE
    )
    seen = {(pod.namespace, pod.name) for pod in holders}
    freeing = tuple(
        WaitingPod(namespace=namespace, name=name, why="the kubelet has not freed its GPUs yet")
        for namespace, name in sorted(named - seen)
    )
    if operation.mig_drain is MigDrain.NONE:
        going = (WaitingPod(namespace=pod.namespace, name=pod.name, why=UNASKED) for pod in holders)
        state, stays = DrainState(waiting=tuple(going)), ()
    unlisted = _unlisted(pods, named, answer)
    more = answer.more if answer is not None else 0
    unnamed = (WaitingPod(namespace="", name=f"{more} more", why="its agent has no room to name them"),) if more else ()
    return dataclasses.replace(
        state, refused=(*state.refused, *stays), waiting=(*state.waiting, *freeing, *unlisted, *unnamed),
        stranded=(), hopeless="" if freeing or unlisted or unnamed else state.hopeless,
    )  # fmt: skip


def _unlisted(
    pods: tuple[NodePod, ...], holders: set[tuple[str, str]], answer: OrderAnswer | None
) -> tuple[WaitingPod, ...]:
    """The pods with devices of which the kubelet has not said which: these GPUs may be among them.

    It has just started, or has given a pod a device in the moment in which the GPUs were withdrawn.
    """
    if answer is None or answer.elsewhere is None:
        return ()
    known = holders | {(pod.namespace, pod.name) for pod in answer.elsewhere}
    return tuple(
        WaitingPod(namespace=pod.namespace, name=pod.name, why="the kubelet does not say yet which devices it has")
        for pod in pods
        if pod.has_devices and not pod.ended and (pod.namespace, pod.name) not in known
    )
