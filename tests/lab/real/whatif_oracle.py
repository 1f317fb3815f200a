"""Random questions of ``kgpu whatif`` played on a real control plane: the change is made, and kube-scheduler places.

Where several nodes would do, the scheduler chooses by points and dice. What is compared is everything else: with its
choices, ``kgpu.placement`` lands the same pods on the same nodes, and says of the others what the scheduler says. How
often the same pods land without being told its choices is counted.
"""

from __future__ import annotations

import asyncio
import copy
import random
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from kgpu.fit import ClusterSnapshot, PodView
from kgpu.kube.port import NODES, PODS, KubeRefusedError, Patch, Resource
from kgpu.placement.answer import answer
from kgpu.placement.model import PodOutcome
from kgpu.placement.question import WhatIfQuestion
from tests.fit.generate import GPU, HOST, NAMESPACES, PRODUCT, Generator, Object
from tests.lab.real.scheduler_oracle import CORE, Oracle, Story

CONFIG_MAPS = Resource("", "v1", "configmaps", "ConfigMap")
OWNER = "kube-root-ca.crt"
"""What owns the pods that are there: one that exists, else the garbage collector takes them."""
CUT = "NVIDIA-A100-SXM4-80GB"
AGAIN = 8.0  # seconds after which the scheduler has tried those again that wait for others, where it does at all
PodKey = tuple[str, str]
_KEPT = {"operator": "Exists", "effect": "NoExecute"}


@dataclass
class WhatIfTally:
    cases: int = 0
    pods: int = 0
    landed: int = 0
    alone: int = 0
    """Cases in which the same pods land without the scheduler's choices."""
    kinds: Counter[str] = field(default_factory=Counter)
    disagreements: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        kinds = ", ".join(f"{count} {kind}" for kind, count in sorted(self.kinds.items()))
        return (
            f"{self.cases} cases ({kinds}), {self.pods} pods, {self.landed} of them land; in {self.alone} cases the same"
            f" pods land by kgpu's own points; {len(self.disagreements)} disagreements"
        )


@dataclass
class WhatIfCase:
    """One cluster with one question, drawn by a seed."""

    seed: int
    prefix: str
    owners: dict[str, str]
    """The uid of what owns pods, by namespace."""

    def __post_init__(self) -> None:
        self.draw = Generator(random.Random(self.seed), prefix=self.prefix)
        self.nodes = [self.draw.node(f"{self.prefix}-{at}") for at in range(self.draw.random.randint(2, 5))]
        self.placed = [self._owned(one) for one in self.draw.pods_on(self.nodes)]
        self.new = [self._plain(self.draw.pod()) for _ in range(self.draw.random.randint(1, 5))]
        names = [node["metadata"]["name"] for node in self.nodes]
        pick = self.draw.random.choice
        self.drain = (pick(names),) if self.draw.chance(0.6) else ()
        self.add = (f"{pick(names)}={self.draw.random.randint(1, 2)}",) if self.draw.chance(0.5) else ()
        left = [node for node in self.nodes if node["metadata"]["name"] not in self.drain and _gpus(node)]
        changed = pick(left) if left and self.draw.chance(0.4) else None
        name = changed["metadata"]["name"] if changed else ""
        cuts = changed is not None and changed["metadata"]["labels"].get(PRODUCT) == CUT and self.draw.chance(0.5)
        self.mig = (f"{name}=all-2g.20gb",) if cuts else ()
        self.replicas = (f"{name}={self.draw.random.randint(2, 4)}",) if changed and not cuts else ()

    def _owned(self, pod: Object) -> Object:
        self._plain(pod)
        pod["spec"]["tolerations"] = [_KEPT]
        space = pod["metadata"]["namespace"]
        owner = {"apiVersion": "v1", "kind": "ConfigMap", "name": OWNER, "uid": self.owners[space], "controller": True}
        pod["metadata"]["ownerReferences"] = [owner]
        return pod

    @staticmethod
    def _plain(pod: Object) -> Object:
        """Without priorities: who preempts whom is compared by ``scheduler_oracle``."""
        for name in ("priorityClassName", "schedulingGates"):
            pod["spec"].pop(name, None)
        return pod

    @property
    def kinds(self) -> list[str]:
        rows = (("drain", self.drain), ("add", self.add), ("mig", self.mig), ("replicas", self.replicas))
        return [kind for kind, words in rows if words] or ["submit alone"]

    def question(self, manifests: Sequence[Object]) -> WhatIfQuestion:
        return WhatIfQuestion(
            add_nodes=self.add, drain=self.drain, mig=self.mig, replicas=self.replicas, manifests=tuple(manifests)
        )

    def added(self) -> list[Object]:
        """The nodes that come, as whoever runs the cluster would make them: like the other one, but well."""
        found: list[Object] = []
        for words in self.add:
            name, _, count = words.partition("=")
            model = next(node for node in self.nodes if node["metadata"]["name"] == name)
            for number in range(int(count)):
                node = copy.deepcopy(model)
                own = f"{name}-new-{number + 1}"
                node["metadata"] |= {"name": own, "labels": {**node["metadata"]["labels"], HOST: own}}
                node["spec"].pop("unschedulable", None)
                whole = {key: value for key, value in node["status"]["capacity"].items() if "/" in key}
                node["status"]["allocatable"] |= whole
                found.append(node)
        return found

    def offers(self) -> tuple[str, dict[str, Any], dict[str, str]] | None:
        """A node with what it offers after the change, None for what it no longer has, and its labels."""
        words = (*self.mig, *self.replicas)
        if not words:
            return None
        name, _, how = words[0].partition("=")
        node = next(one for one in self.nodes if one["metadata"]["name"] == name)
        product = node["metadata"]["labels"].get(PRODUCT)
        had = {key: int(value) for key, value in node["status"]["allocatable"].items() if key.startswith("nvidia.com/")}
        if self.mig:
            slices = 3 * int(node["status"]["capacity"][GPU])
            return name, {**dict.fromkeys(had), GPU: str(slices)}, {PRODUCT: f"{product}-MIG-2g.20gb"}
        labels = {f"{key}.replicas": how for key, many in had.items() if many}
        labels |= {PRODUCT: f"{product}-SHARED"} if product else {}
        return name, {key: str(many * int(how)) if many else None for key, many in had.items()}, labels


def _gpus(node: Object) -> int:
    return int(node["status"]["allocatable"].get(GPU, 0))


class WhatIfOracle:
    """Cases one after another on the cluster of an ``Oracle``."""

    def __init__(self, oracle: Oracle) -> None:
        self.oracle, self.api, self.tally = oracle, oracle.api, WhatIfTally()
        self._owners: dict[str, str] = {}

    async def prepare(self) -> None:
        for name in NAMESPACES:
            found = await self._there(name)
            self._owners[name] = found["metadata"]["uid"]

    async def _there(self, namespace: str) -> Object:
        await self.oracle._eventually(lambda: self.api.get(CONFIG_MAPS, OWNER, namespace=namespace))
        found = await self.api.get(CONFIG_MAPS, OWNER, namespace=namespace)
        assert found is not None
        return found

    async def case(self, seed: int) -> None:
        case = WhatIfCase(seed, f"{self.oracle._run}-w{seed}", self._owners)
        made: list[Object] = []
        for node in case.nodes:
            await self.api.create(NODES, node)
        try:
            for node in case.nodes:
                await self.oracle._eventually(lambda node=node: self.oracle._settled(node))
            made += [one for one in [await self.oracle._pod(pod) for pod in case.placed] if one is not None]
            await self._compare(case, made)
        finally:
            names = {(one["metadata"]["name"], one["metadata"]["namespace"]) for one in (*made, *case.new)}
            await asyncio.gather(*(self.oracle._remove(PODS, name, space) for name, space in names))
            nodes = [*case.nodes, *case.added()]
            await asyncio.gather(*(self.oracle._remove(NODES, node["metadata"]["name"]) for node in nodes))

    async def _compare(self, case: WhatIfCase, made: list[Object]) -> None:
        objects = await self._objects()
        valid = [pod for pod in case.new if await self._valid(pod)]
        asked = case.question(valid)
        alone = answer(asked, objects)
        manifests = {_key(pod): pod for pod in (*case.placed, *valid)}
        await self._change(case, [one.pod.key for one in alone.outcomes if one.came_from], made)
        await self.oracle._barrier(await self.oracle.state(), case.draw)
        seen: dict[PodKey, Story] = {}

        def choose(pod: PodView, names: Sequence[str], _: ClusterSnapshot) -> str:
            told = seen[pod.key].node
            return told if told in names else "" if told else names[0]

        for one in alone.outcomes:
            seen[one.pod.key] = await self._placed(manifests[one.pod.key])
        try:
            following = await self._followed(lambda: answer(asked, objects, choose=choose).outcomes, seen, manifests)
        except KeyError as wrong:  # a node that the pod does not fit, by kgpu
            told = {name: story.node for (_, name), story in seen.items()}
            self.tally.disagreements.append(f"seed {case.seed}: {wrong}: {told}")
            following = ()
        landed = {key for key, story in seen.items() if story.node}
        self.tally.alone += {one.pod.key for one in alone.outcomes if one.node} == landed
        for one in following:
            story = seen[one.pod.key]
            agreed = one.node == story.node and (bool(one.node) or one.message in story.messages)
            if not agreed:
                self.tally.disagreements.append(
                    f"seed {case.seed} {asked.drain, asked.add_nodes, asked.mig, asked.replicas} {one.pod}: "
                    f"what-if {one.node or one.message!r}, scheduler {story.node or story.messages}"
                )
        self.tally.cases += 1
        self.tally.kinds.update(case.kinds)
        self.tally.pods += len(following)
        self.tally.landed += sum(bool(one.node) for one in following)

    async def _followed(
        self, ask: Callable[[], tuple[PodOutcome, ...]], seen: dict[PodKey, Story], manifests: Mapping[PodKey, Object]
    ) -> tuple[PodOutcome, ...]:
        """The answer, once the scheduler has tried those again that wait for others: a second after it refused them.

        Where the affinity is by a namespaceSelector, it does not see that a pod has come which helps, and tries after
        five minutes: here the pod is made anew instead, once.
        """
        anew: set[PodKey] = set()
        while True:
            found = ask()
            late = [one.pod.key for one in found if one.node and not seen[one.pod.key].node]
            stories = [seen[key] for key in late]
            if not late:
                return found
            if not await self.oracle.until(lambda stories=stories: any(story.node for story in stories), AGAIN):
                if late[0] in anew:
                    return found
                anew.add(late[0])
                await self.oracle._remove(PODS, late[0][1], late[0][0])
                seen[late[0]] = await self._placed(manifests[late[0]])

    async def _objects(self) -> list[Object]:
        found: list[Object] = []
        for resource in (NODES, PODS, *(CORE[kind] for kind in CORE if kind != "ServiceAccount")):
            rows = (await self.api.list(resource)).items
            found += [{**row, "kind": resource.kind} for row in rows]
        return found

    async def _valid(self, pod: Object) -> bool:
        """Whether the API server takes it: the draw is not that careful."""
        try:
            probe = copy.deepcopy(pod)
            probe["metadata"]["name"] += "-probe"
            probe["spec"]["schedulingGates"] = [{"name": "example.com/probe"}]
            await self.api.create(PODS, probe)
        except KubeRefusedError as refused:
            if refused.code != 422:
                raise
            return False
        await self.oracle._remove(PODS, probe["metadata"]["name"], pod["metadata"]["namespace"])
        return True

    async def _change(self, case: WhatIfCase, moved: list[tuple[str, str]], made: list[Object]) -> None:
        """Make the change: nodes come, one is cordoned, what another offers changes, and pods leave them."""
        for node in case.added():
            await self.api.create(NODES, node)
        for name in case.drain:
            await self.api.patch(NODES, name, {"spec": {"unschedulable": True}})
        offers = case.offers()
        if offers is not None:
            name, amounts, labels = offers
            await self.api.patch(NODES, name, {"metadata": {"labels": labels}})
            change = {"status": {"allocatable": amounts, "capacity": amounts}}
            await self.api.patch(NODES, name, change, subresource="status", kind=Patch.STRATEGIC)
        await asyncio.gather(*(self.oracle._remove(PODS, name, space) for space, name in moved))
        for node in (*case.nodes, *case.added()):
            name = node["metadata"]["name"]
            cordoned = bool(node["spec"].get("unschedulable")) or name in case.drain
            wanted = {"metadata": {"name": name}, "spec": {"unschedulable": cordoned}}
            await self.oracle._eventually(lambda wanted=wanted: self.oracle._settled(wanted))

    async def _placed(self, manifest: Object) -> Story:
        """The pod is made, and the scheduler has said something of it."""
        pod = copy.deepcopy(manifest)
        pod["spec"].pop("nodeName", None)
        made = await self.api.create(PODS, pod)
        story = self.oracle.stories.setdefault(made["metadata"]["uid"], Story())
        await self.oracle.until(lambda: bool(story.node) or bool(story.messages), 30)
        return story


def _key(pod: Object) -> PodKey:
    return pod["metadata"]["namespace"], pod["metadata"]["name"]
