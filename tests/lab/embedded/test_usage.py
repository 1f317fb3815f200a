"""The metrics API: rates from two samples, when they are taken, and the objects."""

from __future__ import annotations

from typing import Any

import pytest

from kgpu.lab.embedded import usage
from kgpu.lab.embedded.status import ApiError, Object
from kgpu.lab.embedded.usage import Meter, Sample, UsageApi, node_rates, pod_rates
from tests.lab.embedded.support import CALL, kind, make_core, pod


def row(name: str, cpu: float, *, pod_name: str = "p", started: float = 0.0, memory: int = 4096) -> dict[str, Any]:
    return {"namespace": "default", "pod": pod_name, "name": name, "started": started, "cpu": cpu, "memory": memory}


def sample(at: float, *rows: dict[str, Any], cpu: float = 0.0) -> Sample:
    return {"n": {"time": at, "cpu": cpu, "memory": 8192, "containers": list(rows)}}


def test_a_rate_is_the_time_between_two_samples() -> None:
    first, last = sample(100, row("c", 5), cpu=10), sample(110, row("c", 10), cpu=30)
    found = pod_rates(first, last)["default", "p"]["c"]
    assert (found.cpu, found.memory, found.at, found.window) == (0.5, 4096, 110, 10)
    assert node_rates(first, last)["n"].cpu == 2.0


def test_a_container_that_came_between_them_counts_from_its_start() -> None:
    found = pod_rates(sample(100), sample(110, row("c", 2, started=106)))
    assert (found["default", "p"]["c"].cpu, found["default", "p"]["c"].window) == (0.5, 4)


def test_a_restart_begins_anew() -> None:
    found = pod_rates(sample(100, row("c", 50, started=10)), sample(110, row("c", 1, started=108)))
    assert found["default", "p"]["c"].cpu == 0.5


def test_a_pod_with_a_container_that_has_just_started_is_left_out() -> None:
    last = sample(110, row("c", 2, started=50), row("d", 0, started=109.5), row("c", 0, pod_name="q"))
    assert list(pod_rates(sample(100), last)) == [("default", "q")]


def test_a_node_needs_both_samples() -> None:
    assert node_rates({}, sample(110)) == {}


class Times:
    """A clock, and samples that are counted."""

    def __init__(self) -> None:
        self.now, self.taken = 0.0, 0

    async def fetch(self) -> Sample:
        self.taken += 1
        return sample(100.0 + self.taken, row("c", self.taken / 2), cpu=float(self.taken))


@pytest.fixture
def times(monkeypatch: pytest.MonkeyPatch) -> Times:
    monkeypatch.setattr(usage, "_FIRST", 0.001)
    return Times()


async def test_samples_are_taken_only_when_somebody_asks_and_seldom(times: Times) -> None:
    meter = Meter(times.fetch, lambda: times.now)
    assert times.taken == 0
    await meter.samples()
    assert times.taken == 2
    times.now = usage.RESOLUTION - 1
    await meter.samples()
    assert times.taken == 2
    times.now = usage.RESOLUTION
    first, last = await meter.samples()
    assert (first["n"]["time"], last["n"]["time"]) == (102, 103)
    times.now += 3600
    first, last = await meter.samples()
    assert (first["n"]["time"], last["n"]["time"]) == (104, 105)


async def served(times: Times) -> UsageApi:
    core = make_core()
    core.create(kind(core, "nodes"), "", {"metadata": {"name": "n", "labels": {"zone": "a"}}}, CALL)
    core.create(kind(core, "nodes"), "", {"metadata": {"name": "silent"}}, CALL)
    for name in ("p", "waits"):
        core.create(
            kind(core, "pods"), "default", {**pod(name), "metadata": {"name": name, "labels": {"app": name}}}, CALL
        )
        status: Object = {"status": {"phase": "Running" if name == "p" else "Pending"}}
        media = "application/merge-patch+json"
        core.patch(kind(core, "pods"), "default", name, media, status, CALL, subresource="status")
    return UsageApi(core, core.kinds, Meter(times.fetch, lambda: times.now))


async def test_the_objects(times: Times) -> None:
    api = await served(times)
    pods = await api.collection("pods", "", "", "")
    (only,) = pods["items"]
    assert pods["kind"] == "PodMetricsList"
    assert only["metadata"]["labels"] == {"app": "p"}
    assert (only["timestamp"], only["window"]) == ("1970-01-01T00:01:42Z", "1s")
    assert only["containers"] == [{"name": "c", "usage": {"cpu": "500000000n", "memory": "4Ki"}}]
    nodes = await api.collection("nodes", "", "", "")
    (node,) = nodes["items"]
    assert (node["metadata"]["name"], node["usage"]) == ("n", {"cpu": "1000000000n", "memory": "8Ki"})


@pytest.mark.parametrize(
    ("plural", "namespace", "labels", "names"),
    [
        ("pods", "default", "app=p", ["p"]),
        ("pods", "default", "app!=p", []),
        ("pods", "other", "", []),
        ("nodes", "", "zone=a", ["n"]),
        ("nodes", "", "zone=b", []),
    ],
)
async def test_selectors(times: Times, plural: str, namespace: str, labels: str, names: list[str]) -> None:
    api = await served(times)
    found = await api.collection(plural, namespace, labels, "")
    assert [item["metadata"]["name"] for item in found["items"]] == names


@pytest.mark.parametrize(
    ("plural", "namespace", "name", "message"),
    [
        ("pods", "default", "waits", 'pods.metrics.k8s.io "default/waits" not found'),
        ("pods", "default", "no", 'pods "default/no" not found'),
        ("nodes", "", "silent", 'nodes.metrics.k8s.io "silent" not found'),
        ("nodes", "", "no", 'nodes "no" not found'),
    ],
)
async def test_what_is_not_there(times: Times, plural: str, namespace: str, name: str, message: str) -> None:
    api = await served(times)
    with pytest.raises(ApiError) as refused:
        await api.get(plural, namespace, name)
    assert (refused.value.code, refused.value.message) == (404, message)
