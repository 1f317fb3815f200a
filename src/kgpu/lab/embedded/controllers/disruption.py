"""PodDisruptionBudgets: how many pods may be evicted now."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final

from kgpu.base.times import moment_of
from kgpu.kube.informer import Key
from kgpu.kube.port import PODS, Object, Resource, labels_of, name_of, namespace_of
from kgpu.lab.embedded.controllers.cluster import ControllerContext
from kgpu.lab.embedded.controllers.controller import KeysOf, ObjectController, itself
from kgpu.lab.embedded.controllers.deployment_plan import resolve
from kgpu.lab.embedded.controllers.kinds import (
    DEPLOYMENTS,
    DISRUPTION_BUDGETS,
    JOBS,
    REPLICA_SETS,
    REPLICATION_CONTROLLERS,
    STATEFUL_SETS,
)
from kgpu.lab.embedded.controllers.meta import (
    condition,
    controller_of,
    deleting,
    generation_of,
    key_of,
    selects,
    spec_of,
    stamp,
    status_of,
    uid_of,
)
from kgpu.lab.embedded.controllers.pods import is_ready, is_terminal
from kgpu.lab.embedded.controllers.replicaset import replication_controllers

_DELETION: Final = 120.0  # seconds in which an evicted pod should have been deleted
_GATHER: Final = 0.05  # seconds


class UncountableError(Exception):
    """The expected number of pods can't be determined."""


def plan_status(
    budget: Object, pods: Sequence[Object], scale_of: Callable[[Object], tuple[str, int] | None], now: dt.datetime
) -> Object:
    """``scale_of``: uid and size of a pod's owner, None for pods without one. Raises UncountableError."""
    spec, old = spec_of(budget), status_of(budget)
    disrupted = {
        name: at
        for name, at in (old.get("disruptedPods") or {}).items()
        if any(name_of(pod) == name and not deleting(pod) for pod in pods)
        and ((since := moment_of(at)) is None or (now - since).total_seconds() < _DELETION)
    }
    least = spec.get("minAvailable")
    if least is not None and not isinstance(least, str):
        expected, desired = len(pods), int(least)
    else:
        owners = dict(counted for pod in pods if (counted := scale_of(pod)) is not None)
        expected = sum(owners.values())
        most = spec.get("maxUnavailable")
        if most is not None:
            desired = max(0, expected - resolve(most, expected, up=True))
        else:
            desired = resolve(least, expected, up=True) if least is not None else 0
    healthy = sum(not deleting(pod) and is_ready(pod) and name_of(pod) not in disrupted for pod in pods)
    allowed = max(0, healthy - desired) if expected > 0 else 0
    status: Object = {
        "currentHealthy": healthy,
        "desiredHealthy": desired,
        "expectedPods": expected,
        "disruptionsAllowed": allowed,
        "observedGeneration": generation_of(budget),
        "conditions": _conditions(
            budget, "SufficientPods" if allowed else "InsufficientPods", "", now, allowed=bool(allowed)
        ),
    }
    return {**status, "disruptedPods": disrupted} if disrupted else status


def _conditions(budget: Object, reason: str, message: str, now: dt.datetime, *, allowed: bool) -> list[Object]:
    old = condition(budget, "DisruptionAllowed")
    status = "True" if allowed else "False"
    since = old.get("lastTransitionTime") if old is not None and old.get("status") == status else stamp(now)
    current = {
        "type": "DisruptionAllowed",
        "status": status,
        "observedGeneration": generation_of(budget),
        "lastTransitionTime": since,
        "reason": reason,
        "message": message,
    }
    rest = [kept for kept in status_of(budget).get("conditions") or () if kept.get("type") != "DisruptionAllowed"]
    return [*rest, current]


class DisruptionController(ObjectController):
    name = "controllermanager"

    def __init__(self, cluster: ControllerContext) -> None:
        super().__init__(cluster)
        self._budgets = cluster.cache(DISRUPTION_BUDGETS)
        self._pods = cluster.cache(PODS)
        replication_controllers(cluster)

    def sources(self) -> Mapping[Resource, KeysOf]:
        owners = (REPLICATION_CONTROLLERS, REPLICA_SETS, DEPLOYMENTS, STATEFUL_SETS, JOBS)
        return {DISRUPTION_BUDGETS: itself, PODS: self._pod_keys, **dict.fromkeys(owners, _nothing)}

    def _pod_keys(self, old: Object | None, new: Object | None) -> Iterable[Key]:
        if old is not None and new is not None:
            before, after = ((labels_of(pod), is_ready(pod), deleting(pod), is_terminal(pod)) for pod in (old, new))
            if before == after:
                return ()
        for pod in (pod for pod in (old, new) if pod is not None):
            for budget in self._budgets.select("namespace", namespace_of(pod)):
                if selects(spec_of(budget).get("selector"), labels_of(pod)):
                    self.queue.add_after(key_of(budget), _GATHER)
        return ()

    def _scale_of(self, pod: Object) -> tuple[str, int] | None:
        holder = controller_of(pod)
        if holder is None:
            return None
        kind = str(holder.get("kind"))
        if kind == "ReplicaSet":
            rs = self.cluster.cache(REPLICA_SETS).get((namespace_of(pod), str(holder.get("name"))))
            above = controller_of(rs) if rs is not None else None
            if above is not None and above.get("kind") == "Deployment":
                holder, kind = above, "Deployment"
        counted = (REPLICATION_CONTROLLERS, REPLICA_SETS, DEPLOYMENTS, STATEFUL_SETS)
        resource = {counted_kind.kind: counted_kind for counted_kind in counted}.get(kind)
        owner = self.cluster.cache(resource).get((namespace_of(pod), str(holder.get("name")))) if resource else None
        if owner is None or uid_of(owner) != holder.get("uid"):
            raise UncountableError(f'found no controllers for pod "{name_of(pod)}"')
        return uid_of(owner), int(spec_of(owner).get("replicas", 1))

    async def sync(self, key: Key) -> float | None:
        budget = self._budgets.get(key)
        if budget is None:
            return None
        selector = spec_of(budget).get("selector")
        pods = [
            pod
            for pod in self._pods.select("namespace", key[0])
            if selects(selector, labels_of(pod)) and not is_terminal(pod)
        ]
        if not pods:
            self.emit(budget, "Normal", "NoPods", "No matching pods found")
        now = self.cluster.now()
        try:
            status = plan_status(budget, pods, self._scale_of, now)
        except UncountableError as error:
            text = f"Failed to calculate the number of expected pods: {error}"
            self.emit(budget, "Warning", "CalculateExpectedPodCountFailed", text)
            conditions = _conditions(budget, "SyncFailed", str(error), now, allowed=False)
            status = {**status_of(budget), "disruptionsAllowed": 0, "conditions": conditions}
        await self.cluster.set_status(DISRUPTION_BUDGETS, budget, status)
        return _DELETION if status.get("disruptedPods") else None


def _nothing(_: Object | None, __: Object | None) -> tuple[()]:
    return ()
