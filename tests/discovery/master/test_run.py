"""The controller on the embedded API: rules come, change and go; bad ones; other masters; who may label Nodes."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from kgpu.base.service import end
from kgpu.discovery.features.feature_object import NodeFeatureObject
from kgpu.discovery.features.model import FeatureSet
from kgpu.discovery.features.sources import ReadNode
from kgpu.discovery.master.model import MasterSettings
from kgpu.discovery.master.off import FeatureRulesOff
from kgpu.discovery.master.run import FeatureRulesController
from kgpu.discovery.rules.outputs import OutputLimits
from kgpu.formats import names
from kgpu.kube.informer import Scope
from kgpu.kube.kinds import CUSTOM_RESOURCE_DEFINITIONS, NAMESPACES, NODE_FEATURE_RULES
from kgpu.kube.port import NODE_FEATURES, NODES, Object
from kgpu.kube.shared_informer import SharedInformer
from tests.lab.embedded.support import Whole, whole

NAMESPACE = "gpu-operator"
READ = ReadNode(
    features=FeatureSet(attributes={"kernel.version": {"major": "6"}}),
    labels={names.NFD_KERNEL_FULL: "6.1.0"},
)
KERNEL = {"feature": "kernel.version", "matchExpressions": {"major": {"op": "Ge", "value": ["6"]}}}
SIX = {
    "name": "six", "labels": {"example.com/six": "true"}, "annotations": {"example.com/note": "six"},
    "extendedResources": {"example.com/slots": "@kernel.version.major"}, "matchFeatures": [KERNEL],
    "taints": [{"key": "example.com/six", "effect": "PreferNoSchedule"}],
}  # fmt: skip
BAD = {"feature": "kernel.version", "matchExpressions": {"major": {"op": "InRegexp", "value": ["("]}}}


class Rules:
    """A node whose agent has said what it has, and the controller."""

    def __init__(self, cluster: Whole) -> None:
        self.cluster = cluster
        self.api = cluster.api
        self.other: bool | None = False
        self.controller: Any = None

    @contextlib.asynccontextmanager
    async def running(self, *, off: bool = False, taints: bool = True) -> AsyncIterator[Rules]:
        nodes = SharedInformer(self.api, Scope(NODES))
        settings = MasterSettings(namespace=NAMESPACE, limits=OutputLimits(taints=taints))
        self.controller = FeatureRulesOff(NAMESPACE) if off else FeatureRulesController(
            self.api, settings, nodes=nodes, other=lambda: self.other
        )  # fmt: skip
        jobs = [self.controller.watch(), *self.controller.term(self.api)]
        tasks = [asyncio.create_task(job) for job in jobs]
        try:
            yield self
        finally:
            await end(*tasks)
            self.controller.ended()

    async def served(self) -> None:
        for kind in ("nodefeatures", "nodefeaturerules"):
            await self.cluster.until(lambda kind=kind: self.cluster.core.kinds.stored(names.NFD_DOMAIN, kind), kind)

    async def say(self, node: str = "n1") -> None:
        await NodeFeatureObject(self.api, node=node, namespace=NAMESPACE).publish(READ)

    async def rule(self, name: str, *rules: Object) -> None:
        await self.api.apply(
            NODE_FEATURE_RULES, {"metadata": {"name": name}, "spec": {"rules": [*rules]}}, manager="me"
        )

    def node(self, name: str = "n1") -> Object:
        found = self.cluster.get(NODES, name)
        assert found is not None
        return found

    def labels(self, name: str = "n1") -> dict[str, str]:
        return self.node(name)["metadata"]["labels"]

    async def has(self, key: str, *, there: bool = True) -> None:
        await self.cluster.until(lambda: (key in self.labels()) is there, key)


@pytest.fixture
async def rules(tmp_path: Path) -> AsyncIterator[Rules]:
    async with whole(tmp_path) as cluster:
        await cluster.create(NAMESPACES, {"metadata": {"name": NAMESPACE}})
        await cluster.node("n1", team="a")
        yield Rules(cluster)


async def test_a_rule_is_in_force_changes_and_goes(rules: Rules) -> None:
    async with rules.running():
        await rules.served()
        await rules.say()
        await rules.rule("mine", SIX)
        await rules.has("example.com/six")
        await rules.cluster.until(lambda: "example.com/slots" in rules.node()["status"]["allocatable"], "the resource")
        node = rules.node()
        assert rules.labels()[names.NFD_KERNEL_FULL] == "6.1.0"
        assert node["metadata"]["annotations"]["example.com/note"] == "six"
        assert node["metadata"]["annotations"][names.NFD_TRACKING_ANNOTATION] == "example.com/six,kernel-version.full"
        assert node["status"]["capacity"]["example.com/slots"] == "6"
        assert node["spec"]["taints"][0]["key"] == "example.com/six"
        await rules.rule("mine", {**SIX, "labels": {"example.com/other": "true"}, "taints": [], "annotations": {}})
        await rules.has("example.com/other")
        assert "example.com/six" not in rules.labels()
        assert not rules.node()["spec"].get("taints")
        assert "example.com/note" not in rules.node()["metadata"]["annotations"]
        await rules.api.delete(NODE_FEATURE_RULES, "mine")
        await rules.has("example.com/other", there=False)
        await rules.cluster.until(lambda: "example.com/slots" not in rules.node()["status"]["capacity"], "no resource")
        assert rules.labels()["team"] == "a"


async def test_a_bad_rule_is_told_of_and_stops_no_other(rules: Rules) -> None:
    async with rules.running(taints=False):
        await rules.served()
        await rules.say()
        await rules.rule("a-bad", {"name": "broken", "labels": {"example.com/bad": "1"}, "matchFeatures": [BAD]})
        await rules.rule("b-good", SIX)
        await rules.has("example.com/six")

        async def told() -> list[Any]:
            return [one for one in await rules.cluster.events("a-bad") if one[1] == "NodeFeatureRuleRefused"]

        kind, _, message, _ = (await rules.cluster.until(told, "the Event"))[0]
        assert kind == "Warning"
        assert "a-bad" in message
        assert "spec.rules[0]" in message
        assert "example.com/bad" not in rules.labels()
        # The cluster's own controllers set taints, too; those of rules are not allowed here.
        assert "example.com/six" not in {taint["key"] for taint in rules.node()["spec"].get("taints", ())}

        async def of_the_node() -> list[Any]:
            return [one for one in await rules.cluster.events("n1") if one[1] == "NodeFeatureRejected"]

        assert "example.com/six" in (await rules.cluster.until(of_the_node, "the taint's Event"))[0][2]


async def test_beside_another_master_nothing_is_written_and_it_finds_its_lists(rules: Rules) -> None:
    rules.other = None
    async with rules.running():
        assert rules.cluster.get(CUSTOM_RESOURCE_DEFINITIONS, "nodefeatures.nfd.k8s-sigs.io") is None
        rules.other = False
        await rules.served()
        await rules.say()
        await rules.has(names.LABEL_FEATURE_RULES)
    rules.other = True
    async with rules.running():
        await rules.has(names.LABEL_FEATURE_RULES, there=False)
        assert "stands back" in rules.controller.status()["feature_rules"]["state"]
        await rules.rule("mine", SIX)
        assert names.NFD_TRACKING_ANNOTATION in rules.node()["metadata"]["annotations"]
        assert names.NFD_KERNEL_FULL in rules.labels()

        async def handed_over() -> bool:
            return not await rules.cluster.all(NODE_FEATURES)

        await rules.cluster.until(handed_over, "no NodeFeature that the other one would use")
    assert "example.com/six" not in rules.labels()
    rules.other = False
    async with rules.running():  # and kgpu goes on where another one has stopped
        await rules.say()
        await rules.has("example.com/six")


async def test_switched_off_all_is_taken_back(rules: Rules) -> None:
    async with rules.running():
        await rules.served()
        await rules.say()
        await rules.rule("mine", SIX)
        await rules.has("example.com/six")
    async with rules.running(off=True):
        await rules.has(names.LABEL_FEATURE_RULES, there=False)

        async def features() -> bool:
            return not await rules.cluster.all(NODE_FEATURES)

        await rules.cluster.until(features, "no NodeFeature")
    assert not {"example.com/six", names.NFD_KERNEL_FULL} & rules.labels().keys()
    assert names.NFD_TRACKING_ANNOTATION not in rules.node()["metadata"]["annotations"]
    assert await rules.cluster.all(NODE_FEATURE_RULES)


async def test_what_tenants_say_is_told_of_and_not_used(rules: Rules) -> None:
    async with rules.running():
        await rules.served()
        hostile = {"labels": {"example.com/hostile": "true"}, "features": {}}
        metadata = {"name": "x", "labels": {names.NFD_NODE_NAME_LABEL: "n1"}}
        await rules.cluster.create(NODE_FEATURES, {"metadata": metadata, "spec": hostile}, namespace="default")
        await rules.say()
        await rules.has(names.NFD_KERNEL_FULL)

        async def told() -> list[Any]:
            return [one for one in await rules.cluster.events("default") if one[1] == "NodeFeatureNotUsed"]

        await rules.cluster.until(told, "the Event")
        assert "example.com/hostile" not in rules.labels()


async def test_what_a_node_has_from_before_stays_until_something_is_known_of_it(rules: Rules) -> None:
    lists = {names.NFD_TRACKING_ANNOTATION: "example.com/old"}
    await rules.api.patch(NODES, "n1", {"metadata": {"labels": {"example.com/old": "1"}, "annotations": lists}})
    async with rules.running():
        await rules.served()
        await rules.rule("all", {"name": "all", "labels": {"example.com/all": "1"}})
        await rules.has("example.com/all")
        assert "example.com/old" in rules.labels()
        await rules.say()
        await rules.has("example.com/old", there=False)


async def test_a_nodes_object_goes_with_it(rules: Rules) -> None:
    async with rules.running():
        await rules.served()
        await rules.cluster.node("n2")
        await rules.say("n2")
        await rules.cluster.until(lambda: names.NFD_KERNEL_FULL in rules.labels("n2"), "its label")
        await rules.api.delete(NODES, "n2")

        async def gone() -> bool:
            return await rules.api.get(NODE_FEATURES, "n2", namespace=NAMESPACE) is None

        await rules.cluster.until(gone, "the object's end")
