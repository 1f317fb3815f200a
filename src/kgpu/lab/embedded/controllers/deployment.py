"""Deployments: which strategy applies now, and carrying out its plan on ReplicaSets."""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping, Sequence

from kgpu.base.errors import KubeError
from kgpu.kube.port import PODS, KubeRefusedError, Object, Resource, annotations_of, name_of, namespace_of
from kgpu.lab.embedded.controllers import ownership
from kgpu.lab.embedded.controllers.cache import Cache
from kgpu.lab.embedded.controllers.cluster import ControllerContext
from kgpu.lab.embedded.controllers.controller import KeysOf, ObjectController, itself, refusal_text
from kgpu.lab.embedded.controllers.deployment_plan import (
    DESIRED,
    MAX,
    REVISION,
    Action,
    Annotate,
    ChangeSet,
    CreateSet,
    DeleteSet,
    DeploymentPlan,
    Rollout,
    SetStatus,
    finish,
    has_deadline,
    plain_template,
    replicas_of,
)
from kgpu.lab.embedded.controllers.deployment_status import is_complete, plan_status
from kgpu.lab.embedded.controllers.kinds import DEPLOYMENTS, REPLICA_SETS
from kgpu.lab.embedded.controllers.meta import (
    condition,
    controller_of,
    created_at,
    deleting,
    generation_of,
    is_empty_selector,
    key_of,
    owner_reference,
    spec_of,
    stamp,
    status_of,
    uid_of,
    with_condition,
)
from kgpu.lab.embedded.controllers.podcontrol import namespace_is_ending
from kgpu.lab.embedded.controllers.pods import is_terminal


def plan(deployment: Object, sets: Sequence[Object], old_pods_left: bool, now: dt.datetime) -> DeploymentPlan:
    """The next step. ``old_pods_left``: pods of other sets than the present template's have not ended."""
    rollout = Rollout(deployment, sets, owner_reference(DEPLOYMENTS, deployment), now)
    if deleting(deployment):
        return _status_only(rollout)
    paused = bool(spec_of(deployment).get("paused"))
    _note_pause(rollout, paused)
    if paused or _is_scaling(rollout):
        return _spread(rollout, paused)
    if (spec_of(deployment).get("strategy") or {}).get("type") == "Recreate":
        return _recreate(rollout, old_pods_left)
    return _rolling(rollout)


def _status_only(rollout: Rollout) -> DeploymentPlan:
    rollout.sync_revision(create=False)
    return _with_plain_status(rollout)


def _with_plain_status(rollout: Rollout) -> DeploymentPlan:
    rollout.set_status(plan_status(rollout.view(rollout.new)))
    return DeploymentPlan(tuple(rollout.actions))


def _note_pause(rollout: Rollout, paused: bool) -> None:
    progressing = condition({"conditions": rollout.conditions}, "Progressing")
    reason = progressing.get("reason") if progressing is not None else ""
    if reason == "ProgressDeadlineExceeded":
        return
    if paused and reason != "DeploymentPaused":
        rollout.progress("Unknown", "DeploymentPaused", "Deployment is paused")
    elif not paused and reason == "DeploymentPaused":
        rollout.progress("Unknown", "DeploymentResumed", "Deployment is resumed")


def _is_scaling(rollout: Rollout) -> bool:
    """Whether the Deployment's size differs from the one in its active sets' annotations."""
    remembered = [annotations_of(rs).get(DESIRED, "") for rs in rollout.active(rollout.all)]
    return any(text.isdecimal() and int(text) != rollout.wanted for text in remembered)


def _spread(rollout: Rollout, paused: bool) -> DeploymentPlan:
    """Scale without rolling: the only active set, or all in proportion."""
    rollout.sync_revision(create=False)
    _scale(rollout)
    if paused:
        rollout.clean_up()
    return _with_plain_status(rollout)


def _scale(rollout: Rollout) -> None:
    active = rollout.active(rollout.all)
    if not rollout.all:
        return
    if len(active) <= 1:
        latest = rollout.new or max(rollout.old, key=lambda rs: (created_at(rs), name_of(rs)))
        rollout.scale(active[0] if active else latest, rollout.wanted)
        return
    new = rollout.new
    if new is not None and _is_saturated(rollout, new):
        for rs in rollout.active(rollout.old):
            rollout.scale(rs, 0)
        return
    if (rollout.spec.get("strategy") or {}).get("type") == "Recreate":
        return
    allowed = rollout.wanted + rollout.surge if rollout.wanted > 0 else 0
    to_add = allowed - rollout.total(active)
    newest_first = sorted(active, key=lambda rs: (created_at(rs), name_of(rs)), reverse=to_add > 0)
    active = sorted(newest_first, key=lambda rs: -rollout.size[uid_of(rs)])
    sizes, added = {}, 0
    for rs in active:
        share = _share(rollout, rs, to_add, added)
        sizes[uid_of(rs)] = rollout.size[uid_of(rs)] + share
        added += share
    if to_add:
        largest = uid_of(active[0])
        sizes[largest] = max(0, sizes[largest] + to_add - added)
    for rs in active:
        rollout.scale(rs, sizes[uid_of(rs)], always=True)


def _is_saturated(rollout: Rollout, rs: Object) -> bool:
    remembered = annotations_of(rs).get(DESIRED, "")
    return remembered.isdecimal() and int(remembered) == rollout.wanted == replicas_of(rs) == int(
        status_of(rs).get("availableReplicas") or 0
    )


def _share(rollout: Rollout, rs: Object, to_add: int, added: int) -> int:
    """A set's part of the change, in proportion to its size."""
    size = rollout.size[uid_of(rs)]
    if not size or not to_add or to_add == added:
        return 0
    allowed = to_add - added
    if rollout.wanted == 0:
        share = -size
    else:
        text = annotations_of(rs).get(MAX, "")
        before = int(text) if text.isdecimal() else 0
        before = before or int(status_of(rollout.deployment).get("replicas") or 0)
        # Halves away from zero, as Go's integer.RoundToInt32.
        share = int(size * (rollout.wanted + rollout.surge) / before + 0.5) - size if before else 0
    return min(share, allowed) if to_add > 0 else max(share, allowed)


def _rolling(rollout: Rollout) -> DeploymentPlan:
    if not rollout.sync_revision(create=True):
        return DeploymentPlan(tuple(rollout.actions))
    new = rollout.new
    assert new is not None
    size = rollout.size[uid_of(new)]
    target = rollout.wanted if size >= rollout.wanted else rollout.size_for_new(size)
    if rollout.scale(new, target) or _shrink_old(rollout, new):
        return finish(rollout)
    if is_complete(rollout.deployment, status_of(rollout.deployment)):
        rollout.clean_up()
    return finish(rollout)


def _shrink_old(rollout: Rollout, new: Object) -> bool:
    """Scale old sets down as far as availability allows; unhealthy pods first."""
    old = sorted(rollout.active(rollout.old), key=lambda rs: (created_at(rs), name_of(rs)))
    if not old:
        return False
    least = rollout.wanted - rollout.unavailable
    new_unavailable = rollout.size[uid_of(new)] - int(status_of(new).get("availableReplicas") or 0)
    room = rollout.total(rollout.all) - least - new_unavailable
    if room <= 0:
        return False
    shrunk = 0
    available = {uid_of(rs): int(status_of(rs).get("availableReplicas") or 0) for rs in rollout.all}
    for rs in old:
        unhealthy = rollout.size[uid_of(rs)] - available[uid_of(rs)]
        count = min(room - shrunk, unhealthy)
        if count > 0 and rollout.scale(rs, rollout.size[uid_of(rs)] - count):
            shrunk += count
    spare = sum(available.values()) - least
    for rs in old:
        count = min(rollout.size[uid_of(rs)], spare)
        if count > 0 and rollout.scale(rs, rollout.size[uid_of(rs)] - count):
            spare -= count
            shrunk += count
    return shrunk > 0


def _recreate(rollout: Rollout, old_pods_left: bool) -> DeploymentPlan:
    rollout.sync_revision(create=False)
    if any([rollout.scale(rs, 0) for rs in rollout.active(rollout.old)]):  # noqa: C419 - all of them, not the first
        return finish(rollout)
    if old_pods_left or any(int(status_of(rs).get("replicas") or 0) for rs in rollout.old):
        return finish(rollout)
    if rollout.new is None:
        rollout.sync_revision(create=True)
        return DeploymentPlan(tuple(rollout.actions))
    rollout.scale(rollout.new, rollout.wanted)
    if is_complete(rollout.deployment, status_of(rollout.deployment)):
        rollout.clean_up()
    return finish(rollout)


class DeploymentController(ObjectController):
    name = "deployment-controller"

    def __init__(self, cluster: ControllerContext) -> None:
        super().__init__(cluster)
        self._deployments: Cache = cluster.cache(DEPLOYMENTS)
        self._sets: Cache = cluster.cache(REPLICA_SETS)
        self._pods: Cache = cluster.cache(PODS)
        ownership.index_orphans(self._sets)

    def sources(self) -> Mapping[Resource, KeysOf]:
        return {
            DEPLOYMENTS: itself,
            REPLICA_SETS: ownership.owner_keys(self._deployments, "Deployment"),
            PODS: self._pod_gone,
        }

    def _pod_gone(self, old: Object | None, new: Object | None) -> list[tuple[str, str]]:
        """With strategy Recreate, the Deployment whose last old pod is gone."""
        if new is not None or old is None:
            return []
        holder = controller_of(old)
        rs = self._sets.get((namespace_of(old), str(holder.get("name")))) if holder else None
        above = controller_of(rs) if rs is not None else None
        if above is None or above.get("kind") != "Deployment":
            return []
        key = (namespace_of(old), str(above.get("name")))
        deployment = self._deployments.get(key)
        recreate = deployment and (spec_of(deployment).get("strategy") or {}).get("type") == "Recreate"
        return [key] if recreate else []

    async def sync(self, key: tuple[str, str]) -> float | None:
        deployment = self._deployments.get(key)
        if deployment is None:
            return None
        if is_empty_selector(spec_of(deployment).get("selector")):
            self.emit(deployment, "Warning", "SelectingAll",
                     "This deployment is selecting all pods. A non-empty selector is required.")  # fmt: skip
            status = {**status_of(deployment), "observedGeneration": generation_of(deployment)}
            await self.cluster.set_status(DEPLOYMENTS, deployment, status)
            return None
        candidates = ownership.candidates(self._sets, deployment)
        sets = await ownership.settle_claims(self.cluster, DEPLOYMENTS, deployment, self._sets, candidates)
        step = plan(deployment, sets, self._old_pods_left(deployment, sets), self.cluster.now())
        for action in step.actions:
            await self._perform(deployment, action)
        return step.again

    def _old_pods_left(self, deployment: Object, sets: Sequence[Object]) -> bool:
        wanted = plain_template(spec_of(deployment).get("template") or {})
        return any(
            not is_terminal(pod)
            for rs in sets
            if plain_template(spec_of(rs).get("template") or {}) != wanted
            for pod in self._pods.select("controller", uid_of(rs))
        )

    async def _perform(self, deployment: Object, action: Action) -> None:
        match action:
            case CreateSet(obj):
                await self._create_set(deployment, obj)
            case ChangeSet(rs, change, event):
                await self.cluster.patch(REPLICA_SETS, key_of(rs), change)
                if event:
                    self.emit(deployment, "Normal", "ScalingReplicaSet", event)
            case DeleteSet(rs):
                await self.cluster.delete(REPLICA_SETS, rs)
            case Annotate(revision):
                change = {"metadata": {"annotations": {REVISION: revision}}}
                # Through status: a Deployment's annotations written elsewhere count as a new generation.
                await self.cluster.patch(DEPLOYMENTS, key_of(deployment), change, subresource="status")
            case SetStatus(status):
                await self.cluster.set_status(DEPLOYMENTS, deployment, status)

    async def _create_set(self, deployment: Object, obj: Object) -> None:
        try:
            created = await self.cluster.create(REPLICA_SETS, obj)
        except KubeRefusedError as error:
            await self._not_created(deployment, obj, error)
            raise
        size = replicas_of(created)
        if size:
            text = f"Scaled up replica set {name_of(created)} from 0 to {size}"
            self.emit(deployment, "Normal", "ScalingReplicaSet", text)

    async def _not_created(self, deployment: Object, obj: Object, error: KubeError) -> None:
        status = status_of(deployment)
        if getattr(error, "reason", "") == "AlreadyExists":
            # A hash collision with another template: the next attempt uses a different hash.
            changed = {**status, "collisionCount": int(status.get("collisionCount") or 0) + 1}
            await self.cluster.set_status(DEPLOYMENTS, deployment, changed)
            return
        if namespace_is_ending(error):
            return
        message = f'Failed to create new replica set "{name_of(obj)}": {refusal_text(error)}'
        self.emit(deployment, "Warning", "ReplicaSetCreateError", message)
        if has_deadline(deployment):
            at = stamp(self.cluster.now())
            failed = {
                "type": "Progressing",
                "status": "False",
                "lastUpdateTime": at,
                "lastTransitionTime": at,
                "reason": "ReplicaSetCreateError",
                "message": message,
            }
            conditions = with_condition(status.get("conditions") or (), failed)
            await self.cluster.set_status(DEPLOYMENTS, deployment, {**status, "conditions": conditions})
