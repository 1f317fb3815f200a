"""The metrics API: NodeMetrics and PodMetrics, as metrics-server makes them of what kubelets count.

Two samples make a rate. They are taken when somebody asks, at most every ``RESOLUTION`` seconds, so that a lab in which
nobody asks does nothing. Who asks first, or after a while, waits for a second sample.
"""

from __future__ import annotations

import asyncio
import datetime as dt
import math
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from kgpu.lab.embedded.core import ApiCore
from kgpu.lab.embedded.kinds import METRICS_GROUP, Kinds
from kgpu.lab.embedded.status import Object, not_found

RESOLUTION: Final = 10.0  # seconds that a sample serves; metrics-server's default is 15
_OLD: Final = 60.0  # seconds after which a sample says nothing of what is used now
_FIRST: Final = 1.0  # seconds between the first two samples, and that a container must have run
_VERSION: Final = f"{METRICS_GROUP}/v1beta1"

Sample = Mapping[str, Mapping[str, Any]]
"""By node: ``time`` (seconds since 1970), ``cpu`` (seconds), ``memory`` (bytes) and the rows of its ``containers``."""
Fetch = Callable[[], Awaitable[Sample]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Rate:
    """Use over a window: ``cpu`` in cores, ``memory`` in bytes; ``at`` and ``window`` in seconds."""

    cpu: float
    memory: int
    at: float
    window: float


def rate(before: tuple[float, float], now: tuple[float, float], memory: int) -> Rate | None:
    """Of two (time, CPU seconds); None while they are too close together."""
    window = now[0] - before[0]
    if window < _FIRST:
        return None
    return Rate(cpu=max(0.0, now[1] - before[1]) / window, memory=memory, at=now[0], window=window)


def node_rates(first: Sample, last: Sample) -> dict[str, Rate]:
    """The nodes that are in both samples."""
    rates = {}
    for name, row in last.items():
        if (old := first.get(name)) is not None:
            rates[name] = rate((old["time"], old["cpu"]), (row["time"], row["cpu"]), row["memory"])
    return {name: one for name, one in rates.items() if one is not None}


def pod_rates(first: Sample, last: Sample) -> dict[tuple[str, str], dict[str, Rate]]:
    """(namespace, name) -> its containers. Without a pod that has a container that is too young, as metrics-server."""
    before = {
        (*_pod_of(row), row["name"], row["started"]): (node["time"], row["cpu"])
        for node in first.values()
        for row in node["containers"]
    }
    found: dict[tuple[str, str], dict[str, Rate | None]] = {}
    for node in last.values():
        for row in node["containers"]:
            # A container that is newer than the first sample had used nothing when it started.
            old = before.get((*_pod_of(row), row["name"], row["started"]), (row["started"], 0.0))
            found.setdefault(_pod_of(row), {})[row["name"]] = rate(old, (node["time"], row["cpu"]), row["memory"])
    whole = {
        pod: {name: one for name, one in containers.items() if one is not None} for pod, containers in found.items()
    }
    return {pod: containers for pod, containers in whole.items() if len(containers) == len(found[pod])}


def _pod_of(row: Mapping[str, Any]) -> tuple[str, str]:
    return row["namespace"], row["pod"]


class Meter:
    """Two samples, renewed when somebody asks."""

    def __init__(self, fetch: Fetch, clock: Callable[[], float] = time.monotonic) -> None:
        self._fetch = fetch
        self._clock = clock
        self._lock = asyncio.Lock()
        self._first: Sample = {}
        self._last: Sample = {}
        self._taken = -math.inf

    async def samples(self) -> tuple[Sample, Sample]:
        """The two latest samples, the earlier one first."""
        async with self._lock:
            age = self._clock() - self._taken
            if age >= RESOLUTION:
                self._first = self._last if age < _OLD else await self._begin()
                self._last, self._taken = await self._fetch(), self._clock()
            return self._first, self._last

    async def _begin(self) -> Sample:
        sample = await self._fetch()
        if sample:
            await asyncio.sleep(_FIRST * 1.1)
        return sample


class UsageApi:
    """The objects of the metrics API."""

    def __init__(self, core: ApiCore, kinds: Kinds, meter: Meter) -> None:
        self._core = core
        self._kinds = kinds
        self._meter = meter

    async def collection(self, plural: str, namespace: str, labels: str, fields: str) -> Object:
        """A NodeMetricsList or PodMetricsList. Raises ApiError for a selector that is none."""
        nodes = plural == "nodes"
        items = await (self.node_metrics(labels, fields) if nodes else self.pod_metrics(namespace, labels, fields))
        kind = "NodeMetricsList" if nodes else "PodMetricsList"
        return {"kind": kind, "apiVersion": _VERSION, "metadata": {}, "items": items}

    async def get(self, plural: str, namespace: str, name: str) -> Object:
        """One NodeMetrics or PodMetrics. Raises ApiError 404."""
        shown = f"{namespace}/{name}" if namespace else name
        field = f"metadata.name={name}"
        if not self._objects(plural, namespace, "", field):
            raise not_found("", plural, shown)
        items = (await self.collection(plural, namespace, "", field))["items"]
        if not items:
            raise not_found(METRICS_GROUP, plural, shown)
        found: Object = items[0]
        return found

    async def node_metrics(self, labels: str = "", fields: str = "") -> Sequence[Object]:
        """NodeMetrics of the nodes that are selected. Raises ApiError."""
        nodes = self._objects("nodes", "", labels, fields)
        rates = node_rates(*await self._meter.samples())
        return [
            _head("NodeMetrics", node, (one := rates[node["metadata"]["name"]])) | {"usage": _usage(one)}
            for node in nodes
            if node["metadata"]["name"] in rates
        ]

    async def pod_metrics(self, namespace: str, labels: str = "", fields: str = "") -> list[Object]:
        """PodMetrics of the pods that are selected. Raises ApiError."""
        pods = self._objects("pods", namespace, labels, fields)
        rates = pod_rates(*await self._meter.samples())
        items = []
        for pod in pods:
            containers = rates.get((pod["metadata"]["namespace"], pod["metadata"]["name"]))
            if containers and (pod.get("status") or {}).get("phase") == "Running":
                oldest = min(containers.values(), key=lambda one: one.window)
                rows = [{"name": name, "usage": _usage(one)} for name, one in sorted(containers.items())]
                items.append(_head("PodMetrics", pod, oldest) | {"containers": rows})
        return items

    def _objects(self, plural: str, namespace: str, labels: str, fields: str) -> list[Object]:
        page = self._core.list(self._kinds.need("", plural), namespace, labels=labels, fields=fields)
        return [stored.obj for stored in page.items]


def _head(kind: str, obj: Object, one: Rate) -> Object:
    about = obj["metadata"]
    metadata = {"name": about["name"], "creationTimestamp": _stamp(time.time())}
    metadata |= {name: about[name] for name in ("namespace", "labels") if about.get(name)}
    window = f"{one.window:.3f}".rstrip("0").rstrip(".")
    return {
        "kind": kind, "apiVersion": _VERSION, "metadata": metadata, "timestamp": _stamp(one.at), "window": f"{window}s",
    }  # fmt: skip


def _usage(one: Rate) -> Object:
    nanos = round(one.cpu * 1e9)
    return {"cpu": f"{nanos}n" if nanos else "0", "memory": f"{one.memory // 1024}Ki" if one.memory else "0"}


def _stamp(seconds: float) -> str:
    return dt.datetime.fromtimestamp(seconds, dt.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
