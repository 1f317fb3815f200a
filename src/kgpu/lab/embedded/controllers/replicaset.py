"""ReplicaSets: as many active pods as asked for, the right ones deleted first, and the status that follows.

ReplicationControllers are the same with a selector of labels alone, and without a count of pods that are ending.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping, Sequence
from typing import ClassVar, Final

from kgpu.base.errors import KubeError
from kgpu.kube.port import PODS, Object, Resource, labels_of, namespace_of
from kgpu.lab.embedded.controllers import ownership
from kgpu.lab.embedded.controllers.cache import Cache
from kgpu.lab.embedded.controllers.cluster import ControllerContext
from kgpu.lab.embedded.controllers.controller import KeysOf, ObjectController, itself, refusal_text
from kgpu.lab.embedded.controllers.kinds import REPLICA_SETS, REPLICATION_CONTROLLERS
from kgpu.lab.embedded.controllers.meta import (
    condition,
    controller_of,
    deleting,
    generation_of,
    owner_reference,
    selects,
    spec_of,
    stamp,
    status_of,
    uid_of,
    without_condition,
)
from kgpu.lab.embedded.controllers.pacing import take_turn
from kgpu.lab.embedded.controllers.podcontrol import BURST, create_pods, delete_pods
from kgpu.lab.embedded.controllers.pods import (
    deletion_order,
    is_available,
    is_ready,
    is_terminal,
    next_available,
    pod_from_template,
)

_MANY: Final = 50  # pods; with more, counting them waits for a turn of its own


def victims(pods: Sequence[Object], related: Sequence[Object], count: int, now: dt.datetime) -> list[Object]:
    """The ``count`` pods to delete."""
    return deletion_order(pods, related, now)[:count]


def plan_status(rs: Object, pods: Sequence[Object], terminating: int, problem: str, now: dt.datetime) -> Object:
    """The status that follows from the active pods; ``problem`` is why the last change of their number failed."""
    spec, old = spec_of(rs), status_of(rs)
    wanted, min_ready = int(spec.get("replicas") or 0), int(spec.get("minReadySeconds") or 0)
    template_labels = labels_of(spec.get("template") or {})
    conditions = list(old.get("conditions") or ())
    failing = condition(old, "ReplicaFailure")
    if problem and failing is None:
        conditions.append(
            {
                "type": "ReplicaFailure",
                "status": "True",
                "lastTransitionTime": stamp(now),
                "reason": "FailedCreate" if len(pods) < wanted else "FailedDelete",
                "message": problem,
            }
        )
    elif not problem and failing is not None:
        conditions = without_condition(conditions, "ReplicaFailure")
    counts = {
        "fullyLabeledReplicas": sum(template_labels.items() <= labels_of(pod).items() for pod in pods),
        "readyReplicas": sum(is_ready(pod) for pod in pods),
        "availableReplicas": sum(is_available(pod, min_ready, now) for pod in pods),
    }
    status: Object = {"replicas": len(pods), **{key: value for key, value in counts.items() if value}}
    status |= {"terminatingReplicas": terminating, "observedGeneration": generation_of(rs)}
    return {**status, "conditions": conditions} if conditions else status


def with_label_selector(controller: Object) -> Object:
    """A ReplicationController with its selector in a ReplicaSet's form."""
    spec = spec_of(controller)
    return {**controller, "spec": {**spec, "selector": {"matchLabels": spec.get("selector") or {}}}}


def replication_controllers(cluster: ControllerContext) -> Cache:
    """The cluster's ReplicationControllers, with selectors like those of ReplicaSets."""
    return cluster.cache(REPLICATION_CONTROLLERS, project=with_label_selector)


class ReplicaSetController(ObjectController):
    name = "replicaset-controller"
    kind: ClassVar[Resource] = REPLICA_SETS

    def __init__(self, cluster: ControllerContext) -> None:
        super().__init__(cluster)
        self._sets: Cache = self._followed()
        self._pods: Cache = cluster.cache(PODS)
        ownership.index_orphans(self._pods)

    def _followed(self) -> Cache:
        return self.cluster.cache(self.kind)

    def sources(self) -> Mapping[Resource, KeysOf]:
        return {
            self.kind: itself,
            PODS: ownership.owner_keys(self._sets, self.kind.kind),
        }

    async def sync(self, key: tuple[str, str]) -> float | None:
        rs = self._sets.get(key)
        if rs is None:
            return None
        spec = spec_of(rs)
        candidates = ownership.candidates(self._pods, rs)
        active = [pod for pod in candidates if not is_terminal(pod) and not self._pods.is_doomed(pod)]
        pods = await ownership.settle_claims(self.cluster, self.kind, rs, self._pods, active)
        problem = None
        if not deleting(rs):
            problem = await self._manage(rs, pods)
        if len(pods) > _MANY:
            await take_turn()
        selector = spec.get("selector")
        ending = sum(
            1
            for pod in self._pods.select("controller", uid_of(rs))
            if not is_terminal(pod) and deleting(pod) and selects(selector, labels_of(pod))
        )
        now = self.cluster.now()
        text = refusal_text(problem) if problem is not None else ""
        await self.cluster.set_status(self.kind, rs, self._status(rs, pods, ending, text, now))
        if problem is not None:
            raise problem
        return next_available(pods, int(spec.get("minReadySeconds") or 0), now)

    def _status(self, rs: Object, pods: Sequence[Object], ending: int, problem: str, now: dt.datetime) -> Object:
        return plan_status(rs, pods, ending, problem, now)

    async def _manage(self, rs: Object, pods: Sequence[Object]) -> KubeError | None:
        """Create or delete pods towards ``spec.replicas``."""
        missing = int(spec_of(rs).get("replicas") or 0) - len(pods)
        if missing > 0:
            template = spec_of(rs).get("template") or {}
            pod = pod_from_template(template, rs, owner_reference(self.kind, rs))
            _, error = await create_pods(self, rs, [pod] * min(missing, BURST))
            return error
        if missing < 0:
            chosen = victims(pods, self._related(rs), min(-missing, BURST), self.cluster.now())
            return await delete_pods(self, rs, chosen)
        return None

    def _related(self, rs: Object) -> list[Object]:
        """The pods of all sets of the same owner."""
        holder = controller_of(rs)
        sets = self._sets.select("controller", holder["uid"]) if holder else [rs]
        namespace = namespace_of(rs)
        return [
            pod
            for sibling in sets
            if namespace_of(sibling) == namespace
            for pod in self._pods.select("controller", uid_of(sibling))
        ]


class ReplicationController(ReplicaSetController):
    name = "replication-controller"
    kind = REPLICATION_CONTROLLERS

    def _followed(self) -> Cache:
        return replication_controllers(self.cluster)

    def _status(self, rs: Object, pods: Sequence[Object], ending: int, problem: str, now: dt.datetime) -> Object:
        status = plan_status(rs, pods, ending, problem, now)
        return {key: value for key, value in status.items() if key != "terminatingReplicas"}
