"""The way of one pod to its accelerators, in the six steps in which Kubernetes starts it, each with its proof.

Pure. A step is done where what was seen allows nothing else: a container that runs was made by the engine, with the
devices that the kubelet had it given. What nothing shows is unknown; why a step fails is the findings' to say.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from kgpu.base.plain import mapping, text
from kgpu.base.printable import counted
from kgpu.doctor import matching, progress
from kgpu.doctor.kinds import UNSTARTED, Container, Event, Pod
from kgpu.doctor.kubelet_files import given
from kgpu.doctor.model import Evidence, StepState, TraceStep
from kgpu.doctor.objects import Obj, seconds
from kgpu.doctor.pod_claims import accelerator_claims, held_by
from kgpu.doctor.snapshot import Snapshot

_BEGUN: Final = frozenset({"running", "terminated"})
_NOT_MADE: Final = frozenset({"CreateContainerError", "CreateContainerConfigError", "RunContainerError", "StartError"})
"""Why a container waits whose making has failed."""
_KUBELETS: Final = frozenset({"FailedPrepareDynamicResources", "FailedCreatePodSandBox", "FailedMount", "Failed"})
"""Reasons of Events of a pod whose containers can't be made."""
_LATELY_S: Final = 600.0
"""Twice the longest pause between a kubelet's attempts."""
_MOST_DEVICES: Final = 8
"""Devices that are named."""
_ADMITTED: Final = (
    "the kubelet has admitted it, as it does once its device plugin has answered; which devices it has: kgpu top"
)


@dataclass(frozen=True, slots=True)
class _StepLook:
    """What is known of a step, and where that was seen."""

    state: StepState
    said: str = ""
    evidence: tuple[Evidence, ...] = ()


def trace(snapshot: Snapshot, pod: Pod) -> tuple[TraceStep, ...]:
    """The six steps in their order. After the first that is not done, those of which nothing is known come later."""
    steps: list[TraceStep] = []
    stopped = False
    for name, look in _STEPS.items():
        known = look(snapshot, pod)
        if stopped and known.state is not StepState.DONE:
            known = _StepLook(StepState.LATER)
        steps.append(TraceStep(name=name, state=known.state, said=known.said, evidence=known.evidence))
        stopped = stopped or known.state in (StepState.WAITS, StepState.FAILED)
    return tuple(steps)


def _admitted(snapshot: Snapshot, pod: Pod) -> _StepLook:
    del snapshot
    gates = ", ".join(text(gate.get("name")) for gate in pod.maps("spec.schedulingGates"))
    if gates and pod.unplaced:
        said, cited = f"made, and held back by the scheduling gate {gates}", pod.cite("spec.schedulingGates")
        return _StepLook(StepState.WAITS, said, (cited,))
    wants = [f"{amount} {name}" for name, amount in matching.accelerators(pod).items()]
    wants += [f"the claim {text(row.get('name'))}" for row in pod.maps("spec.resourceClaims")]
    said = f"the API server has taken it; it asks for {', '.join(wants) or 'no accelerator'}"
    proof = [pod.cite("metadata.creationTimestamp"), *_asked(pod)]
    return _StepLook(StepState.DONE, said, tuple(proof))


def _asked(pod: Pod) -> Iterator[Evidence]:
    """Where its containers name accelerators: in limits, else in requests."""
    for container in pod.containers:
        limits = frozenset(filter(matching.is_accelerator, container.limits))
        requests = frozenset(filter(matching.is_accelerator, container.requests)) - limits
        yield from (container.cite(f"resources.limits[{name}]") for name in sorted(limits))
        yield from (container.cite(f"resources.requests[{name}]") for name in sorted(requests))


def _scheduled(snapshot: Snapshot, pod: Pod) -> _StepLook:
    condition = pod.condition("PodScheduled")
    cited = (condition.cite(),) if condition else ()
    if not pod.node:
        return _StepLook(StepState.WAITS, "no node has been found for it", cited)
    node = snapshot.nodes.get(pod.node)
    offered = [] if node is None else [one for one in matching.accelerators(pod) if node.allocatable(one) is not None]
    proof = [node.cite(f"status.allocatable[{name}]") for name in offered if node is not None]
    waited = _seconds_between(pod.created, condition.since if condition else "")
    said = f"on node {pod.node}" + ("" if waited is None else f", {waited:.0f} s after it was made")
    evidence = (*cited, pod.cite("spec.nodeName"), *proof)
    return _StepLook(StepState.DONE, said, evidence)


def _allocated(snapshot: Snapshot, pod: Pod) -> _StepLook:
    if not matching.uses_accelerators(pod):
        return _StepLook(StepState.NOT_ASKED, "no accelerator is asked for")
    if pod.phase == "Failed" and pod.reason and not any(one.status for one in pod.containers):
        said = f"the kubelet has refused it: {pod.reason}"
        cited = tuple(pod.cite(f"status.{field}") for field in ("reason", "message") if pod.text(f"status.{field}"))
        return _StepLook(StepState.FAILED, said, cited)
    devices, proof = _devices(snapshot, pod)
    wanting = [name for name, claim in _claims(snapshot, pod) if claim is None or not claim.map("status.allocation")]
    if wanting and not _any_begun(pod):
        said = f"the claim {', '.join(wanting)} has no device yet"
        return _StepLook(StepState.WAITS, said, proof)
    if not devices and not any(one.status for one in pod.containers):
        said = "the kubelet has not said a word about it" if pod.node else "no node has it"
        return _StepLook(StepState.WAITS, said)
    said = _ADMITTED
    if devices:
        more = f" and {len(devices) - _MOST_DEVICES} more" if len(devices) > _MOST_DEVICES else ""
        said = f"it was given {', '.join(devices[:_MOST_DEVICES])}{more}"
    cited = proof or tuple(one.cite_status() for one in pod.containers if one.status and _holds(snapshot, pod, one))
    return _StepLook(StepState.DONE, said, cited)


def _devices(snapshot: Snapshot, pod: Pod) -> tuple[list[str], tuple[Evidence, ...]]:
    """What it was given, by its claims and the kubelet's own file, with where that stands."""
    names, proof = list[str](), list[Evidence]()
    for _, claim in _claims(snapshot, pod):
        results = claim.maps("status.allocation.devices.results") if claim else []
        names += [f"{text(row.get('pool'))}/{text(row.get('device'))}" for row in results]
        proof += [claim.cite("status.allocation.devices.results")] if claim and results else []
    host = snapshot.hosts.get(pod.node)
    found = given(host) if host and pod.uid else None
    for row in found[1] if found else ():
        if row.pod_uid == pod.uid and matching.is_accelerator(row.resource):
            names += row.devices
            proof.append(Evidence(file=found[0] if found else "", value=f"{row.resource}: {', '.join(row.devices)}"))
    return names, tuple(proof)


def _claims(snapshot: Snapshot, pod: Pod) -> list[tuple[str, Obj | None]]:
    """Its claims for accelerators: their names in the pod, and the objects as far as they are there."""
    named = [*pod.maps("spec.resourceClaims"), *pod.maps("status.resourceClaimStatuses")]
    objects = {text(row.get("name")): claim for row in named if (claim := text(row.get("resourceClaimName")))}
    return [
        (name, snapshot.get("ResourceClaim", objects.get(name, ""), pod.namespace))
        for name in accelerator_claims(snapshot, pod)
    ]


def _injected(snapshot: Snapshot, pod: Pod) -> _StepLook:
    if not matching.uses_accelerators(pod):
        return _StepLook(StepState.NOT_ASKED, "no accelerator is asked for")
    holders = [one for one in pod.containers if _holds(snapshot, pod, one)]
    failed = next((one for one in holders if _is_unmade(one)), None)
    if failed is not None:
        said = f"container {failed.name} could not be made: {failed.waiting or failed.end_reason}"
        return _StepLook(StepState.FAILED, said, (failed.cite_status(),))
    waiting = next((one for one in holders if not _has_begun(one)), None)
    if waiting is None:
        said = "the engine has made its containers, with the devices that it was told to put in"
        return _StepLook(StepState.DONE, said, tuple(one.cite_status() for one in holders))
    told = _last_warning(snapshot, pod)
    state = StepState.FAILED if told is not None else StepState.WAITS
    said = f"container {waiting.name} is not made yet" + (f": {waiting.waiting}" if waiting.waiting else "")
    return _StepLook(state, said, (waiting.cite_status(), *(() if told is None else (told.quote(),))))


def _started(snapshot: Snapshot, pod: Pod) -> _StepLook:
    del snapshot
    for one in pod.blamed:
        if _has_failed(one) and not (one.sidecar and pod.ended):
            said = f"container {one.name} has ended"
            said += "" if one.exit_code is None else f" with exit code {one.exit_code}"
            said += f", {counted(one.restarts, 'restart')} so far" if one.restarts else ""
            return _StepLook(StepState.FAILED, said, (one.cite_status("lastState" if one.waiting else "state"),))
    waiting = next((one for one in pod.containers if not _has_begun(one)), None)
    if waiting is not None:
        said = f"container {waiting.name} has not begun" + (f": {waiting.waiting}" if waiting.waiting else "")
        return _StepLook(StepState.WAITS, said, (waiting.cite_status(),))
    mains = [one for one in pod.containers if not one.init or one.sidecar]
    again = sum(one.restarts for one in mains)
    running = [one for one in mains if one.state == "running"]
    said = f"{len(running)} of {len(mains)} containers run" if running else "its containers have run, and ended well"
    said += f", {counted(again, 'restart')} so far" if again else ""
    return _StepLook(StepState.DONE, said, tuple(one.cite_status() for one in mains))


def _computing(snapshot: Snapshot, pod: Pod) -> _StepLook:
    if pod.phase == "Succeeded":
        return _StepLook(StepState.DONE, "its work is done", (pod.cite("status.phase"),))
    for one in (one for one in pod.containers if one.state == "running"):
        if progress.works(snapshot, pod, one):
            said = f"the log of container {one.name} gets on"
            return _StepLook(StepState.DONE, said, _cited(progress.says_now(snapshot, pod, one)))
        if progress.waits(snapshot, pod, one):
            said = f"container {one.name} says the same again and again"
            return _StepLook(StepState.WAITS, said, _cited(progress.says_now(snapshot, pod, one)))
    ready = pod.condition("Ready")
    said = f"its log does not show it; what its devices do: kgpu top, kgpu idle explain {pod.path}"
    return _StepLook(StepState.UNKNOWN, said, (ready.cite(),) if ready else ())


_STEPS: Final[Mapping[str, Callable[[Snapshot, Pod], _StepLook]]] = {
    "admitted": _admitted, "scheduled": _scheduled, "allocated": _allocated, "devices injected": _injected,
    "started": _started, "computing": _computing,
}  # fmt: skip


def _holds(snapshot: Snapshot, pod: Pod, container: Container) -> bool:
    """Whether a container is one of those that are given accelerators."""
    amounts = (*container.limits, *container.requests)
    return any(map(matching.is_accelerator, amounts)) or not held_by(container).isdisjoint(
        accelerator_claims(snapshot, pod)
    )


def _has_begun(container: Container) -> bool:
    return not _is_unmade(container) and (
        container.state in _BEGUN or bool(mapping(container.status.get("lastState")).get("terminated"))
    )


def _has_failed(container: Container) -> bool:
    """Whether its program has ended otherwise than well, and does not run again now."""
    ended = container.waiting == "CrashLoopBackOff" or (container.state == "terminated" and container.exit_code != 0)
    return ended and not _is_unmade(container)


def _is_unmade(container: Container) -> bool:
    """Whether the engine could not make it, or not run its program."""
    return container.waiting in _NOT_MADE or container.end_reason in UNSTARTED


def _any_begun(pod: Pod) -> bool:
    return any(map(_has_begun, pod.containers))


def _cited(one: Evidence | None) -> tuple[Evidence, ...]:
    return () if one is None else (one,)


def _last_warning(snapshot: Snapshot, pod: Pod) -> Event | None:
    """What was said lately of why its containers can't be made: the kubelet tries, and says it, again and again."""
    told = [event for event in snapshot.events(pod) if event.warning and event.reason in _KUBELETS]
    last = max(told, key=lambda event: event.when, default=None)
    return last if last is not None and snapshot.taken - last.when < _LATELY_S else None


def _seconds_between(first: str, second: str) -> float | None:
    begin, end = seconds(first), seconds(second)
    return None if begin is None or end is None or end < begin else end - begin
