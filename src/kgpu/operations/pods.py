"""The pods of nodes that are being emptied, followed only during the drain, and the answers to their evictions."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from typing import Final

from kgpu.base.clock import Clock
from kgpu.base.errors import KubeError
from kgpu.base.service import end
from kgpu.kube.informer import Informer, Scope
from kgpu.kube.kinds import DAEMON_SETS
from kgpu.kube.leader_election import LostLeadError
from kgpu.kube.port import PODS, KubeApi, KubeRefusedError, Object, Selector
from kgpu.operations.drain import Evicted
from kgpu.operations.model import Answer, NodePod, TargetNode, read_pod

LOOK_EVERY: Final = 0.5
LOOK_AGAIN: Final = 60.0
"""Seconds after which a DaemonSet is looked up again."""


@dataclass(slots=True)
class _DrainedNode:
    """A node that is being emptied."""

    informer: Informer
    task: asyncio.Task[None]
    answers: dict[str, Answer] = field(default_factory=dict)


class DrainedPods:
    """Follow nodes with ``follow``; ``news`` is set when something has changed on one of them."""

    def __init__(self, api: KubeApi, news: asyncio.Event, *, clock: Clock, own_pod: tuple[str, str] = ("", "")) -> None:
        self._api = api
        self._news = news
        self._clock = clock
        self._own_pod = own_pod
        self._nodes: dict[str, _DrainedNode] = {}
        self._daemon_sets: dict[tuple[str, str], bool] = {}
        self._looked: dict[tuple[str, str], float] = {}

    async def follow(self, nodes: Collection[str]) -> None:
        """Follow the pods of these nodes, and of no others."""
        for name in [known for known in self._nodes if known not in nodes]:
            await end(self._nodes.pop(name).task)
        for name in nodes:
            if name not in self._nodes:
                self._nodes[name] = self._start(name)

    async def close(self) -> None:
        """Follow none."""
        await self.follow(())

    def on(self, name: str) -> tuple[NodePod, ...] | None:
        """The pods on a node, None while they have not been read."""
        node = self._nodes.get(name)
        if node is None or not node.informer.synced.is_set():
            return None
        return tuple(obj["value"] for obj in node.informer.objects.values())

    def evicted(self, target: TargetNode) -> Evicted:
        """What is known besides the pods of a node that is being emptied."""
        node = self._nodes.get(target.name)
        if node is None:
            return Evicted(own_pod=self._own_pod)
        return Evicted(
            answers=node.answers, daemon_sets=self._daemon_sets, cordoned_at=target.held_at, own_pod=self._own_pod
        )

    def answer(self, name: str, pod: NodePod) -> Answer | None:
        """The answer to the last eviction of a pod, None without one."""
        node = self._nodes.get(name)
        return None if node is None else node.answers.get(pod.uid)

    def answered(self, name: str, pod: NodePod, answer: Answer | None) -> None:
        """Remember the answer to an eviction; None if it was granted."""
        node = self._nodes.get(name)
        if node is None:
            return
        if answer is not None:
            node.answers[pod.uid] = answer
        else:
            node.answers.pop(pod.uid, None)

    async def look_for_daemon_sets(self) -> None:
        """Look up which DaemonSets of the followed pods exist, each again after ``LOOK_AGAIN``, until cancelled."""
        while True:
            await self._clock.sleep(LOOK_EVERY)
            wanted = {name for node in self._nodes for name in _daemon_sets(self.on(node) or ())}
            now = self._clock.monotonic()
            for name in sorted(wanted):
                if now - self._looked.get(name, -LOOK_AGAIN) >= LOOK_AGAIN:
                    await self._look_for(name)
            for name in self._looked.keys() - wanted:
                del self._looked[name]
                self._daemon_sets.pop(name, None)

    async def _look_for(self, name: tuple[str, str]) -> None:
        """Look up one. Without the right to read it, it counts as existing; without an answer, nothing changes."""
        try:
            there = await self._api.get(DAEMON_SETS, name[1], namespace=name[0]) is not None
        except LostLeadError:
            raise
        except KubeRefusedError:
            there = True
        except KubeError:
            return
        self._looked[name] = self._clock.monotonic()
        if self._daemon_sets.get(name) is not there:
            self._daemon_sets[name] = there
            self._news.set()

    def _start(self, name: str) -> _DrainedNode:
        selector = Selector(fields=(("spec.nodeName", name),))
        informer = Informer(self._api, Scope(PODS, selector=selector), clock=self._clock, project=_pod)
        return _DrainedNode(informer, asyncio.create_task(self._follow(informer), name=f"pods of {name}"))

    async def _follow(self, informer: Informer) -> None:
        task = asyncio.create_task(informer.run())
        try:
            revision = informer.revision
            while True:
                revision = await informer.changed(revision)
                self._news.set()
        finally:
            await end(task)


def _pod(obj: Object) -> Object:
    pod = read_pod(obj)
    version = obj["metadata"].get("resourceVersion")
    return {"metadata": {"namespace": pod.namespace, "name": pod.name, "resourceVersion": version}, "value": pod}


def _daemon_sets(pods: Iterable[NodePod]) -> set[tuple[str, str]]:
    return {(pod.namespace, pod.owner[1]) for pod in pods if pod.owner[0] == "DaemonSet"}
