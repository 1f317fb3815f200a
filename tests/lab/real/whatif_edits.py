"""Random questions of ``kgpu whatif`` about gangs, quotas and volumes, played on a real API server and kube-scheduler.

All pods of a case are of one size, and so are its volumes: which of them land then does not depend on the scheduler's
throws, only how many, which is compared, beside what is said of the others. Whether a gang starts is known once a pod
that was made after it, and that fits in any case, has a node.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

from kgpu.kube.port import NODES, PODS, KubeApi, KubeRefusedError, Patch, Resource
from kgpu.placement.answer import answer
from kgpu.placement.model import WhatIfAnswer
from kgpu.placement.question import WhatIfQuestion

Object = dict[str, Any]
GPU = "nvidia.com/gpu"
KEY = f"requests.{GPU}"
SPACE = "default"
ACCOUNTS = Resource("", "v1", "serviceaccounts", "ServiceAccount")
QUOTAS = Resource("", "v1", "resourcequotas", "ResourceQuota")
CLAIMS = Resource("", "v1", "persistentvolumeclaims", "PersistentVolumeClaim")
VOLUMES = Resource("", "v1", "persistentvolumes", "PersistentVolume", namespaced=False)
CLASSES = Resource("storage.k8s.io", "v1", "storageclasses", "StorageClass", namespaced=False)
WORKLOADS = Resource("scheduling.k8s.io", "v1alpha1", "workloads", "Workload")
READS = (NODES, PODS, QUOTAS, CLAIMS, VOLUMES, CLASSES, WORKLOADS)
PATIENCE_S = 300.0
"""Only ends what would never end; a gang that does not start holds its nodes as long in the scheduler."""
LOCAL: Object = {
    "apiVersion": "storage.k8s.io/v1", "kind": "StorageClass", "metadata": {"name": "local"},
    "provisioner": "kubernetes.io/no-provisioner", "volumeBindingMode": "WaitForFirstConsumer",
}  # fmt: skip


@dataclass
class EditsTally:
    cases: int = 0
    kinds: Counter[str] = field(default_factory=Counter)
    pods: int = 0
    landed: int = 0
    disagreements: list[str] = field(default_factory=list)


@dataclass
class EditsCase:
    """One cluster with one question, drawn by a seed."""

    seed: int

    def __post_init__(self) -> None:
        draw = random.Random(self.seed)
        self.prefix = f"e{self.seed}"
        self.size = draw.choice((1, 2, 4))
        self.nodes = [self._node(at, self.size * draw.randint(0, 3)) for at in range(draw.randint(1, 4))]
        self.kind = draw.choice(("gang", "gang", "quota", "volumes"))
        self.pods = [self._pod(f"{self.prefix}-p{at}") for at in range(draw.randint(1, 6))]
        self.least = draw.randint(1, len(self.pods) + (draw.random() < 0.2))
        self.quota = (self.size * draw.randint(0, 4), self.size * draw.randint(0, 6))
        self.volumes: list[Object] = []
        if self.kind == "gang":
            for pod in self.pods:
                pod["spec"]["workloadRef"] = {"name": self.prefix, "podGroup": "workers"}
        if self.kind == "volumes":
            self._draw_volumes(draw)

    def _draw_volumes(self, draw: random.Random) -> None:
        for at in range(draw.randint(0, 5)):
            host = draw.choice(self.nodes)["metadata"]["name"]
            term = {"matchExpressions": [{"key": "kubernetes.io/hostname", "operator": "In", "values": [host]}]}
            spec = {
                "capacity": {"storage": draw.choice(("1Gi", "2Gi"))}, "accessModes": ["ReadWriteOnce"],
                "storageClassName": "local", "local": {"path": "/tmp"}, "persistentVolumeReclaimPolicy": "Delete",
                "nodeAffinity": {"required": {"nodeSelectorTerms": [term]}},
            }  # fmt: skip
            self.volumes.append({"apiVersion": "v1", "kind": "PersistentVolume",
                                 "metadata": {"name": f"{self.prefix}-v{at}"}, "spec": spec})  # fmt: skip
        for pod in self.pods:
            del pod["spec"]["containers"][0]["resources"]
            name = pod["metadata"]["name"]
            pod["spec"]["volumes"] = [{"name": "data", "persistentVolumeClaim": {"claimName": name}}]

    def _node(self, at: int, gpus: int) -> Object:
        name = f"{self.prefix}-n{at}"
        sizes = {"cpu": "64", "memory": "64Gi", "pods": "110", **({GPU: str(gpus)} if gpus else {})}
        status = {"capacity": sizes, "allocatable": sizes, "conditions": [{"type": "Ready", "status": "True"}]}
        labels = {"kubernetes.io/hostname": name, "case": self.prefix}
        return {"apiVersion": "v1", "kind": "Node", "metadata": {"name": name, "labels": labels}, "status": status}

    def _pod(self, name: str) -> Object:
        container = {"name": "c", "image": "i", "resources": {"limits": {GPU: str(self.size)}}}
        spec: Object = {"containers": [container], "terminationGracePeriodSeconds": 0,
                        "nodeSelector": {"case": self.prefix}}  # fmt: skip
        return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "namespace": SPACE}, "spec": spec}

    def claims(self) -> list[Object]:
        asks = {"accessModes": ["ReadWriteOnce"], "storageClassName": "local",
                "resources": {"requests": {"storage": "1Gi"}}}  # fmt: skip
        names = [pod["metadata"]["name"] for pod in self.pods] if self.kind == "volumes" else []
        return [{"apiVersion": "v1", "kind": "PersistentVolumeClaim",
                 "metadata": {"name": name, "namespace": SPACE}, "spec": asks} for name in names]  # fmt: skip

    def workload(self) -> Object:
        groups = [{"name": "workers", "policy": {"gang": {"minCount": self.least}}}]
        return {"apiVersion": "scheduling.k8s.io/v1alpha1", "kind": "Workload",
                "metadata": {"name": self.prefix, "namespace": SPACE}, "spec": {"podGroups": groups}}  # fmt: skip

    def probe(self) -> Object:
        found = self._pod(f"{self.prefix}-probe")
        found["spec"]["containers"][0]["resources"] = {}
        return found


class WhatIfEdits:
    """Cases one after another."""

    def __init__(self, api: KubeApi) -> None:
        self.api, self.tally = api, EditsTally()

    async def prepare(self) -> None:
        """The class of volumes that people make is there, and the account without which no pod can be created."""
        await self._until(lambda: self._exists(ACCOUNTS, "default", SPACE))
        if await self.api.get(CLASSES, LOCAL["metadata"]["name"]) is None:
            await self.api.create(CLASSES, LOCAL)

    async def _exists(self, resource: Resource, name: str, namespace: str) -> bool:
        return await self.api.get(resource, name, namespace=namespace) is not None

    async def case(self, seed: int) -> None:
        case = EditsCase(seed)
        made: list[tuple[Resource, Object]] = []

        async def make(resource: Resource, obj: Object) -> None:
            made.append((resource, obj))
            await self.api.create(resource, obj)

        try:
            for node in case.nodes:
                await make(NODES, node)
                await self._until(lambda node=node: self._untainted(node["metadata"]["name"]))
            for volume in case.volumes:
                await make(VOLUMES, volume)
                await self._until(lambda volume=volume: self._is_phase(VOLUMES, volume, "Available"))
            if case.kind == "quota":
                hard = {"hard": {KEY: str(case.quota[0])}}
                await make(QUOTAS, {"metadata": {"name": case.prefix, "namespace": SPACE}, "spec": hard})
                await self._until(lambda: self._limits(case.prefix, case.quota[0]))
            found = await self._asked(case)
            if case.kind == "gang":
                await make(WORKLOADS, case.workload())
            if case.kind == "quota":
                change = {"spec": {"hard": {KEY: str(case.quota[1])}}}
                await self.api.patch(QUOTAS, case.prefix, change, namespace=SPACE, kind=Patch.MERGE)
                await self._until(lambda: self._limits(case.prefix, case.quota[1]))
                await self._until(lambda: self._refuses_beyond(case, case.quota[1]))
            for claim in case.claims():
                await make(CLAIMS, claim)
            refused: dict[str, str] = {}
            for pod in case.pods:
                made.append((PODS, pod))
                try:
                    await self.api.create(PODS, pod)
                except KubeRefusedError as no:
                    if " quota: " not in no.message:
                        raise
                    refused[pod["metadata"]["name"]] = str(no)
            made.append((PODS, case.probe()))
            await self.api.create(PODS, case.probe())
            await self._compare(case, found, refused)
        finally:
            for resource, obj in reversed(made):
                space = obj["metadata"].get("namespace", "")
                await self._gone(resource, obj["metadata"]["name"], space)

    async def _asked(self, case: EditsCase) -> WhatIfAnswer:
        objects: list[Object] = []
        for resource in READS:
            objects += [
                {"apiVersion": resource.api_version, **row, "kind": resource.kind}
                for row in (await self.api.list(resource)).items
            ]
        beside = [case.workload()] if case.kind == "gang" else case.claims()
        quota = ((f"{SPACE}/{case.prefix}", f"{KEY}={case.quota[1]}"),) if case.kind == "quota" else ()
        asked = WhatIfQuestion(manifests=(*beside, *case.pods), quota=quota, namespace=SPACE)
        return answer(asked, objects)

    async def _compare(self, case: EditsCase, found: WhatIfAnswer, refused: dict[str, str]) -> None:
        names = {pod["metadata"]["name"] for pod in case.pods}
        expected = {one.pod.name: one for one in found.outcomes if one.pod.name in names}
        lands = sum(bool(one.node) for one in expected.values())
        unmade = {name for name, one in expected.items() if "it would not be created" in one.message}
        told = f"seed {case.seed} {case.kind}"
        if unmade != set(refused):
            self.tally.disagreements.append(f"{told}: refused {sorted(refused.items())}, what-if {sorted(unmade)}")
        probe = case.probe()["metadata"]["name"]
        assert await self._holds(lambda: self._bound({probe}, 1)), (
            f"{told}: {probe} gets no node, {await self._pods({probe})}"
        )
        settled = await self._holds(lambda: self._settled(case, names - set(refused), lands))
        pods = await self._pods(names)
        real = [pod for pod in pods if pod["spec"].get("nodeName")]
        if not settled or len(real) != lands:
            said = {pod["metadata"]["name"]: _message(pod) or pod["spec"].get("nodeName") for pod in pods}
            self.tally.disagreements.append(f"{told}: {len(real)} land, what-if {lands} of {len(names)}: {said}")
        self._compare_messages(case, told, found, pods)
        self.tally.cases += 1
        self.tally.kinds[case.kind] += 1
        self.tally.pods += len(names)
        self.tally.landed += len(real)

    def _compare_messages(self, case: EditsCase, told: str, found: WhatIfAnswer, pods: list[Object]) -> None:
        """What is said of pods without a node: the same reasons, of whichever of them."""
        if case.kind == "gang":
            return
        scheduler = Counter(
            _message(pod).partition(" preemption:")[0] for pod in pods if not pod["spec"].get("nodeName")
        )
        ours = Counter(
            one.message.partition(" preemption:")[0]
            for one in found.outcomes if not one.node and "it would not be created" not in one.message
        )  # fmt: skip
        if scheduler != ours:
            self.tally.disagreements.append(f"{told}: scheduler says {dict(scheduler)}, what-if {dict(ours)}")

    async def _settled(self, case: EditsCase, created: set[str], lands: int) -> bool:
        """So many have nodes, and of the others the scheduler has said something; of a gang that waits it need not."""
        pods = await self._pods(created)
        bound = sum(bool(pod["spec"].get("nodeName")) for pod in pods)
        said = sum(bool(_message(pod)) for pod in pods if not pod["spec"].get("nodeName"))
        waits = case.kind == "gang" and not lands
        return bound == lands and (waits or bound + said == len(created))

    async def _pods(self, names: set[str]) -> list[Object]:
        return [pod for pod in (await self.api.list(PODS, namespace=SPACE)).items if pod["metadata"]["name"] in names]

    async def _bound(self, names: set[str], count: int) -> bool:
        return sum(bool(pod["spec"].get("nodeName")) for pod in await self._pods(names)) >= count

    async def _untainted(self, name: str) -> bool:
        node = await self.api.get(NODES, name)
        if node is not None and node["spec"].get("taints"):
            await self.api.patch(NODES, name, {"spec": {"taints": None}})
            return False
        return node is not None

    async def _is_phase(self, resource: Resource, obj: Object, phase: str) -> bool:
        found = await self.api.get(resource, obj["metadata"]["name"])
        return found is not None and (found.get("status") or {}).get("phase") == phase

    async def _limits(self, name: str, amount: int) -> bool:
        """Whether the quota has counted, and its status says so."""
        found = await self.api.get(QUOTAS, name, namespace=SPACE)
        status = (found or {}).get("status") or {}
        return status.get("hard") == {KEY: str(amount)} and KEY in (status.get("used") or {})

    async def _refuses_beyond(self, case: EditsCase, amount: int) -> bool:
        """Whether the API server's admission goes by the limit: what it has read may be older than its status."""
        huge = case.probe()
        huge["metadata"]["name"] += "-huge"
        huge["spec"]["containers"][0]["resources"] = {"limits": {GPU: "1000"}}
        try:
            await self.api.create(PODS, huge)
        except KubeRefusedError as no:
            return no.message.endswith(f"limited: {KEY}={amount}")
        await self._gone(PODS, huge["metadata"]["name"], SPACE)
        return False

    async def _gone(self, resource: Resource, name: str, namespace: str) -> None:
        async def gone() -> bool:
            found = await self.api.get(resource, name, namespace=namespace)
            if found is None:
                return True
            try:
                if found["metadata"].get("finalizers"):
                    await self.api.patch(resource, name, {"metadata": {"finalizers": None}}, namespace=namespace)
                await self.api.delete(resource, name, namespace=namespace)
            except KubeRefusedError as refused:
                if refused.code != 404:  # it went meanwhile
                    raise
            return False

        await self._until(gone)

    async def _holds(self, condition: Callable[[], Awaitable[bool]], patience: float = PATIENCE_S) -> bool:
        end, pause = asyncio.get_running_loop().time() + patience, 0.05
        while not await condition():
            if asyncio.get_running_loop().time() > end:
                return False
            await asyncio.sleep(pause)
            pause = min(0.5, pause * 1.3)
        return True

    async def _until(self, condition: Callable[[], Awaitable[bool]]) -> None:
        assert await self._holds(condition), "what was waited for did not come"


def _message(pod: Object) -> str:
    for condition in (pod.get("status") or {}).get("conditions") or ():
        if condition.get("type") == "PodScheduled" and condition.get("status") == "False":
            return str(condition.get("message") or "")
    return ""
