"""What to do next with a pod: which containers to start or end, and its phase; pure, the kubelet's rules.

Init containers run one after the other, sidecars (init containers that always restart) are started in that order and
live as long as the pod; a container that ends is started again by the pod's restart policy, at once the first time,
then after 10 s, doubling up to 5 minutes; a run of 10 minutes makes that forgotten. After a reboot of the machine a pod
that goes on begins anew, with its init containers.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from kgpu.lab.nodes.podstate import ALWAYS, NEVER, ContainerRole, Phase, PodContainer, PodState

FIRST_BACKOFF_S: Final = 10.0
MAX_BACKOFF_S: Final = 300.0
FORGET_S: Final = 600.0
DEADLINE_REASON: Final = "DeadlineExceeded"
DEADLINE_MESSAGE: Final = "Pod was active on the node longer than the specified deadline"


@dataclass(frozen=True, slots=True, kw_only=True)
class Actions:
    """What is due now, and when to look again (seconds since the epoch; None: when something happens)."""

    start: tuple[PodContainer, ...] = ()
    kill: tuple[PodContainer, ...] = ()
    waiting: tuple[PodContainer, ...] = ()
    look_at: float | None = None


def should_restart(state: PodState, container: PodContainer) -> bool:
    """Whether a container that has ended is to run again."""
    if container.kind is ContainerRole.SIDECAR:
        return True
    policy = str(container.spec.get("restartPolicy") or state.restart_policy)
    if container.kind is ContainerRole.INIT:
        return container.failed and policy != NEVER
    return policy == ALWAYS or (policy != NEVER and container.failed)


def deadline(state: PodState) -> float | None:
    """When ``activeDeadlineSeconds`` is over."""
    seconds = state.pod["spec"].get("activeDeadlineSeconds")
    return None if seconds is None or not state.start else state.start + float(seconds)


def after_end(container: PodContainer, *, scale: float) -> None:
    """Account for a run that has ended: when it may start again."""
    if container.finished - container.started >= FORGET_S * scale:
        container.backoff = 0.0
        container.not_before = 0.0
        return
    # The first start again is at once; what the kubelet remembers then is the wait for the next.
    container.not_before = container.finished + container.backoff if container.backoff else 0.0


def on_restart(container: PodContainer, *, scale: float) -> None:
    """Account for a start after an end."""
    first, cap = FIRST_BACKOFF_S * scale, MAX_BACKOFF_S * scale
    container.backoff = min(cap, container.backoff * 2) if container.backoff else first
    container.restarts += 1


def decide(state: PodState, now: float) -> Actions:
    """What is due for a pod that is not being deleted."""
    running = [container for container in state.containers if container.phase is Phase.RUNNING]
    if state.terminal:
        return Actions(kill=tuple(reversed(running)))
    until = deadline(state)
    if until is not None and now >= until:
        return Actions(kill=tuple(running))
    mains = state.of(ContainerRole.MAIN)
    started = any(container.was_started and not container.former for container in mains)
    due: list[PodContainer] = []
    initialized = _initialize(state, due, started=started)
    if initialized:
        due += [
            container for container in mains if container.phase is not Phase.RUNNING and _wants_to_run(state, container)
        ]
    if _over(state, mains):
        return Actions(kill=tuple(reversed(running)))
    ready = tuple(container for container in due if container.not_before <= now)
    later = tuple(container for container in due if container.not_before > now)
    looks = [container.not_before for container in later] + ([until] if until is not None else [])
    return Actions(start=ready, waiting=later, look_at=min(looks, default=None))


def _wants_to_run(state: PodState, container: PodContainer) -> bool:
    if container.former and container.kind is ContainerRole.INIT:
        return True
    return container.ended is None or should_restart(state, container)


def _initialize(state: PodState, due: list[PodContainer], *, started: bool) -> bool:
    """Add the init containers that are due; True when the main ones may run."""
    for container in state.containers:
        if container.kind is ContainerRole.MAIN:
            return True
        if container.kind is ContainerRole.SIDECAR:
            if container.phase is not Phase.RUNNING:
                due.append(container)
            if not container.started_ok and not started:
                return False
        elif not started and (
            # One that runs again after a reboot still has the end of its earlier run.
            container.phase is Phase.RUNNING or container.former or not container.succeeded
        ):
            if container.phase is not Phase.RUNNING and _wants_to_run(state, container):
                due.append(container)
            return False
    return True


def _over(state: PodState, mains: Sequence[PodContainer]) -> bool:
    """Nothing is left to do but to end the sidecars."""
    if any(
        container.failed and not should_restart(state, container) and container.phase is Phase.ENDED
        for container in state.of(ContainerRole.INIT)
    ):
        return True
    return all(container.phase is Phase.ENDED and not should_restart(state, container) for container in mains)


def phase_of(state: PodState, *, ending: bool) -> str:
    """The pod's phase; ``ending``: nothing of it will be started again (it is deleted, or over its deadline)."""
    if state.terminal:
        return state.phase
    inits, mains = state.of(ContainerRole.INIT), state.of(ContainerRole.MAIN)
    if any(
        container.failed and container.phase is Phase.ENDED and not should_restart(state, container)
        for container in inits
    ):
        return "Failed"
    started = any(container.was_started for container in mains)
    if not started and (any(not container.succeeded for container in inits) or not _sidecars_up(state)):
        return "Failed" if ending and _none_running(state) else "Pending"
    if any(not container.was_started for container in mains):
        return "Failed" if ending and _none_running(state) else "Pending"
    active = [
        container
        for container in mains
        if container.phase is not Phase.ENDED or (should_restart(state, container) and not ending)
    ]
    if active:
        return "Running"
    if any(container.phase is Phase.RUNNING for container in state.of(ContainerRole.SIDECAR)):
        return "Running"  # told as over when the last of it has ended
    return "Failed" if any(container.failed for container in mains) else "Succeeded"


def _none_running(state: PodState) -> bool:
    return all(container.phase is not Phase.RUNNING for container in state.containers)


def _sidecars_up(state: PodState) -> bool:
    return all(container.started_ok for container in state.of(ContainerRole.SIDECAR))


def backoff_after(restarts: int, *, scale: float) -> float:
    """The wait that is in force after so many starts again, seconds."""
    return min(MAX_BACKOFF_S, FIRST_BACKOFF_S * 2.0 ** min(restarts - 1, 10)) * scale if restarts else 0.0


def show_seconds(seconds: float) -> str:
    """As Go prints a duration: ``10s``, ``1m20s``, ``2.5s``."""
    minutes, rest = divmod(round(seconds, 3), 60)
    return (f"{minutes:.0f}m" if minutes else "") + f"{rest:g}s"


def seconds_of(text: str | None) -> float:
    """Seconds since the epoch of an RFC 3339 time; 0 for none."""
    if not text:
        return 0.0
    return dt.datetime.fromisoformat(text).timestamp()
