"""What keeps pods from running and no scheduler reports: gates, a scheduler that does not run, a used-up quota.

The scheduler is silent about each: a gated pod is not tried, a pod of another scheduler is not looked at, and a pod
over quota does not exist.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

from kgpu.base.quantity import NANO, Quantity
from kgpu.base.suggest import did_you_mean
from kgpu.fit.model import CPU, MEMORY, PODS, STORAGE, PodView, Reason
from kgpu.fit.snapshot import ClusterSnapshot

OWN: Final = "kgpu"
_GATES: Final = "SchedulingGates"
_BINARY: Final = {"Gi": 1 << 30, "Mi": 1 << 20, "Ki": 1 << 10}
_STATED: Final = {
    key: f"{kind}.{name}"
    for name in (CPU, MEMORY)
    for key, kind in ((name, "requests"), (f"requests.{name}", "requests"), (f"limits.{name}", "limits"))
}
"""Keys of quotas that want every container to say how much it asks for."""


def reasons(pod: PodView, snapshot: ClusterSnapshot) -> tuple[Reason, ...]:
    """All such reasons for a pod that is to be placed, or to be created."""
    return tuple(reason for rule in _RULES for reason in rule(pod, snapshot))


def _unreadable(pod: PodView, _: ClusterSnapshot) -> Iterator[Reason]:
    for problem in pod.problems:
        yield Reason(OWN, "unreadable", f"the pod's manifest can't be read: {problem}")


def _gates(pod: PodView, _: ClusterSnapshot) -> Iterator[Reason]:
    if pod.gates:
        phrase = f"waiting for scheduling gates: [{' '.join(pod.gates)}]"
        sentence = (
            f"the scheduler does not look at the pod before {', '.join(pod.gates)} is taken off spec.schedulingGates"
        )
        yield Reason(_GATES, phrase, sentence, subject=pod.gates[0])


def _scheduler(pod: PodView, snapshot: ClusterSnapshot) -> Iterator[Reason]:
    running = snapshot.schedulers
    if running is None or pod.scheduler in running or pod.node:
        return
    near = did_you_mean(pod.scheduler, running)
    sentence = (
        f"spec.schedulerName is {pod.scheduler}, and no such scheduler runs here "
        f"(running: {', '.join(sorted(running)) or 'none'}{f'; {near}' if near else ''})"
    )
    yield Reason(OWN, "no such scheduler", sentence, subject=pod.scheduler)


def _quota(pod: PodView, snapshot: ClusterSnapshot) -> Iterator[Reason]:
    """Only for pods that are not there yet: one that exists has passed. Quotas with scopes are left out."""
    if pod.id in snapshot.pods:
        return
    asks = quota_asks(pod)
    for quota in snapshot.shelf.quotas.values():
        if quota.namespace != pod.namespace or quota.scoped:
            continue
        if missing := sorted(key for key in quota.hard if _STATED.get(key) in pod.unsaid):
            phrase = f"failed quota: {quota.name}: must specify {', '.join(missing)}"
            sentence = (
                f"quota {quota.name} of namespace {quota.namespace} limits {', '.join(missing)}, and a container of "
                "the pod does not say how much it asks for: it would not be created"
            )
            yield Reason("ResourceQuota", phrase, sentence, subject=missing[0])
            continue
        for key, limit in quota.hard.items():
            used = quota.used.get(key, 0)
            if key in asks and used + asks[key] > limit:
                amounts = [str(Quantity(nanos)) for nanos in (asks[key], used, limit)]
                phrase = (
                    f"exceeded quota: {quota.name}, requested: {key}={amounts[0]}, used: {key}={amounts[1]}, "
                    f"limited: {key}={amounts[2]}"
                )
                asked, had, allowed = (quota_amount(key, nanos) for nanos in (asks[key], used, limit))
                sentence = (
                    f"quota {quota.name} of namespace {quota.namespace} allows {allowed} {key}, {had} are used, and "
                    f"the pod asks for {asked}: it would not be created"
                )
                yield Reason("ResourceQuota", phrase, sentence, subject=key)


def quota_amount(key: str, nanos: int) -> str:
    """An amount of a quota's key, in billionths, exactly and as people write it: bytes as ``8Gi``."""
    if key.rpartition(".")[2] in (MEMORY, STORAGE) and nanos:
        for suffix, size in _BINARY.items():
            if nanos % (size * NANO) == 0:
                return f"{nanos // (size * NANO)}{suffix}"
    return str(Quantity(nanos))


def quota_asks(pod: PodView) -> dict[str, int]:
    """What a pod takes of quotas, in billionths, by their keys: requests, limits, and the pod itself."""
    asks = {PODS: NANO, "count/pods": NANO}
    for name, amount in pod.requests.items():
        exact = amount * (NANO // 1000 if name == CPU else NANO)
        asks[f"requests.{name}"] = exact
        if "/" not in name:
            asks[name] = exact
    for name, amount in pod.limits.items():
        asks[f"limits.{name}"] = amount * (NANO // 1000 if name == CPU else NANO)
    return asks


_RULES: Final[tuple[Callable[[PodView, ClusterSnapshot], Iterator[Reason]], ...]] = (
    _unreadable,
    _gates,
    _scheduler,
    _quota,
)
