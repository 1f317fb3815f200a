"""StatefulSets: pods with numbers, claims of their own, and updates one after the other."""

from __future__ import annotations

from collections.abc import Mapping

from kgpu.base.errors import KubeError
from kgpu.kube.informer import Key
from kgpu.kube.port import PODS, KubeRefusedError, Object, Resource, name_of
from kgpu.lab.embedded.controllers import ownership
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
        ownership.index_orphans(self._pods)

    def sources(self) -> Mapping[Resource, KeysOf]:
        return {
            STATEFUL_SETS: itself,
            PODS: ownership.owner_keys(self._sets, "StatefulSet"),
            CONTROLLER_REVISIONS: lambda *_: (),
            VOLUME_CLAIMS: lambda *_: (),
        }

    async def sync(self, key: Key) -> float | None:
        owner = self._sets.get(key)
        if owner is None or is_empty_selector(spec_of(owner).get("selector")):
            return None
        history = await sync_history(self.cluster, STATEFUL_SETS, owner)
        revisions = {name_of(revision): revision for revision in (*history.old, history.current)}
        update = name_of(history.current)
        current = str(status_of(owner).get("currentRevision") or update)
        observed = await self._look(owner, current if current in revisions else update, update)
        problem: KubeError | None = None
        if not deleting(owner):
            step = plan(observed)
            for pod in step.delete:
                problem = problem or await self._delete(owner, pod)
            for ordinal, revision in step.create:
                problem = await self._create(owner, revisions[revision], ordinal)
                if problem is not None:
                    break
            observed = await self._look(owner, observed.current, update)
        pods = list(observed.pods.values())
        await self.cluster.set_status(STATEFUL_SETS, owner, plan_status(observed, pods))
        await clean_up(self.cluster, owner, history, pods)
        if problem is not None:
            raise problem
        return next_available(pods, int(spec_of(owner).get("minReadySeconds") or 0), self.cluster.now())

    async def _look(self, owner: Object, current: str, update: str) -> ObservedStatefulSet:
        candidates = [pod for pod in ownership.candidates(self._pods, owner) if ordinal_of(owner, pod) is not None]
        pods = await ownership.settle_claims(self.cluster, STATEFUL_SETS, owner, self._pods, candidates)
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
        for volume_claim in new_claims(owner, ordinal):
            known = self.cluster.cache(VOLUME_CLAIMS).get(
                (volume_claim["metadata"]["namespace"], name_of(volume_claim))
            )
            if known is not None:
                continue
            what = f"Create Claim {name_of(volume_claim)}"
            try:
                await self.cluster.create(VOLUME_CLAIMS, volume_claim)
            except KubeRefusedError as error:
                text = f"{what} for {where} failed error: {refusal_text(error)}"
                self.emit(owner, "Warning", "FailedCreate", text)
                return error
            self.emit(owner, "Normal", "SuccessfulCreate", f"{what} {where} success")
        try:
            await self.cluster.create(PODS, pod)
        except KubeRefusedError as error:
            if not namespace_is_ending(error):
                self.emit(owner, "Warning", "FailedCreate", f"Create {where} failed error: {refusal_text(error)}")
            return error
        self.emit(owner, "Normal", "SuccessfulCreate", f"Create {where} successful")
        return None

    async def _delete(self, owner: Object, pod: Object) -> KubeError | None:
        where = f"Pod {name_of(pod)} in StatefulSet {name_of(owner)}"
        try:
            await self.cluster.delete(PODS, pod)
        except KubeRefusedError as error:
            self.emit(owner, "Warning", "FailedDelete", f"Delete {where} failed error: {refusal_text(error)}")
            return error
        self.emit(owner, "Normal", "SuccessfulDelete", f"Delete {where} successful")
        return None
