"""One story for both backends: what is done, and what the controllers then say, with generated names taken out."""

from __future__ import annotations

import asyncio
import functools
import re
from collections.abc import Awaitable, Callable
from typing import Any, Protocol, TypeAlias

from kgpu.kube.port import EVENTS, PODS, Object, Resource, annotations_of, name_of
from kgpu.lab.embedded.controllers.kinds import DEPLOYMENTS, JOBS, REPLICA_SETS, STATEFUL_SETS
from kgpu.lab.embedded.controllers.meta import condition, created_at, status_of

IMAGE = "kgpu.dev/busybox:1"
SLEEP = ["sleep", "1000000"]


class Backend(Protocol):
    """A namespace of a cluster."""

    async def create(self, resource: Resource, obj: Object) -> None: ...
    async def patch(self, resource: Resource, name: str, change: Object) -> None: ...
    async def list(self, resource: Resource) -> list[Object]: ...


def workload(name: str, command: list[str] = SLEEP, **spec: Any) -> Object:
    container = {"name": "c", "image": IMAGE, "command": command}
    template = {
        "metadata": {"labels": {"app": name}},
        "spec": {"terminationGracePeriodSeconds": 0, "containers": [container]},
    }
    return {"metadata": {"name": name}, "spec": {"template": template, **spec}}


def selecting(name: str, **spec: Any) -> Object:
    return workload(name, selector={"matchLabels": {"app": name}}, **spec)


def job(name: str, command: list[str], **spec: Any) -> Object:
    made = workload(name, command, **spec)
    made["spec"]["template"]["spec"]["restartPolicy"] = "Never"
    return made


async def named(backend: Backend, resource: Resource, name: str) -> Object | None:
    return next((one for one in await backend.list(resource) if name_of(one) == name), None)


async def until(backend: Backend, resource: Resource, name: str, done: Callable[[Object], Any]) -> None:
    for _ in range(6000):
        found = await named(backend, resource, name)
        if found is not None and done(found):
            return
        await asyncio.sleep(0.05)
    raise AssertionError(f"{name} does not come to where it should be: {found}")


def rolled_out(replicas: int) -> Callable[[Object], bool]:
    def done(obj: Object) -> bool:
        status = status_of(obj)
        counts = {status.get(key) for key in ("replicas", "updatedReplicas", "readyReplicas", "availableReplicas")}
        progress = condition(obj, "Progressing") or {}
        return (
            status.get("observedGeneration") == obj["metadata"]["generation"]
            and counts == {replicas}
            and progress.get("reason") == "NewReplicaSetAvailable"
            and not status.get("terminatingReplicas")
        )

    return done


def said(conditions: list[Object], hide: Callable[[str], str]) -> list[tuple[str, str, str, str]]:
    return [(one["type"], one["status"], one.get("reason", ""), hide(one.get("message", ""))) for one in conditions]


Look: TypeAlias = Callable[[], Awaitable[dict[str, Any]]]
"""What there is to compare, now: Events are written behind the controllers, so the last of them may be still to come."""


async def tell(backend: Backend) -> Look:
    """Act it out, and return what looks at where that led."""
    await backend.create(DEPLOYMENTS, selecting("web", replicas=2))
    await until(backend, DEPLOYMENTS, "web", rolled_out(2))
    first = (await named(backend, DEPLOYMENTS, "web") or {})["spec"]["template"]
    container = {**first["spec"]["containers"][0], "env": [{"name": "A", "value": "1"}]}
    await backend.patch(DEPLOYMENTS, "web", {"spec": {"template": {"spec": {"containers": [container]}}}})
    await until(backend, DEPLOYMENTS, "web", rolled_out(2))
    back = {"spec": {"template": {"spec": {"containers": first["spec"]["containers"]}}}}
    await backend.patch(DEPLOYMENTS, "web", back)
    await until(backend, DEPLOYMENTS, "web", rolled_out(2))
    await backend.patch(DEPLOYMENTS, "web", {"spec": {"replicas": 3}})
    await until(backend, DEPLOYMENTS, "web", rolled_out(3))
    await backend.create(JOBS, job("idx", ["true"], completions=3, parallelism=2, completionMode="Indexed"))
    await until(backend, JOBS, "idx", lambda one: condition(one, "Complete"))
    await backend.create(JOBS, job("bad", ["false"], backoffLimit=0))
    await until(backend, JOBS, "bad", lambda one: condition(one, "Failed"))
    await backend.create(STATEFUL_SETS, selecting("db", replicas=2, serviceName="db"))
    await until(backend, STATEFUL_SETS, "db", lambda one: status_of(one).get("readyReplicas") == 2)
    return functools.partial(facts, backend)


async def facts(backend: Backend) -> dict[str, Any]:
    sets = sorted(
        await backend.list(REPLICA_SETS), key=lambda rs: (created_at(rs), int(rs["metadata"]["resourceVersion"]))
    )
    sets.sort(key=lambda rs: "env" in rs["spec"]["template"]["spec"]["containers"][0])
    names = {name_of(rs): f"web-SET{number}" for number, rs in enumerate(sets)}

    def hide(text: str) -> str:
        for name, stands in names.items():
            text = text.replace(name, stands)
        return re.sub(r"((?:web-SET\d|idx-\d|bad))-[a-z0-9]{5}\b", r"\1-POD", text)

    ours = {"Deployment", "ReplicaSet", "Job", "StatefulSet"}
    events = [one for one in await backend.list(EVENTS) if one["involvedObject"]["kind"] in ours]
    web = await named(backend, DEPLOYMENTS, "web") or {}
    found: dict[str, Any] = {
        "events": sorted(
            (one["involvedObject"]["kind"], hide(one["involvedObject"]["name"]), one["type"], one["reason"], hide(one["message"]), one["source"]["component"])
            for one in events
        ),
        "deployment": {
            **{key: value for key, value in status_of(web).items() if key != "observedGeneration"},
            "conditions": said(status_of(web)["conditions"], hide),
            "generation": web["metadata"]["generation"],
            "annotations": sorted(key for key in annotations_of(web) if "kubernetes.io/revision" in key),
        },
        "sets": [(hide(name_of(rs)), annotations_of(rs), rs["status"]) for rs in sets],
    }  # fmt: skip
    for name in ("idx", "bad"):
        status = status_of(await named(backend, JOBS, name) or {})
        rest = {key: value for key, value in status.items() if not key.endswith("Time")}
        found[name] = {**rest, "conditions": said(status["conditions"], hide)}
    stateful = status_of(await named(backend, STATEFUL_SETS, "db") or {})
    found["db"] = {key: value for key, value in stateful.items() if not key.endswith("Revision")}
    pods = await backend.list(PODS)
    found["labels"] = sorted(
        sorted(key for key in pod["metadata"]["labels"]) for pod in pods if not name_of(pod).startswith("web")
    )
    return found
