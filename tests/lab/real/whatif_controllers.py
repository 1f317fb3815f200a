"""Random questions of ``kgpu whatif`` about what controllers and admission do, played on those of a real control plane.

Workloads get another number of pods, nodes are drained while quotas are full, StatefulSets get volumes, and pods meet
quotas of processors and memory. Compared is which pods go (as far as the controllers don't decide by ages of one order
of magnitude), how many are there and land afterwards, and which pods are refused.
"""

from __future__ import annotations

import datetime as dt
import random
from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from typing import Any

from kgpu.fit import PodView
from kgpu.kube.port import NODES, PODS, KubeRefusedError, Patch, Resource
from kgpu.placement import scaling, workloads
from kgpu.placement.answer import answer
from kgpu.placement.model import Origin, ScaleWorkload, WhatIfAnswer
from kgpu.placement.question import WhatIfQuestion
from kgpu.placement.scaling import DELETION_COST
from kgpu.placement.state import PlacementState
from tests.lab.real.whatif_edits import (
    CLAIMS,
    CLASSES,
    GPU,
    KEY,
    LOCAL,
    QUOTAS,
    READS,
    SPACE,
    VOLUMES,
    EditsCase,
    Object,
    WhatIfEdits,
)

SETS = {
    "ReplicaSet": Resource("apps", "v1", "replicasets", "ReplicaSet"),
    "StatefulSet": Resource("apps", "v1", "statefulsets", "StatefulSet"),
}
AT_ONCE: Object = {**LOCAL, "metadata": {"name": "at-once"}, "volumeBindingMode": "Immediate"}
KINDS = ("scale", "scale", "drain", "volumes", "admission", "admission")
PASSING = ("waiting for ephemeral volume controller", "is being deleted")
SIZES = {"cpu": ("500m", "1", "2"), "memory": ("512Mi", "1Gi", "2Gi")}
LIMITED = ("cpu", "memory", "requests.cpu", "requests.memory", "limits.cpu", "limits.memory", "pods", KEY)


class ControllerCase(EditsCase):
    """One cluster with one question, drawn by a seed."""

    def __post_init__(self) -> None:
        draw = self.draw = random.Random(f"controllers {self.seed}")
        self.prefix = f"k{self.seed}"
        self.size = draw.choice((1, 2))
        self.kind = draw.choice(KINDS)
        self.nodes = [self._node(at, self.size * draw.randint(0, 3)) for at in range(draw.randint(2, 4))]
        self.owner = "StatefulSet" if self.kind == "volumes" else draw.choice(tuple(SETS))
        self.replicas = draw.randint(1, 6)
        self.after = draw.randint(0, 7)
        self.limit = self.size * draw.randint(0, 2) if draw.random() < 0.4 else self.size * self.replicas
        self.drained = draw.choice(self.nodes)["metadata"]["name"]
        self.ephemeral = self.kind == "drain" and draw.random() < 0.4
        self.volumes = []
        self.storage = AT_ONCE if self.kind == "volumes" and self.seed % 3 == 0 else LOCAL
        if self.kind == "volumes" or self.ephemeral:
            hosts = [draw.choice(self.nodes)["metadata"]["name"] for _ in range(draw.randint(0, 8))]
            if self.storage is AT_ONCE:  # all on one node: which of them a claim gets is by chance
                hosts = hosts[:1] * len(hosts)
            self.volumes = [self._volume(at, host) for at, host in enumerate(hosts)]
        self.hard = {
            key: f"{draw.randint(0, 3)}{'Gi' if 'memory' in key else ''}"
            for key in draw.sample(LIMITED, draw.randint(1, 3))
        }
        self.pods = [self._varied(f"{self.prefix}-p{at}") for at in range(draw.randint(1, 5))]

    def _volume(self, at: int, host: str) -> Object:
        term = {"matchExpressions": [{"key": "kubernetes.io/hostname", "operator": "In", "values": [host]}]}
        spec = {
            "capacity": {"storage": "1Gi"}, "accessModes": ["ReadWriteOnce"], "storageClassName": self.storage["metadata"]["name"],
            "local": {"path": "/tmp"}, "persistentVolumeReclaimPolicy": "Retain",
            "nodeAffinity": {"required": {"nodeSelectorTerms": [term]}},
        }  # fmt: skip
        return {
            "apiVersion": "v1",
            "kind": "PersistentVolume",
            "metadata": {"name": f"{self.prefix}-v{at}"},
            "spec": spec,
        }

    def _varied(self, name: str) -> Object:
        """A pod that says of processors and memory more or less."""
        pod, draw = self._pod(name), self.draw

        def amounts() -> Object:
            return {key: draw.choice(sizes) for key, sizes in SIZES.items() if draw.random() < 0.75}

        def container(at: int) -> Object:
            requests, limits = amounts(), amounts()
            for key in requests.keys() & limits.keys():
                requests[key] = limits[key]
            if draw.random() < 0.4:
                limits[GPU] = str(draw.randint(1, 2))
            return {"name": f"c{at}", "image": "i", "resources": {"requests": requests, "limits": limits}}

        pod["spec"]["containers"] = [container(at) for at in range(draw.choice((1, 1, 2)))]
        if draw.random() < 0.3:
            first = container(9)
            first |= {"restartPolicy": "Always"} if draw.random() < 0.5 else {}
            pod["spec"]["initContainers"] = [first]
        if draw.random() < 0.1:
            pod["spec"]["resources"] = {"requests": {"cpu": "4", "memory": "4Gi"}}
        return pod

    def workload(self) -> Object:
        template = self._pod("x")
        del template["metadata"]["name"], template["metadata"]["namespace"], template["kind"], template["apiVersion"]
        template["metadata"]["labels"] = {"app": self.prefix}
        claim = {"accessModes": ["ReadWriteOnce"], "storageClassName": self.storage["metadata"]["name"],
                 "resources": {"requests": {"storage": "1Gi"}}}  # fmt: skip
        if self.ephemeral:
            template["spec"]["volumes"] = [{"name": "data", "ephemeral": {"volumeClaimTemplate": {"spec": claim}}}]
        spec: Object = {
            "replicas": self.replicas, "selector": {"matchLabels": {"app": self.prefix}}, "template": template,
        }  # fmt: skip
        if self.owner == "StatefulSet":
            spec |= {"serviceName": self.prefix, "podManagementPolicy": "Parallel"}
        if self.kind == "volumes":
            spec["volumeClaimTemplates"] = [{"metadata": {"name": "data"}, "spec": claim}]
        return {"apiVersion": "apps/v1", "kind": self.owner, "spec": spec,
                "metadata": {"name": self.prefix, "namespace": SPACE}}  # fmt: skip


class WhatIfControllers(WhatIfEdits):
    """Cases one after another."""

    async def prepare(self) -> None:
        await super().prepare()
        await self.api.create(CLASSES, AT_ONCE)

    async def case(self, seed: int) -> None:
        case = ControllerCase(seed)
        self.told = f"seed {seed} {case.kind} {case.owner}"
        self.made: list[tuple[Resource, Object]] = []
        try:
            for node in case.nodes:
                await self._make(NODES, node)
                await self._until(lambda node=node: self._untainted(node["metadata"]["name"]))
            for volume in case.volumes:
                await self._make(VOLUMES, volume)
                await self._until(lambda volume=volume: self._is_phase(VOLUMES, volume, "Available"))
            play = {"admission": self._admission, "drain": self._drain}.get(case.kind, self._scale)
            await play(case)
            self.tally.cases += 1
            self.tally.kinds[case.kind] += 1
        finally:
            await self._tidy(case)

    async def _make(self, resource: Resource, obj: Object) -> None:
        self.made.append((resource, obj))
        await self.api.create(resource, obj)

    async def _tidy(self, case: ControllerCase) -> None:
        for owner in SETS.values():
            await self._gone(owner, case.prefix, SPACE)
        for resource in (PODS, CLAIMS):
            for obj in await self._own(case, resource):
                await self._gone(resource, obj["metadata"]["name"], SPACE)
        for resource, obj in reversed(self.made):
            await self._gone(resource, obj["metadata"]["name"], obj["metadata"].get("namespace", ""))

    async def _own(self, case: ControllerCase, resource: Resource = PODS) -> list[Object]:
        rows = (await self.api.list(resource, namespace=SPACE)).items
        return [row for row in rows if f"{case.prefix}-" in row["metadata"]["name"]]

    async def _ask(self, **question: Any) -> WhatIfAnswer:
        objects: list[Object] = []
        for resource in (*READS, *SETS.values()):
            rows = (await self.api.list(resource)).items
            objects += [{"apiVersion": resource.api_version, **row, "kind": resource.kind} for row in rows]
        return answer(WhatIfQuestion(namespace=SPACE, **question), objects)

    def _compare_counts(self, what: str, real: object, ours: object) -> None:
        if real != ours:
            self.tally.disagreements.append(f"{self.told}: {what}: real {real}, what-if {ours}")

    # What is played

    async def _started(self, case: ControllerCase) -> None:
        """The workload's pods are there, and the scheduler has said something of each."""
        await self._make(SETS[case.owner], case.workload())
        await self._until(lambda: self._rest(case, case.replicas))
        if case.storage is AT_ONCE and case.volumes:
            await self._until(lambda: self._bound_at_once(case))

    async def _bound_at_once(self, case: ControllerCase) -> bool:
        """Whether as many of the claims have volumes, and of their pods nodes, as can have."""
        bound = [claim for claim in await self._own(case, CLAIMS) if claim["status"].get("phase") == "Bound"]
        host = case.volumes[0]["spec"]["nodeAffinity"]["required"]["nodeSelectorTerms"][0]["matchExpressions"][0]
        gpus = next(node["status"]["allocatable"].get(GPU, 0) for node in case.nodes
                    if node["metadata"]["name"] == host["values"][0])  # fmt: skip
        lands = sum(bool(pod["spec"].get("nodeName")) for pod in await self._own(case))
        wanted = min(case.replicas, len(case.volumes))
        return len(bound) == wanted and lands == min(wanted, int(gpus) // case.size)

    async def _rest(self, case: ControllerCase, count: int) -> bool:
        pods = await self._own(case)
        return len(pods) == count and all(_said(pod) for pod in pods)

    async def _scale(self, case: ControllerCase) -> None:
        await self._started(case)
        if case.kind == "scale":
            await self._age(case)
        before = {pod["metadata"]["name"]: pod for pod in await self._own(case)}
        found = await self._ask(scale=(f"{SPACE}/{case.owner}/{case.prefix}={case.after}",))
        await self.api.patch(SETS[case.owner], case.prefix, {"spec": {"replicas": case.after}}, namespace=SPACE,
                             kind=Patch.MERGE)  # fmt: skip
        await self._compare_all(case, found, case.after)
        if case.kind == "scale":
            there = {pod["metadata"]["name"] for pod in await self._own(case)}
            went = [row for name, row in before.items() if name not in there]
            told = [before[pod.name] for pod in await self._ending(case, before.values())]
            self._compare_counts("end", _classes(went, before.values()), _classes(told, before.values()))

    async def _ending(self, case: ControllerCase, pods: Iterable[Object]) -> list[PodView]:
        state = PlacementState([*({**pod, "kind": "Pod"} for pod in pods), {**case.workload(), "kind": case.owner}])
        change = ScaleWorkload(namespace=SPACE, kind=case.owner, name=case.prefix, replicas=case.after)
        return scaling.ending(state, workloads.pods_of_workload(state, SPACE, case.owner, case.prefix), change)

    async def _age(self, case: ControllerCase) -> None:
        """Some run, are ready for a minute or a day, or are cheap; and the controller has seen who is ready, which is
        written last.
        """
        now = dt.datetime.now(dt.UTC)
        ready: list[tuple[str, Object]] = []
        for pod in await self._own(case):
            name = pod["metadata"]["name"]
            if case.draw.random() < 0.3:
                cost = {"metadata": {"annotations": {DELETION_COST: case.draw.choice(("-5", "7"))}}}
                await self.api.patch(PODS, name, cost, namespace=SPACE, kind=Patch.MERGE)
            if not pod["spec"].get("nodeName") or case.draw.random() < 0.4:
                continue
            await self._say(name, {"phase": "Running"})
            since = (now - dt.timedelta(seconds=case.draw.choice((60, 86400)))).strftime("%Y-%m-%dT%H:%M:%SZ")
            if case.draw.random() < 0.7:
                ready.append((name, {"type": "Ready", "status": "True", "lastTransitionTime": since}))
        for name, condition in ready:
            await self._say(name, {"conditions": [condition]})

        async def seen() -> bool:
            found = await self.api.get(SETS[case.owner], case.prefix, namespace=SPACE)
            return found is not None and found["status"].get("readyReplicas", 0) == len(ready)

        await self._until(seen)

    async def _say(self, name: str, status: Object) -> None:
        await self.api.patch(
            PODS, name, {"status": status}, namespace=SPACE, subresource="status", kind=Patch.STRATEGIC
        )

    async def _drain(self, case: ControllerCase) -> None:
        hard = {"hard": {KEY: str(case.size * case.replicas)}}
        await self._make(QUOTAS, {"metadata": {"name": case.prefix, "namespace": SPACE}, "spec": hard})
        await self._until(lambda: self._limits(case.prefix, case.size * case.replicas))
        await self._until(lambda: self._refuses_beyond(case, case.size * case.replicas))
        await self._started(case)
        quota = ((f"{SPACE}/{case.prefix}", f"{KEY}={case.limit}"),)
        found = await self._ask(drain=(case.drained,), quota=quota)
        change = {"spec": {"hard": {KEY: str(case.limit)}}}
        await self.api.patch(QUOTAS, case.prefix, change, namespace=SPACE, kind=Patch.MERGE)
        await self._until(lambda: self._limits(case.prefix, case.limit))
        await self._until(lambda: self._refuses_beyond(case, case.limit))
        await self.api.patch(NODES, case.drained, {"spec": {"unschedulable": True}})
        await self._until(lambda: self._is_closed(case, case.drained))
        there = await self._own(case)
        for pod in there:
            if pod["spec"].get("nodeName") == case.drained:
                await self._gone_uid(pod)
        unmade = sum("it would not be created" in one.message for one in found.outcomes)
        await self._compare_all(case, found, len(there) - unmade, {pod["metadata"]["uid"] for pod in there})

    async def _is_closed(self, case: ControllerCase, node: str) -> bool:
        """Whether the scheduler has seen that nothing goes there any more."""
        pod = case.probe()
        name = pod["metadata"]["name"] = f"barrier-of-{case.prefix}"
        pod["spec"]["nodeSelector"] = {"kubernetes.io/hostname": node}
        await self.api.create(PODS, pod)

        async def answered() -> bool:
            return any(_said(one) for one in await self._pods({name}))

        await self._until(answered)
        bound = await self._bound({name}, 1)
        await self._gone(PODS, name, SPACE)
        return not bound

    async def _gone_uid(self, pod: Object) -> None:
        """This pod goes; one of its name may follow it."""
        meta = pod["metadata"]
        await self.api.delete(PODS, meta["name"], namespace=SPACE, grace=0, uid=meta["uid"])

    async def _compare_all(
        self, case: ControllerCase, found: WhatIfAnswer, count: int, old: Collection[str] = ()
    ) -> None:
        """So many pods are there at last; as many have nodes and say why not as kgpu answered. Of ``old`` ones, by
        their uid, the scheduler need not say anything new.
        """
        tried = [one for one in found.outcomes if not old or one.origin is Origin.DRAINED]
        words = [one.message for one in tried if not one.node and "it would not be created" not in one.message]
        free = sum(room.free for room in found.after if room.resource == GPU)
        ours = count, free, Counter(map(_plain, words))

        def seen(pods: Sequence[Object]) -> tuple[int, int, Counter[str]]:
            waiting = [one for one in pods if one["metadata"]["uid"] not in old and not one["spec"].get("nodeName")]
            return len(pods), _free(case, pods), Counter(_plain(_said(one)) for one in waiting)

        async def settled() -> bool:
            return seen(await self._own(case)) == ours

        await self._holds(settled, 60)
        pods = await self._own(case)
        self._compare_counts("pods, free devices, messages", seen(pods), ours)
        self.tally.pods += len(pods)
        self.tally.landed += sum(bool(pod["spec"].get("nodeName")) for pod in pods)

    async def _admission(self, case: ControllerCase) -> None:
        spec = {"hard": case.hard}
        await self._make(QUOTAS, {"metadata": {"name": case.prefix, "namespace": SPACE}, "spec": spec})
        await self._until(lambda: self._counts(case))
        found = await self._ask(manifests=tuple(case.pods))
        refused: set[str] = set()
        for pod in case.pods:
            self.made.append((PODS, pod))
            try:
                await self.api.create(PODS, pod)
            except KubeRefusedError as no:
                if " quota: " not in no.message:
                    raise
                refused.add(pod["metadata"]["name"])
        ours = {one.pod.name for one in found.outcomes if "it would not be created" in one.message}
        self._compare_counts(f"refused by {case.hard}", sorted(refused), sorted(ours))
        self.tally.pods += len(case.pods)
        self.tally.landed += len(case.pods) - len(refused)

    async def _counts(self, case: ControllerCase) -> bool:
        """Whether admission knows the quota: a pod beyond all of it is refused, and not for that of another case."""
        found = await self.api.get(QUOTAS, case.prefix, namespace=SPACE)
        status = (found or {}).get("status") or {}
        if set(status.get("used") or ()) != set(case.hard):
            return False
        huge = case.probe()
        huge["metadata"]["name"] += "-huge"
        amounts = {"cpu": "1000", "memory": "1000Gi", GPU: "1000"}
        huge["spec"]["containers"][0]["resources"] = {"requests": amounts, "limits": amounts}
        if set(case.hard) == {"pods"} and case.hard["pods"] != "0":
            return True
        try:
            await self.api.create(PODS, huge)
        except KubeRefusedError:
            return True
        await self._gone(PODS, huge["metadata"]["name"], SPACE)
        return False


def _free(case: ControllerCase, pods: Iterable[Object]) -> int:
    """Devices on nodes that take pods."""
    nodes = [node for node in case.nodes if case.kind != "drain" or node["metadata"]["name"] != case.drained]
    held = sum(case.size for pod in pods if pod["spec"].get("nodeName"))
    return sum(int(node["status"]["allocatable"].get(GPU, 0)) for node in nodes) - held


def _said(pod: Object) -> str:
    """The pod's node, or why it has none; "" before the scheduler has said it, or while a claim comes or goes."""
    if pod["spec"].get("nodeName"):
        return str(pod["spec"]["nodeName"])
    rows = (pod.get("status") or {}).get("conditions") or ()
    said = [str(row.get("message") or "") for row in rows if row.get("type") == "PodScheduled"]
    return next((words for words in said if not any(sign in words for sign in PASSING)), "")


def _plain(message: str) -> str:
    return message.partition(" preemption:")[0]


def _classes(pods: Iterable[Object], every: Iterable[Object]) -> Counter[tuple[object, ...]]:
    """How many of each kind that the controllers tell apart by more than age; of a StatefulSet each by its name."""
    beside = Counter(pod["spec"].get("nodeName") for pod in every)

    def of(pod: Object) -> tuple[object, ...]:
        owner = pod["metadata"]["ownerReferences"][0]["kind"]
        rows = [row for row in pod["status"].get("conditions") or () if row["type"] == "Ready"]
        ready = [(row["status"], row["lastTransitionTime"]) for row in rows if row["status"] == "True"]
        node = pod["spec"].get("nodeName")
        cost = (pod["metadata"].get("annotations") or {}).get(DELETION_COST, "0")
        name = pod["metadata"]["name"] if owner == "StatefulSet" else ""
        return name, bool(node), pod["status"].get("phase"), str(ready), cost, beside[node]

    return Counter(map(of, pods))
