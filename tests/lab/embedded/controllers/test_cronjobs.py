"""CronJobs: what is due is started once, the concurrency policy decides, history is kept as long as it should be."""

from __future__ import annotations

import datetime as dt

import pytest

from kgpu.kube.port import Object, name_of
from kgpu.lab.embedded.controllers import cronjob_plan as plan
from kgpu.lab.embedded.controllers.cron_schedule import parse
from kgpu.lab.embedded.controllers.kinds import CRON_JOBS, JOBS

from .conftest import World, template, until

LONG_AGO = "2024-12-01T00:00:00Z"
YEARLY = "0 0 1 1 *"


def cron(*, last: str = LONG_AGO, active: tuple[str, ...] = (), **spec: object) -> Object:
    references = [{"name": name, "namespace": "default", "uid": f"uid-{name}"} for name in active]
    return {
        "metadata": {"name": "tick", "namespace": "default", "uid": "uid-tick"},
        "spec": {"schedule": YEARLY, "timeZone": "UTC", "jobTemplate": {"spec": {"template": template()}}, **spec},
        "status": {"lastScheduleTime": last, "active": references},
    }


def job(name: str, end: str = "", start: str = LONG_AGO) -> Object:
    owner = {"apiVersion": "batch/v1", "kind": "CronJob", "name": "tick", "uid": "uid-tick", "controller": True}
    metadata = {"name": name, "namespace": "default", "uid": f"uid-{name}", "ownerReferences": [owner]}
    conditions = [{"type": end, "status": "True"}] if end else []
    return {
        "metadata": metadata,
        "spec": {"template": template(), "suspend": not end},
        "status": {"startTime": start, "conditions": conditions},
    }


def jobs(world: World) -> set[str]:
    return {name_of(one) for one in world.all(JOBS)}


def due() -> str:
    now = dt.datetime.now(dt.UTC)
    return f"tick-{int(dt.datetime(now.year, 1, 1, tzinfo=dt.UTC).timestamp()) // 60}"


def said(world: World) -> set[str]:
    return {reason for name, reason, _ in world.events() if name == "tick"}


async def test_the_latest_start_is_made_up_for_once(world: World):
    world.api.put(CRON_JOBS, cron())
    await until(lambda: jobs(world) == {due()}, "the Job")
    found = await until(lambda: (world.get(CRON_JOBS, "tick") or {})["status"].get("active"))
    assert [one["name"] for one in found] == [due()]
    await until(lambda: "SuccessfulCreate" in said(world))
    assert "UnexpectedJob" not in said(world)


@pytest.mark.parametrize(
    ("policy", "left", "reason"),
    [
        ("Allow", {"older", "due"}, "SuccessfulCreate"),
        ("Forbid", {"older"}, "JobAlreadyActive"),
        ("Replace", {"due"}, "SuccessfulDelete"),
    ],
)
async def test_the_policy_decides_about_a_second_one(world: World, policy: str, left: set[str], reason: str):
    world.api.put(JOBS, job("older"))
    world.api.put(CRON_JOBS, cron(active=("older",), concurrencyPolicy=policy))
    await until(lambda: reason in said(world), reason)
    await until(lambda: jobs(world) == {due() if name == "due" else name for name in left}, "the Jobs")


async def test_a_suspended_one_starts_nothing_until_it_goes_on(world: World):
    world.api.put(CRON_JOBS, cron(suspend=True, active=("lost",)))
    await until(lambda: "MissingJob" in said(world), "the look at it")
    assert jobs(world) == set()
    await world.api.patch(CRON_JOBS, "tick", {"spec": {"suspend": False}}, namespace="default")
    await until(lambda: jobs(world) == {due()}, "the Job")


async def test_old_jobs_go_beyond_the_limits(world: World):
    for number in range(4):
        world.api.put(JOBS, job(f"good{number}", "Complete", f"2025-01-0{number + 1}T00:00:00Z"))
        world.api.put(JOBS, job(f"bad{number}", "Failed", f"2025-01-0{number + 1}T00:00:00Z"))
    world.api.put(CRON_JOBS, cron(suspend=True, successfulJobsHistoryLimit=3, failedJobsHistoryLimit=0))
    await until(lambda: jobs(world) == {"good1", "good2", "good3"}, "the latest three")


async def test_what_is_later_than_its_deadline_is_not_started(world: World):
    world.api.put(CRON_JOBS, cron(startingDeadlineSeconds=10, active=("lost",)))
    await until(lambda: "MissingJob" in said(world), "the look at it")
    assert jobs(world) == set()


def test_a_job_is_named_and_stamped_after_its_start():
    found = plan.new_job(cron(timeZone="Europe/Berlin"), dt.datetime(2026, 1, 1, tzinfo=dt.UTC))
    assert found["metadata"]["name"] == "tick-29453760"
    assert found["metadata"]["annotations"] == {plan.SCHEDULED_AT: "2026-01-01T01:00:00+01:00"}


@pytest.mark.parametrize(
    ("schedule", "last", "now", "at", "missed"),
    [
        ("0 * * * *", "2026-01-01T00:00:00Z", "2026-01-01T00:59:59", None, plan.Missed.NONE),
        ("0 * * * *", "2026-01-01T00:00:00Z", "2026-01-01T01:30:00", "2026-01-01T01:00:00", plan.Missed.NONE),
        ("0 * * * *", "2026-01-01T00:00:00Z", "2026-01-01T05:30:00", "2026-01-01T05:00:00", plan.Missed.FEW),
        ("0 * * * *", "2026-01-01T00:00:00Z", "2026-01-09T05:30:00", "2026-01-09T05:00:00", plan.Missed.MANY),
        ("@every 7m", "2026-01-01T00:00:00Z", "2026-01-01T00:30:00", "2026-01-01T00:28:00", plan.Missed.FEW),
    ],
)
def test_of_missed_starts_the_latest_counts(schedule: str, last: str, now: str, at: str | None, missed: plan.Missed):
    moment = dt.datetime.fromisoformat(now).replace(tzinfo=dt.UTC)
    found = plan.most_recent(cron(last=last), moment, parse(schedule, "UTC"), deadline=True)
    assert found.at == (dt.datetime.fromisoformat(at).replace(tzinfo=dt.UTC) if at else None)
    assert found.missed is missed
