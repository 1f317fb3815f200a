"""The controllers on the embedded API itself: its defaults, its deletion rules, its versions."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator

from kgpu.kube.port import NODES, PODS, Change, KubeRefusedError, Object, Resource, Selector, name_of, namespace_of
from kgpu.lab.embedded.controllers.controller import refusal_text
from kgpu.lab.embedded.controllers.daemonset_plan import target_node
from kgpu.lab.embedded.controllers.job_indexes import index_of
from kgpu.lab.embedded.controllers.kinds import NAMESPACES, SERVICE_ACCOUNTS
from kgpu.lab.embedded.core import ApiCore
from kgpu.lab.embedded.core.model import ApiUser
from kgpu.lab.embedded.kinds import Kinds
from kgpu.lab.embedded.local_api import LocalApi
from kgpu.lab.embedded.store import ObjectStore
from kgpu.lab.embedded.types.rules import BuiltinRules

from . import story_batch
from .conftest import controllers, stamp
from .story import tell
from .story_batch import EXIT_INDEX, FIRST_ENDS

NAMESPACE = "story"
MISSED = ["CronJob", "daily", "Warning", "TooManyMissedTimes"]


class Embedded:
    """The story's namespace on the embedded API, with a stand-in for the kubelet."""

    def __init__(self) -> None:
        rules = BuiltinRules()
        self.api = LocalApi(ApiCore(Kinds(), ObjectStore(), lambda _: rules, ()), ApiUser("admin", ("system:masters",)))

    async def create(self, resource: Resource, obj: Object) -> None:
        await self.api.create(resource, {**obj, "metadata": {**obj["metadata"], "namespace": NAMESPACE}})

    async def patch(self, resource: Resource, name: str, change: Object) -> None:
        await self.api.patch(resource, name, change, namespace=NAMESPACE)

    async def list(self, resource: Resource) -> list[Object]:
        return list((await self.api.list(resource, namespace=NAMESPACE)).items)

    async def set_status(self, resource: Resource, name: str, status: Object) -> None:
        await self.api.patch(resource, name, {"status": status}, namespace=NAMESPACE, subresource="status")

    async def evict(self, pod: str) -> str:
        body = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": pod, "namespace": NAMESPACE}}
        try:
            await self.api.create(PODS, body, subresource="eviction")
        except KubeRefusedError as error:
            return refusal_text(error)
        return ""

    async def kubelet(self) -> None:
        while True:
            for pod in (await self.api.list(PODS)).items:
                with contextlib.suppress(KubeRefusedError):  # it was faster than this look
                    await self._tend(pod)
            await asyncio.sleep(0.01)

    async def _tend(self, pod: Object) -> None:
        name, namespace = name_of(pod), namespace_of(pod)
        if pod["metadata"].get("deletionTimestamp"):
            await self.api.delete(PODS, name, namespace=namespace, grace=0)
        elif not pod["spec"].get("nodeName"):
            target = {"kind": "Node", "name": target_node(pod) or "n1"}
            binding = {"apiVersion": "v1", "kind": "Binding", "metadata": {"name": name, "namespace": namespace}}
            await self.api.create(PODS, {**binding, "target": target}, subresource="binding")
        elif pod["status"].get("phase") == "Pending":
            code = exit_code(pod)
            ready = {"type": "Ready", "status": "True" if code is None else "False", "lastTransitionTime": stamp()}
            status: Object = {"phase": "Running", "conditions": [ready]}
            if code is not None:
                ended = {"exitCode": code, "reason": "Error" if code else "Completed", "finishedAt": stamp()}
                container = {"name": "c", "image": "", "imageID": "", "ready": False, "restartCount": 0}
                status |= {"phase": "Failed" if code else "Succeeded"}
                status["containerStatuses"] = [{**container, "state": {"terminated": ended}}]
            await self.api.patch(PODS, name, {"status": status}, namespace=namespace, subresource="status")


def exit_code(pod: Object) -> int | None:
    """What the pod's command ends with, None for one that goes on."""
    index = index_of(pod) or 0
    command = pod["spec"]["containers"][0]["command"]
    return {"true": 0, "false": 1, EXIT_INDEX: index, FIRST_ENDS: None if index else 0}.get(command[-1])


@contextlib.asynccontextmanager
async def embedded() -> AsyncIterator[Embedded]:
    """With a node, and everything running."""
    backend = Embedded()
    await backend.api.create(NODES, {"metadata": {"name": "n1"}})
    ready = {"type": "Ready", "status": "True", "lastHeartbeatTime": stamp(), "lastTransitionTime": stamp()}
    await backend.api.patch(NODES, "n1", {"status": {"conditions": [ready]}}, subresource="status")
    await backend.api.create(NAMESPACES, {"metadata": {"name": NAMESPACE}})
    async with controllers(backend.api, backend.kubelet(), root_ca="the CA"):
        yield backend


async def test_the_story_and_its_end():
    async with embedded() as backend:
        found = await (await tell(backend))()
        assert found["deployment"]["availableReplicas"] == 3
        assert found["deployment"]["generation"] == 4  # the controller's own annotations are no new generation
        assert found["idx"]["completedIndexes"] == "0-2"
        assert found["bad"]["failed"] == 1
        assert await backend.list(SERVICE_ACCOUNTS)
        await backend.api.delete(NAMESPACES, NAMESPACE)
        watch = backend.api.watch(NAMESPACES, "0", selector=Selector.named(NAMESPACE))
        async with asyncio.timeout(300):
            async for event in watch:
                if event.change is Change.DELETED:
                    break
        assert await backend.list(PODS) == []


async def test_the_second_story():
    async with embedded() as backend:
        look = await story_batch.tell(backend)
        found = await look()
        async with asyncio.timeout(300):
            while MISSED not in [event[:4] for event in found["events"]]:
                await asyncio.sleep(0.05)
                found = await look()
    assert (found["per"]["completedIndexes"], found["per"]["failedIndexes"]) == ("0", "1,2")
    assert found["most"]["failedIndexes"] == "1"
    assert found["early"]["completedIndexes"] == "0"
    ends = {name: found[name]["conditions"][-1][:3] for name in ("per", "most", "policy", "early", "paused", "late")}
    assert ends == {
        "per": ("Failed", "True", "FailedIndexes"),
        "most": ("Failed", "True", "MaxFailedIndexesExceeded"),
        "policy": ("Failed", "True", "PodFailurePolicy"),
        "early": ("Complete", "True", "SuccessPolicy"),
        "paused": ("Complete", "True", "CompletionsReached"),
        "late": ("Failed", "True", "DeadlineExceeded"),
    }
    assert found["evictions"] == ["Cannot evict pod as it would violate the pod's disruption budget.", ""]
