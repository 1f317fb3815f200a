"""Pods that don't tolerate a NoExecute taint of their node go, at once or after their tolerationSeconds."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable, Mapping

from kgpu.kube.informer import Key
from kgpu.kube.port import NODES, PODS, KubeRefusedError, Object, Resource, name_of, namespace_of
from kgpu.lab.embedded.controllers.cluster import ControllerContext
from kgpu.lab.embedded.controllers.controller import KeysOf, ObjectController
from kgpu.lab.embedded.controllers.meta import key_of, spec_of, stamp, status_of, without_condition
from kgpu.lab.embedded.controllers.pods import node_of
from kgpu.lab.embedded.controllers.taints import stays_for, taints_of


def no_execute(node: Object | None) -> list[Object]:
    return [taint for taint in taints_of(node or {}) if taint.get("effect") == "NoExecute"]


def with_disruption(pod: Object, reason: str, message: str, now: dt.datetime) -> list[Object]:
    """The pod's conditions with DisruptionTarget."""
    target = {
        "type": "DisruptionTarget",
        "status": "True",
        "lastTransitionTime": stamp(now),
        "reason": reason,
        "message": message,
    }
    generation = pod["metadata"].get("generation")
    if generation:
        target["observedGeneration"] = generation
    return [*without_condition(status_of(pod).get("conditions") or (), "DisruptionTarget"), target]


class TaintEvictionController(ObjectController):
    name = "taint-eviction-controller"

    def __init__(self, cluster: ControllerContext) -> None:
        super().__init__(cluster)
        self._nodes = cluster.cache(NODES)
        self._pods = cluster.cache(PODS)
        self._pods.index("node", lambda pod: (node,) if (node := node_of(pod)) else ())
        self._since: dict[Key, dt.datetime] = {}
        """Since when a pod's tolerationSeconds count."""

    def sources(self) -> Mapping[Resource, KeysOf]:
        return {NODES: self._node_keys, PODS: self._pod_keys}

    def _node_keys(self, old: Object | None, new: Object | None) -> Iterable[Key]:
        if no_execute(old) == no_execute(new):
            return []
        return [key_of(pod) for pod in self._pods.select("node", name_of(new or old or {}))]

    def _pod_keys(self, old: Object | None, new: Object | None) -> Iterable[Key]:
        if new is None:
            return [key_of(old)] if old is not None and key_of(old) in self._since else []
        same = old is not None and node_of(old) == node_of(new)
        if same and old is not None and spec_of(old).get("tolerations") == spec_of(new).get("tolerations"):
            return []
        return [key_of(new)] if no_execute(self._nodes.get(("", node_of(new)))) else []

    async def sync(self, key: Key) -> float | None:
        pod = self._pods.get(key)
        if pod is None or self._pods.is_doomed(pod):
            self._since.pop(key, None)
            return None
        taints = no_execute(self._nodes.get(("", node_of(pod))))
        time = stays_for(taints, spec_of(pod).get("tolerations") or ()) if taints else None
        if time is None:
            if self._since.pop(key, None) is not None:
                self._emit(pod, "Cancelling deletion of")
            return None
        now = self.cluster.now()
        left = time - (now - self._since.setdefault(key, now)).total_seconds()
        if left > 0:
            return left
        self._since.pop(key, None)
        self._emit(pod, "Marking for deletion")
        await self._evict(pod, now)
        return None

    def _emit(self, pod: Object, what: str) -> None:
        name = f"{namespace_of(pod)}/{name_of(pod)}"
        about = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name_of(pod), "namespace": namespace_of(pod)}}
        self.emit(about, "Normal", "TaintManagerEviction", f"{what} Pod {name}")

    async def _evict(self, pod: Object, now: dt.datetime) -> None:
        message = "Taint manager: deleting due to NoExecute taint"
        conditions = with_disruption(pod, "DeletionByTaintManager", message, now)
        try:
            await self.cluster.patch(PODS, key_of(pod), {"status": {"conditions": conditions}}, subresource="status")
        except KubeRefusedError as refused:
            if refused.code != 404:
                raise
            return
        await self.cluster.delete(PODS, pod)
