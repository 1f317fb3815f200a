"""DriverUpgrade: the driver of an empty node is exchanged for the one that its DaemonSet asks for. Pure.

The engine deletes the driver's pod; the DaemonSet makes another, whose first container unloads the driver before, and
whose second installs and loads the one that is wanted. The node's agent lets go of the driver first and opens it again
afterwards. An agent that is silent holds nothing up: the pod's first container finds out who uses the driver.

A node that changes the object of its driver has the pod of another DaemonSet, or one that its DaemonSet has left
there. The latter is deleted as well. The former would be made again: the operator gives the node to the next DaemonSet
once the agent has let go, and with that the pod goes; the engine only waits for it.

Which pod is to go is on record before it is deleted, and that the agent has had its time. A pod of another uid is the
next one. Where the DaemonSet has changed again meanwhile that is not what was asked for: the operation is finished with
it all the same, and the next one is the operator's to ask for. A driver that can't be loaded ends it early, with the
pod's own words; the node is given back as it was, without GPUs if the driver is not there.
"""

from __future__ import annotations

from typing import Final

from kgpu.formats.crd.nodeoperation import (
    STEADY_SECONDS,
    NodeAct,
    NodeBefore,
    OperationDriver,
    OperationPhase,
    Result,
)
from kgpu.formats.driver_revision import is_of_release
from kgpu.formats.node_order import OrderStep
from kgpu.operations.act import Act
from kgpu.operations.drain import DrainState, progress
from kgpu.operations.driver_pods import DriverPod, DriverTrouble
from kgpu.operations.gpus import AGENT_SECONDS, answer_of
from kgpu.operations.model import DeleteDriverPod, Operation, Step, TargetNode, moment_of
from kgpu.operations.reboot import problem_of
from kgpu.operations.records import (
    ACT_DONE,
    DRAINED,
    RELEASED,
    VERIFIED,
    Condition,
    condition_of,
    deadline_of,
    end,
    give_back,
    over,
    present,
    record,
    tell,
    unheld,
)
from kgpu.operations.world import World

VERIFY_SECONDS: Final = 900.0
"""How long a node may take to be healthy once its driver is loaded: the GPUs have to be validated and offered."""
POD_SECONDS: Final = 60.0
"""How long an operation that could begin waits for the driver's pod on its node."""
NO_POD_SECONDS: Final = 300.0
"""How long the DaemonSet may take to make the next pod."""
HANDOVER_SECONDS: Final = 60.0
"""How long the operator may take to give an empty node to another DaemonSet."""
LOOK_SECONDS: Final = 1.0
EXCHANGING: Final = "Exchanging"
_LOADING: Final = "DriverLoads"
_WITHOUT_POD: Final = "WaitsForDriverPod"


def refusal(operation: Operation, node: TargetNode) -> str:
    """Why it can't be done, "" if it can. The definition's rules ask for the driver, older ones did not."""
    return "" if operation.spec.driver is not None else f"it does not say which driver {node.name} is to run"


def settled(operation: Operation, world: World) -> Step | None:
    """End one that has not begun if its node runs that driver already, or has no pod of it. One that fails at that
    driver is worth another try: pods with GPUs may have kept the former one loaded.
    """
    wanted, pod = _wanted(operation), world.driver
    if not world.drivers_known:
        return Step(again_at=world.now + LOOK_SECONDS)
    if pod is None or not _is_expected(pod, wanted, present(world)):
        return _without_pod(operation, world)
    if pod.ending or not _is_wanted(pod, wanted) or pod.trouble is not None:
        return None
    why = f"its pod {pod.name} is of driver {_name(wanted)} already"
    if pod.ready:
        return end(operation, world, Result.SUCCEEDED, "RunsAlready", why)
    if operation.status.reason == _LOADING:
        return Step()
    why = f"{why}, and gets ready: {pod.doing}"
    return record(operation, world, phase=OperationPhase.PENDING, reason=_LOADING, message=why)


def _without_pod(operation: Operation, world: World) -> Step:
    """Wait for ``POD_SECONDS``, as one may be about to be made, then end: there is nothing to exchange."""
    where = f"DaemonSet {_wanted(operation).namespace}/{_wanted(operation).daemon_set}"
    if operation.status.reason != _WITHOUT_POD:
        why = f"it waits {POD_SECONDS:.0f} s for a pod of {where} on its node"
        return record(operation, world, phase=OperationPhase.PENDING, reason=_WITHOUT_POD, message=why)
    until = (moment_of(operation.status.phase_since) or 0.0) + POD_SECONDS
    if world.now < until:
        return Step(again_at=until)
    why = f"{where} has no pod on the node, so no driver of it has to be exchanged there"
    return end(operation, world, Result.SUPERSEDED, "NoDriverPod", why)


def emptied(operation: Operation, world: World, state: DrainState) -> Step:
    """Put on record which pod is to go. One that runs the driver already, as somebody was faster, stays; one that has
    failed at it is made anew.
    """
    if not world.drivers_known:
        return Step(again_at=world.now + LOOK_SECONDS)
    pod = world.driver
    if pod is not None and _runs(pod, _wanted(operation)):
        pod = None
    act = NodeAct(
        id=f"{operation.uid}-1", boot_id=present(world).boot_id,
        pod=pod.name if pod is not None else "", pod_uid=pod.uid if pod is not None else "",
    )  # fmt: skip
    return record(
        operation, world, (DRAINED, "True", "Drained", ""), phase=OperationPhase.ACTING, limit=operation.act_seconds,
        drain=progress(state, operation.status.drain), act=act, reason=EXCHANGING,
        message="the node is empty; its agent lets go of the driver",
    )  # fmt: skip


def acting(operation: Operation, world: World) -> Step:
    """Delete the pod that is on record once the agent has let go, and wait for the next one to be Ready."""
    if first := unheld(operation, world):
        return first
    if not world.drivers_known:
        return Step(again_at=world.now + LOOK_SECONDS)
    pod, act = world.driver, operation.status.act or NodeAct()
    if pod is not None and pod.uid == act.pod_uid:
        return _leaving(operation, world, pod)
    return _coming(operation, world)


def _leaving(operation: Operation, world: World, pod: DriverPod) -> Step:
    """The steps while the pod of before is there. Once it was deleted nobody can call that back."""
    if operation.spec.cancel and not pod.ending:
        return give_back(operation, world, Result.CANCELLED, "Cancelled", "it was ended before its driver was unloaded")
    if over(operation, world):
        why = f"the driver's pod {pod.name} was still there after {operation.act_seconds:.0f} s; see the operator's log"
        return give_back(operation, world, Result.TRANSIENT_FAILURE, "DriverTimeout", why)
    if pod.ending:
        return tell(operation, world, f"the driver's pod {pod.name} is ending")
    if condition_of(operation, RELEASED) is None:
        return _releasing(operation, world)
    if pod.daemon_set not in ("", _wanted(operation).daemon_set):
        return _handing_over(operation, world, pod)
    return Step(writes=(DeleteDriverPod(pod=pod),), again_at=deadline_of(operation))


def _releasing(operation: Operation, world: World) -> Step:
    """Wait until the agent has let go of the driver and nobody takes what was validated with it for granted, but no
    longer than ``AGENT_SECONDS``.
    """
    waits = _in_use(operation, world)
    if not waits:
        return record(operation, world, (RELEASED, "True", "Released", ""), message="the driver's pod is exchanged")
    until = (moment_of(operation.status.phase_since) or 0.0) + AGENT_SECONDS
    if world.now < until:
        return Step(again_at=until)
    why = f"after {AGENT_SECONDS:.0f} s {waits}; the driver's manager finds out who uses it"
    return record(operation, world, (RELEASED, "False", "NotReleased", why), message=why)


def _handing_over(operation: Operation, world: World, pod: DriverPod) -> Step:
    """Wait until the operator gives the node to the wanted DaemonSet: deleted before, the pod would be made again. If
    it does not, the driver stays: another one is wanted by then, or the operator can't write the node's labels.
    """
    wanted, released = _wanted(operation), condition_of(operation, RELEASED)
    since = moment_of(released.last_transition_time) if released is not None else None
    until = (since or 0.0) + HANDOVER_SECONDS
    if world.now < until:
        why = f"the node is given to DaemonSet {wanted.daemon_set}: pod {pod.name} goes with that"
        told = tell(operation, world, why)
        return told if told.writes else Step(again_at=min(told.again_at or until, until))
    where = f"DaemonSet {wanted.namespace}/{wanted.daemon_set}"
    if present(world).next_driver != wanted.daemon_set:
        why = f"{where} is not to install the node's driver any more; pod {pod.name} stays"
        return give_back(operation, world, Result.SUPERSEDED, "DriverChanged", why)
    why = f"the node was not given to {where} within {HANDOVER_SECONDS:.0f} s; see the operator's log"
    return give_back(operation, world, Result.TRANSIENT_FAILURE, "NotHandedOver", why)


def _in_use(operation: Operation, world: World) -> str:
    """Why the driver may still be in use, as far as the node's agent tells; "" if it is not."""
    node, answer = present(world), answer_of(operation, world)
    if answer is None or answer.step is not OrderStep.RELEASE:
        return "the node's agent has not answered: it does not run, or knows no such orders"
    if not answer.fulfils(operation.act_id, OrderStep.RELEASE):
        return f"the node's agent has not let go of the driver: {answer.refused or answer.waits}"
    before = operation.status.before or NodeBefore()
    return "the node still counts as validated" if before.checked and node.validated else ""


def _coming(operation: Operation, world: World) -> Step:
    """The steps until the next pod is Ready."""
    pod = _own(operation, world)
    squatter = world.driver if pod is None else None
    if pod is not None and pod.ready and not pod.ending:
        return record(
            operation, world, (ACT_DONE, "True", "Exchanged", ""), phase=OperationPhase.VERIFYING,
            limit=VERIFY_SECONDS, reason="Verifying",
            message="the driver is loaded; the node is given back once it is healthy",
        )  # fmt: skip
    trouble = _trouble(operation, pod, squatter)
    if trouble is not None and _lasts(operation, world, trouble):
        return give_back(
            operation, world, Result.PERMANENT_FAILURE, "DriverFailed", _failed(operation, pod, trouble.why)
        )
    doing = pod.doing or "it is ending" if pod is not None else "there is none"
    if over(operation, world):
        why = f"the driver was not loaded within {operation.act_seconds:.0f} s; its pod: {doing}"
        return give_back(operation, world, Result.TRANSIENT_FAILURE, "DriverTimeout", why)
    if trouble is not None:
        return _troubled(operation, world, trouble)
    known = condition_of(operation, ACT_DONE)
    if known is not None and known.reason != EXCHANGING:
        return record(operation, world, (ACT_DONE, "Unknown", EXCHANGING, ""))
    return tell(operation, world, f"the driver's pod: {doing}")


def _trouble(operation: Operation, pod: DriverPod | None, squatter: DriverPod | None) -> DriverTrouble | None:
    if pod is not None:
        return None if pod.ending else pod.trouble
    if squatter is not None:
        whose = (
            f"is of DaemonSet {squatter.daemon_set}" if squatter.daemon_set else "has no controller: delete that pod"
        )
        why = f"its place is taken by the driver's pod {squatter.name}, which {whose}"
        return DriverTrouble(reason="PlaceTaken", why=why, patience=NO_POD_SECONDS)
    why = f"DaemonSet {_wanted(operation).daemon_set} has made no pod on the node"
    return DriverTrouble(reason="NoDriverPod", why=why, patience=NO_POD_SECONDS)


def _failed(operation: Operation, pod: DriverPod | None, why: str) -> str:
    name = f"the driver's pod {pod.name}: " if pod is not None else ""
    return f"driver {_name(_wanted(operation))} could not be loaded: {name}{why}"


def _since(operation: Operation, reason: str) -> float | None:
    """Since when this trouble is on record, None if it is not."""
    known = condition_of(operation, ACT_DONE)
    return moment_of(known.last_transition_time) if known is not None and known.reason == reason else None


def _lasts(operation: Operation, world: World, trouble: DriverTrouble) -> bool:
    """Whether it has lasted longer than anybody should wait."""
    since = _since(operation, trouble.reason)
    return not trouble.patience or (since is not None and world.now >= since + trouble.patience)


def _troubled(operation: Operation, world: World, trouble: DriverTrouble) -> Step:
    """Put on record since when, and wait."""
    since = _since(operation, trouble.reason)
    if since is None:
        return record(operation, world, (ACT_DONE, "Unknown", trouble.reason, trouble.why), message=trouble.why)
    return Step(again_at=min(since + trouble.patience, deadline_of(operation) or since + trouble.patience))


def verifying(operation: Operation, world: World) -> Step:
    """Wait until the driver is read anew, and the node is Ready, validated, and offers the GPUs that it had."""
    if operation.spec.cancel:
        return give_back(operation, world, Result.CANCELLED, "Cancelled", "it was ended before the node was found well")
    if first := unheld(operation, world):
        return first
    if not world.drivers_known:
        return Step(again_at=world.now + LOOK_SECONDS)
    problem = _problem(operation, world)
    if not problem:
        return _watched(operation, world) or _well(operation, world)
    if lost := _lost(operation, world):
        return lost
    if over(operation, world):
        why = f"its driver was exchanged, and the node is not healthy after {VERIFY_SECONDS:.0f} s: {problem}"
        return give_back(operation, world, Result.TRANSIENT_FAILURE, "NotWell", why)
    told = tell(operation, world, f"the driver is loaded; {problem}")
    soon = min(told.again_at or world.now + AGENT_SECONDS, world.now + AGENT_SECONDS)
    return told if told.writes else Step(again_at=soon)


def _lost(operation: Operation, world: World) -> Step | None:
    """The step where waiting does not help: the driver has failed, or its pod is not its DaemonSet's any more."""
    pod, there = _own(operation, world), world.driver
    if pod is not None and (why := _broken(pod)):
        return give_back(operation, world, Result.PERMANENT_FAILURE, "DriverFailed", _failed(operation, pod, why))
    if pod is None and there is not None and not there.ending:
        why = f"another driver is wanted meanwhile: {there.name} is not of its DaemonSet"
        return give_back(operation, world, Result.SUPERSEDED, "DriverChanged", why)
    return None


def _well(operation: Operation, world: World) -> Step:
    wanted = _wanted(operation)
    condition: Condition = (VERIFIED, "True", "Well", "")
    if world.driver is not None and not _is_wanted(world.driver, wanted):
        why = f"another driver than {_name(wanted)} is wanted meanwhile, and that was loaded"
        return give_back(operation, world, Result.SUPERSEDED, "DriverChanged", why, condition)
    why = f"driver {_name(wanted)} is loaded, and the node is healthy"
    return give_back(operation, world, Result.SUCCEEDED, "DriverUpgraded", why, condition)


def _watched(operation: Operation, world: World) -> Step | None:
    """The steps until the driver has stayed for long enough since its container has ended last, None once it has."""
    pod = _own(operation, world)
    ends = pod.ends if pod is not None else 0
    since, reason = moment_of(operation.status.phase_since) or 0.0, f"EndedTimes{ends}"
    if ends:
        known = condition_of(operation, VERIFIED)
        if known is None or known.reason != reason:
            why = f"the driver's container has ended {ends} times: it is watched for {STEADY_SECONDS:.0f} s"
            return record(operation, world, (VERIFIED, "Unknown", reason, why), message=why)
        since = moment_of(known.last_transition_time) or 0.0
    return Step(again_at=since + STEADY_SECONDS) if world.now < since + STEADY_SECONDS else None


def _problem(operation: Operation, world: World) -> str:
    """Why the node is not well yet, "" if it is."""
    pod = _own(operation, world)
    if pod is None or pod.ending or not pod.ready:
        return f"its driver's pod is not Ready: {_not_ready(pod)}"
    return _unread(operation, world, pod) or problem_of(present(world), operation.status.before or NodeBefore())


def _own(operation: Operation, world: World) -> DriverPod | None:
    """The DaemonSet's own pod on the node."""
    pod = world.driver
    return pod if pod is not None and _is_own(pod, _wanted(operation)) else None


def _runs(pod: DriverPod, wanted: OperationDriver) -> bool:
    """Whether the pod has the wanted driver, or may have it yet."""
    return not pod.ending and _is_wanted(pod, wanted) and pod.trouble is None


def _broken(pod: DriverPod) -> str:
    """Why a driver that was loaded will not be Ready again by itself, "" while it may be."""
    trouble = None if pod.ending else pod.trouble
    return trouble.why if trouble is not None and not trouble.patience else ""


def _not_ready(pod: DriverPod | None) -> str:
    if pod is None:
        return "there is none"
    if pod.ending:
        return "it is ending"
    return pod.trouble.why if pod.trouble is not None else pod.doing


def _unread(operation: Operation, world: World, pod: DriverPod) -> str:
    """What the agent's reading lacks. One that is silent is not waited for without end."""
    answer, wanted = answer_of(operation, world), _wanted(operation)
    if answer is None or answer.step is not OrderStep.RESUME:
        until = (moment_of(operation.status.phase_since) or 0.0) + AGENT_SECONDS
        return "the node's agent has not read it yet" if world.now < until else ""
    if answer.refused or answer.waits:
        return answer.refused or answer.waits
    said = wanted.version if _is_wanted(pod, wanted) else ""
    if answer.driver and said and not is_of_release(answer.driver, said):
        return f"driver {answer.driver} is loaded, and {wanted.version} is wanted: something still uses the one before"
    return ""


def _wanted(operation: Operation) -> OperationDriver:
    if operation.spec.driver is None:
        raise ValueError(operation.name)
    return operation.spec.driver


def _is_own(pod: DriverPod, wanted: OperationDriver) -> bool:
    """Whether the DaemonSet has made it."""
    return pod.daemon_set == wanted.daemon_set


def _is_expected(pod: DriverPod, wanted: OperationDriver, node: TargetNode) -> bool:
    """Whether the pod may go for the wanted DaemonSet's: one of another, only where the node is to be given to that."""
    return not pod.daemon_set or _is_own(pod, wanted) or node.next_driver == wanted.daemon_set


def _is_wanted(pod: DriverPod, wanted: OperationDriver) -> bool:
    return _is_own(pod, wanted) and pod.revision.runs(wanted.digest, wanted.image)


def _name(wanted: OperationDriver) -> str:
    return wanted.version or f"with digest {wanted.digest}"


ACT: Final = Act(refusal=refusal, emptied=emptied, acting=acting, verifying=verifying, settled=settled)
