"""The controller on the embedded API: rules come, change and go; bad ones; other masters; who may label Nodes."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from kgpu.base.errors import KubeError
from kgpu.base.service import end
from kgpu.discovery.features.feature_object import NodeFeatureObject
from kgpu.discovery.features.model import FeatureSet
from kgpu.discovery.features.sources import ReadNode
from kgpu.discovery.master.metrics import MasterFigures
from kgpu.discovery.master.model import MasterSettings, TrackedNode, TrackingLists, feature_of
from kgpu.discovery.master.off import FeatureRulesOff
from kgpu.discovery.master.plan import NodeChange
from kgpu.discovery.master.run import FeatureRulesController
from kgpu.discovery.master.sharing import FeatureShare
from kgpu.discovery.master.writing import ChangeWriter, collect, prune
from kgpu.discovery.rules.outputs import OutputLimits
from kgpu.fit.selectors import LabelSelector, Requirement
from kgpu.formats import names
from kgpu.kube.fake import FakeApi
from kgpu.kube.informer import Scope
from kgpu.kube.kinds import CUSTOM_RESOURCE_DEFINITIONS, NAMESPACES, NODE_FEATURE_GROUPS, NODE_FEATURE_RULES
from kgpu.kube.port import NODE_FEATURES, NODES, Change, KubeRefusedError, Object, name_of
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
    async def running(self, *, off: bool = False, taints: bool = True, **more: Any) -> AsyncIterator[Rules]:
        nodes = SharedInformer(self.api, Scope(NODES))
        settings = MasterSettings(namespace=NAMESPACE, limits=OutputLimits(taints=taints), **more)
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
        for kind in ("nodefeatures", "nodefeaturerules", "nodefeaturegroups"):
            await self.cluster.until(lambda kind=kind: self.cluster.core.kinds.stored(names.NFD_DOMAIN, kind), kind)

    async def say(self, node: str = "n1") -> None:
        await NodeFeatureObject(self.api, node=node, namespace=NAMESPACE).publish(READ)

    async def foreign(self, namespace: str, **labels: str) -> None:
        """Another program's NodeFeature of n1."""
        metadata = {"name": "x", "labels": {names.NFD_NODE_NAME_LABEL: "n1"}}
        spec = {"labels": {f"example.com/{key}": value for key, value in labels.items()}, "features": {}}
        await self.cluster.create(NODE_FEATURES, {"metadata": metadata, "spec": spec}, namespace=namespace)

    async def group(self, name: str, *rules: Object, namespace: str = NAMESPACE) -> None:
        metadata = {"name": name, "namespace": namespace}
        await self.api.apply(
            NODE_FEATURE_GROUPS, {"metadata": metadata, "spec": {"featureGroupRules": [*rules]}}, manager="me"
        )

    async def members(self, name: str, *nodes: str) -> None:
        def are_there() -> bool:
            obj = self.cluster.get(NODE_FEATURE_GROUPS, name, NAMESPACE) or {}
            return [one["name"] for one in (obj.get("status") or {}).get("nodes", ())] == [*nodes]

        await self.cluster.until(are_there, f"{name} has {nodes}")

    async def told(self, name: str, reason: str) -> str:
        """The message of the first Event of the reason about the object."""

        async def messages() -> list[str]:
            return [one[2] for one in await self.cluster.events(name) if one[1] == reason]

        return str((await self.cluster.until(messages, reason))[0])

    async def rule(self, name: str, *rules: Object) -> None:
        await self.api.apply(
            NODE_FEATURE_RULES, {"metadata": {"name": name}, "spec": {"rules": [*rules]}}, manager="me"
        )

    def node(self, name: str = "n1") -> Object:
        found = self.cluster.get(NODES, name)
        assert found is not None
        return found

    def taints(self) -> set[str]:
        return {taint["key"] for taint in self.node()["spec"].get("taints", ())}

    def annotations(self) -> dict[str, str]:
        return self.node()["metadata"].get("annotations") or {}

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
        assert "example.com/six" in rules.taints()
        await rules.rule("mine", {**SIX, "labels": {"example.com/other": "true"}, "taints": [], "annotations": {}})
        await rules.has("example.com/other")
        assert "example.com/six" not in rules.labels()
        assert "example.com/six" not in rules.taints()
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
        assert "example.com/six" not in rules.taints()

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
    assert names.NFD_TRACKING_ANNOTATION not in rules.annotations()
    assert await rules.cluster.all(NODE_FEATURE_RULES)


async def test_what_tenants_say_is_told_of_and_not_used(rules: Rules) -> None:
    async with rules.running():
        await rules.served()
        await rules.foreign("default", hostile="true")
        await rules.say()
        await rules.has(names.NFD_KERNEL_FULL)
        await rules.told("default", "NodeFeatureNotUsed")
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


async def test_namespaces_are_used_that_the_administrator_chooses_and_no_longer_once_they_are_not(rules: Rules) -> None:
    chosen = LabelSelector((Requirement("trusted", "In", ("yes",)),))
    async with rules.running(namespaces=chosen):
        await rules.served()
        await rules.foreign("default", theirs="1")
        await rules.told("default", "NodeFeatureNotUsed")
        assert "example.com/theirs" not in rules.labels()
        await rules.api.patch(NAMESPACES, "default", {"metadata": {"labels": {"trusted": "yes"}}})
        await rules.has("example.com/theirs")
        await rules.api.patch(NAMESPACES, "default", {"metadata": {"labels": {"trusted": None}}})
        await rules.has("example.com/theirs", there=False)


async def test_groups_have_the_nodes_that_match(rules: Rules) -> None:
    async with rules.running(groups=True):
        await rules.served()
        await rules.say()
        await rules.cluster.node("n2")
        await rules.group("new", {"name": "new", "matchFeatures": [KERNEL]})
        await rules.members("new", "n1")
        await rules.say("n2")
        await rules.members("new", "n1", "n2")
        await rules.group("new", {"name": "new", "matchFeatures": [BAD]}, {"name": "all"})
        assert "spec.featureGroupRules[0]" in await rules.told("new", "NodeFeatureGroupRefused")
        await rules.members("new", "n1", "n2")
        await rules.group("theirs", {"name": "all"}, namespace="default")
        await rules.told("default", "NodeFeatureGroupNotUsed")
        assert not (rules.cluster.get(NODE_FEATURE_GROUPS, "theirs") or {}).get("status")
    await rules.api.delete(NODE_FEATURES, "n2", namespace=NAMESPACE)
    await rules.group("new", {"name": "new", "matchFeatures": [{**KERNEL, "feature": "kernel.none"}]})
    async with rules.running(groups=True):  # a node of which nothing was read since the start stays in
        await rules.members("new", "n2")
    assert "nfd_master_node_feature_group_update_requests_total 0" not in rules.controller.metrics()


async def test_an_instance_keeps_its_own_lists_and_prune_takes_back_what_is_on_them(rules: Rules) -> None:
    lists = {names.NFD_TRACKING_ANNOTATION: "example.com/peers"}
    await rules.api.patch(NODES, "n1", {"metadata": {"labels": {"example.com/peers": "1"}, "annotations": lists}})
    async with rules.running(instance="blue"):
        await rules.served()
        await rules.say()
        await rules.rule("mine", SIX)
        await rules.has("example.com/six")
        annotations = rules.node()["metadata"]["annotations"]
        assert annotations["blue.nfd.node.kubernetes.io/taints"] == "example.com/six:PreferNoSchedule"
        assert annotations[names.NFD_TRACKING_ANNOTATION] == "example.com/peers"
        assert "example.com/peers" in rules.labels()
    assert [one.node.name for one in await prune(rules.api, "blue", dry_run=True)] == ["n1"]
    assert "example.com/six" in rules.labels()
    await prune(rules.api, "blue")
    assert "example.com/six" not in rules.labels()
    assert names.LABEL_FEATURE_RULES not in rules.labels()
    assert "example.com/slots" not in rules.node()["status"]["capacity"]
    assert {"example.com/peers", "team"} <= rules.labels().keys()
    assert not [key for key in rules.annotations() if key.startswith("blue.")]


async def test_another_instance_begins_with_its_own_lists(rules: Rules) -> None:
    for instance in ("blue", ""):
        async with rules.running(instance=instance):
            await rules.served()
            await rules.say()
            key = TrackingLists.of(instance).labels
            await rules.cluster.until(lambda key=key: key in rules.annotations(), key)
    assert TrackingLists.of("blue").labels not in rules.annotations()
    assert names.NFD_KERNEL_FULL in rules.labels()


async def test_a_node_keeps_what_it_has_from_others_where_nothing_may_be_overwritten(rules: Rules) -> None:
    await rules.api.patch(NODES, "n1", {"metadata": {"labels": {"example.com/six": "mine"}}})
    async with rules.running(overwrite=False):
        await rules.served()
        await rules.say()
        await rules.rule("mine", SIX)
        assert "example.com/six" in await rules.told("n1", "NodeFeatureRejected")
        await rules.has(names.NFD_KERNEL_FULL)
    assert rules.labels()["example.com/six"] == "mine"


async def test_a_taken_over_node_keeps_its_labels_at_every_moment_and_is_given_back_as_the_peer_had_it(
    rules: Rules,
) -> None:
    old = {names.NFD_KERNEL_FULL: "6.1.0", "example.com/stale": "1"}
    lists = {names.NFD_TRACKING_ANNOTATION: "example.com/stale,kernel-version.full"}
    await rules.api.patch(NODES, "n1", {"metadata": {"labels": old, "annotations": lists}})
    seen: dict[str, Any] = {}

    async def follow() -> None:
        version = (await rules.api.list(NODES)).resource_version
        async for event in rules.api.watch(NODES, version):
            if event.change is Change.MODIFIED:
                seen[event.object["metadata"]["resourceVersion"]] = event.object["metadata"]["labels"].keys()

    following = asyncio.create_task(follow())
    async with rules.running():
        await rules.served()
        await rules.say()
        await rules.has("example.com/stale", there=False)  # what nobody finds any more goes by the peer's own list
    rules.other = True
    async with rules.running():  # the peer comes back
        await rules.has(names.LABEL_FEATURE_RULES, there=False)
    await end(following)
    assert seen
    assert all(names.NFD_KERNEL_FULL in labels for labels in seen.values())
    assert rules.node()["metadata"]["annotations"][names.NFD_TRACKING_ANNOTATION] == "kernel-version.full"


async def test_a_node_that_comes_while_its_object_is_there_already_keeps_the_object() -> None:
    api = FakeApi()
    for name in ("new", "gone"):
        metadata = {"name": name, "namespace": NAMESPACE, "labels": {names.NFD_NODE_NAME_LABEL: name}}
        api.put(NODE_FEATURES, {"metadata": metadata, "spec": {}})
    api.put(NODES, {"metadata": {"name": "new"}})  # which the controller's copy of Nodes does not have yet
    settings = MasterSettings(namespace=NAMESPACE)
    stored = [feature_of(one, settings, FeatureShare(), used=True) for one in (await api.list(NODE_FEATURES)).items]
    figures = MasterFigures()
    await collect(api, stored, figures.count)
    assert [name_of(one) for one in (await api.list(NODE_FEATURES)).items] == ["new"]
    assert 'nfd_gc_objects_deleted_total{kind="NodeFeature"} 1' in figures.text()
    api.refuse["get", "nodes"] = 403
    with pytest.raises(KubeRefusedError):
        await collect(api, stored, figures.count)
    assert 'nfd_gc_object_delete_failures_total{kind="NodeFeature"} 2' in figures.text()


async def test_a_node_that_nobody_may_change_keeps_no_other_from_its_labels() -> None:
    api = FakeApi()
    names_of = [f"n{number:03}" for number in range(30)]
    for name in names_of:
        api.put(NODES, {"metadata": {"name": name, "uid": name}})
    held = [NodeChange(node=TrackedNode(name=name), body={"metadata": {"labels": {"a/b": "1"}}}) for name in names_of]
    patch = api.patch

    async def refusing(resource: Any, name: str, *given: Any, **more: Any) -> Object:
        if name == "n000":
            raise KubeRefusedError("no", "yes", "ask", code=403)
        return await patch(resource, name, *given, **more)

    api.patch = refusing  # type: ignore[method-assign]

    async def batches() -> AsyncIterator[list[NodeChange]]:
        for begin in range(0, 30, 10):
            yield held[begin : begin + 10]

    figures = MasterFigures()
    with pytest.raises(KubeRefusedError):
        await ChangeWriter(api, count=figures.count).write_all(batches())
    have = [name_of(one) for one in (await api.list(NODES)).items if one["metadata"].get("labels")]
    assert have == names_of[1:]
    assert "nfd_master_node_updates_total 29" in figures.text()
    assert "nfd_master_node_update_failures_total 1" in figures.text()
    api.set_down(True)
    with pytest.raises(KubeError):  # an outage ends it at once
        await ChangeWriter(api).write_all(batches())


async def test_a_refused_write_keeps_neither_groups_nor_the_end_of_objects_from_their_turn(rules: Rules) -> None:
    api, patch = rules.api, rules.api.patch

    async def refusing(resource: Any, name: str, *given: Any, **more: Any) -> Object:
        if resource == NODES:
            raise KubeRefusedError("no", "yes", "ask", code=403)
        return await patch(resource, name, *given, **more)

    async with rules.running(groups=True):
        await rules.served()
        api.patch = refusing  # type: ignore[method-assign]
        await rules.say()
        await rules.say("gone")
        await rules.group("new", {"name": "new", "matchFeatures": [KERNEL]})
        await rules.members("new", "n1")

        async def collected() -> bool:
            return await api.get(NODE_FEATURES, "gone", namespace=NAMESPACE) is None

        await rules.cluster.until(collected, "the object's end")
        assert names.NFD_KERNEL_FULL not in rules.labels()
        await rules.cluster.until(lambda: rules.controller.status()["feature_rules"]["problem"], "the problem")
        api.patch = patch  # type: ignore[method-assign]
        await rules.has(names.NFD_KERNEL_FULL)
