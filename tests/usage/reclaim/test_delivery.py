"""A real webhook on this machine that asks to wait, is down, refuses, or never answers: nothing is lost, nobody waits."""

from __future__ import annotations

from typing import Any

import msgspec

from kgpu.formats.crd.usagepolicy import UsageReceiver, UsageSecretRef
from kgpu.notifications.settings import WebhookSettings
from kgpu.notifications.webhook import Webhook
from kgpu.usage.reclaim.delivery import NoticeDelivery, warning_id
from kgpu.usage.reclaim.record import NoticeKind, ReclaimNotice, ReclaimRecord, StoredTarget, WarningEntry
from tests.notifications.receiver import HANG, LocalReceiver, receiving, status
from tests.usage.reclaim.scene import OWN, START, Scene

TARGET = StoredTarget(
    group="apps", version="v1", plural="deployments", kind="Deployment", namespace="a", name="d", uid="u", way="scale"
)


def to(name: str) -> UsageReceiver:
    return UsageReceiver(type="slack", secret_ref=UsageSecretRef(name=name))


def record(*names: str, count: int = 1, kind: NoticeKind = NoticeKind.IDLE) -> ReclaimRecord:
    waiting = tuple(f"slack:{name}/url" for name in names)
    return ReclaimRecord().with_notices(
        ReclaimNotice(
            id=str(at), kind=kind, policy="p", namespace=f"ns-{at}", who="w", what="x", at=START, waiting=waiting
        )
        for at in range(count)
    )  # fmt: skip


async def prepared(*, hanging: int = 0, **receivers: LocalReceiver | str) -> tuple[Scene, NoticeDelivery]:
    """``hanging``: the port of one that is not waited for long."""
    scene = await Scene().begin()
    for name, receiver in receivers.items():
        url = receiver if isinstance(receiver, str) else f"http://127.0.0.1:{receiver.port}/services/T0/secret"
        await scene.secret(url, name)

    def opened(settings: WebhookSettings) -> Webhook:
        return Webhook(settings, deadline=0.2 if settings.place.endswith(f":{hanging}") else 60.0)

    delivery = NoticeDelivery(scene.api, OWN, opened, clock=scene.clock, now=lambda: scene.now)
    return scene, delivery


def said(receiver: LocalReceiver) -> list[Any]:
    return [one.json["text"].split("\n")[0] for one in receiver.got]


async def test_429_is_obeyed_and_the_rest_follows() -> None:
    async with receiving(status(200), status(429, "Retry-After: 90"), status(200)) as slack:
        scene, delivery = await prepared(hook=slack)
        left = await delivery.deliver(record("hook", count=3), [to("hook")])
        assert said(slack) == ["*Idle GPUs in ns-0*", "*Idle GPUs in ns-1*"]
        assert [one.id for one in left.notices] == ["1", "2"]
        assert delivery.trouble == {"slack:hook/url": "it answers 429"}
        await scene.clock.sleep(60)
        assert await delivery.deliver(left, [to("hook")]) == left, "it has asked for 90 seconds"
        await scene.clock.sleep(40)
        left = await delivery.deliver(left, [to("hook")])
        assert said(slack)[2:] == ["*Idle GPUs in ns-1*", "*Idle GPUs in ns-2*"]
        assert left.notices == ()
        assert delivery.trouble == {}


async def test_an_outage_and_one_that_never_answers_delay_nobody_and_lose_nothing() -> None:
    async with receiving(HANG) as hangs, receiving() as well:
        scene, delivery = await prepared(hanging=hangs.port, hangs=hangs, down="http://127.0.0.1:9/x", well=well)
        everybody = [to("hangs"), to("down"), to("well")]
        left = await delivery.deliver(record("hangs", "down", "well"), everybody)
        assert said(well) == ["*Idle GPUs in ns-0*"]
        assert left.notices[0].waiting == ("slack:hangs/url", "slack:down/url")
        assert "no answer" in delivery.trouble["slack:hangs/url"]
        assert "connection refused" in delivery.trouble["slack:down/url"]
        assert "secret" not in str(delivery.trouble)
        for _ in range(5):
            await scene.clock.sleep(3600)
            left = await delivery.deliver(left, everybody)
        assert len(left.notices) == 1
        assert len(well.got) == 1, "who has it gets it once"


async def test_a_warning_is_delivered_once_all_have_it() -> None:
    async with receiving() as one, receiving(status(503), status(200)) as other:
        scene, delivery = await prepared(one=one, other=other)
        warning = WarningEntry(
            kind="Deployment", namespace="a", name="d", since=5.0, deadline=9.0, announced=True, target=TARGET
        )
        waits = record("one", "other", kind=NoticeKind.WARNING)
        waits = msgspec.structs.replace(
            waits, warnings=(warning,), notices=(msgspec.structs.replace(waits.notices[0], id=warning_id(warning)),)
        )
        left = await delivery.deliver(waits, [to("one"), to("other")])
        assert left.warnings[0].delivered is None
        await scene.clock.sleep(600)
        scene.now += 600
        left = await delivery.deliver(left, [to("one"), to("other")])
        assert left.warnings[0].delivered == scene.now


async def test_a_secret_that_is_not_there_or_no_url_is_told() -> None:
    _, delivery = await prepared(wrong="ftp://user:password@x")
    left = await delivery.deliver(record("wrong", "none"), [to("wrong"), to("none")])
    assert len(left.notices) == 1
    assert delivery.trouble == {
        "slack:none/url": f"there is no URL in the key url of Secret {OWN}/none; create the key url of Secret {OWN}/none",
        "slack:wrong/url": f"the webhook's URL is not valid; correct the key url of Secret {OWN}/wrong",
    }


async def test_what_waits_for_nobody_goes() -> None:
    _, delivery = await prepared()
    assert (await delivery.deliver(record("gone"), [])).notices == ()
