"""Binding conditions and DeviceTaintRules on the embedded cluster: as on the programs of Kubernetes 1.35.

``python -m tests.lab.real.record_device_stories gated`` records how the stories end there.
"""

from __future__ import annotations

import asyncio
import datetime as dt
import json
from pathlib import Path
from typing import Any

import pytest

from kgpu.fit.binding import BINDING_TIMEOUT_S, ClaimBinding, claim_binding
from kgpu.fit.model import ClaimView
from kgpu.fit.snapshot import ClusterSnapshot
from kgpu.kube.port import PODS
from kgpu.lab.embedded.controllers.kinds import DEVICE_TAINT_RULES, RESOURCE_CLAIMS, RESOURCE_SLICES
from kgpu.lab.embedded.kinds import TAINT_RULES_GATE
from kgpu.lab.embedded.scheduler.binding import BindingWait
from kgpu.lab.embedded.scheduler.claim_writing import ClaimWritingError
from tests.lab.embedded.scheduler import device_play
from tests.lab.embedded.scheduler.device_play import NAMESPACE
from tests.lab.embedded.scheduler.device_stories import (
    DRIVER,
    FOUR,
    DeviceStory,
    claim,
    device_class,
    exactly,
    pieces,
    pod,
)
from tests.lab.embedded.scheduler.gated_stories import (
    ATTACHED,
    GOES,
    SAID,
    STORIES,
    TOLERATED,
    fabric,
    rule,
)
from tests.lab.embedded.support import Whole, whole

RECORDED: dict[str, Any] = json.loads(SAID.read_text())
KINDS = {**device_play.KINDS, **device_play.GATED}


def cluster(folder: Path) -> Any:
    return whole(folder, gates=[TAINT_RULES_GATE])


async def prepared(found: Whole) -> device_play.Player:
    player = device_play.Player(found.api, KINDS)
    await player.prepare()
    return player


async def events(found: Whole, name: str) -> list[tuple[str, str]]:
    return [(reason, message) for _, reason, message, _ in await found.events(name)]


def test_each_story_was_played_on_real_programs() -> None:
    assert {story.name for story in STORIES} == RECORDED.keys()


@pytest.mark.parametrize("story", STORIES, ids=lambda story: story.name)
async def test_a_story_ends_as_on_real_programs(story: DeviceStory, tmp_path: Path) -> None:
    async with cluster(tmp_path) as found:
        player = await prepared(found)
        assert await player.play(story, RECORDED[story.name]) == RECORDED[story.name]


async def test_who_waits_is_told_so_and_what_fails_is_given_back(tmp_path: Path) -> None:
    async with cluster(tmp_path) as found:
        player = await prepared(found)
        await player.node("a", {})
        await player.node("b", {})
        for obj in (device_class(), fabric(ATTACHED), claim("c", exactly()), pod("p", "c", on="a")):
            await player.create(obj)
        await player.conditions("c", {"broken": "True"})

        async def given_back() -> bool:
            said = await events(found, "p")
            return any("deallocation of ResourceClaim completed" in message for _, message in said)

        await found.until(given_back, "the claim to be given back")
        said = await events(found, "p")
        assert said[0] == ("BindingConditionsPending", "waiting for binding conditions for device on node a")
        broken = (
            'running PreBind plugin "DynamicResources": claim c binding failed: reason=Said, message="broken is True"'
        )
        assert ("FailedScheduling", broken) in said
        assert any("1 resourceclaim not available on the node" in message for _, message in said)

        async def again() -> bool:
            status = (found.get(RESOURCE_CLAIMS, "c", NAMESPACE) or {}).get("status") or {}
            return bool(status.get("allocation")) and not status.get("devices")

        await found.until(again, "the claim to be allocated anew")
        await player.conditions("c", {"attached": "True"})
        await found.until(
            lambda: (found.get(PODS, "p", NAMESPACE) or {})["spec"].get("nodeName") == "a", "the pod's node"
        )


async def test_a_device_that_is_attached_too_late_ends_the_wait() -> None:
    snapshot = ClusterSnapshot()
    now = dt.datetime(2026, 1, 1, tzinfo=dt.UTC)
    snapshot.now = lambda: now
    waiting = ClaimView(namespace="n", name="c", allocated=True, binding=ClaimBinding(since=now))
    snapshot.put(waiting)
    with pytest.raises(ClaimWritingError, match="device binding timeout"):
        await BindingWait(snapshot, timeout=0.01).attached([waiting.key], lambda: None)
    later = now + dt.timedelta(seconds=BINDING_TIMEOUT_S + 1)
    snapshot.now = lambda: later
    with pytest.raises(ClaimWritingError, match="claim c binding timeout"):
        await BindingWait(snapshot).attached([waiting.key], lambda: None)


async def test_a_claim_that_goes_ends_the_wait() -> None:
    snapshot, wait, begun = ClusterSnapshot(), None, asyncio.Event()
    waiting = ClaimView(namespace="n", name="c", allocated=True, binding=ClaimBinding())
    snapshot.put(waiting)
    wait = BindingWait(snapshot)
    task = asyncio.create_task(wait.attached([waiting.key], begun.set))
    await begun.wait()
    snapshot.drop(waiting)
    wait.changed()
    with pytest.raises(ClaimWritingError, match='"c" not found'):
        await task


RESULT = {
    "driver": DRIVER,
    "pool": "a",
    "device": "gpu-0",
    "bindingConditions": ["x"],
    "bindingFailureConditions": ["y"],
}


@pytest.mark.parametrize(
    ("status", "binding"),
    [
        ({}, None),
        ({"allocation": {"devices": {"results": [{**RESULT, "bindingConditions": []}]}}}, None),
        ({"allocation": "hostile"}, None),
        ({"allocation": {"devices": {"results": [RESULT]}, "allocationTimestamp": "hostile"}}, ClaimBinding()),
        (
            {"allocation": {"devices": {"results": [RESULT]}}, "devices": [{**RESULT, "conditions": "hostile"}]},
            ClaimBinding(),
        ),
        (
            {"allocation": {"devices": {"results": [RESULT]}, "allocationTimestamp": "2026-01-01T00:00:00Z"}},
            ClaimBinding(since=dt.datetime(2026, 1, 1, tzinfo=dt.UTC)),
        ),
        (
            {"allocation": {"devices": {"results": [RESULT]}},
             "devices": [{**RESULT, "conditions": [{"type": "x", "status": "True"}]}]},
            ClaimBinding(ready=True),
        ),
        (
            {"allocation": {"devices": {"results": [RESULT]}},
             "devices": [{**RESULT, "conditions": [{"type": "y", "status": "True", "reason": "R", "message": 'a "b"'}]}]},
            ClaimBinding(failure='claim c binding failed: reason=R, message="a \\"b\\""'),
        ),
    ],
)  # fmt: skip
def test_what_a_claim_waits_for(status: Any, binding: ClaimBinding | None) -> None:
    assert claim_binding("c", status) == binding


async def test_eviction_waits_as_long_as_it_is_tolerated_and_is_called_off(tmp_path: Path) -> None:
    async with cluster(tmp_path) as found:
        player = await prepared(found)
        for_an_hour = {**TOLERATED, "tolerationSeconds": 3600}
        for obj in (
            device_class(), pieces("a", FOUR), claim("c", exactly()), claim("d", exactly(tolerations=[for_an_hour])),
        ):  # fmt: skip
            await player.create(obj)
        await player.node("a", {})
        for name, own in (("p", "c"), ("q", "d")):
            await player.create(pod(name, own))
            await found.until(lambda name=name: (found.get(PODS, name, NAMESPACE) or {})["spec"].get("nodeName"), name)
        await player.create(rule("r", {"driver": DRIVER}, GOES))
        await found.until(lambda: found.get(PODS, "p", NAMESPACE) is None, "the pod to go")

        async def told() -> bool:
            return ("DeviceTaintManagerEviction", "Marking for deletion") in await events(found, "p")

        await found.until(told, "what is told of it")
        assert found.get(PODS, "q", NAMESPACE) is not None
        await found.api.delete(DEVICE_TAINT_RULES, "r")

        async def called_off() -> bool:
            return ("DeviceTaintManagerEviction", "Cancelling deletion") in await events(found, "q")

        await found.until(called_off, "the eviction to be called off")


async def test_a_taint_of_a_slice_evicts_too(tmp_path: Path) -> None:
    async with whole(tmp_path) as found:
        player = device_play.Player(found.api)
        await player.prepare()
        for obj in (device_class(), pieces("a", FOUR), claim("c", exactly())):
            await player.create(obj)
        await player.node("a", {})
        await player.create(pod("p", "c"))
        await found.until(lambda: (found.get(PODS, "p", NAMESPACE) or {})["spec"].get("nodeName"), "the pod's node")
        devices = [{**FOUR[0], "taints": [GOES]}, *FOUR[1:]]
        await found.api.patch(RESOURCE_SLICES, "a-slice", {"spec": {"devices": devices}})
        await found.until(lambda: found.get(PODS, "p", NAMESPACE) is None, "the pod to go")


async def test_rules_are_served_with_their_gate_alone_and_checked(tmp_path: Path) -> None:
    async with whole(tmp_path / "off", "none") as found:
        assert found.core.kinds.stored("resource.k8s.io", "devicetaintrules") is None
    async with whole(tmp_path / "on", "none", gates=[TAINT_RULES_GATE]) as found:
        made = await found.api.create(DEVICE_TAINT_RULES, rule("r", {"driver": DRIVER}, GOES) | {"status": {"x": 1}})
        assert made["metadata"]["generation"] == 1
        assert made["spec"]["taint"]["timeAdded"]
        assert not made.get("status")
        for selector, taint, words in (
            ({"driver": "a b"}, GOES, "spec.deviceSelector.driver: Invalid value"),
            ({"pool": ""}, GOES, "spec.deviceSelector.pool: Required value"),
            ({"device": "A"}, GOES, "spec.deviceSelector.device: Invalid value"),
            ({}, {**GOES, "effect": "Never"}, 'spec.taint.effect: Unsupported value: "Never"'),
            ({}, {**GOES, "key": ""}, "spec.taint.key: Invalid value"),
        ):
            with pytest.raises(Exception, match="is invalid") as caught:
                await found.api.create(DEVICE_TAINT_RULES, rule("x", selector, taint))
            assert words in str(caught.value)
        changed = await found.api.patch(DEVICE_TAINT_RULES, "r", {"spec": {"taint": {"effect": "NoSchedule"}}})
        assert changed["metadata"]["generation"] == 2
