"""ResourceClaims of pods: made from templates, reserved for bound pods, released when pods are over."""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Iterable, Mapping
from typing import Final, TypeAlias

from kgpu.base.errors import KubeError
from kgpu.formats.names import CLAIM_FINALIZER
from kgpu.kube.port import PODS, Object, Resource, name_of, namespace_of, version_of
from kgpu.lab.embedded.controllers.cluster import ControllerContext
from kgpu.lab.embedded.controllers.controller import KeysOf, ObjectController, refusal_text
from kgpu.lab.embedded.controllers.kinds import RESOURCE_CLAIM_TEMPLATES, RESOURCE_CLAIMS
from kgpu.lab.embedded.controllers.meta import deleting, key_of, uid_of
from kgpu.lab.embedded.controllers.podcontrol import namespace_is_ending
from kgpu.lab.embedded.controllers.resourceclaim_plan import (
    ClaimUse,
    claim_from_template,
    claim_names,
    claim_uses,
    is_made_for,
    is_over,
    must_reserve,
    needs_work,
    orphan_of,
    owning_pod,
    plan_claim,
    reservations,
    reserved_also_for,
    with_claims,
)

log = logging.getLogger(__name__)

_POD: Final = "pod"
_CLAIM: Final = "claim"
_REMEMBERED: Final = 500  # uids of pods that are gone
Task: TypeAlias = tuple[str, str, str]
"""What to look at: a pod or a claim, its namespace and name."""


class ResourceClaimController(ObjectController):
    name = "resource_claim"
    workers = 10

    def __init__(self, cluster: ControllerContext) -> None:
        super().__init__(cluster)
        self._pods = cluster.cache(PODS)
        self._claims = cluster.cache(RESOURCE_CLAIMS)
        self._templates = cluster.cache(RESOURCE_CLAIM_TEMPLATES)
        self._pods.index("resource-claim", lambda pod: [(namespace_of(pod), name) for name in claim_names(pod)])
        self._gone: OrderedDict[str, None] = OrderedDict()

    def sources(self) -> Mapping[Resource, KeysOf]:
        return {PODS: self._pod_tasks, RESOURCE_CLAIMS: self._claim_tasks, RESOURCE_CLAIM_TEMPLATES: lambda *_: ()}

    def _pod_tasks(self, old: Object | None, new: Object | None) -> Iterable[Task]:
        pod = new if new is not None else old
        if pod is None or not (claim_uses(pod) or claim_names(pod)):
            return
        namespace = namespace_of(pod)
        if new is None:
            self._gone[uid_of(pod)] = None
            if len(self._gone) > _REMEMBERED:
                self._gone.popitem(last=False)
        if new is None or is_over(pod):
            yield from ((_CLAIM, namespace, name) for name in claim_names(pod))
        if new is not None and needs_work(pod, lambda name: self._claims.get((namespace, name))):
            yield _POD, namespace, name_of(pod)

    def _claim_tasks(self, old: Object | None, new: Object | None) -> Iterable[Task]:
        if new is not None:
            # A pod may have been added to it that is gone already.
            yield _CLAIM, *key_of(new)
        for pod in self._pods.select("resource-claim", key_of(new if new is not None else old or {})):
            yield from self._pod_tasks(pod, pod)

    async def sync(self, key: Task) -> None:
        what, namespace, name = key
        if what == _POD:
            pod = self._pods.get((namespace, name))
            if pod is not None and not deleting(pod) and not is_over(pod):
                await self._sync_pod(pod)
        else:
            claim = self._claims.get((namespace, name))
            if claim is not None:
                await self._sync_claim(claim)

    # Pods

    async def _sync_pod(self, pod: Object) -> None:
        made: dict[str, str] = {}
        for use in claim_uses(pod):
            try:
                claim = await self._made_now(pod, use)
            except KubeError as error:
                if namespace_is_ending(error):
                    return
                text = f"PodResourceClaim {use.name}: {refusal_text(error)}"
                self.emit(pod, "Warning", "FailedResourceClaimCreation", text)
                raise
            if claim:
                made[use.name] = claim
        if made:
            status = {"resourceClaimStatuses": with_claims(pod, made)}
            change = {"metadata": {"uid": uid_of(pod)}, "status": status}
            pod = await self.cluster.patch(PODS, key_of(pod), change, subresource="status")
        for use in claim_uses(pod):
            claim_there = self._claims.get((namespace_of(pod), use.claim)) if use.claim else None
            if claim_there is None:
                continue
            if use.template and not is_made_for(claim_there, pod):
                return
            if must_reserve(claim_there, pod):
                await self._set_status(claim_there, {"reservedFor": reserved_also_for(claim_there, pod)})

    async def _made_now(self, pod: Object, use: ClaimUse) -> str:
        """The name of the claim that was made for that use, "" when there is nothing to make. Raises KubeError."""
        namespace = namespace_of(pod)
        known = self._claims.get((namespace, use.claim)) if use.claim else None
        if not use.template or use.needless or (known is not None and is_made_for(known, pod)):
            return ""
        # One may be there that an earlier life of the controller made, and could not write down.
        claim = orphan_of(self._claims.select("controller", uid_of(pod)), use)
        if claim is None:
            template = self._templates.get((namespace, use.template))
            if template is None:
                raise _no_template(use.template)
            try:
                claim = await self.cluster.create(RESOURCE_CLAIMS, claim_from_template(template, pod, use))
            except KubeError as error:
                if namespace_is_ending(error):
                    raise
                raise KubeError(
                    f"create ResourceClaim : {refusal_text(error)}", error.expected, error.remedy
                ) from error
        return name_of(claim)

    # Claims

    async def _sync_claim(self, claim: Object) -> None:
        valid = []
        for consumer in reservations(claim):
            if consumer.get("apiGroup") or consumer.get("resource") != "pods":
                log.debug("claim %s: reserved for something that is no pod: %s", key_of(claim), consumer)
                return
            if await self._uses(claim, consumer):
                valid.append(consumer)
        step = plan_claim(claim, valid, self._pods.get((namespace_of(claim), owning_pod(claim)[0])))
        if step.status is not None:
            claim = await self._set_status(claim, step.status)
        if step.unprotect:
            left = [name for name in claim["metadata"].get("finalizers") or () if name != CLAIM_FINALIZER]
            metadata = {"resourceVersion": version_of(claim), "finalizers": left}
            claim = await self.cluster.patch(RESOURCE_CLAIMS, key_of(claim), {"metadata": metadata})
        if step.delete and not self._claims.is_doomed(claim):
            await self.cluster.delete(RESOURCE_CLAIMS, claim)

    async def _uses(self, claim: Object, consumer: Object) -> bool:
        """Whether the pod may still use the claim. One that isn't known here may be too new: the API says."""
        name, uid = str(consumer.get("name") or ""), consumer.get("uid")
        if uid in self._gone:
            return False
        pod = self._pods.get((namespace_of(claim), name))
        if pod is None:
            pod = await self.cluster.api.get(PODS, name, namespace=namespace_of(claim))
            return pod is not None and uid_of(pod) == uid
        return uid_of(pod) == uid and not is_over(pod)

    async def _set_status(self, claim: Object, status: Object) -> Object:
        """Fails if the claim has changed meanwhile."""
        change = {"metadata": {"resourceVersion": version_of(claim)}, "status": status}
        return await self.cluster.patch(RESOURCE_CLAIMS, key_of(claim), change, subresource="status")


def _no_template(name: str) -> KubeError:
    what = f'resource claim template "{name}": resourceclaimtemplate.resource.k8s.io "{name}" not found'
    return KubeError(what, "a ResourceClaimTemplate of that name in the pod's namespace", "create it")
