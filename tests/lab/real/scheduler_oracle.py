"""The real kube-scheduler asked about random pods, one after another, and its answers beside those of ``kgpu.fit``.

Nodes are objects without a kubelet: created Ready, compared against within seconds, deleted before anybody misses their
leases. A pod that was refused is deleted, one that was bound stays for a while and is part of the next questions.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field

from kgpu.fit import ClusterSnapshot, ClusterView, FitVerdict, PodView, read, verdict
from kgpu.fit.cycle import Cycle
from kgpu.fit.model import Preemption
from kgpu.fit.preempt import _harm, victims_on
from kgpu.kube.port import NODES, PODS, Change, KubeApi, KubeRefusedError, Patch, Resource, WatchEvent, version_of
from tests.fit.generate import NAMESPACES, Generator, Object, backdrop

CORE = {
    "Namespace": Resource("", "v1", "namespaces", "Namespace", namespaced=False),
    "ServiceAccount": Resource("", "v1", "serviceaccounts", "ServiceAccount"),
    "PersistentVolume": Resource("", "v1", "persistentvolumes", "PersistentVolume", namespaced=False),
    "PersistentVolumeClaim": Resource("", "v1", "persistentvolumeclaims", "PersistentVolumeClaim"),
    "PriorityClass": Resource("scheduling.k8s.io", "v1", "priorityclasses", "PriorityClass", namespaced=False),
    "DeviceClass": Resource("resource.k8s.io", "v1", "deviceclasses", "DeviceClass", namespaced=False),
    "ResourceClaim": Resource("resource.k8s.io", "v1", "resourceclaims", "ResourceClaim"),
}
KEEP_OUT = {"key": "fit.example.com/keep-out", "effect": "NoSchedule"}
"""On nodes that are not the comparison's own."""
PATIENCE = 20.0  # seconds until an answer that is not the expected one counts
LIFETIME = 30.0  # seconds until no more is asked; after 50 the nodes are found dead, and tainted
KEPT = 0.35
"""The share of bound pods that stay and are in the next ones' way."""


@dataclass
class Story:
    """What a watch has said of one pod."""

    states: list[Object] = field(default_factory=list)
    deleted: bool = False

    @property
    def node(self) -> str:
        return next((found for state in self.states if (found := state["spec"].get("nodeName"))), "")

    @property
    def nominated(self) -> str:
        return next((name for state in self.states if (name := state["status"].get("nominatedNodeName"))), "")

    @property
    def messages(self) -> list[str]:
        return [
            condition.get("message", "")
            for state in self.states
            for condition in state["status"].get("conditions", ())
            if condition["type"] == "PodScheduled" and condition["status"] == "False"
        ]


@dataclass
class Disagreement:
    seed: int
    pod: Object
    expected: str
    seen: str

    def __str__(self) -> str:
        return f"round {self.seed}, pod {self.pod['metadata']['name']}:\n  fit:       {self.expected}\n  scheduler: {self.seen}"


@dataclass
class Tally:
    """What the comparison came to."""

    cases: int = 0
    kinds: Counter[str] = field(default_factory=Counter)
    phrases: Counter[str] = field(default_factory=Counter)
    disagreements: list[Disagreement] = field(default_factory=list)
    seconds: float = 0.0
    fit_seconds: float = 0.0

    def __str__(self) -> str:
        kinds = ", ".join(f"{count} {kind}" for kind, count in self.kinds.most_common())
        phrases = "\n".join(f"  {count:6} {phrase}" for phrase, count in self.phrases.most_common())
        return (
            f"{self.cases} cases in {self.seconds:.0f} s ({kinds}), fit {self.fit_seconds / max(self.cases, 1) * 1000:.2f} ms "
            f"each; {len(self.disagreements)} disagreements\n{phrases}"
        )


class Oracle:
    """One cluster's scheduler. Use ``open_oracle``."""

    def __init__(self, api: KubeApi) -> None:
        self.api = api
        self.stories: dict[str, Story] = {}
        self._news = asyncio.Condition()
        self.tally = Tally()
        self._foreign: list[tuple[str, list[Object]]] = []
        # The node lifecycle controller remembers names for a while: a name that comes again is soon found dead.
        self._run = f"n{int(time.time()):x}"

    async def follow(self) -> None:
        """Watch the pods until cancelled."""
        version = (await self.api.list(PODS)).resource_version
        while True:  # a watch ends after some minutes
            async for event in self.api.watch(PODS, version):
                version = version_of(event.object) or version
                await self._take(event)

    async def _take(self, event: WatchEvent) -> None:
        if event.change is Change.BOOKMARK:
            return
        story = self.stories.setdefault(event.object["metadata"]["uid"], Story())
        story.deleted = story.deleted or event.change is Change.DELETED
        story.states.append(event.object)
        async with self._news:
            self._news.notify_all()

    async def until(self, condition: Callable[[], bool], seconds: float = PATIENCE) -> bool:
        """True when it came true in time."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds), self._news:
                await self._news.wait_for(condition)
        return condition()

    async def prepare(self) -> None:
        for name, labels in NAMESPACES.items():
            await self._make({"kind": "Namespace", "metadata": {"name": name, "labels": labels}})
        for name in NAMESPACES:
            await self._eventually(lambda name=name: self.api.get(CORE["ServiceAccount"], "default", namespace=name))
        for obj in backdrop():
            await self._make(obj)
        for name in NAMESPACES:
            await self._eventually(lambda name=name: self._bound(name))
        for node in (await self.api.list(NODES)).items:
            taints = node["spec"].get("taints") or []
            self._foreign.append((node["metadata"]["name"], taints))
            change = {"spec": {"taints": [*taints, KEEP_OUT]}}
            await self.api.patch(NODES, node["metadata"]["name"], change)

    async def _make(self, obj: Object) -> None:
        with contextlib.suppress(KubeRefusedError):
            await self.api.create(CORE[obj["kind"]], obj)

    async def _bound(self, namespace: str) -> bool:
        claim = await self.api.get(CORE["PersistentVolumeClaim"], "fit-bound", namespace=namespace)
        return claim is not None and claim.get("status", {}).get("phase") == "Bound"

    async def _eventually(self, ask: Callable[[], object]) -> None:
        async with asyncio.timeout(60):
            while not await ask():  # type: ignore[misc]  # noqa: ASYNC110 - it is the API server that changes
                await asyncio.sleep(0.1)

    async def tidy(self) -> None:
        for name in NAMESPACES:
            await self.api.delete(CORE["Namespace"], name)
        for obj in backdrop():
            if not obj["metadata"].get("namespace"):
                await self.api.delete(CORE[obj["kind"]], obj["metadata"]["name"])
        for name, taints in self._foreign:
            await self.api.patch(NODES, name, {"spec": {"taints": taints or None}})

    async def state(self) -> ClusterSnapshot:
        """All that the scheduler can know."""
        objects: list[Object] = []
        for resource in (NODES, PODS, *(CORE[kind] for kind in CORE if kind != "ServiceAccount")):
            objects += (await self.api.list(resource)).items
        return ClusterSnapshot.of(ClusterView.of(objects))

    async def round(self, seed: int, cases: int) -> None:
        """New nodes with new pods on them, then one question after another."""
        started = time.monotonic()
        draw = Generator(random.Random(seed), prefix=f"{self._run}-{seed}")
        nodes = draw.nodes()
        for node in nodes:
            await self.api.create(NODES, node)
        for node in nodes:
            await self._eventually(lambda node=node: self._settled(node))
        placed = draw.pods_on(nodes)
        await asyncio.gather(*(self._place(pod, index) for index, pod in enumerate(placed)))
        snapshot = await self.state()
        names = [pod["metadata"] for pod in placed]
        try:
            await self._barrier(snapshot, draw)
            for number in range(cases):
                if time.monotonic() - started > LIFETIME:
                    break
                kept = await self.case(seed, draw.pod(), snapshot, keep=draw.chance(KEPT), age=number)
                if kept is not None:
                    names.append(kept)
        finally:
            await asyncio.gather(*(self._remove(PODS, one["name"], one["namespace"]) for one in names))
            await asyncio.gather(*(self._remove(NODES, node["metadata"]["name"]) for node in nodes))
        self.tally.seconds += time.monotonic() - started

    async def _remove(self, resource: Resource, name: str, namespace: str = "") -> None:
        await self.api.delete(resource, name, namespace=namespace, grace=0)

    async def _settled(self, wanted: Object) -> bool:
        """The node lifecycle controller has put on and taken off its own taints."""
        node = await self.api.get(NODES, wanted["metadata"]["name"])
        keys = {taint["key"] for taint in (node or {}).get("spec", {}).get("taints") or ()}
        cordoned = bool(wanted["spec"].get("unschedulable"))
        return ("node.kubernetes.io/unschedulable" in keys) == cordoned and "node.kubernetes.io/not-ready" not in keys

    async def _place(self, pod: Object, index: int) -> None:
        made = await self._pod(pod)
        if made is not None:
            await self._started(made["metadata"], index)

    async def _pod(self, pod: Object) -> Object | None:
        """None for one that the API server finds invalid: the draw is not that careful."""
        try:
            return await self.api.create(PODS, pod)
        except KubeRefusedError as refused:
            if refused.code != 422:
                raise
            self.tally.kinds["invalid"] += 1
            return None

    async def _started(self, metadata: Object, index: int) -> None:
        """A start of its own: among pods that have not started the scheduler's order is by chance."""
        change = {"status": {"startTime": f"2026-01-01T00:{index // 60 % 60:02d}:{index % 60:02d}Z"}}
        await self.api.patch(
            PODS, metadata["name"], change, namespace=metadata["namespace"], subresource="status", kind=Patch.STRATEGIC
        )

    async def _barrier(self, snapshot: ClusterSnapshot, draw: Generator) -> None:
        """Until the scheduler has seen every node as it is: it is asked again after each change of one."""
        pod = {
            "metadata": {"name": f"{draw.prefix}-barrier", "namespace": "fit-c"},
            "spec": {
                "containers": [
                    {"name": "c", "image": "registry.invalid/none", "resources": {"limits": {"nvidia.com/gpu": 1000}}}
                ],
            },
        }
        made = await self.api.create(PODS, pod)
        found = verdict(_view(made), snapshot)
        uid = made["metadata"]["uid"]
        seen = await self.until(lambda: found.message in self.stories.get(uid, Story()).messages, 30)
        assert seen, f"barrier: expected {found.message}, saw {self.stories[uid].messages}"
        await self.api.delete(PODS, pod["metadata"]["name"], namespace="fit-c", grace=0)

    async def case(self, seed: int, pod: Object, snapshot: ClusterSnapshot, *, keep: bool, age: int) -> Object | None:
        """One question. The snapshot follows what it leads to; the metadata of a pod that stays is returned."""
        made = await self._pod(pod)
        if made is None:
            return None
        view = _view(made)
        before = time.perf_counter()
        found = verdict(view, snapshot)
        self.tally.fit_seconds += time.perf_counter() - before
        story = self.stories.setdefault(view.uid, Story())
        seen = await self._compare(seed, made, found, story, snapshot)
        self.tally.cases += 1
        self.tally.phrases.update(found.counts.keys())
        if seen is not None:
            self.tally.disagreements.append(Disagreement(seed, made, _tell(found), seen))
        metadata = made["metadata"]
        if keep and story.node:
            await self._started(metadata, 600 + age)
            current = await self.api.get(PODS, metadata["name"], namespace=metadata["namespace"])
            if current is not None:
                snapshot.put(_view(current))
                return dict(metadata)
        await self.api.delete(PODS, metadata["name"], namespace=metadata["namespace"], grace=0)
        return None

    async def _compare(
        self, seed: int, pod: Object, found: FitVerdict, story: Story, snapshot: ClusterSnapshot
    ) -> str | None:
        """None for agreement, else what the scheduler did."""
        if found.fits:
            self.tally.kinds["fit"] += 1
            agreed = await self.until(lambda: bool(story.node)) and story.node in found.fits
        elif found.preemption is not None:
            self.tally.kinds["preempt"] += 1
            agreed = await self.until(lambda: bool(story.nominated)) and found.message in story.messages
            agreed = agreed and await self._preempted(found, story, snapshot)
        elif found.gate and not found.message:
            self.tally.kinds["not tried"] += 1
            return None
        else:
            self.tally.kinds["gated" if found.gate else "rejected" if found.rejection else "no fit"] += 1
            agreed = await self.until(lambda: found.message in story.messages)
        if agreed:
            return None
        return f"node {story.node!r}, nominated {story.nominated!r}, {story.messages}"

    async def _preempted(self, found: FitVerdict, story: Story, snapshot: ClusterSnapshot) -> bool:
        """The scheduler's choice is one of the best, and its victims are ours for that node."""
        node = snapshot.nodes[story.nominated]
        ours = victims_on(Cycle(found.pod, snapshot), node, ())
        if not isinstance(ours, Preemption) or found.preemption is None:
            return False
        # It may take minutes until the pod is tried again, as not every removal wakes it: its victims are what counts.
        done = await self.until(lambda: all(self.stories[pod.id].deleted for pod in ours.victims))
        if not story.node and not await self.until(lambda: bool(story.node), 2):
            self.tally.kinds["preempted, and not bound at once"] += 1
        there = list(node.pods.values())
        gone = {pod.id for pod in there if self.stories[pod.id].deleted}
        for pod in there:
            if pod.id in gone:
                snapshot.drop(pod)
        same = gone == {pod.id for pod in ours.victims}
        if not same:
            story.states[-1].setdefault("status", {}).setdefault("conditions", []).append(
                {
                    "type": "PodScheduled",
                    "status": "False",
                    "message": f"victims: {gone} instead of {[v.id for v in ours.victims]}",
                }
            )
        return done and same and _harm(ours)[:4] == _harm(found.preemption)[:4]


def _view(obj: Object) -> PodView:
    view = read.pod(obj)
    assert view is not None
    return view


def _tell(found: FitVerdict) -> str:
    if found.fits:
        return f"fits {', '.join(found.fits)}"
    return f"{found.message}{f' and preemption on {found.preemption.node}' if found.preemption else ''}"


@contextlib.asynccontextmanager
async def open_oracle(api: KubeApi) -> AsyncIterator[Oracle]:
    """An oracle that is ready, and leaves nothing behind."""
    oracle = Oracle(api)
    following = asyncio.create_task(oracle.follow())
    try:
        await oracle.prepare()
        yield oracle
    finally:
        following.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await following
        await oracle.tidy()
