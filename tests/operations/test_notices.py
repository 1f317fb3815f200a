"""What people are told of operations: as Events, and by a webhook that never holds them up."""

from __future__ import annotations

import contextlib
import subprocess
import sys
from collections.abc import AsyncIterator

import pytest

from kgpu.base.clock import SystemClock
from kgpu.kube.kinds import NODE_OPERATIONS
from kgpu.kube.port import EVENTS
from kgpu.notifications.notifier import Notifier
from kgpu.notifications.settings import read_webhook
from kgpu.notifications.webhook import Webhook
from kgpu.operations.config import RemediationPolicy, Strongest
from tests.notifications.receiver import HANG, LocalReceiver, receiving, status
from tests.operations.test_repairs import LOST, made, nodes, says
from tests.operations.world import OPEN, START, Cluster, Engine

REBOOT = RemediationPolicy(strongest=Strongest.REBOOT)
SUGGEST = RemediationPolicy(strongest=Strongest.SUGGEST)
PREFIX = "dev.kgpu.operation."


def notifier_to(receiver: LocalReceiver, min_severity: str = "info") -> Notifier:
    url = f"http://127.0.0.1:{receiver.port}/hook"
    to = read_webhook(url, token="abc", min_severity=min_severity, cluster="prod")
    return Notifier(to, Webhook(to), clock=SystemClock(), now=lambda: START)


@contextlib.asynccontextmanager
async def telling(cluster: Cluster, policy: RemediationPolicy, notifier: Notifier | None) -> AsyncIterator[Engine]:
    engine = Engine(cluster, OPEN, remediation=policy, notifier=notifier)
    await engine.start()
    try:
        yield engine
    finally:
        await engine.stop()


def kinds(receiver: LocalReceiver) -> list[str]:
    return [got.json["type"].removeprefix(PREFIX) for got in receiver.got]


async def test_a_repair_is_told_from_its_beginning_to_its_end() -> None:
    cluster = nodes(1)
    async with receiving() as receiver, telling(cluster, REBOOT, notifier_to(receiver)) as running:
        await running.run_for(2)
        says(cluster, "n1", LOST)
        await running.run_for(10)
        await receiver.until(lambda: "ended" in kinds(receiver))
        metrics = running.controller.metrics()
    assert list(dict.fromkeys(kinds(receiver))) == ["started", "acting", "verifying", "restoring", "ended"]
    assert len({got.json["id"] for got in receiver.got}) == len(receiver.got)
    assert {got.json["subject"] for got in receiver.got} == {"n1"}
    (operation,) = made(cluster)
    began, ended = receiver.got[0].json, receiver.got[-1].json
    assert began["text"].startswith(f"[prod] Reboot {operation['metadata']['name']} has begun")
    assert "GPU 3 (GPU-3): Xid 79" in began["data"]["message"]
    expected = {
        "operation": operation["metadata"]["name"],
        "type": "Reboot",
        "phase": "Complete",
        "result": "Succeeded",
    }
    assert expected.items() <= ended["data"].items()
    assert "kgpu_notifications_sent_total 0" not in metrics


async def test_a_suggestion_tells_that_it_waits_for_approval_and_how_to_give_it() -> None:
    cluster = nodes(1)
    async with receiving() as receiver, telling(cluster, SUGGEST, notifier_to(receiver, "warning")) as running:
        await running.run_for(2)
        says(cluster, "n1", LOST)
        await running.run_for(10)
        await receiver.until(lambda: bool(receiver.got))
        await running.run_for(120, step=5)
    (operation,) = made(cluster)
    name = operation["metadata"]["name"]
    (got,) = receiver.got
    assert got.json["type"] == f"{PREFIX}unapproved"
    assert got.json["data"]["remedy"] == f"kgpu operations approve {name}"
    assert got.json["data"]["message"] == f"Reboot {name} waits for approval: GPU 3 (GPU-3): Xid 79"
    events = [stored.obj for (kind, _, _), stored in cluster._objects.items() if kind == EVENTS]
    assert [event["type"] for event in events if event["reason"] == "WaitsForApproval"] == ["Warning"]


async def test_the_open_breaker_is_told() -> None:
    cluster = nodes(3)
    async with receiving() as receiver, telling(cluster, REBOOT, notifier_to(receiver, "warning")) as running:
        for name in ("n1", "n2", "n3"):
            says(cluster, name, LOST)
        await running.run_for(10)
        await receiver.until(lambda: "stopped" in kinds(receiver))
    (stopped,) = (got.json for got in receiver.got if got.json["type"] == f"{PREFIX}stopped")
    assert (stopped["data"]["reason"], stopped["data"]["severity"]) == ("RemediationStopped", "warning")


async def test_an_operation_that_fails_is_told_as_a_warning() -> None:
    cluster = nodes(1)
    cluster.pod("bare", "n1", owner=None)  # no controller makes it anew, so it does not go
    cluster.operation("m", "n1", drain={"timeoutSeconds": 5})
    async with receiving() as receiver, telling(cluster, SUGGEST, notifier_to(receiver, "warning")) as running:
        await running.run_for(30)
        await receiver.until(lambda: bool(receiver.got))
    assert cluster.status("m")["phase"] == "Failed"
    assert cluster.status("m")["result"] == receiver.got[0].json["data"]["result"] != "Succeeded"
    assert receiver.got[0].json["text"].startswith("[prod] warning: n1: Maintenance m: ")


async def course(answer: bytes | None) -> list[tuple[str, float]]:
    """The phases of a repair with the times when they began, while the webhook answers so; None for no webhook."""
    cluster = nodes(1)
    seen: dict[str, float] = {}
    async with receiving(answer if answer is not None else status(200)) as receiver:
        notifier = None if answer is None else notifier_to(receiver)
        async with telling(cluster, REBOOT, notifier) as running:
            says(cluster, "n1", LOST)
            for _ in range(60):
                await running.run_for(0.5)
                if any(kind == NODE_OPERATIONS for kind, _, _ in cluster._objects):
                    phase = (made(cluster)[0].get("status") or {}).get("phase", "")
                    seen.setdefault(phase, running.clock.monotonic())
    assert list(seen)[-1] == "Complete"
    return list(seen.items())


@pytest.mark.parametrize("answer", [HANG, status(500), status(302, "Location: /x")])
async def test_the_engine_takes_its_time_from_no_webhook(answer: bytes) -> None:
    assert await course(answer) == await course(None)


def test_without_a_webhook_none_of_it_is_loaded() -> None:
    code = "import sys, kgpu.operations.run; print([m for m in sys.modules if m.startswith('kgpu.notifications.')])"
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert done.stdout.strip() == "['kgpu.notifications.payload']"
