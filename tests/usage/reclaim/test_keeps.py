"""For how long tenants' annotations keep an idle workload: counted on record until it works, cut, and told."""

from __future__ import annotations

import pytest

from kgpu.base.errors import ConfigError
from kgpu.base.times import stamp_of
from kgpu.formats import names
from kgpu.formats.usage_reclaim import WorkloadSaid, decode
from kgpu.kube.kinds import DEPLOYMENTS, NAMESPACES
from kgpu.usage.asked_reclaim import ProcessWord
from kgpu.usage.reclaim.model import read_policy
from kgpu.usage.reclaim.record import MOST_KEEPS, KeepEntry, ReclaimRecord, encode
from kgpu.usage.reclaim.record import decode as decode_record
from kgpu.usage.reclaim.requests import keep
from tests.usage.reclaim.scene import HOUR, OWN, SPACE, START, Scene

IDLE = START - 3 * HOUR
FAR = "2999-01-01T00:00:00Z"
RECLAIM = {"after": "30m", "grace": "5m", "longestKeep": "2h"}


async def scene_with(annotations: dict[str, str], **reclaim: object) -> Scene:
    scene = await Scene().begin()
    await scene.policy(reclaim={**RECLAIM, **reclaim}, schedule={"hours": "00:00-24:00"})
    await scene.deployment(idle_since=IDLE, annotations=annotations)
    return scene


async def annotate(scene: Scene, **own: str | None) -> None:
    body = {"metadata": {"annotations": {names.KEEP_UNTIL: own["until"]}}}
    await scene.api.patch(DEPLOYMENTS, "llama", body, namespace=SPACE)


@pytest.mark.parametrize("until", [FAR, "tomorrow", ""])
async def test_a_keep_without_end_ends_where_the_policy_says(until: str) -> None:
    scene = await scene_with({names.KEEP_UNTIL: until})
    await scene.rounds(2 * HOUR)
    assert await scene.replicas() == 1
    assert names.RECLAIM_AT not in await scene.annotations()
    await scene.rounds(HOUR)
    assert await scene.replicas() == 0


async def test_who_writes_it_anew_gets_no_more_time_and_a_new_process_counts_on() -> None:
    scene = await scene_with({names.KEEP_UNTIL: FAR})
    for number in range(20):
        await annotate(scene, until=stamp_of(scene.now + (number + 2) * HOUR))
        await scene.round(600)
        scene.again()
    assert await scene.replicas() == 0


async def test_taking_it_off_for_a_moment_gives_no_more_time() -> None:
    scene = await scene_with({names.KEEP_UNTIL: FAR})
    await scene.rounds(1.9 * HOUR)
    await annotate(scene, until=None)
    await scene.round()
    await annotate(scene, until=FAR)
    await scene.rounds(HOUR)
    assert await scene.replicas() == 0


async def test_the_count_begins_anew_once_its_gpus_are_used() -> None:
    scene = await scene_with({names.KEEP_UNTIL: FAR})
    await scene.rounds(1.5 * HOUR)
    scene.source.all[0].idle_since = None
    await scene.round()
    assert (await scene.record()).keeps == ()
    scene.source.all[0].idle_since = scene.now
    await scene.rounds(2.4 * HOUR)
    assert await scene.replicas() == 1
    await scene.rounds(HOUR)
    assert await scene.replicas() == 0


async def test_what_is_unknown_sets_the_count_not_back() -> None:
    scene = await scene_with({names.KEEP_UNTIL: FAR})
    await scene.rounds(1.5 * HOUR)
    scene.source.all[0].coverage = 0.1
    await scene.round()
    scene.source.all[0].coverage = 1.0
    await scene.rounds(1.2 * HOUR)
    assert await scene.replicas() == 0


async def test_people_are_told_once_for_each_keep_that_is_too_long() -> None:
    scene = await scene_with({names.KEEP_UNTIL: FAR})
    await scene.rounds(0.5 * HOUR)
    (event,) = await scene.events("KeepLimited")
    ends = stamp_of((await scene.record()).keeps[0].since + 2 * HOUR)
    assert f"it is kept until {ends} at the longest, unless its GPUs are used" in event["message"]
    assert "GPUUsagePolicy all lets nothing keep an idle workload for longer than 2h" in event["message"]
    assert event["involvedObject"]["kind"] == "Deployment"
    assert event.get("count", 1) == 1
    await annotate(scene, until=stamp_of(scene.now + 30 * HOUR))
    await scene.round()
    assert len(await scene.events("KeepLimited")) == 2


async def test_a_keep_that_is_short_enough_is_nobodys_news() -> None:
    scene = await scene_with({names.KEEP_UNTIL: stamp_of(START + HOUR)})
    await scene.rounds(0.5 * HOUR)
    assert await scene.events("KeepLimited") == []
    await scene.rounds(HOUR)
    assert await scene.replicas() == 0


@pytest.mark.parametrize(("limit", "left"), [(False, 1), (True, 0)])
async def test_what_has_no_end_is_limited_only_where_the_policy_says_so(limit: bool, left: int) -> None:
    scene = await scene_with({names.IDLE_POLICY: "never"}, limitExemptions=limit)
    await scene.rounds(3 * HOUR)
    assert await scene.replicas() == left


async def test_a_namespaces_own_word_lasts() -> None:
    scene = await scene_with({}, limitExemptions=True)
    body = {"metadata": {"annotations": {names.KEEP_UNTIL: FAR}}}
    await scene.api.patch(NAMESPACES, SPACE, body)
    await scene.rounds(4 * HOUR)
    assert await scene.replicas() == 1


async def test_notices_come_again_once_a_keep_is_over() -> None:
    scene = await Scene().begin()
    hook = await scene.secret("https://hooks.invalid/x")
    await scene.policy(mode="notify", notify=[hook], reclaim=RECLAIM)
    await scene.deployment(idle_since=IDLE, annotations={names.KEEP_UNTIL: FAR})
    await scene.rounds(1.9 * HOUR)
    texts = [body.decode() for body in scene.webhook.taken]
    assert not [text for text in texts if "Deployment team-a/llama" in text and "Node" not in text]
    await scene.rounds(0.5 * HOUR)
    assert any("Deployment team-a/llama" in body.decode() for body in scene.webhook.taken[len(texts) :])


async def test_while_the_clock_is_in_doubt_nothing_is_counted() -> None:
    scene = await scene_with({names.KEEP_UNTIL: FAR})
    scene.ahead = 900.0
    await scene.rounds(0.5 * HOUR)
    assert (await scene.record()).keeps == ()


@pytest.mark.parametrize("text", ["59m", "0s", "100000h"])
def test_a_longest_keep_that_is_none_is_refused(text: str) -> None:
    obj = {"metadata": {"name": "p"}, "spec": {"reclaim": {"longestKeep": text}}}
    reading = read_policy(obj, OWN)
    assert reading.problem is not None
    assert "spec.reclaim.longestKeep" in reading.problem.sentence


def test_a_week_is_the_default() -> None:
    reading = read_policy({"metadata": {"name": "p"}, "spec": {}}, OWN)
    assert reading.policy is not None
    assert (reading.policy.longest_keep, reading.policy.limit_exemptions) == (7 * 24 * HOUR, False)


def test_the_record_holds_so_many() -> None:
    many = tuple(
        KeepEntry(kind="Deployment", namespace="n" * 63, name=f"{number:0250}", since=1.0, told="k" * 100)
        for number in range(MOST_KEEPS + 5)
    )
    again = decode_record(encode(ReclaimRecord(keeps=many)))
    assert again is not None
    assert again.keeps == many[5:]


# By hand


def word(since: float | None) -> ProcessWord:
    said = WorkloadSaid(namespace=SPACE, kind="Deployment", name="llama", kept_since=since)
    return ProcessWord(why="", at=START, workloads={(SPACE, "Deployment", "llama"): said})


async def test_a_person_is_told_what_is_cut() -> None:
    scene = await scene_with({})
    kept = await keep(scene.api, SPACE, "llama", until=START + 9 * HOUR, by="me", now=START, word=word(None))
    assert kept.until == START + 2 * HOUR
    assert kept.notes == ("GPUUsagePolicy all lets an idle workload be kept for 2h at most",)
    assert (await scene.annotations())[names.KEEP_UNTIL] == stamp_of(START + 2 * HOUR)


async def test_what_was_kept_already_counts() -> None:
    scene = await scene_with({})
    half = word(START - HOUR)
    kept = await keep(scene.api, SPACE, "llama-1-0", until=START + 9 * HOUR, by="me", now=START, word=half)
    assert kept.until == START + HOUR
    with pytest.raises(ConfigError, match=r"can't be kept any longer: .*, and it is kept since"):
        await keep(scene.api, SPACE, "llama", until=START + 9 * HOUR, by="me", now=START, word=word(START - 2 * HOUR))
    assert (await scene.annotations())[names.KEEP_UNTIL] == stamp_of(START + HOUR)


async def test_what_is_not_known_is_told() -> None:
    scene = await scene_with({})
    unknown = ProcessWord(why="no kgpu-usage runs")
    kept = await keep(scene.api, SPACE, "llama", until=START + HOUR, by="me", now=START, word=unknown)
    assert kept.until == START + HOUR
    assert "for how long it has been kept is not known: no kgpu-usage runs" in kept.notes[0]


# What the process says


async def test_the_process_says_since_when_it_is_kept_and_how_its_look_ended() -> None:
    scene = await scene_with({names.KEEP_UNTIL: FAR})
    assert decode(scene.controller.page().body.decode(), place="p").at is None
    await scene.round()
    said = decode(scene.controller.page().body.decode(), place="p")
    (one,) = said.workloads
    assert (said.at, one.name, one.kept_since, one.watched) == (scene.now, "llama", scene.now, False)
    assert one.step == "rest"
    assert "kgpu.dev/keep-until" in one.why
    scene.controller.ended()
    assert decode(scene.controller.page().body.decode(), place="p").workloads == ()
