"""Nodes whose kubelet is silent become Unknown, their pods not ready, and taints follow the conditions.

Heartbeats cost a dictionary entry each; all nodes are looked at every few seconds. When no node at all is ready, nobody
is evicted: then it is rather the controller that can't see (kube-controller-manager's full disruption).
"""

from __future__ import annotations

import asyncio
import contextlib
import datetime as dt
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from kgpu.base.times import moment_of
from kgpu.kube.port import LEASES, NODES, PODS, KubeRefusedError, Object, Resource, name_of, namespace_of
from kgpu.lab.embedded.controllers.cluster import ControllerContext
from kgpu.lab.embedded.controllers.controller import KeysOf, ObjectController
from kgpu.lab.embedded.controllers.meta import (
    condition,
    created_at,
    key_of,
    spec_of,
    stamp,
    status_of,
)
from kgpu.lab.embedded.controllers.node_plan import GRACE, STARTUP_GRACE, new_taints, ready_status, silent_conditions
from kgpu.lab.embedded.controllers.pacing import take_turn
from kgpu.lab.embedded.controllers.pods import node_of

PERIOD: Final = 5.0  # seconds between two looks at all nodes
_AT_ONCE: Final = 100  # nodes checked before other tasks have their turn
_LEASES: Final = "kube-node-lease"


@dataclass(slots=True)
class NodeHeartbeat:
    """When a node last gave a heartbeat, by this process's clock: clocks of nodes are not trusted."""

    heard: dt.datetime
    heartbeat: str = ""
    renewed: str = ""


class NodeLifecycleController(ObjectController):
    name = "node-controller"

    def __init__(self, cluster: ControllerContext, *, grace: float = GRACE) -> None:
        """``grace``: seconds of silence after which a node's state is unknown."""
        super().__init__(cluster)
        self._grace = grace
        self._nodes = cluster.cache(NODES)
        self._pods = cluster.cache(PODS)
        self._leases = cluster.cache(LEASES)
        self._pods.index("node", lambda pod: (node,) if (node := node_of(pod)) else ())
        self._health: dict[str, NodeHeartbeat] = {}
        self._known: dict[str, Object] = {}
        self._evict = True

    def sources(self) -> Mapping[Resource, KeysOf]:
        return {NODES: self._node_keys, LEASES: self._lease_keys}

    def _node_keys(self, old: Object | None, new: Object | None) -> list[str]:
        if new is None or old is None:
            return [name_of(new or old or {})]
        # The condition's heartbeat alone is no reason to sync.
        same = spec_of(old) == spec_of(new) and ready_status(old) == ready_status(new)
        conditions = [
            [(entry.get("type"), entry.get("status")) for entry in status_of(node).get("conditions") or ()]
            for node in (old, new)
        ]
        self._hear(new)
        return [] if same and conditions[0] == conditions[1] else [name_of(new)]

    def _lease_keys(self, _: Object | None, new: Object | None) -> list[str]:
        if new is not None and namespace_of(new) == _LEASES:
            node = self._nodes.get(("", name_of(new)))
            if node is not None:
                self._hear(node)
        return []

    def _hear(self, node: Object) -> NodeHeartbeat:
        """Note the last heartbeat of the node or its Lease."""
        name = name_of(node)
        ready = condition(node, "Ready")
        lease = self._leases.get((_LEASES, name))
        heartbeat = str(ready.get("lastHeartbeatTime") or "-") if ready is not None else ""
        renewed = str(spec_of(lease).get("renewTime") or "") if lease is not None else ""
        health = self._health.get(name)
        if health is None:
            born = moment_of(created_at(node))
            heard = self.cluster.now() if ready is not None or born is None else born
            health = self._health[name] = NodeHeartbeat(heard, heartbeat, renewed)
        elif heartbeat != health.heartbeat or renewed > health.renewed:
            health.heard = self.cluster.now()
            health.heartbeat, health.renewed = heartbeat, max(renewed, health.renewed)
        return health

    async def prepare(self, stack: contextlib.ExitStack) -> None:
        task = asyncio.create_task(self._tick(), name="node-lifecycle")
        stack.callback(task.cancel)

    async def _tick(self) -> None:
        while True:
            nodes = list(self._nodes)
            unready = sum(ready_status(node) not in ("True", "") for node in nodes)
            evict = not nodes or unready < len(nodes)
            everyone = evict != self._evict
            self._evict = evict
            now = self.cluster.now()
            for number, node in enumerate(nodes):
                if everyone or self._is_silent(node, now):
                    self.queue.add(name_of(node))
                if number % _AT_ONCE == _AT_ONCE - 1:
                    await take_turn()
            await asyncio.sleep(PERIOD)

    def _is_silent(self, node: Object, now: dt.datetime) -> bool:
        grace = self._grace if ready_status(node) else STARTUP_GRACE
        return (now - self._hear(node).heard).total_seconds() > grace

    async def sync(self, key: str) -> None:
        node = self._nodes.get(("", key))
        if node is None:
            gone = self._known.pop(key, None)
            self._health.pop(key, None)
            if gone is not None:
                self._emit_node(gone, "RemovingNode", f"Removing Node {key} from Controller")
            return
        if key not in self._known:
            self._emit_node(node, "RegisteredNode", f"Registered Node {key} in Controller")
        self._known[key] = node
        now = self.cluster.now()
        if self._is_silent(node, now):
            node = await self._mark_unknown(node, now)
        taints = new_taints(node, now, evict=self._evict)
        if taints is not None:
            change = {"metadata": {"resourceVersion": node["metadata"]["resourceVersion"]}, "spec": {"taints": taints}}
            await self.cluster.patch(NODES, key_of(node), change)

    def _emit_node(self, node: Object, reason: str, text: str) -> None:
        about = {"kind": "Node", "metadata": {"name": name_of(node), "uid": node["metadata"].get("uid")}}
        self.emit({"apiVersion": "v1", **about}, "Normal", reason, f"Node {name_of(node)} event: {text}")

    async def _mark_unknown(self, node: Object, now: dt.datetime) -> Object:
        was_ready = ready_status(node) == "True"
        conditions = silent_conditions(node, now)
        if conditions is None:
            return node
        node = await self.cluster.patch(
            NODES, key_of(node), {"status": {"conditions": conditions}}, subresource="status"
        )
        if was_ready:
            text = f"Node {name_of(node)} status is now: NodeNotReady"
            about = {"kind": "Node", "metadata": {"name": name_of(node), "uid": node["metadata"].get("uid")}}
            self.emit({"apiVersion": "v1", **about}, "Normal", "NodeNotReady", text)
            for pod in self._pods.select("node", name_of(node)):
                await self._mark_not_ready(pod, now)
        return node

    async def _mark_not_ready(self, pod: Object, now: dt.datetime) -> None:
        ready = condition(pod, "Ready")
        if ready is None or ready.get("status") == "False":
            return
        changed = {**ready, "status": "False", "lastTransitionTime": stamp(now)}
        conditions = [changed if entry is ready else entry for entry in status_of(pod).get("conditions") or ()]
        try:
            await self.cluster.patch(PODS, key_of(pod), {"status": {"conditions": conditions}}, subresource="status")
        except KubeRefusedError as refused:
            if refused.code != 404:
                raise
            return
        self.emit(pod, "Warning", "NodeNotReady", "Node is not ready")
