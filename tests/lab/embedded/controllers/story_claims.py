"""The story of claims: what is done, by the test as user, scheduler and kubelet, and what the controller makes of it.

``python -m tests.lab.embedded.controllers.story_claims https://127.0.0.1:PORT TOKEN`` lets a real control plane
(``tests.lab.real.gated``) play it, and writes what it said.
"""

from __future__ import annotations

import asyncio
import json
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

from kgpu.formats.names import CLAIM_FINALIZER
from kgpu.kube.port import EVENTS, PODS, Object, Resource, name_of
from kgpu.lab.embedded.controllers.kinds import RESOURCE_CLAIM_TEMPLATES, RESOURCE_CLAIMS, RESOURCE_QUOTAS
from kgpu.lab.embedded.controllers.meta import status_of, uid_of

SAID = Path(__file__).parent / "story_claims.json"
CLASS = "gpu.example.com"
RESULT = {"request": "gpu", "driver": "gpu.example.com", "pool": "n1", "device": "gpu-0"}
ALLOCATION: Object = {"devices": {"results": [RESULT]}}
LONG = "a-pod-with-a-name-that-is-much-longer-than-most-of-them-are"
EXTENDED = "resource.kubernetes.io/extended-resource-claim"


class Backend(Protocol):
    """A namespace of a cluster without scheduler and kubelets."""

    async def create(self, resource: Resource, obj: Object, subresource: str = "") -> Object: ...
    async def patch(self, resource: Resource, name: str, change: Object, subresource: str = "") -> Object: ...
    async def delete(self, resource: Resource, name: str) -> None: ...
    async def list(self, resource: Resource) -> list[Object]: ...


def spec(count: int = 1) -> Object:
    return {"devices": {"requests": [{"name": "gpu", "exactly": {"deviceClassName": CLASS, "count": count}}]}}


def claim(name: str) -> Object:
    return {"metadata": {"name": name}, "spec": spec()}


def template(name: str, count: int = 1, **metadata: Any) -> Object:
    return {"metadata": {"name": name}, "spec": {"metadata": metadata, "spec": spec(count)}}


def pod(name: str, node: str = "", **claims: str) -> Object:
    """Each of ``claims`` is a claim's name, or ``template/NAME``."""
    uses = []
    for use, source in claims.items():
        made = source.removeprefix("template/")
        uses.append({"name": use, "resourceClaimName" if made == source else "resourceClaimTemplateName": made})
    container = {"name": "c", "image": "busybox"}
    placed = {"nodeName": node} if node else {}
    return {"metadata": {"name": name}, "spec": {"containers": [container], "resourceClaims": uses, **placed}}


class Teller:
    """Plays the story and notes what is to be compared."""

    def __init__(self, backend: Backend) -> None:
        self.backend = backend
        self.said: dict[str, Any] = {}

    async def get(self, resource: Resource, name: str) -> Object | None:
        return next((obj for obj in await self.backend.list(resource) if name_of(obj) == name), None)

    async def until(self, look: Callable[[], Any], what: str) -> Any:
        for _ in range(15_000):
            found = await look()
            if found:
                return found
            await asyncio.sleep(0.02)
        raise AssertionError(f"waited for {what}")

    async def claims_of(self, pod_name: str) -> list[Object]:
        found = await self.backend.list(RESOURCE_CLAIMS)
        return [obj for obj in found if any(o["name"] == pod_name for o in obj["metadata"].get("ownerReferences", ()))]

    async def made(self, pod_name: str) -> Object:
        """The pod once its claims are written down."""

        async def look() -> Object | None:
            found = await self.get(PODS, pod_name)
            return found if found and status_of(found).get("resourceClaimStatuses") else None

        return dict(await self.until(look, f"claims of {pod_name}"))

    async def note_claim(self, subject: str, name: str, done: Callable[[Object | None], Any]) -> None:
        async def look() -> Any:
            found = await self.get(RESOURCE_CLAIMS, name)
            return [found] if done(found) else None

        found = shown((await self.until(look, subject))[0])
        self.said[subject] = found and {"metadata": found["metadata"], "status": found["status"]}

    async def allocate(self, name: str, *pods: Object, protect: bool = True) -> None:
        """As the scheduler does it."""
        if protect:
            await self.backend.patch(RESOURCE_CLAIMS, name, {"metadata": {"finalizers": [CLAIM_FINALIZER]}})
        users = [{"resource": "pods", "name": name_of(one), "uid": uid_of(one)} for one in pods]
        status = {"status": {"allocation": ALLOCATION, "reservedFor": users}}
        await self.backend.patch(RESOURCE_CLAIMS, name, status, "status")

    async def bind(self, name: str) -> None:
        body = {"metadata": {"name": name}, "target": {"kind": "Node", "name": "n1"}}
        await self.backend.create(PODS, {"apiVersion": "v1", "kind": "Binding", **body}, "binding")

    async def end(self, name: str, phase: str) -> None:
        await self.backend.patch(PODS, name, {"status": {"phase": phase}}, "status")

    async def event(self, pod_name: str) -> list[str]:
        async def look() -> list[str] | None:
            for one in await self.backend.list(EVENTS):
                if one["involvedObject"]["name"] == pod_name:
                    return [one["type"], one["reason"], hidden(one["message"]), one["source"]["component"]]
            return None

        return list(await self.until(look, f"an event of {pod_name}"))


def hidden(text: str) -> str:
    return re.sub(r"-[a-z0-9]{5}\b(?=$|\")", "-RAND", text)


def shown(obj: Object | None) -> Any:
    """A claim without what differs by chance."""
    if obj is None:
        return None
    meta = obj["metadata"]
    kept = ("annotations", "labels", "finalizers", "generateName", "ownerReferences")
    about = json.loads(json.dumps({key: meta[key] for key in kept if meta.get(key)}))
    for owner in about.get("ownerReferences", ()):
        owner["uid"] = "UID"
    status = json.loads(json.dumps(obj.get("status") or {}))
    for user in status.get("reservedFor", ()):
        user["uid"] = "UID"
    about["deleting"] = bool(meta.get("deletionTimestamp"))
    return {"metadata": about, "spec": obj["spec"], "status": status}


def gone(found: Object | None) -> bool:
    return found is None


def released(found: Object | None) -> bool:
    return found is not None and not status_of(found) and not found["metadata"].get("finalizers")


def reserved(count: int) -> Callable[[Object | None], bool]:
    return lambda found: found is not None and len(status_of(found).get("reservedFor") or ()) == count


async def tell(backend: Backend) -> dict[str, Any]:
    """Act it out; returns what was seen."""
    teller = Teller(backend)
    for scene in (_templates, _finished, _shared, _deleted, _bound, _extended, _missing, _quota):
        await scene(teller, backend)
    return teller.said


async def _templates(teller: Teller, backend: Backend) -> None:
    await backend.create(RESOURCE_CLAIM_TEMPLATES, template("t", labels={"a": "b"}, annotations={"c": "d"}))
    await backend.create(PODS, pod("made", gpu="template/t", own="mine"))
    made = await teller.made("made")
    status = status_of(made)["resourceClaimStatuses"]
    teller.said["status"] = [{**row, "resourceClaimName": hidden(row["resourceClaimName"])} for row in status]
    teller.said["made"] = [shown(one) for one in await teller.claims_of("made")]
    await backend.create(PODS, pod(LONG, gpu="template/t"))
    teller.said["long"] = [one["metadata"]["generateName"] for one in [*await _claims_once(teller, LONG)]]
    await backend.create(PODS, pod("two", a="template/t", b="template/t"))
    both = status_of(await teller.made("two"))["resourceClaimStatuses"]
    teller.said["two"] = sorted(hidden(row["resourceClaimName"]) for row in both)


async def _claims_once(teller: Teller, pod_name: str) -> list[Object]:
    await teller.made(pod_name)
    return await teller.claims_of(pod_name)


async def _finished(teller: Teller, backend: Backend) -> None:
    for name, phase in (("done", "Succeeded"), ("failed", "Failed")):
        await backend.create(PODS, pod(name, gpu="template/t"))
        made = await teller.made(name)
        theirs = status_of(made)["resourceClaimStatuses"][0]["resourceClaimName"]
        await teller.allocate(theirs, made)
        await teller.bind(name)
        await teller.note_claim(f"{name} runs", theirs, lambda found: found is not None)
        await teller.end(name, phase)
        await teller.note_claim(f"{name} is over", theirs, gone)


async def _shared(teller: Teller, backend: Backend) -> None:
    await backend.create(RESOURCE_CLAIMS, claim("both"))
    users = [await backend.create(PODS, pod(name, gpu="both")) for name in ("one", "other")]
    await teller.allocate("both", *users)
    await backend.patch(
        RESOURCE_CLAIMS, "both", {"status": {"devices": [{key: RESULT[key] for key in ("driver", "pool", "device")}]}},
        "status",
    )  # fmt: skip
    await backend.delete(PODS, "one")
    await teller.note_claim("one of two is gone", "both", reserved(1))
    await teller.bind("other")
    await teller.end("other", "Failed")
    await teller.note_claim("both are over", "both", released)


async def _deleted(teller: Teller, backend: Backend) -> None:
    await backend.create(RESOURCE_CLAIMS, claim("busy"))
    user = await backend.create(PODS, pod("user", gpu="busy"))
    await teller.allocate("busy", user)
    await backend.delete(RESOURCE_CLAIMS, "busy")
    await teller.note_claim("deleted in use", "busy", reserved(1))
    await backend.delete(PODS, "user")
    await teller.note_claim("deleted, not in use", "busy", gone)
    await backend.create(RESOURCE_CLAIMS, claim("idle"))
    await teller.allocate("idle")
    await backend.delete(RESOURCE_CLAIMS, "idle")
    await teller.note_claim("deleted, never in use", "idle", gone)


async def _bound(teller: Teller, backend: Backend) -> None:
    await backend.create(RESOURCE_CLAIMS, claim("ready"))
    await teller.allocate("ready")
    await backend.create(PODS, pod("by-hand", "n1", gpu="ready"))
    await teller.note_claim("reserved for a bound pod", "ready", reserved(1))
    await backend.create(RESOURCE_CLAIMS, claim("bare"))
    ghost = {"metadata": {"name": "ghost", "uid": "nobody"}}
    await teller.allocate("bare", ghost, protect=False)
    await teller.note_claim("reserved for nobody, not protected", "bare", reserved(0))


async def _extended(teller: Teller, backend: Backend) -> None:
    plain = pod("extended")
    amounts = {kind: {"example.com/gpu": "1"} for kind in ("requests", "limits")}
    plain["spec"]["containers"][0]["resources"] = amounts
    owner = await backend.create(PODS, plain)
    reference = {"apiVersion": "v1", "kind": "Pod", "name": "extended", "uid": uid_of(owner), "controller": True}
    made = claim("extended-resources")
    made["metadata"] |= {"annotations": {EXTENDED: "true"}, "ownerReferences": [reference]}
    await backend.create(RESOURCE_CLAIMS, made)
    await teller.allocate("extended-resources", owner)
    status: Object = {"resourceClaimName": "extended-resources", "requestMappings": []}
    mapping = {"containerName": "c", "resourceName": "example.com/gpu", "requestName": "gpu"}
    status["requestMappings"].append(mapping)
    await backend.patch(PODS, "extended", {"status": {"extendedResourceClaimStatus": status}}, "status")
    await teller.bind("extended")
    await teller.note_claim("extended resources in use", "extended-resources", reserved(1))
    await teller.end("extended", "Succeeded")
    await teller.note_claim("extended resources, over", "extended-resources", gone)


async def _missing(teller: Teller, backend: Backend) -> None:
    await backend.create(PODS, pod("early", gpu="template/late"))
    teller.said["no template"] = await teller.event("early")
    await backend.create(RESOURCE_CLAIM_TEMPLATES, template("late"))
    teller.said["a template at last"] = len(await _claims_once(teller, "early"))


async def _quota(teller: Teller, backend: Backend) -> None:
    devices = f"{CLASS}.deviceclass.resource.k8s.io/devices"
    hard = {devices: "30", "count/resourceclaims.resource.k8s.io": "100"}
    await backend.create(RESOURCE_QUOTAS, {"metadata": {"name": "q"}, "spec": {"hard": hard}})

    async def counted() -> Any:
        found = await teller.get(RESOURCE_QUOTAS, "q")
        return status_of(found or {}).get("used")

    teller.said["quota"] = await teller.until(counted, "the quota's sums")
    await backend.create(RESOURCE_CLAIM_TEMPLATES, template("many", 31))
    await backend.create(PODS, pod("greedy", gpu="template/many"))
    teller.said["too many"] = await teller.event("greedy")


def said() -> dict[str, Any]:
    """What the real control plane said when it was last asked."""
    found: dict[str, Any] = json.loads(SAID.read_text())
    return found


if __name__ == "__main__":
    from tests.lab.embedded.controllers.real_claims import RealNamespace
    from tests.lab.embedded.types.real_server import RealServer

    backend = RealNamespace(
        RealServer.with_token(sys.argv[1], sys.argv[2]), sys.argv[3] if len(sys.argv) > 3 else "claims-story"
    )
    backend.prepare()
    SAID.write_text(json.dumps(asyncio.run(tell(backend)), indent=1, sort_keys=True) + "\n")
