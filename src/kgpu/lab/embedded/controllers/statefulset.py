"""StatefulSets: pods with numbers, claims of their own, and updates one after the other."""

from __future__ import annotations

from collections.abc import Mapping

from kgpu.base.errors import KubeError
from kgpu.kube.informer import Key
from kgpu.kube.port import PODS, KubeRefusedError, Object, Resource, name_of
from kgpu.lab.embedded.controllers import claim
from kgpu.lab.embedded.controllers.cluster import ControllerContext
from kgpu.lab.embedded.controllers.controller import KeysOf, ObjectController, itself, refusal_text
from kgpu.lab.embedded.controllers.kinds import CONTROLLER_REVISIONS, STATEFUL_SETS, VOLUME_CLAIMS
from kgpu.lab.embedded.controllers.meta import deleting, is_empty_selector, spec_of, status_of, uid_of
from kgpu.lab.embedded.controllers.podcontrol import namespace_is_ending
from kgpu.lab.embedded.controllers.pods import next_available
from kgpu.lab.embedded.controllers.revisions import clean_up, sync_history
from kgpu.lab.embedded.controllers.statefulset_plan import (
    ObservedStatefulSet,
    new_claims,
    new_pod,
    ordinal_of,
    plan,
    plan_status,
)


class StatefulSetController(ObjectController):
    name = "statefulset-controller"

    def __init__(self, cluster: ControllerContext) -> None:
        super().__init__(cluster)
        self._sets = cluster.cache(STATEFUL_SETS)
        self._pods = cluster.cache(PODS)
        claim.index_orphans(self._pods)

    def sources(self) -> Mapping[Resource, KeysOf]:
        return {
            STATEFUL_SETS: itself,
            PODS: claim.owner_keys(self._sets, "StatefulSet"),
            CONTROLLER_REVISIONS: lambda *_: (),
            VOLUME_CLAIMS: lambda *_: (),
        }

    async def sync(self, key: Key) -> float | None:
        owner = self._sets.get(key)
        if owner is None or is_empty_selector(spec_of(owner).get("selector")):
            return None
        history = await sync_history(self.cluster, STATEFUL_SETS, owner)
        revisions = {name_of(one): one for one in (*history.old, history.current)}
        update = name_of(history.current)
        current = str(status_of(owner).get("currentRevision") or update)
        seen = await self._look(owner, current if current in revisions else update, update)
        problem: KubeError | None = None
        if not deleting(owner):
            step = plan(seen)
            for pod in step.delete:
                problem = problem or await self._delete(owner, pod)
            for ordinal, revision in step.create:
                problem = await self._create(owner, revisions[revision], ordinal)
                if problem is not None:
                    break
            seen = await self._look(owner, seen.current, update)
        pods = list(seen.pods.values())
        await self.cluster.set_status(STATEFUL_SETS, owner, plan_status(seen, pods))
        await clean_up(self.cluster, owner, history, pods)
        if problem is not None:
            raise problem
        return next_available(pods, int(spec_of(owner).get("minReadySeconds") or 0), self.cluster.now())

    async def _look(self, owner: Object, current: str, update: str) -> ObservedStatefulSet:
        found = [pod for pod in claim.candidates(self._pods, owner) if ordinal_of(owner, pod) is not None]
        pods = await claim.settle_claims(self.cluster, STATEFUL_SETS, owner, self._pods, found)
        return ObservedStatefulSet(
            owner=owner,
            pods={number: pod for pod in pods if (number := ordinal_of(owner, pod)) is not None},
            gone=frozenset(uid_of(pod) for pod in pods if self._pods.is_doomed(pod)),
            current=current,
            update=update,
            now=self.cluster.now(),
        )

    async def _create(self, owner: Object, revision: Object, ordinal: int) -> KubeError | None:
        pod = new_pod(owner, revision, ordinal)
        where = f"Pod {name_of(pod)} in StatefulSet {name_of(owner)}"
        for one in new_claims(owner, ordinal):
            known = self.cluster.cache(VOLUME_CLAIMS).get((one["metadata"]["namespace"], name_of(one)))
            if known is not None:
                continue
            what = f"Create Claim {name_of(one)}"
            try:
                await self.cluster.create(VOLUME_CLAIMS, one)
            except KubeRefusedError as error:
                text = f"{what} for {where} failed error: {refusal_text(error)}"
                self.say(owner, "Warning", "FailedCreate", text)
                return error
            self.say(owner, "Normal", "SuccessfulCreate", f"{what} {where} success")
        try:
            await self.cluster.create(PODS, pod)
        except KubeRefusedError as error:
            if not namespace_is_ending(error):
                self.say(owner, "Warning", "FailedCreate", f"Create {where} failed error: {refusal_text(error)}")
            return error
        self.say(owner, "Normal", "SuccessfulCreate", f"Create {where} successful")
        return None

    async def _delete(self, owner: Object, pod: Object) -> KubeError | None:
        where = f"Pod {name_of(pod)} in StatefulSet {name_of(owner)}"
        try:
            await self.cluster.delete(PODS, pod)
        except KubeRefusedError as error:
            self.say(owner, "Warning", "FailedDelete", f"Delete {where} failed error: {refusal_text(error)}")
            return error
        self.say(owner, "Normal", "SuccessfulDelete", f"Delete {where} successful")
        return None
