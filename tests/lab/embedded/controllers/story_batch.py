"""A second story for both backends: CronJobs, Jobs with their policies, disruption budgets with evictions, quotas."""

from __future__ import annotations

import asyncio
import re
from typing import Any, Final, Protocol

from kgpu.kube.port import EVENTS, PODS, Object, Resource, name_of
from kgpu.lab.embedded.controllers.kinds import CRON_JOBS, DEPLOYMENTS, DISRUPTION_BUDGETS, JOBS, RESOURCE_QUOTAS
from kgpu.lab.embedded.controllers.meta import condition, status_of

from . import story

EXIT_INDEX: Final = "exit $JOB_COMPLETION_INDEX"
FIRST_ENDS: Final = "[ $JOB_COMPLETION_INDEX = 0 ] || sleep 100000"
_ENDS: Final = {"Complete", "Failed"}
_JOBS: Final = ("per", "most", "policy", "early", "paused", "late")
_BUDGET: Final = ("expectedPods", "currentHealthy", "desiredHealthy", "disruptionsAllowed")


class Backend(story.Backend, Protocol):
    """With what this story needs besides."""

    async def set_status(self, resource: Resource, name: str, status: Object) -> None: ...
    async def evict(self, pod: str) -> str:
        """The API server's refusal, "" for none."""
        ...


def indexed(name: str, script: str, **spec: Any) -> Object:
    return story.job(name, ["sh", "-c", script], completionMode="Indexed", **spec)


def cron(name: str, schedule: str, command: list[str], **spec: Any) -> Object:
    template = {"spec": story.job(name, command)["spec"]}
    return {
        "metadata": {"name": name},
        "spec": {"schedule": schedule, "suspend": True, "jobTemplate": template, **spec},
    }


async def ended(backend: Backend, name: str) -> None:
    await story.until(backend, JOBS, name, lambda one: any(condition(one, kind) for kind in _ENDS))


async def gone(backend: Backend, resource: Resource, name: str) -> None:
    for _ in range(6000):
        if await story.named(backend, resource, name) is None:
            return
        await asyncio.sleep(0.05)
    raise AssertionError(f"{name} is still there")


async def tell(backend: Backend) -> story.Look:
    """Act it out, and return what looks at where that led."""
    rule = {"onExitCodes": {"operator": "In", "values": [1]}, "action": "FailJob"}
    paused = story.job("paused", ["true"], suspend=True)
    await backend.create(RESOURCE_QUOTAS, {"metadata": {"name": "quota"}, "spec": {"hard": {"services": "2", "count/poddisruptionbudgets.policy": "1"}}})  # fmt: skip
    await backend.create(DEPLOYMENTS, story.selecting("keep", replicas=2))
    await backend.create(DISRUPTION_BUDGETS, {"metadata": {"name": "keep"}, "spec": {"minAvailable": 2, "selector": {"matchLabels": {"app": "keep"}}}})  # fmt: skip
    await backend.create(JOBS, paused)
    await backend.create(JOBS, indexed("per", EXIT_INDEX, completions=3, parallelism=3, backoffLimitPerIndex=0))
    await backend.create(
        JOBS, indexed("most", EXIT_INDEX, completions=3, parallelism=1, backoffLimitPerIndex=0, maxFailedIndexes=0)
    )
    await backend.create(JOBS, story.job("policy", ["false"], podFailurePolicy={"rules": [rule]}))
    await backend.create(
        JOBS, indexed("early", FIRST_ENDS, completions=2, parallelism=2, successPolicy={"rules": [{"succeededIndexes": "0"}]})
    )  # fmt: skip
    await backend.create(JOBS, story.job("late", story.SLEEP, activeDeadlineSeconds=1))
    await backend.create(JOBS, story.job("brief", ["true"], ttlSecondsAfterFinished=0))
    for name, schedule in (("yearly", "0 0 1 1 *"), ("daily", "0 0 * * *")):
        await backend.create(CRON_JOBS, cron(name, schedule, ["true"], timeZone="Europe/Berlin"))
        await backend.set_status(CRON_JOBS, name, {"lastScheduleTime": "2024-12-01T00:00:00Z"})
        await backend.patch(CRON_JOBS, name, {"spec": {"suspend": False}})
        await story.until(backend, CRON_JOBS, name, lambda one: status_of(one).get("lastSuccessfulTime"))
    await story.until(backend, JOBS, "paused", lambda one: condition(one, "Suspended"))
    await backend.patch(JOBS, "paused", {"spec": {"suspend": False}})
    for name in _JOBS:
        await ended(backend, name)
    await gone(backend, JOBS, "brief")
    await story.until(backend, DISRUPTION_BUDGETS, "keep", lambda one: status_of(one).get("currentHealthy") == 2)
    pods = [name_of(one) for one in await backend.list(PODS) if name_of(one).startswith("keep")]
    refusal = await backend.evict(pods[0])
    await backend.patch(DISRUPTION_BUDGETS, "keep", {"spec": {"minAvailable": 1}})
    await story.until(backend, DISRUPTION_BUDGETS, "keep", lambda one: status_of(one).get("disruptionsAllowed") == 1)
    taken = await backend.evict(pods[0])
    await gone(backend, PODS, pods[0])
    await story.until(backend, DISRUPTION_BUDGETS, "keep", lambda one: status_of(one).get("currentHealthy") == 2)
    await story.until(
        backend, RESOURCE_QUOTAS, "quota",
        lambda one: (status_of(one).get("used") or {}).get("count/poddisruptionbudgets.policy") == "1",
    )  # fmt: skip

    async def look() -> dict[str, Any]:
        return {**await facts(backend), "evictions": [refusal, taken]}

    return look


def hide(text: str) -> str:
    text = re.sub(r"(\b(?:per|most|early)-\d|\b(?:policy|late|brief|paused))-[a-z0-9]{5}\b", r"\1-POD", text)
    text = re.sub(r"(pod )[a-z-]+/", r"\1NAMESPACE/", text)
    return re.sub(r"\b((?:daily|yearly)-\d+)-[a-z0-9]{5}\b", r"\1-POD", text)


async def facts(backend: Backend) -> dict[str, Any]:
    events = [one for one in await backend.list(EVENTS) if one["involvedObject"]["kind"] in ("Job", "CronJob")]
    found: dict[str, Any] = {
        "events": sorted(
            [one["involvedObject"]["kind"], one["involvedObject"]["name"], one["type"], one["reason"], hide(one["message"]), one["source"]["component"]]
            for one in events
        ),
        "quota": status_of(await story.named(backend, RESOURCE_QUOTAS, "quota") or {}),
    }  # fmt: skip
    for name in _JOBS:
        status = status_of(await story.named(backend, JOBS, name) or {})
        rest = {key: value for key, value in status.items() if not key.endswith("Time")}
        if name == "early":
            # The other pod is deleted when the first has ended: it counts as failed if it had begun by then.
            rest.pop("failed", None)
        found[name] = {**rest, "conditions": story.said(status["conditions"], hide)}
    budget = status_of(await story.named(backend, DISRUPTION_BUDGETS, "keep") or {})
    found["keep"] = {key: budget.get(key) for key in _BUDGET}
    for name in ("yearly", "daily"):
        status = status_of(await story.named(backend, CRON_JOBS, name) or {})
        found[name] = [sorted(status), status.get("lastScheduleTime")]
    jobs = [one for one in await backend.list(JOBS) if name_of(one).startswith(("yearly", "daily"))]
    found["made"] = sorted(
        [name_of(one), one["metadata"]["annotations"], one["metadata"]["ownerReferences"][0]["kind"]] for one in jobs
    )
    return found
