"""Replace: the node's evidence is kept, and the empty node is held until its machine is replaced or repaired. Pure.

kgpu deletes no machine and no Node: it can't know what else depends on them. A label, an alert and ``kgpu doctor`` say
that the machine needs to be replaced. It sees when that is done: the Node is gone, another has its name, or all GPUs
work in another boot.
"""

from __future__ import annotations

from typing import Final

from kgpu.formats.crd.nodeoperation import NodeBefore, OperationPhase, Result
from kgpu.operations.act import Act
from kgpu.operations.drain import DrainState, named, progress
from kgpu.operations.model import CollectEvidence, Operation, Step, TargetNode, moment_of
from kgpu.operations.reboot import problem_of
from kgpu.operations.records import (
    DRAINED,
    EVIDENCE,
    VERIFIED,
    Condition,
    condition_of,
    end,
    give_back,
    present,
    record,
    superseded,
    unheld,
)
from kgpu.operations.world import World

EVIDENCE_SECONDS: Final = 90.0
"""How long the operation waits for evidence, which is then done without."""


def refusal(operation: Operation, node: TargetNode) -> str:
    """Why the node can't be held for this: without a boot ID nobody could tell whether its machine was worked on."""
    del operation
    return "" if node.boot_id else f"the Node {node.name} has no boot ID, so a repair could not be detected"


def prepared(operation: Operation, world: World) -> Step | None:
    """Collect the evidence while the pods are still there. That it was begun is on record first; it ends once: with a
    ConfigMap, or with the reason why there is none.
    """
    known = condition_of(operation, EVIDENCE)
    if known is None:
        message = "the node is cordoned; what is known of it is being collected"
        return record(operation, world, (EVIDENCE, "Unknown", "Collecting", ""), message=message)
    if known.status != "Unknown":
        return None
    until = (moment_of(known.last_transition_time) or 0.0) + EVIDENCE_SECONDS
    evidence = world.evidence
    if evidence is not None and evidence.kept is not None:
        return record(operation, world, (EVIDENCE, "True", "Collected", ""), evidence=evidence.kept)
    if evidence is not None and evidence.problem:
        return record(operation, world, (EVIDENCE, "False", "NotCollected", evidence.problem))
    if world.now >= until:
        why = f"it was not there after {EVIDENCE_SECONDS:.0f} s"
        return record(operation, world, (EVIDENCE, "False", "TookTooLong", why))
    writes = (CollectEvidence(operation=operation),) if evidence is None else ()
    return Step(writes=writes, again_at=until)


def emptied(operation: Operation, world: World, state: DrainState) -> Step:
    """Hold the empty node for whoever replaces its machine."""
    empty = f"empty, but for {named(state.stranded)}; it is" if state.stranded else "empty and"
    return record(
        operation, world, (DRAINED, "True", "Drained", ""), phase=OperationPhase.ACTING,
        drain=progress(state, operation.status.drain), reason="NeedsReplacement",
        message=f"the node is {empty} held until its machine is replaced: {_how(operation)}",
    )  # fmt: skip


def _how(operation: Operation) -> str:
    kept = operation.status.evidence is not None
    evidence = f"`kgpu operations bundle {operation.name}` has the evidence" if kept else "there is no evidence bundle"
    return (
        f"delete its Node once it is, or repair and boot it; `kgpu operations resume {operation.name}` gives it back "
        f"as it is; {evidence}"
    )


def acting(operation: Operation, world: World) -> Step:
    """Hold the node until a person says otherwise, or all its GPUs work in another boot."""
    spec, node = operation.spec, present(world)
    if spec.resume:
        return give_back(operation, world, Result.SUCCEEDED, "Resumed", "a person has given the node back as it is")
    if spec.cancel:
        return give_back(
            operation, world, Result.CANCELLED, "Cancelled", "it was ended before its machine was replaced"
        )
    if first := unheld(operation, world):
        return first
    before = operation.status.before or NodeBefore()
    if node.boot_id in {"", before.boot_id} or not node.gpus_healthy or problem_of(node, before):
        return Step()
    well: Condition = (VERIFIED, "True", "Well", "")
    why = "all GPUs of the node work in another boot"
    return give_back(operation, world, Result.SUCCEEDED, "Repaired", why, well)


def gone(operation: Operation, world: World) -> Step:
    """The Node was deleted: that is how a machine is replaced. One that was being given back already is as others."""
    if operation.phase is OperationPhase.RESTORING:
        return superseded(operation, world)
    if world.node is None:
        return end(operation, world, Result.SUCCEEDED, "NodeGone", "the Node was deleted")
    return end(operation, world, Result.SUCCEEDED, "NodeReplaced", "another Node has its name now")


ACT: Final = Act(
    refusal=refusal, emptied=emptied, acting=acting, verifying=acting, prepared=prepared, gone=gone
)  # fmt: skip
