"""The whole way on the embedded API server: warned, given time, looked at again, stopped, told, and brought back."""

from __future__ import annotations

import json
from typing import Any

import pytest

from kgpu.formats import names
from kgpu.formats.usage import UsageState
from kgpu.kube.kinds import DEPLOYMENTS, GPU_USAGE_POLICIES
from kgpu.kube.port import CONFIG_MAPS, NODES, KubeRefusedError
from kgpu.notifications.webhook import Delivery, Outcome
from kgpu.usage.reclaim.record import ActionState
from kgpu.usage.reclaim.requests import lift_freeze
from tests.usage.reclaim.scene import HOUR, OWN, SENT, SPACE, START, Scene


@pytest.fixture
async def scene() -> Scene:
    return await Scene().begin()


async def test_it_is_warned_and_given_its_time_before_it_is_stopped(scene: Scene) -> None:
    await scene.policy(notify=[await scene.secret("http://hooks.example.com/a")])
    await scene.deployment(gpus=2, idle_since=START - 3 * HOUR)
    await scene.round()
    assert await scene.replicas() == 1
    assert names.RECLAIM_AT in await scene.annotations()
    assert len(await scene.events("ReclaimWarned")) == 1
    warning = json.loads(scene.webhook.taken[-1])["text"]
    assert "Deployment team-a/llama" in warning
    assert "2 x NVIDIA A100-SXM4-80GB on gpu-1" in warning
    assert "idle for 3h 1m" in warning
    assert "18.46 USD wasted, 6.12 USD an hour" in warning
    assert "kubectl -n team-a annotate --overwrite deployments.apps/llama kgpu.dev/keep-until=2026-08-10T" in warning
    await scene.rounds(1500)
    assert await scene.replicas() == 1
    await scene.rounds(600)
    assert await scene.replicas() == 0
    annotations = await scene.annotations()
    assert annotations[names.ORIGINAL_REPLICAS] == "1"
    assert len(await scene.events("Reclaimed")) == 1
    assert "kgpu idle resume team-a/llama" in json.loads(scene.webhook.taken[-1])["text"]
    (action,) = (await scene.record()).actions
    assert action.state is ActionState.DONE
    assert (await scene.condition("Acting"))["status"] == "True"


async def test_use_within_the_time_of_grace_withdraws_the_deadline(scene: Scene) -> None:
    await scene.policy(notify=[await scene.secret("http://hooks.example.com/a")])
    await scene.deployment(idle_since=START - 3 * HOUR)
    await scene.round()
    scene.source.all[0].idle_since = None
    await scene.rounds(3600)
    assert await scene.replicas() == 1
    assert names.RECLAIM_AT not in await scene.annotations()
    assert "In use again" in json.loads(scene.webhook.taken[-1])["text"]
    assert not (await scene.record()).warnings


async def test_a_stretch_of_idleness_that_is_another_one_begins_anew(scene: Scene) -> None:
    await scene.policy()
    await scene.deployment(idle_since=START - 3 * HOUR)
    await scene.round()
    first = (await scene.annotations())[names.RECLAIM_AT]
    scene.source.all[0].idle_since = scene.now - 2.1 * HOUR  # it was busy in between
    await scene.round(1500)
    assert (await scene.annotations())[names.RECLAIM_AT] > first
    await scene.round(600)
    assert await scene.replicas() == 1


@pytest.mark.parametrize(
    "annotation",
    [{names.KEEP_UNTIL: "2026-08-12T00:00:00Z"}, {names.IDLE_POLICY: "never"}, {"downscaler/exclude": "true"}],
)
async def test_somebody_keeps_it_after_the_warning(scene: Scene, annotation: dict[str, str]) -> None:
    await scene.policy()
    await scene.deployment(idle_since=START - 3 * HOUR)
    await scene.round()
    change = {"metadata": {"annotations": annotation}}
    await scene.api.patch(DEPLOYMENTS, "llama", change, namespace=SPACE)
    await scene.rounds(3 * HOUR)
    assert await scene.replicas() == 1
    assert names.RECLAIM_AT not in await scene.annotations()


async def test_no_act_follows_a_warning_that_was_not_delivered(scene: Scene) -> None:
    scene.webhook.answers = [Outcome(Delivery.AGAIN, "no answer within 10 s")]
    await scene.policy(notify=[await scene.secret("http://hooks.example.com/a")])
    await scene.deployment(idle_since=START - 3 * HOUR)
    await scene.rounds(5 * HOUR)
    assert await scene.replicas() == 1
    told = await scene.condition("Notified")
    assert (told["status"], told["reason"]) == ("False", "Unreachable")
    assert "no answer within 10 s" in told["message"]
    assert "hooks.example.com" not in told["message"]
    scene.webhook.answers = [SENT]
    await scene.rounds(1200)
    assert await scene.replicas() == 1  # the time of grace begins with the delivery
    await scene.rounds(1800)
    assert await scene.replicas() == 0


async def test_a_policy_that_goes_takes_its_deadlines_along(scene: Scene) -> None:
    await scene.policy()
    await scene.deployment(idle_since=START - 3 * HOUR)
    await scene.round()
    assert names.RECLAIM_AT in await scene.annotations()
    await scene.api.delete(GPU_USAGE_POLICIES, "all")
    await scene.rounds(3 * HOUR)
    assert await scene.replicas() == 1
    assert names.RECLAIM_AT not in await scene.annotations()


async def test_who_is_not_heard_any_more_is_not_said_to_be_in_use(scene: Scene) -> None:
    await scene.policy(mode="notify", notify=[await scene.secret("http://hooks.example.com/a")])
    await scene.deployment(idle_since=START - 3 * HOUR)
    await scene.round()
    told = len(scene.webhook.taken)
    devices, scene.source.all = scene.source.all, []
    await scene.rounds(2 * HOUR)
    scene.source.all = devices
    await scene.rounds(2 * HOUR)
    assert len(scene.webhook.taken) == told, "it is the same stretch of idleness"
    devices[0].idle_since = None
    await scene.round()
    assert "In use again" in json.loads(scene.webhook.taken[-1])["text"]


async def test_what_is_unknown_is_never_idle(scene: Scene) -> None:
    await scene.policy()
    await scene.deployment(gpus=2, idle_since=START - 3 * HOUR)
    await scene.round()
    scene.source.all[1].state = UsageState.UNKNOWN
    await scene.rounds(3 * HOUR)
    assert await scene.replicas() == 1
    assert (await scene.condition("DataComplete"))["status"] == "False"


async def test_all_readings_are_gone(scene: Scene) -> None:
    """As when whoever says what devices do can't be reached."""
    await scene.policy()
    await scene.deployment(idle_since=START - 3 * HOUR)
    await scene.round()
    scene.source.all.clear()
    await scene.rounds(3 * HOUR)
    assert await scene.replicas() == 1
    assert (await scene.condition("DataComplete"))["reason"] == "NoData"


@pytest.mark.parametrize("jump", [7200.0, -7200.0])
async def test_a_clock_that_jumps_stops_nothing(scene: Scene, jump: float) -> None:
    await scene.policy()
    await scene.deployment(idle_since=START - 6 * HOUR)
    await scene.round()
    scene.now += jump
    await scene.round()
    assert await scene.replicas() == 1
    frozen = await scene.condition("Frozen")
    assert (frozen["status"], frozen["reason"]) == ("True", "ClockJumped")


async def test_a_clock_that_is_set_back_while_no_process_runs(scene: Scene) -> None:
    await scene.policy()
    await scene.deployment(idle_since=START - 9 * HOUR)
    await scene.round()
    scene.now -= 3 * HOUR
    scene.again()
    await scene.rounds(2 * HOUR)
    assert await scene.replicas() == 1
    assert (await scene.condition("Frozen"))["reason"] == "ClockJumped"


@pytest.mark.parametrize(("ahead", "said"), [(-5 * HOUR, "5h behind"), (5 * HOUR, "5h ahead of")])
async def test_a_new_process_whose_machine_has_another_time_stops_nothing(
    scene: Scene, ahead: float, said: str
) -> None:
    """What is kept until then, a schedule, and a time of grace are over by its clock alone."""
    await scene.policy()
    await scene.deployment(idle_since=START - 9 * HOUR, annotations={names.KEEP_UNTIL: "2026-08-10T14:00:00Z"})
    await scene.round()
    scene.now, scene.ahead = scene.now - ahead, ahead
    scene.again()
    await scene.rounds(2 * HOUR)
    assert await scene.replicas() == 1
    frozen = await scene.condition("Frozen")
    assert frozen["reason"] == "ClockJumped"
    if ahead < 0:
        assert said in frozen["message"]


async def test_too_much_that_turns_idle_at_once_is_a_broken_counter(scene: Scene) -> None:
    await scene.policy(notify=[await scene.secret("http://hooks.example.com/a")])
    for number in range(4):
        await scene.api.create(NODES, {"metadata": {"name": f"gpu-{number}"}})
        await scene.deployment(f"job-{number}", node=f"gpu-{number}", gpus=2)
    await scene.round()
    for device in scene.source.all:
        device.idle_since = scene.now - 5 * HOUR
    await scene.rounds(5 * HOUR)
    assert [await scene.replicas(f"job-{number}") for number in range(4)] == [1, 1, 1, 1]
    frozen = await scene.condition("Frozen")
    assert (frozen["status"], frozen["reason"]) == ("True", "MassIdle")
    assert any("paused" in json.loads(body)["text"] for body in scene.webhook.taken)
    scene.again()
    devices, scene.source.all = scene.source.all, []
    await scene.rounds(1 * HOUR)
    scene.source.all = devices
    await scene.rounds(1 * HOUR)
    assert await scene.replicas("job-0") == 1, "a new process knows of it, too, and silence proves nothing"
    await lift_freeze(scene.api, OWN)
    await scene.rounds(1 * HOUR)
    assert await scene.replicas("job-0") == 0, "a person's word"


async def test_nothing_of_kube_system_is_touched(scene: Scene) -> None:
    with pytest.raises(KubeRefusedError, match="namespaces of the system"):
        await scene.policy(namespaces=["kube-system"])
    with pytest.raises(KubeRefusedError, match="has to name its namespaces"):
        await scene.policy(namespaces=[])
    await scene.policy(namespaces=[OWN])
    await scene.deployment(space=OWN, idle_since=START - 9 * HOUR)
    await scene.rounds(4 * HOUR)
    assert await scene.replicas(space=OWN) == 1
    accepted = await scene.condition("Accepted")
    assert accepted["status"] == "False"
    assert "no namespace of the system or of kgpu itself" in accepted["message"]


@pytest.mark.parametrize(
    "spec",
    [
        {"namespaces": ["*"]}, {"namespaces": ["team-*"]}, {"namespaces": [" kube-system"]},
        {"namespaces": ["KUBE-SYSTEM"]}, {"namespaces": ["kube-system\n"]}, {"protect": {"namespaces": ["prod-*"]}},
        {"protect": {"owners": ["llama"]}},
    ],
)  # fmt: skip
async def test_what_looks_like_a_pattern_or_a_name_and_is_none_is_refused(scene: Scene, spec: dict[str, Any]) -> None:
    """It would be in no effect: nothing is reclaimed, or worse, nothing is protected."""
    with pytest.raises(KubeRefusedError, match="should match"):
        await scene.policy(**spec)


async def test_a_record_that_cannot_be_read_stops_everything(scene: Scene) -> None:
    await scene.policy()
    await scene.deployment(idle_since=START - 3 * HOUR)
    await scene.round()
    change = {"data": {names.RECLAIM_RECORD_KEY: "{"}}
    await scene.api.patch(CONFIG_MAPS, names.RECLAIM_RECORD, change, namespace=OWN)
    await scene.rounds(3 * HOUR)
    assert await scene.replicas() == 1
    assert (await scene.condition("Frozen"))["reason"] == "RecordUnreadable"
    assert scene.said


async def test_who_brings_back_two_within_an_hour_stops_the_policy(scene: Scene) -> None:
    await scene.policy(reclaim={"grace": "5m"}, budget={"maxSharePercent": 100})
    for name in ("a", "b", "c"):
        await scene.deployment(name, idle_since=START - 3 * HOUR)
    await scene.rounds(1200, every=120)
    stopped = [name for name in ("a", "b", "c") if await scene.replicas(name) == 0]
    assert stopped == ["a", "b", "c"]
    for name in ("a", "b"):
        await scene.api.patch(DEPLOYMENTS, name, {"spec": {"replicas": 3}}, namespace=SPACE)
    for device in scene.source.all:
        device.idle_since = None
    await scene.round()
    assert [one.state for one in (await scene.record()).actions].count(ActionState.RESUMED) == 2
    assert names.ORIGINAL_REPLICAS not in await scene.annotations("a"), "what it had is theirs to say now"
    assert (await scene.condition("Frozen"))["reason"] == "BroughtBack"


async def test_one_a_minute_and_five_an_hour_of_a_namespace(scene: Scene) -> None:
    await scene.policy(reclaim={"grace": "5m"}, budget={"maxSharePercent": 100})
    for number in range(8):
        await scene.deployment(f"d{number}", idle_since=START - 3 * HOUR)
    await scene.round()
    await scene.round(300)
    counts = []
    for _ in range(10):
        await scene.round(60)
        counts.append(sum([await scene.replicas(f"d{number}") == 0 for number in range(8)]))
    assert counts[:3] == [2, 3, 4]
    assert counts[-1] == 5


async def test_hostile_names_and_annotations_harm_nothing(scene: Scene) -> None:
    hostile = {names.KEEP_UNTIL: "<script>", names.IDLE_AFTER: "9" * 400, names.RECLAIM_AT: "\x1b[2J"}
    await scene.policy()
    await scene.deployment(annotations=hostile, idle_since=START - 3 * HOUR)
    await scene.rounds(2 * HOUR)
    assert await scene.replicas() == 1
