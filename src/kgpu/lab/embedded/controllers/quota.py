"""ResourceQuota status: what is used of each limit, by ``types.quota``'s rules, soon after something changed."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Mapping

from kgpu.kube.informer import Key
from kgpu.kube.port import PODS, Object, Resource, namespace_of
from kgpu.lab.embedded.controllers.cluster import ControllerContext
from kgpu.lab.embedded.controllers.controller import KeysOf, ObjectController, itself
from kgpu.lab.embedded.controllers.kinds import RESOURCE_QUOTAS
from kgpu.lab.embedded.controllers.meta import deleting, key_of, spec_of, status_of
from kgpu.lab.embedded.controllers.pods import phase_of
from kgpu.lab.embedded.controllers.served import ServedKinds
from kgpu.lab.embedded.types import quota

_GATHER = 0.05  # seconds


class QuotaController(ObjectController):
    name = "resourcequota-controller"

    def __init__(self, cluster: ControllerContext, kinds: ServedKinds) -> None:
        super().__init__(cluster)
        self._kinds = kinds
        self._quotas = cluster.cache(RESOURCE_QUOTAS)
        self._followed: dict[tuple[str, str], Resource] = {}
        self._stack = contextlib.ExitStack()

    def sources(self) -> Mapping[Resource, KeysOf]:
        return {RESOURCE_QUOTAS: itself, PODS: self._pod_keys}

    async def prepare(self, stack: contextlib.ExitStack) -> None:
        self._followed = {("", "pods"): PODS}
        self._stack = stack

    def _pod_keys(self, old: Object | None, new: Object | None) -> Iterable[Key]:
        if old is not None and new is not None:
            same = phase_of(old) == phase_of(new) and deleting(old) == deleting(new)
            if same and old.get("spec") == new.get("spec"):
                return ()
        return self._counted(new if new is not None else old)

    def _counted(self, obj: Object | None) -> Iterable[Key]:
        if obj is not None:
            for counting in self._quotas.select("namespace", namespace_of(obj)):
                self.queue.add_after(key_of(counting), _GATHER)
        return ()

    def _follow(self, group: str, plural: str) -> Resource | None:
        """Follow a kind once a quota counts it; returns None when it isn't served."""
        known = self._followed.get((group, plural))
        if known is not None:
            return known
        served = next(
            (kind.resource for kind in self._kinds if (kind.resource.group, kind.resource.plural) == (group, plural)),
            None,
        )
        if served is None:
            return None
        self._followed[group, plural] = served
        self._stack.callback(self._subscribe(served))
        return served

    def _subscribe(self, resource: Resource) -> Callable[[], None]:
        def handler(old: Object | None, new: Object | None) -> None:
            if old is None or new is None or old.get("spec") != new.get("spec"):
                self._counted(new if new is not None else old)

        return self.cluster.cache(resource).subscribe(handler)

    async def sync(self, key: Key) -> None:
        resource_quota = self._quotas.get(key)
        if resource_quota is None or deleting(resource_quota):
            return
        await self._kinds.ready()
        objects: dict[tuple[str, str], list[Object]] = {}
        known = [
            (served.resource.group, served.resource.plural) for served in self._kinds if served.resource.namespaced
        ]
        for kind in quota.kinds_needed(resource_quota, known):
            resource = self._follow(*kind)
            if resource is not None:
                cache = self.cluster.cache(resource)
                await cache.synced.wait()
                objects[kind] = cache.select("namespace", key[0])
        used = {name: str(amount) for name, amount in quota.quota_usage(resource_quota, objects).items()}
        status = {**status_of(resource_quota), "hard": spec_of(resource_quota).get("hard") or {}, "used": used}
        await self.cluster.set_status(RESOURCE_QUOTAS, resource_quota, status)
