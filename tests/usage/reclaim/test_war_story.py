"""A fleet that stood idle over a weekend: 16 nodes with 8 A100 each, held and not used, and nobody knew.

Here a policy that only notifies is there. The nodes are told after 30 minutes and the workloads after an hour, to a
receiver on this machine that first asks to wait and then is away.
"""

from __future__ import annotations

import json
from decimal import Decimal
from typing import Any

from kgpu.notifications.webhook import Webhook
from tests.notifications.receiver import receiving, status
from tests.usage.reclaim.scene import HOUR, START, Scene

NODES = 16
MINUTE = 60.0


async def fleet(scene: Scene) -> None:
    for number in range(NODES):
        await scene.deployment(f"train-{number:02}", space="research", gpus=8, node=f"gpu-{number:02}")
    for device in scene.source.all:
        device.idle_since = START
    assert len(scene.source.all) == 128


async def test_128_idle_gpus_are_told_after_half_an_hour_and_after_one() -> None:
    scene = await Scene().begin("research")
    async with receiving(status(429, "Retry-After: 120"), status(503), status(200)) as slack:
        hook = await scene.secret(f"http://127.0.0.1:{slack.port}/services/T0/B0/secret")
        scene.again(opened=lambda settings: Webhook(settings, deadline=60.0))
        await scene.policy(mode="notify", namespaces=["research"], notify=[{**hook, "channel": "#gpu-costs"}])
        await fleet(scene)
        for _ in range(29):
            await scene.round(MINUTE)
        assert slack.got == []
        await scene.round(MINUTE)
        (asked_to_wait,) = slack.got
        assert asked_to_wait.json["channel"] == "#gpu-costs"
        for _ in range(29):
            await scene.round(MINUTE)
        texts = [one.json["text"] for one in slack.got]
        assert [text.split("\n")[0] for text in texts] == ["*Idle GPU nodes*"] * 3, "429, an outage, and taken"
        assert (
            "Node gpu-00: 8 x NVIDIA A100-SXM4-80GB on gpu-00, all idle; held by Deployment research/train-00"
            in texts[2]
        )
        assert "24.48 USD an hour" in texts[2]
        assert "kgpu.dev/keep-until=" in texts[2]
        await scene.round(MINUTE)
        (about_workloads,) = [one.json["text"] for one in slack.got[3:]]
        assert about_workloads.startswith("*Idle GPUs in research*")
        assert "idle for 1h (since 2026-08-10T10:00:00Z); 24.48 USD wasted, 24.48 USD an hour" in about_workloads
        named = about_workloads.count("• Deployment")
        assert named == NODES or f"and {NODES - named} more" in about_workloads
        counted = (await scene.got_policy())["status"]
        assert (counted["idleWorkloads"], counted["idleDevices"]) == (NODES, 128), "by the rules of the notices"
        before = len(slack.got)
        for _ in range(22):
            await scene.round(HOUR)
        assert len(slack.got) == before, "once a day is enough"


async def test_what_the_weekend_costs_is_in_the_last_message() -> None:
    scene = await Scene().begin("research")
    await scene.policy(
        mode="notify",
        namespaces=["research"],
        notify=[{**await scene.secret("http://h.example.com/x"), "type": "webhook"}],
    )
    await fleet(scene)
    scene.clock.at = scene.now = START + 60 * HOUR - MINUTE
    scene.clock.at -= START
    await scene.round(MINUTE)
    items: list[Any] = [
        item for body in scene.webhook.taken if (told := json.loads(body))["kind"] == "idle" for item in told["items"]
    ]
    assert len(items) == NODES
    assert sum(Decimal(item["wasted"]) for item in items) == Decimal("23500.8")


async def test_each_node_is_told_by_the_policy_of_all_that_hold_it_and_once() -> None:
    scene = await Scene().begin("research", "web")
    hook = await scene.secret("http://h.example.com/x")
    await scene.policy("research", mode="notify", namespaces=["research"], notify=[hook])
    await scene.policy("web", mode="notify", namespaces=["web"], notify=[hook], idle={"nodeAfter": "2h"})
    await scene.deployment("a", space="research", node="gpu-a", idle_since=START)
    await scene.deployment("b", space="web", node="gpu-b", idle_since=START)
    await scene.deployment("c", space="web", node="both", idle_since=START)
    await scene.deployment("d", space="research", node="both", idle_since=START)
    await scene.rounds(1.9 * HOUR, every=600)
    nodes = [told["text"] for body in scene.webhook.taken if "GPU nodes" in (told := json.loads(body))["text"]]
    assert len(nodes) == 1
    assert "Node gpu-a" in nodes[0]
    await scene.rounds(0.5 * HOUR, every=600)
    nodes = [told["text"] for body in scene.webhook.taken if "GPU nodes" in (told := json.loads(body))["text"]]
    assert len(nodes) == 2
    assert "Node gpu-b" in nodes[1]


async def test_in_mode_observe_nobody_is_told_and_nothing_written() -> None:
    scene = await Scene().begin("research")
    await scene.policy(mode="observe", namespaces=["research"], notify=[await scene.secret("http://h.example.com/x")])
    await fleet(scene)
    await scene.rounds(4 * HOUR)
    assert scene.webhook.bodies == []
    assert not await scene.annotations("train-00", "research")
    assert (await scene.condition("Acting"))["message"] == "mode observe"
    assert (await scene.got_policy())["status"]["idleDevices"] == 128
