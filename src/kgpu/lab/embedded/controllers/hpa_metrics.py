"""What a horizontal pod autoscaler measures: the metrics API for resources; other APIs are not there.

The lab forwards to no other API server, so metrics of pods, objects and external ones fail as in a cluster without an
adapter.
"""

from __future__ import annotations

import datetime as dt
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from kgpu.base.errors import KubeError
from kgpu.base.quantity import Quantity
from kgpu.base.times import moment_of
from kgpu.kube.port import KubeApi, KubeRefusedError, Object, Resource, labels_of, name_of
from kgpu.lab.embedded.controllers import hpa_replicas_plan as calculator
from kgpu.lab.embedded.controllers.controller import refusal_text
from kgpu.lab.embedded.controllers.hpa_replicas_plan import Measured, NoReplicasError, Sample, Tolerance, UseTarget

POD_METRICS: Final = Resource("metrics.k8s.io", "v1beta1", "pods", "PodMetrics")
_NO_CUSTOM: Final = (
    "unable to fetch metrics from custom metrics API: no custom metrics API (custom.metrics.k8s.io) registered"
)
_NOT_SERVED: Final = "the server could not find the requested resource"
_DURATION: Final = re.compile(r"(?:(\d+)h)?(?:(\d+)m)?(?:([\d.]+)s)?")


class MetricError(Exception):
    """A metric can't be had: the reason of condition and Event, their text, and how the list of errors begins."""

    def __init__(self, reason: str, text: str, prefix: str) -> None:
        super().__init__(text)
        self.reason = reason
        self.prefix = prefix


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricReading:
    """What one metric says: replicas, the metric's name in Events, and its row of ``status.currentMetrics``."""

    replicas: int
    name: str
    status: Object


@dataclass(frozen=True, slots=True, kw_only=True)
class ScalingQuestion:
    """What is measured for: the target's replicas and pods in a namespace."""

    namespace: str
    current: int
    pods: Callable[[], Sequence[Object]]
    selects: Callable[[Mapping[str, str]], bool]
    now: dt.datetime
    tolerance: Tolerance


async def read(api: KubeApi, metric: Object, question: ScalingQuestion) -> MetricReading:
    """Measure one of ``spec.metrics``. Raises MetricError."""
    kind = str(metric.get("type"))
    if kind in ("Resource", "ContainerResource"):
        return await _resource(api, metric, question)
    raise _unserved(kind, metric, question.namespace)


def _unserved(kind: str, metric: Object, namespace: str) -> MetricError:
    if kind == "Pods":
        text = f"unable to get metric {metric['pods']['metric']['name']}: {_NO_CUSTOM}"
        return MetricError("FailedGetPodsMetric", text, "failed to get pods metric value")
    if kind == "Object":
        source = metric["object"]
        about = source["describedObject"]
        # kube-controller-manager has these words in this order.
        where = f"{about['kind']} on {namespace} {about['name']}/{_NO_CUSTOM}"
        text = f"unable to get metric {source['metric']['name']}: {where}"
        return MetricError("FailedGetObjectMetric", text, "failed to get object metric value")
    if kind == "External":
        identity = metric["external"]["metric"]
        name, selector = identity["name"], _selector_text(identity.get("selector"))
        text = (
            f"unable to get external metric {namespace}/{name}/{selector}: unable to fetch metrics from external "
            f"metrics API: {_NOT_SERVED} (get {name}.external.metrics.k8s.io)"
        )
        return MetricError("FailedGetExternalMetric", text, f"failed to get {name} external metric value")
    text = f'unknown metric source type "{kind}"'
    return MetricError("InvalidMetricSourceType", text, text)


def _selector_text(selector: Object | None) -> str:
    """A label selector as Go prints it."""
    if selector is None:
        return "nil"
    labels = "".join(f"{key}: {value}," for key, value in sorted((selector.get("matchLabels") or {}).items()))
    rules = "".join(
        f"LabelSelectorRequirement{{Key:{rule['key']},Operator:{rule['operator']},"
        f"Values:[{' '.join(rule.get('values') or ())}],}},"
        for rule in selector.get("matchExpressions") or ()
    )
    return (
        f"&LabelSelector{{MatchLabels:map[string]string{{{labels}}},"
        f"MatchExpressions:[]LabelSelectorRequirement{{{rules}}},}}"
    )


async def _resource(api: KubeApi, metric: Object, question: ScalingQuestion) -> MetricReading:
    part = "resource" if metric["type"] == "Resource" else "containerResource"
    source = metric[part]
    resource, container = str(source["name"]), str(source.get("container") or "")
    wanted = source["target"]
    by_average = wanted.get("averageValue") is not None
    target = (
        UseTarget(average=calculator.millis(wanted["averageValue"]))
        if by_average
        else UseTarget(utilization=int(wanted.get("averageUtilization") or 0))
    )
    try:
        samples = await _samples(api, resource, container, question)
        found = calculator.replicas(
            question.current, target, samples, question.pods(), resource=resource, container=container,
            now=question.now, tolerance=question.tolerance,
        )  # fmt: skip
    except NoReplicasError as error:
        what = "container" if container else "resource"
        reason = "FailedGetContainerResourceMetric" if container else "FailedGetResourceMetric"
        text = f"failed to get {resource} {'usage' if by_average else 'utilization'}: {error}"
        raise MetricError(reason, text, f"failed to get {resource} {what} metric value") from error
    named = {"container": container} if container else {}
    row = {"type": metric["type"], part: {"name": resource, **named, "current": _current(found)}}
    shown = f"{resource} {'container resource' if container else 'resource'}"
    return MetricReading(
        replicas=found.replicas, status=row,
        name=shown if by_average else f"{shown} utilization (percentage of request)",
    )  # fmt: skip


def _current(found: Measured) -> Object:
    current: Object = {"averageValue": str(Quantity.of_milli(found.average))}
    return current if found.utilization is None else {**current, "averageUtilization": found.utilization}


async def _samples(api: KubeApi, resource: str, container: str, question: ScalingQuestion) -> dict[str, Sample]:
    """The use of each pod that is selected. Raises NoReplicasError."""
    begun = f"unable to get metrics for resource {resource}: "
    try:
        items = (await api.list(POD_METRICS, namespace=question.namespace)).items
    except KubeError as error:
        absent = isinstance(error, KubeRefusedError) and error.code == 404
        words = f"{_NOT_SERVED} (get pods.metrics.k8s.io)" if absent else refusal_text(error)
        raise NoReplicasError(f"{begun}unable to fetch metrics from resource metrics API: {words}") from error
    chosen = [item for item in items if question.selects(labels_of(item))]
    if not chosen:
        raise NoReplicasError(f"{begun}no metrics returned from resource metrics API")
    samples = {}
    for item in chosen:
        rows = [row for row in item.get("containers") or () if not container or row.get("name") == container]
        if container and not rows:
            raise NoReplicasError(
                f"{begun}failed to get container metrics: container {container} not present in metrics for pod "
                f"{question.namespace}/{name_of(item)}"
            )
        used: list[Any] = [(row.get("usage") or {}).get(resource) for row in rows]
        at = moment_of(item.get("timestamp"))
        if at is not None and None not in used:
            value = sum(calculator.millis(amount) for amount in used)
            samples[name_of(item)] = Sample(value, at, _window(str(item.get("window") or "")))
    return samples


def _window(text: str) -> dt.timedelta:
    """A duration as Go writes it; that of metrics-server for one that can't be read."""
    match = _DURATION.fullmatch(text)
    if not text or match is None:
        return dt.timedelta(minutes=1)
    hours, minutes, seconds = (float(part or 0) for part in match.groups())
    return dt.timedelta(hours=hours, minutes=minutes, seconds=seconds)
