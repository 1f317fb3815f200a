"""The API's own rules: each is found where it is broken, and versions are read as people write them."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest

from kgpu.base.errors import ConfigError, KubeError
from kgpu.dra.api import DraApi, problems, read_api, served_api
from kgpu.dra.devices import node_devices
from kgpu.dra.model import PublishRules
from kgpu.dra.slices import pool_slices
from kgpu.kube.fake import FakeApi
from kgpu.kube.port import Object, Resource
from tests.dra.samples import OWNER, h100

V35 = DraApi(kubernetes=(1, 35))
V34 = DraApi(kubernetes=(1, 34))


def counters(number: int) -> Object:
    return {f"c-{at}": {"value": "1"} for at in range(number)}


def first(slices: list[Object]) -> Any:
    return slices[1]["spec"]["devices"][0]


def set_spec(path: str, value: object) -> Callable[[list[Object]], None]:
    def change(slices: list[Object]) -> None:
        target = slices[0]["spec"]
        *parts, last = path.split(".")
        for part in parts:
            target = target[part]
        target[last] = value

    return change


def set_device(key: str, value: object) -> Callable[[list[Object]], None]:
    return lambda slices: first(slices).__setitem__(key, value)


BREAKS: list[tuple[Callable[[list[Object]], None], str]] = [
    (lambda s: s[0]["metadata"].update(name="A_b"), "metadata.name"),
    (lambda s: s[0]["metadata"].update(name="a" * 254), "metadata.name"),
    (set_spec("driver", "a" * 64), "spec.driver"),
    (set_spec("driver", "a..b"), "spec.driver"),
    (set_spec("nodeName", "Node"), "spec.nodeName"),
    (set_spec("pool.name", ""), "spec.pool.name"),
    (set_spec("pool.resourceSliceCount", 0), "no positive count"),
    (set_spec("pool.resourceSliceCount", 5), "is not 2 everywhere"),
    (set_spec("pool.generation", -1), "negative generation"),
    (set_spec("pool.generation", 9), "several pools or generations"),
    (set_spec("allNodes", True), "exactly one of"),
    (set_spec("devices", []), "both devices and sharedCounters"),
    (set_spec("sharedCounters", [{"name": f"s-{at}", "counters": counters(1)} for at in range(9)]), "more than 8"),
    (set_spec("sharedCounters", [{"name": "s", "counters": counters(33)}]), "33 counters, not 1 to 32"),
    (set_spec("sharedCounters", [{"name": "s", "counters": {}}]), "0 counters, not 1 to 32"),
    (set_spec("sharedCounters", [{"name": "s", "counters": {"A": {"value": "1"}}}]), "no DNS label"),
    (set_spec("sharedCounters", [{"name": "s", "counters": {"a": {"value": "x"}}}]), "no quantity"),
    (set_spec("sharedCounters", [{"name": "s_", "counters": counters(1)}]), "no DNS label"),
    (set_spec("sharedCounters", [{"name": "s", "counters": counters(1)}] * 2), "2 of counter set s"),
    (set_spec("sharedCounters", []), "gpu-0-counter-set has not"),
    (set_device("name", "gpu_0"), "its name is no DNS label"),
    (set_device("name", "gpu-0-mig-7g80gb-0-0"), "2 of device gpu-0-mig-7g80gb-0-0"),
    (set_device("basic", {}), "basic is of v1beta1"),
    (set_device("attributes", {f"a{at}": {"int": at} for at in range(32)}), "33 attributes and capacities"),
    (set_device("attributes", {"a-b": {"int": 1}}), "'a-b' is no name"),
    (set_device("attributes", {"x_/a": {"int": 1}}), "'x_/a' is no name"),
    (set_device("attributes", {"a" * 33: {"int": 1}}), "is no name"),
    (set_device("attributes", {"a": {"int": 1, "bool": True}}), "not exactly one value"),
    (set_device("attributes", {"a": {}}), "not exactly one value"),
    (set_device("attributes", {"a": {"string": "ä" * 33}}), "longer than 64 bytes"),
    (set_device("attributes", {"a": {"version": "1.02.3"}}), "no semver"),
    (set_device("attributes", {"a": {"version": "1.2"}}), "no semver"),
    (set_device("capacity", {"memory": {"value": "1 GB"}}), "capacity memory is no quantity"),
    (set_device("taints", [{"key": "a/b/c", "effect": "NoSchedule"}]), "no label key"),
    (set_device("taints", [{"key": "a", "value": "b c", "effect": "NoSchedule"}]), "no label value"),
    (set_device("taints", [{"key": "a", "effect": "Never"}]), "no effect 'Never'"),
    (set_device("taints", [{"key": f"a{at}", "effect": "None"} for at in range(17)]), "17 taints, more than 16"),
    (set_device("consumesCounters", [{"counterSet": f"s-{at}", "counters": counters(1)} for at in range(3)]),
     "more than 2 counter sets"),
    (set_device("consumesCounters", [{"counterSet": "gpu-0-counter-set", "counters": {"other": {"value": "1"}}}]),
     "consumes other, which gpu-0-counter-set has not"),
    (lambda s: s[1]["spec"]["devices"].extend({"name": f"d-{at}"} for at in range(40)), "more than 64"),
    (lambda s: s[1]["spec"].update(devices=[{"name": f"d-{at}"} for at in range(129)]), "more than 128"),
]  # fmt: skip


@pytest.mark.parametrize(("change", "says"), BREAKS, ids=[f"{at} {says}" for at, (_, says) in enumerate(BREAKS)])
def test_what_is_broken_is_found(change: Callable[[list[Object]], None], says: str) -> None:
    slices = [copy.deepcopy(one) for one in pool_slices(node_devices(h100(), PublishRules(dynamic=True)), OWNER, V35)]
    assert problems(slices, V35) == []
    change(slices)
    assert any(says in problem for problem in problems(slices, V35)), problems(slices, V35)


def test_an_older_server_takes_less() -> None:
    node = node_devices(h100(), PublishRules(monitored=True))
    slices = [copy.deepcopy(one) for one in pool_slices(node, OWNER, V35)]
    assert any("no effect 'None'" in problem for problem in problems(slices, V34))
    slices[0]["spec"]["devices"][0]["taints"] = [{"key": f"a{at}", "effect": "NoSchedule"} for at in range(5)]
    assert any("5 taints, more than 4" in problem for problem in problems(slices, V34))
    assert problems(slices, V35) == []
    two = [{"name": name, "counters": counters(17)} for name in "ab"]
    slices[0]["spec"]["devices"], slices[0]["spec"]["sharedCounters"] = [], two
    assert any("more than 32 counters in all" in problem for problem in problems(slices, V34))


@pytest.mark.parametrize(
    ("text", "wanted"), [("1.35", (1, 35)), ("v1.34.2", (1, 34)), ("1.36+", (1, 36)), ("1.32.1-eks-1", (1, 32))]
)
def test_versions_of_kubernetes(text: str, wanted: tuple[int, int]) -> None:
    assert read_api("v1", text).kubernetes == wanted


@pytest.mark.parametrize(
    ("version", "kubernetes", "says"),
    [("v1beta3", "1.35", 'did you mean "v1beta'), ("v1", "1.31", "1.31"), ("v1", "new", "new"), ("v1", "", '""')],
)
def test_versions_that_are_refused(version: str, kubernetes: str, says: str) -> None:
    with pytest.raises(ConfigError) as caught:
        read_api(version, kubernetes)
    assert says in caught.value.what


async def test_the_version_is_asked_of_the_server() -> None:
    api = FakeApi()
    api.version = (1, 33)
    with pytest.raises(KubeError) as caught:
        await served_api(api)
    assert "1.33" in caught.value.what
    for version in ("v1beta1", "v1beta2"):
        api.served.add(Resource("resource.k8s.io", version, "resourceslices", "ResourceSlice", namespaced=False))
    assert await served_api(api) == DraApi(version="v1beta2", kubernetes=(1, 33))
    api.served.add(DraApi().resource)
    assert (await served_api(api)).version == "v1"
