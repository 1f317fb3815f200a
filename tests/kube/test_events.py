"""Events about a node: one object per statement, counted up, within the API's limits."""

from __future__ import annotations

import pytest

from kgpu.base.advice import Advice, Severity
from kgpu.kube.events import NodeEvents
from kgpu.kube.fake import FakeApi
from kgpu.kube.port import EVENTS, KubeRefusedError, Object, name_of

BAD = Advice(subject="GPU-1", what="marked unhealthy", why="Xid 79", severity=Severity.WARNING, reason="GpuUnhealthy")


async def events(api: FakeApi) -> list[Object]:
    return list((await api.list(EVENTS, namespace="default")).items)


async def test_the_same_advice_counts_up_even_after_a_restart() -> None:
    api = FakeApi()
    for now in (1000.0, 1060.0, 1120.0):
        await NodeEvents(api, node="n", now=lambda now=now: now).publish(BAD)
    (event,) = await events(api)
    assert (event["count"], event["type"], event["reason"]) == (3, "Warning", "GpuUnhealthy")
    assert event["message"] == BAD.one_line()
    assert (event["firstTimestamp"], event["lastTimestamp"]) == ("1970-01-01T00:16:40Z", "1970-01-01T00:18:40Z")
    assert event["involvedObject"] == {"apiVersion": "v1", "kind": "Node", "name": "n", "uid": "n"}


async def test_other_advice_are_other_events() -> None:
    api = FakeApi()
    recorder = NodeEvents(api, node="n")
    await recorder.publish(BAD)
    await recorder.publish(Advice(subject="GPU-2", what="healthy again", why="it answers", reason="GpuHealthy"))
    assert sorted(event["type"] for event in await events(api)) == ["Normal", "Warning"]


async def test_an_event_that_expires_meanwhile_is_written_anew() -> None:
    class Expiring(FakeApi):
        async def patch(self, resource, name, change, *, namespace="", **more):
            await self.delete(resource, name, namespace=namespace)
            return await super().patch(resource, name, change, namespace=namespace, **more)

    api = Expiring()
    await NodeEvents(api, node="n").publish(BAD)
    await NodeEvents(api, node="n").publish(BAD)
    (event,) = await events(api)
    assert event["count"] == 1


async def test_the_event_there_is_is_not_read_but_changed_as_only_that_can_be_kept_to_the_own_node() -> None:
    api = FakeApi()
    api.refuse["get", "events"] = api.refuse["list", "events"] = 403
    for _ in range(2):
        await NodeEvents(api, node="n").publish(BAD)
    del api.refuse["list", "events"]
    assert [event["count"] for event in await events(api)] == [2]


async def test_refusals_come_out() -> None:
    api = FakeApi()
    api.refuse["create", "events"] = 403
    with pytest.raises(KubeRefusedError):
        await NodeEvents(api, node="n").publish(BAD)


@pytest.mark.parametrize("text", ["x" * 3000, "é" * 3000])
async def test_limits_of_the_api(text: str) -> None:
    api = FakeApi()
    await NodeEvents(api, node="n" * 253).publish(Advice(subject="", what=text, why="", reason="R" * 200))
    (event,) = await events(api)
    assert len(event["message"].encode()) <= 1024
    assert event["message"].endswith("...")
    assert len(event["reason"]) == 128
    assert len(name_of(event)) <= 253
