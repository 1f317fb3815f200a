"""HorizontalPodAutoscalers on the embedded API. Conditions and Events without metrics are kube-controller-manager 1.35's."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from typing import Any

import pytest

from kgpu.kube.port import PODS, Object
from kgpu.lab.embedded.controllers.cluster import ControllerContext
from kgpu.lab.embedded.controllers.hpa import PERIOD, HorizontalController
from kgpu.lab.embedded.controllers.kinds import AUTOSCALERS, DEPLOYMENTS
from kgpu.lab.embedded.controllers.meta import key_of
from kgpu.lab.embedded.controllers.served import ServedKinds
from kgpu.lab.embedded.core import ApiCore
from kgpu.lab.embedded.kinds import Kinds
from kgpu.lab.embedded.local_api import LocalApi
from kgpu.lab.embedded.store import ObjectStore
from kgpu.lab.embedded.types.rules import BuiltinRules
from tests.lab.embedded.support import ADMIN, CALL

from .conftest import stamp, until

NO_METRICS = (
    "unable to fetch metrics from resource metrics API: the server could not find the requested resource (get "
    "pods.metrics.k8s.io)"
)
NO_CUSTOM = "unable to fetch metrics from custom metrics API: no custom metrics API (custom.metrics.k8s.io) registered"
UNABLE = "the HPA was unable to compute the replica count: "
ABLE = ("AbleToScale", "True", "SucceededGetScale", "the HPA controller was able to get the target's current scale")
CPU = f"failed to get cpu utilization: unable to get metrics for resource cpu: {NO_METRICS}"


class Usage:
    """The metrics API: ``used`` is the CPU of each pod by name."""

    def __init__(self) -> None:
        self.used: dict[str, str] = {}

    async def pod_metrics(self, namespace: str, labels: str = "", fields: str = "") -> list[Object]:
        return [
            {
                "metadata": {"name": name, "namespace": namespace, "labels": {"app": "web"}},
                "timestamp": stamp(), "window": "15s", "containers": [{"name": "c", "usage": {"cpu": cpu}}],
            }
            for name, cpu in self.used.items()
        ]  # fmt: skip


class Told(HorizontalController):
    """Which keeps its Events."""

    events: list[tuple[str, str, str]]

    def emit(self, about: Object, type_: str, reason: str, message: str) -> None:
        self.events.append((type_, reason, message))


class Lab:
    def __init__(self, usage: Usage | None) -> None:
        rules = BuiltinRules()
        self.core = ApiCore(Kinds(), ObjectStore(), lambda _: rules, ())
        self.core.create(self.core.kinds.need("", "namespaces"), "", {"metadata": {"name": "default"}}, CALL)
        self.api = LocalApi(self.core, ADMIN, usage=usage)
        self.cluster = ControllerContext(self.api)
        self.controller = Told(self.cluster, ServedKinds(self.cluster))
        self.controller.events = []

    async def settled(self) -> None:
        """The caches have seen all that was written."""
        for resource in (AUTOSCALERS, PODS):
            cache = self.cluster.cache(resource)
            await cache.synced.wait()
            newest = (await self.api.list(resource)).items
            await until(lambda cache=cache, newest=newest: all(same(cache.get(key_of(item)), item) for item in newest))

    async def deployment(self, replicas: int) -> None:
        template = {"metadata": {"labels": {"app": "web"}}, "spec": {"containers": [{"name": "c", "image": "i"}]}}
        spec = {"replicas": replicas, "selector": {"matchLabels": {"app": "web"}}, "template": template}
        await self.api.create(DEPLOYMENTS, {"metadata": {"name": "web", "namespace": "default"}, "spec": spec})

    async def pod(self, name: str) -> None:
        container = {"name": "c", "image": "i", "resources": {"requests": {"cpu": "1"}}}
        metadata = {"name": name, "namespace": "default", "labels": {"app": "web"}}
        await self.api.create(PODS, {"metadata": metadata, "spec": {"containers": [container]}})
        ready = {"type": "Ready", "status": "True", "lastTransitionTime": stamp(-3600)}
        status = {"phase": "Running", "startTime": stamp(-3600), "conditions": [ready]}
        await self.api.patch(PODS, name, {"status": status}, namespace="default", subresource="status")

    async def look(self, **spec: Any) -> Object:
        """Create or change the autoscaler, let the controller look, and return the status."""
        target = {"apiVersion": "apps/v1", "kind": "Deployment", "name": "web"}
        wanted = {"scaleTargetRef": target, "maxReplicas": 5, **spec}
        if await self.api.get(AUTOSCALERS, "a", namespace="default") is None:
            await self.api.create(AUTOSCALERS, {"metadata": {"name": "a", "namespace": "default"}, "spec": wanted})
        await self.settled()
        assert await self.controller.sync(("default", "a")) == PERIOD
        found = await self.api.get(AUTOSCALERS, "a", namespace="default")
        assert found is not None
        return dict(found["status"])

    async def replicas(self) -> int:
        found = await self.api.get(DEPLOYMENTS, "web", namespace="default")
        assert found is not None
        return int(found["spec"]["replicas"])


def same(known: Object | None, item: Object) -> bool:
    return known is not None and known["metadata"]["resourceVersion"] == item["metadata"]["resourceVersion"]


@contextlib.asynccontextmanager
async def lab(usage: Usage | None = None) -> AsyncIterator[Lab]:
    made = Lab(usage)
    try:
        yield made
    finally:
        await made.cluster.close()


def conditions(status: Object) -> list[tuple[str, ...]]:
    return [(one["type"], one["status"], one["reason"], one["message"]) for one in status["conditions"]]


def pods_metric() -> Object:
    return {
        "type": "Pods",
        "pods": {"metric": {"name": "busy"}, "target": {"type": "AverageValue", "averageValue": "5"}},
    }


def object_metric() -> Object:
    about = {"apiVersion": "v1", "kind": "Service", "name": "s"}
    return {"type": "Object", "object": {"metric": {"name": "hits"}, "describedObject": about, "target": {"type": "Value", "value": "5"}}}  # fmt: skip


def external_metric() -> Object:
    metric = {"name": "queue", "selector": {"matchLabels": {"a": "b"}}}
    return {"type": "External", "external": {"metric": metric, "target": {"type": "AverageValue", "averageValue": "5"}}}


def container_metric() -> Object:
    target = {"type": "AverageValue", "averageValue": "5Mi"}
    return {"type": "ContainerResource", "containerResource": {"name": "memory", "container": "c", "target": target}}


SELECTOR = "&LabelSelector{MatchLabels:map[string]string{a: b,},MatchExpressions:[]LabelSelectorRequirement{},}"
NO_EXTERNAL = (
    "unable to fetch metrics from external metrics API: the server could not find the requested resource (get "
    "queue.external.metrics.k8s.io)"
)
WITHOUT = {
    "cpu": ([], "FailedGetResourceMetric", CPU, f"failed to get cpu resource metric value: {CPU}"),
    "pods": (
        [pods_metric()], "FailedGetPodsMetric", f"unable to get metric busy: {NO_CUSTOM}",
        f"failed to get pods metric value: unable to get metric busy: {NO_CUSTOM}",
    ),
    "object": (
        [object_metric()], "FailedGetObjectMetric", f"unable to get metric hits: Service on default s/{NO_CUSTOM}", "",
    ),
    "external": (
        [external_metric()], "FailedGetExternalMetric",
        f"unable to get external metric default/queue/{SELECTOR}: {NO_EXTERNAL}", "",
    ),
    "container": (
        [container_metric()], "FailedGetContainerResourceMetric",
        f"failed to get memory usage: unable to get metrics for resource memory: {NO_METRICS}", "",
    ),
}  # fmt: skip


@pytest.mark.parametrize(("metrics", "reason", "text", "first"), WITHOUT.values(), ids=WITHOUT)
async def test_without_such_metrics(metrics: list[Object], reason: str, text: str, first: str) -> None:
    async with lab() as made:
        await made.deployment(2)
        status = await made.look(**({"metrics": metrics} if metrics else {}))
        assert conditions(status) == [ABLE, ("ScalingActive", "False", reason, UNABLE + text)]
        assert status["currentMetrics"] == [{"type": ""}]
        assert (status["currentReplicas"], status["desiredReplicas"]) == (2, 0)
        assert made.controller.events[0] == ("Warning", reason, text)
        _, failed, message = made.controller.events[1]
        assert failed == "FailedComputeMetricsReplicas"
        assert message.startswith(f"invalid metrics (1 invalid out of 1), first error is: {first}")


async def test_a_target_that_is_not_there() -> None:
    async with lab() as made:
        status = await made.look()
        text = 'deployments.apps "web" not found'
        told = f"the HPA controller was unable to get the target's current scale: {text}"
        assert conditions(status) == [("AbleToScale", "False", "FailedGetScale", told)]
        assert made.controller.events == [("Warning", "FailedGetScale", text)]


async def test_a_target_of_no_kind() -> None:
    async with lab() as made:
        await made.look(scaleTargetRef={"apiVersion": "a/v1", "kind": "Nokind", "name": "web"})
        assert made.controller.events == [("Warning", "FailedGetScale", 'no matches for kind "Nokind" in group "a"')]


async def test_a_target_without_replicas_is_left_alone() -> None:
    async with lab() as made:
        await made.deployment(0)
        status = await made.look()
        told = "scaling is disabled since the replica count of the target is zero"
        assert conditions(status) == [ABLE, ("ScalingActive", "False", "ScalingDisabled", told)]
        assert (await made.replicas(), made.controller.events) == (0, [])


@pytest.mark.parametrize(
    ("before", "after", "word"), [(7, 5, "above Spec.MaxReplicas"), (1, 2, "below Spec.MinReplicas")]
)
async def test_bounds_hold_without_metrics(before: int, after: int, word: str) -> None:
    async with lab() as made:
        await made.deployment(before)
        status = await made.look(minReplicas=2)
        assert (await made.replicas(), status["currentReplicas"], status["desiredReplicas"]) == (after, before, after)
        assert status["lastScaleTime"]
        text = f"New size: {after}; reason: Current number of replicas {word}"
        assert made.controller.events == [("Normal", "SuccessfulRescale", text)]


async def test_up_by_the_cpu_that_pods_use() -> None:
    usage = Usage()
    async with lab(usage) as made:
        await made.deployment(2)
        for name in ("p", "q"):
            await made.pod(name)
            usage.used[name] = "1200m"
        status = await made.look()
        assert await made.replicas() == 3
        assert made.controller.events == [
            ("Normal", "SuccessfulRescale", "New size: 3; reason: cpu resource utilization (percentage of request) above target")
        ]  # fmt: skip
        current = {"averageUtilization": 120, "averageValue": "1200m"}
        assert status["currentMetrics"] == [{"type": "Resource", "resource": {"name": "cpu", "current": current}}]
        assert [one[2] for one in conditions(status)] == ["SucceededRescale", "ValidMetricFound", "DesiredWithinRange"]
        # A second look changes nothing but what is told: the two pods are what is measured.
        assert [one[2] for one in conditions(await made.look())] == [
            "ReadyForNewScale", "ValidMetricFound", "DesiredWithinRange",
        ]  # fmt: skip


async def test_down_waits() -> None:
    usage = Usage()
    async with lab(usage) as made:
        await made.deployment(2)
        for name in ("p", "q"):
            await made.pod(name)
            usage.used[name] = "1m"
        status = await made.look()
        assert await made.replicas() == 2
        assert ("AbleToScale", "True", "ScaleDownStabilized") in [one[:3] for one in conditions(status)]


async def test_a_metric_that_is_missing_keeps_it_from_going_down() -> None:
    usage = Usage()
    cpu = {"type": "Resource", "resource": {"name": "cpu", "target": {"type": "Utilization", "averageUtilization": 50}}}
    behavior = {"scaleDown": {"stabilizationWindowSeconds": 0}}
    async with lab(usage) as made:
        await made.deployment(2)
        for name in ("p", "q"):
            await made.pod(name)
            usage.used[name] = "1m"
        status = await made.look(metrics=[cpu, pods_metric()], behavior=behavior)
        assert await made.replicas() == 2
        assert conditions(status)[1][:3] == ("ScalingActive", "False", "FailedGetPodsMetric")
        usage.used |= {"p": "2", "q": "2"}
        await made.look()
        assert await made.replicas() == 5


async def test_looking_writes_nothing_when_nothing_changes() -> None:
    async with lab() as made:
        await made.deployment(0)
        await made.look()
        before = made.core.store.revision
        await made.look()
        assert made.core.store.revision == before
