"""Plays a story of devices on any cluster with a scheduler and controllers, and tells how it ended.

``python -m tests.lab.real.record_device_stories`` plays all on real programs and writes how they end.
"""

from __future__ import annotations

import asyncio
import datetime as dt
import json
import re
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

from kgpu.base.errors import KubeError
from kgpu.kube.kinds import NAMESPACES, SERVICE_ACCOUNTS
from kgpu.kube.port import NODES, PODS, KubeApi, Resource, name_of
from kgpu.lab.embedded.controllers.kinds import (
    DEVICE_CLASSES,
    DEVICE_TAINT_RULES,
    RESOURCE_CLAIM_TEMPLATES,
    RESOURCE_CLAIMS,
    RESOURCE_SLICES,
)
from tests.lab.embedded.scheduler.device_stories import ADMIN_LABEL, STORIES, DeviceStory, Object, pod

NAMESPACE = "device-stories"
SAID = Path(__file__).parent / "device_stories.json"
POLICIES = [
    Resource("admissionregistration.k8s.io", "v1", plural, kind, namespaced=False)
    for plural, kind in (
        ("validatingadmissionpolicies", "ValidatingAdmissionPolicy"),
        ("validatingadmissionpolicybindings", "ValidatingAdmissionPolicyBinding"),
    )
]
KINDS = {
    one.kind: one
    for one in (PODS, *POLICIES, RESOURCE_CLAIMS, RESOURCE_CLAIM_TEMPLATES, RESOURCE_SLICES, DEVICE_CLASSES)
}
GATED = {DEVICE_TAINT_RULES.kind: DEVICE_TAINT_RULES}
"""Served with a feature gate alone."""
QUIET_S = 3.0  # without a change; what is tried again after a refusal comes sooner
ATTACHED_QUIET_S = 7.0  # a real scheduler looks each 5 s whether a device is attached
PATIENCE_S = 25.0
CERTAIN_S = 300.0
"""For the embedded cluster, which ends each story as wanted: this only ends what would never end."""
TRIES = 3
NOW = "2026-01-02T03:04:05Z"


def recorded() -> dict[str, Any]:
    """How each story ended on a real cluster."""
    found: dict[str, Any] = json.loads(SAID.read_text())
    return found


class Player:
    """``patience_s``: for so long a story may change until it ends as wanted."""

    def __init__(self, api: KubeApi, kinds: Mapping[str, Resource] = KINDS, *, patience_s: float = CERTAIN_S) -> None:
        self.api = api
        self.kinds = kinds
        self._patience_s = patience_s

    async def prepare(self) -> None:
        """Make the namespace, and wait for what its pods need."""
        await self.api.create(NAMESPACES, {"metadata": {"name": NAMESPACE, "labels": {ADMIN_LABEL: "true"}}})
        while not await self.api.get(SERVICE_ACCOUNTS, "default", namespace=NAMESPACE):  # noqa: ASYNC110
            await asyncio.sleep(0.02)

    async def play(self, story: DeviceStory, wanted: Any = None) -> Any:
        """How the story ends: at once when that is as wanted, else when nothing has changed for a while."""
        for name in story.nodes:
            await self.node(name, {kind: amount for node, kind, amount in story.capacity if node == name})
        for obj in story.objects:
            await self.create(obj)
        await self.settled(len(story.nodes))
        for obj in story.objects:
            if obj["kind"] == "ValidatingAdmissionPolicy":
                await self.in_force(obj)
        waits = any("conditions" in step for step in story.steps)
        for step in story.steps:
            if "delete" in step:
                resource = self.kinds[step["delete"]]
                await self.api.delete(resource, name_of(step), namespace=_namespace(resource), grace=0)
            elif "conditions" in step:
                await self.conditions(name_of(step), step["conditions"])
            else:
                await self.create(step)
                if step["kind"] == "Pod":
                    # Of a pod that waits for its devices nothing is said but in an Event.
                    stuck = waits or (wanted is not None and name_of(step) in wanted["untried"])
                    await self.decided(name_of(step), stuck=stuck)
        return await self.end(wanted, ATTACHED_QUIET_S if waits else QUIET_S)

    async def create(self, obj: Object) -> None:
        resource = self.kinds[obj["kind"]]
        metadata = {**obj["metadata"], **({"namespace": NAMESPACE} if resource.namespaced else {})}
        await self.api.create(resource, {**obj, "metadata": metadata})
        if status := obj.get("status"):
            named = {"name": name_of(obj), "namespace": NAMESPACE, "subresource": "status"}
            await self.api.patch(resource, change={"status": status}, **named)

    async def conditions(self, claim: str, conditions: Mapping[str, str]) -> None:
        """As a driver: say of all that the claim has got that these conditions are so; first wait until it has it."""
        rows = [
            {
                "type": kind,
                "status": status,
                "reason": "Said",
                "message": f"{kind} is {status}",
                "lastTransitionTime": NOW,
            }
            for kind, status in conditions.items()
        ]
        while True:
            found = await self.api.get(RESOURCE_CLAIMS, claim, namespace=NAMESPACE) or {}
            allocation = (found.get("status") or {}).get("allocation")
            if allocation:
                break
            await asyncio.sleep(0.02)
        devices = [
            {**{key: result[key] for key in ("driver", "pool", "device")}, "conditions": rows}
            for result in allocation["devices"]["results"]
        ]
        named = {"name": claim, "namespace": NAMESPACE, "subresource": "status"}
        await self.api.patch(RESOURCE_CLAIMS, change={"status": {"devices": devices}}, **named)

    async def node(self, name: str, extended: Object) -> None:
        """A ready node that the controllers say nothing against."""
        labels = {"kubernetes.io/hostname": name}
        await self.api.create(NODES, {"metadata": {"name": name, "labels": labels}, "spec": {}})
        now = dt.datetime.now(dt.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        ready = {"type": "Ready", "status": "True", "lastHeartbeatTime": now, "lastTransitionTime": now}
        sizes = {"cpu": "4", "memory": "8Gi", "pods": "110", **extended}
        status = {"allocatable": sizes, "capacity": sizes, "conditions": [ready]}
        await self.api.patch(NODES, name, {"status": status}, subresource="status")
        await self.api.patch(NODES, name, {"spec": {"taints": None}})

    async def settled(self, nodes: int) -> None:
        """Wait until the scheduler has seen every node as it is: a pod that is too large for each is told so."""
        await self.create(pod("barrier", limits={"cpu": "1000"}))
        while f"0/{nodes} nodes are available: {nodes} Insufficient cpu." not in await self.message("barrier"):  # noqa: ASYNC110
            await asyncio.sleep(0.02)
        await self.api.delete(PODS, "barrier", namespace=NAMESPACE, grace=0)

    async def in_force(self, policy: Object) -> None:
        """A real API server needs a moment until it asks a policy."""
        (resource,) = policy["spec"]["matchConstraints"]["resourceRules"][0]["resources"]
        subresource = resource.partition("/")[2]
        while True:
            try:
                await self.api.patch(RESOURCE_CLAIMS, "c", {}, namespace=NAMESPACE, subresource=subresource)
            except KubeError:
                return
            await asyncio.sleep(0.05)

    async def message(self, name: str) -> str:
        found = await self.api.get(PODS, name, namespace=NAMESPACE) or {}
        return str(_condition(found).get("message", ""))

    async def decided(self, name: str, *, stuck: bool) -> None:
        """Wait until the scheduler has said something of the pod, so that the next one comes after it."""
        for _ in range(40 if stuck else 250):
            found = await self.api.get(PODS, name, namespace=NAMESPACE) or {}
            if _scheduled(found):
                return
            await asyncio.sleep(0.02)

    async def end(self, wanted: Any, quiet_s: float) -> Any:
        loop = asyncio.get_running_loop()
        begun = quiet = loop.time()
        before: Any = None
        while True:
            seen = await self.seen()
            if seen != before:
                before, quiet = seen, loop.time()
            idle = loop.time() - quiet > quiet_s if wanted is None else seen == wanted
            if idle or loop.time() - begun > self._patience_s:
                return seen
            await asyncio.sleep(0.05)

    async def seen(self) -> Any:
        """Pods and claims without what differs by chance."""
        pods = {name_of(one): one for one in (await self.api.list(PODS, namespace=NAMESPACE)).items}
        claims = (await self.api.list(RESOURCE_CLAIMS, namespace=NAMESPACE)).items
        names = {one["metadata"]["uid"]: name for name, one in pods.items()}
        return {
            "pods": {name: _pod(one) for name, one in sorted(pods.items())},
            "untried": sorted(name for name, one in pods.items() if not _scheduled(one)),
            "claims": {hidden(name_of(one)): _claim(one, names) for one in sorted(claims, key=name_of)},
        }

    async def clean(self) -> None:
        """Remove all that a story has made."""
        for resource in (PODS, *(kind for kind in self.kinds.values() if kind != PODS), NODES):
            namespace = _namespace(resource)
            while found := (await self.api.list(resource, namespace=namespace)).items:
                for one in found:
                    try:
                        await self.api.delete(resource, name_of(one), namespace=namespace, grace=0)
                    except KubeError:
                        continue
                await asyncio.sleep(0.02)


def _namespace(resource: Resource) -> str:
    return NAMESPACE if resource.namespaced else ""


def hidden(text: str) -> str:
    """A name without its random end."""
    return re.sub(r"-[a-z0-9]{5}$", "-RAND", text)


def _scheduled(pod: Object) -> bool:
    if (pod.get("spec") or {}).get("nodeName"):
        return True
    return bool(_condition(pod).get("message"))


def _condition(pod: Object) -> Object:
    conditions = (pod.get("status") or {}).get("conditions") or ()
    return next((one for one in conditions if one["type"] == "PodScheduled"), {})


def _pod(pod: Object) -> Object:
    status = pod.get("status") or {}
    found: Object = {"node": pod["spec"].get("nodeName", "")}
    if not found["node"]:
        condition = _condition(pod)
        found |= {"reason": condition.get("reason", ""), "message": condition.get("message", "")}
    extended = status.get("extendedResourceClaimStatus")
    if extended:
        found["extended"] = {**extended, "resourceClaimName": hidden(extended["resourceClaimName"])}
    return found


def _claim(claim: Object, names: dict[str, str]) -> Object:
    status = json.loads(json.dumps(claim.get("status") or {}))
    for result in ((status.get("allocation") or {}).get("devices") or {}).get("results") or ():
        if "shareID" in result:
            result["shareID"] = "ID"
    (status.get("allocation") or {}).pop("allocationTimestamp", None)
    status["reservedFor"] = [names.get(user["uid"], user["name"]) for user in status.get("reservedFor") or ()]
    metadata = claim["metadata"]
    found = {"status": status, "finalizers": metadata.get("finalizers") or []}
    if "extended-resources" in name_of(claim):
        owners = [{**owner, "uid": names.get(owner["uid"], "")} for owner in metadata.get("ownerReferences") or ()]
        made = {key: metadata.get(key) for key in ("annotations", "generateName")}
        found |= {"spec": claim["spec"], "ownerReferences": owners, **made}
    return found


async def play_all(
    api: KubeApi,
    wanted: Mapping[str, Any] = MappingProxyType({}),
    only: Collection[str] = (),
    *,
    stories: Sequence[DeviceStory] = STORIES,
    kinds: Mapping[str, Resource] = KINDS,
) -> dict[str, Any]:
    """How the stories of these names end, all without any, one after another, on one cluster.

    One that does not end as wanted is played again: now and then a real scheduler tries a pod before it has the slices
    that were made before the pod, and is not woken by them.
    """
    player = Player(api, kinds, patience_s=PATIENCE_S)
    await player.prepare()
    ends = {}
    for story in (story for story in stories if not only or story.name in only):
        for _ in range(TRIES):
            ends[story.name] = await player.play(story, wanted.get(story.name))
            await player.clean()
            if ends[story.name] == wanted.get(story.name, ends[story.name]):
                break
    return ends
