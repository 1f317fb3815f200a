"""Pods that nobody else removes: too many ended ones, pods of nodes that are gone, deleted pods without a node.

Looks at all pods every 20 seconds, as the real one; a node must have been missing for 40 seconds.
"""

from __future__ import annotations

import asyncio
import contextlib
import datetime as dt
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from kgpu.base.errors import KubeError
from kgpu.kube.informer import Key
from kgpu.kube.port import NODES, PODS, KubeRefusedError, Object, Resource
from kgpu.lab.embedded.controllers.cluster import ControllerContext
from kgpu.lab.embedded.controllers.controller import KeysOf, ObjectController
from kgpu.lab.embedded.controllers.meta import created_at, deleting, key_of, status_of
from kgpu.lab.embedded.controllers.node_plan import ready_status
from kgpu.lab.embedded.controllers.pacing import take_turn
from kgpu.lab.embedded.controllers.pods import is_terminal, node_of
from kgpu.lab.embedded.controllers.tainteviction import with_disruption
from kgpu.lab.embedded.controllers.taints import OUT_OF_SERVICE, taints_of

THRESHOLD: Final = 12500  # ended pods that may stay
PERIOD: Final = 20.0  # seconds
QUARANTINE: Final = 40.0  # seconds
_AT_ONCE: Final = 500  # pods checked before other tasks have their turn


@dataclass(frozen=True, slots=True)
class Doomed:
    """A pod to remove, and why in its status ("" for no reason of its own)."""

    pod: Object
    message: str = ""


def doomed(
    pods: Iterable[Object], nodes: Mapping[str, Object], missing: Iterable[str], *, threshold: int = THRESHOLD
) -> list[Doomed]:
    """The pods to remove. ``missing``: nodes that are known to be gone."""
    chosen: list[Doomed] = []
    ended: list[Object] = []
    gone = frozenset(missing)
    for pod in pods:
        node = node_of(pod)
        if is_terminal(pod):
            ended.append(pod)
        if node in gone:
            chosen.append(Doomed(pod, "PodGC: node no longer exists"))
        elif deleting(pod):
            host = nodes.get(node)
            out = host is not None and any(taint.get("key") == OUT_OF_SERVICE for taint in taints_of(host))
            if not node or (host is not None and out and ready_status(host) != "True"):
                chosen.append(Doomed(pod))
    if threshold > 0 and len(ended) > threshold:
        ended.sort(key=lambda pod: (status_of(pod).get("reason") != "Evicted", created_at(pod), key_of(pod)[1]))
        chosen += [Doomed(pod) for pod in ended[: len(ended) - threshold]]
    return chosen


class PodGarbageCollector(ObjectController):
    name = "pod-garbage-collector-controller"
    workers = 1

    def __init__(self, cluster: ControllerContext, *, period: float = PERIOD, quarantine: float = QUARANTINE) -> None:
        """``period`` and ``quarantine`` in seconds."""
        super().__init__(cluster)
        self._period, self._quarantine = period, quarantine
        self._nodes = cluster.cache(NODES)
        self._pods = cluster.cache(PODS)
        self._missing: dict[str, dt.datetime] = {}
        self._reasons: dict[Key, Doomed] = {}

    def sources(self) -> Mapping[Resource, KeysOf]:
        return {NODES: lambda *_: (), PODS: lambda *_: ()}

    async def prepare(self, stack: contextlib.ExitStack) -> None:
        task = asyncio.create_task(self._tick(), name="pod-gc")
        stack.callback(task.cancel)

    async def _tick(self) -> None:
        while True:
            nodes = {key_of(node)[1]: node for node in self._nodes}
            now = self.cluster.now()
            absent: set[str] = set()
            worth: list[Object] = []  # of many pods, those that may be among the doomed
            for number, pod in enumerate(self._pods):
                node = node_of(pod)
                if node and node not in nodes:
                    absent.add(node)
                if node not in nodes or is_terminal(pod) or deleting(pod):
                    worth.append(pod)
                if number % _AT_ONCE == _AT_ONCE - 1:
                    await take_turn()
            self._missing = {name: self._missing.get(name, now) for name in absent}
            overdue = [name for name, at in self._missing.items() if (now - at).total_seconds() >= self._quarantine]
            gone = []
            for name in overdue:
                with contextlib.suppress(KubeError):  # unknown: the next round asks again
                    if await self.cluster.api.get(NODES, name) is None:
                        gone.append(name)
            self._reasons = {key_of(entry.pod): entry for entry in doomed(worth, nodes, gone)}
            for key in self._reasons:
                self.queue.add(key)
            await asyncio.sleep(self._period)

    async def sync(self, key: Key) -> None:
        entry = self._reasons.get(key)
        if entry is None:
            return
        try:
            if not is_terminal(entry.pod):
                status: Object = {"phase": "Failed"}
                if entry.message:
                    status["conditions"] = with_disruption(
                        entry.pod, "DeletionByPodGC", entry.message, self.cluster.now()
                    )
                await self.cluster.patch(PODS, key, {"status": status}, subresource="status")
            await self.cluster.delete(PODS, entry.pod, grace=0)
        except KubeRefusedError as refused:
            if refused.code not in (404, 409):
                raise
