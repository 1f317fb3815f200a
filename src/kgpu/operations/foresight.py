"""What the upgrade of a node's driver would do, step by step: for people who ask before. Pure.

The steps are those of ``plan.py`` and ``driver_upgrade.py``, in their order and with their limits. What it waits for
before it begins is told as far as the operations tell it: the budget of all of them is the operator's to know.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from kgpu.fit.selector_text import parse_selector
from kgpu.formats.crd.nodeoperation import UPGRADE_SECONDS, NodeOperationSpec, OnTimeout, OperationPhase
from kgpu.operations.drain import NAMED
from kgpu.operations.driver_upgrade import VERIFY_SECONDS
from kgpu.operations.gpus import AGENT_SECONDS
from kgpu.operations.model import NodePod, Operation, TargetNode

BUDGET: Final = "it begins when the budget of all operations on nodes lets it"


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedStep:
    """One step: its phase, a word for it, what is done, and how many seconds it may take at most, None for no limit."""

    phase: OperationPhase
    name: str
    what: str
    seconds: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class UpgradeScene:
    """What is known of a node: its pods that are there, the driver's pod ("" for none), and the operation that exists
    already, None for one that is only thought of. ``others`` are all operations.
    """

    node: TargetNode
    pods: Sequence[NodePod] = ()
    driver_pod: str = ""
    operation: Operation | None = None
    others: Sequence[Operation] = ()


def upgrade_steps(spec: NodeOperationSpec, scene: UpgradeScene) -> tuple[PlannedStep, ...]:
    """All steps of a DriverUpgrade, the ones that are behind it as well; () for one that is over."""
    if scene.operation is not None and scene.operation.ended:
        return ()
    return tuple(_steps(spec, scene))


def _steps(spec: NodeOperationSpec, scene: UpgradeScene) -> Iterator[PlannedStep]:
    before = _before(scene)
    yield PlannedStep(phase=OperationPhase.PENDING, name="begin", what="; ".join(_waits(spec, scene)))
    stays = "it is cordoned already" if before else "no new pod comes to the node"
    yield PlannedStep(phase=OperationPhase.CORDONING, name="cordon", what=stays)
    if wait := spec.drain.wait_for:
        named = _named([pod.where for pod in awaited(spec, scene.pods)]) or "none is there now"
        what = f"for pods with {wait.pod_selector} to end by themselves: {named}"
        yield PlannedStep(
            phase=OperationPhase.DRAINING, name="wait", what=what, seconds=float(wait.timeout_seconds) or None
        )
    forces = OnTimeout(spec.drain.on_timeout) is OnTimeout.FORCE
    which = "pods with GPUs are evicted" if spec.drain.only_gpu_pods else "pods are evicted"
    then = "what disruption budgets still hold then is deleted" if forces else "if one is left then, it fails"
    yield PlannedStep(
        phase=OperationPhase.DRAINING, name="empty", what=f"{which}; {then}", seconds=float(spec.drain.timeout_seconds)
    )
    yield PlannedStep(
        phase=OperationPhase.ACTING, name="exchange", what=_exchange(spec, scene.driver_pod),
        seconds=float(spec.act_timeout_seconds or UPGRADE_SECONDS),
    )  # fmt: skip
    yield PlannedStep(
        phase=OperationPhase.VERIFYING, name="verify", seconds=VERIFY_SECONDS,
        what="the node is Ready and validated, and offers the GPUs that it had",
    )  # fmt: skip
    back = "it stays cordoned, as it was before" if before else "pods may come again"
    yield PlannedStep(phase=OperationPhase.RESTORING, name="give back", what=back)


def _before(scene: UpgradeScene) -> bool:
    """Whether somebody else has cordoned the node."""
    record = scene.operation.status.before if scene.operation is not None else None
    return record.unschedulable if record is not None else scene.node.unschedulable


def _exchange(spec: NodeOperationSpec, pod: str) -> str:
    driver = spec.driver
    wanted = (driver.version or driver.image) if driver is not None else ""
    gone = f"the driver's pod {pod} is deleted" if pod else "the driver's pod is deleted"
    return (
        f"the node's agent lets go of the driver ({AGENT_SECONDS:.0f} s at most), {gone}, and the next one loads "
        f"{wanted or 'the driver that is wanted'}"
    )


def awaited(spec: NodeOperationSpec, pods: Iterable[NodePod]) -> list[NodePod]:
    """The pods that are waited for before any is asked to go."""
    wait = spec.drain.wait_for
    if wait is None:
        return []
    selector = parse_selector(wait.pod_selector)
    return sorted((pod for pod in pods if not pod.ended and selector.matches(pod.labels)), key=lambda pod: pod.where)


def _waits(spec: NodeOperationSpec, scene: UpgradeScene) -> Iterator[str]:
    """What it waits for before it begins."""
    operation = scene.operation
    if operation is not None and operation.begun:
        yield "it has begun"
        return
    mine = next((row for row in scene.others if _holds(row, scene)), None)
    if mine is not None:
        yield f"none can be made while {mine.node} has the operation {mine.name}, which is {mine.phase}"
    elif operation is not None and operation.status.message:
        yield operation.status.message
    elif not spec.approved:
        name = f": kgpu operations approve {operation.name}" if operation is not None else ""
        yield f"it waits until somebody approves it{name}"
    else:
        yield BUDGET
    if first := _named(ahead(spec, scene)):
        yield f"before it: {first}"


def _holds(other: Operation, scene: UpgradeScene) -> bool:
    """Whether the node has another operation that keeps this one from being made."""
    unfinished = other.spec.approved and not other.ended
    return scene.operation is None and unfinished and other.node == scene.node.name


def ahead(spec: NodeOperationSpec, scene: UpgradeScene) -> list[str]:
    """The operations that have begun, and those of its rollout that come before it, as ``NODE (NAME, PHASE)``."""
    own = scene.operation
    others = [row for row in scene.others if not row.ended and (own is None or row.uid != own.uid)]
    begun = [row for row in others if row.begun]
    waiting = [row for row in others if not row.begun and _is_before(row, spec, own)]
    return [f"{row.node} ({row.name}, {row.phase})" for row in (*_in_order(begun), *_in_order(waiting))]


def _is_before(other: Operation, spec: NodeOperationSpec, own: Operation | None) -> bool:
    """Whether one that waits comes before it, as far as both are of one rollout: the older one does."""
    if spec.rollout is None or other.spec.rollout is None or other.spec.rollout.name != spec.rollout.name:
        return False
    return other.spec.approved and (own is None or (other.created, other.name) < (own.created, own.name))


def _in_order(rows: Iterable[Operation]) -> list[Operation]:
    return sorted(rows, key=lambda row: (row.created, row.name))


def _named(names: Sequence[str]) -> str:
    more = f" and {len(names) - NAMED} more" if len(names) > NAMED else ""
    return ", ".join(names[:NAMED]) + more
