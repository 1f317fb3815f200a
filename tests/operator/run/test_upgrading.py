"""Operations that exchange drivers are made once each, withdrawn when the plan says so, and refusals are told."""

from __future__ import annotations

from typing import Any

from kgpu.formats import names
from kgpu.kube import kinds
from kgpu.kube.fake import FakeApi
from kgpu.kube.kinds import NODE_OPERATIONS
from kgpu.kube.port import NODES, Object, Resource
from kgpu.operator.model import ClusterPlan, NodeLabels, UpgradeOperation, UpgradePlan
from tests.operator.run.support import Wish, cluster, refusal, running, writes


def operation(name: str, **spec: Any) -> Object:
    told = {"type": "DriverUpgrade", "nodeName": "n0", "reason": "the policy asks for it", **spec}
    return {"metadata": {"name": name}, "spec": told}


def api_with_operations() -> FakeApi:
    api = cluster()
    api.served |= {NODE_OPERATIONS}
    return api


async def names_there(api: FakeApi) -> list[str]:
    return [obj["metadata"]["name"] for obj in (await api.list(NODE_OPERATIONS)).items]


def of_upgrades(api: FakeApi) -> dict[str, int]:
    return {name: count for (plural, name), count in writes(api).items() if plural == NODE_OPERATIONS.plural}


async def test_each_is_made_once_and_seen_as_it_is() -> None:
    api, wish = api_with_operations(), Wish(upgrades=UpgradePlan(create=(operation("a"), operation("b"))))
    async with running(api, planner=wish) as run:
        assert sorted(await names_there(api)) == ["a", "b"]
        assert {one.name for one in wish.seen[-1].upgrades} == {"a", "b"}
        wish.want(run, ClusterPlan())
        await run.settled()
        assert of_upgrades(api) == {"a": 1, "b": 1}


async def test_what_is_there_already_is_no_error() -> None:
    api = api_with_operations()
    api.put(NODE_OPERATIONS, operation("a"))
    async with running(api, planner=Wish(upgrades=UpgradePlan(create=(operation("a"),)))) as run:
        assert run.operator.working is not None
        assert run.operator.working.upgrading.errors == {}


async def test_withdrawn_only_as_the_very_object_that_was_meant() -> None:
    api, wish = api_with_operations(), Wish()
    api.put(NODE_OPERATIONS, operation("a"))
    api.put(NODE_OPERATIONS, operation("b"))
    async with running(api, planner=wish) as run:
        known = {one.name: one for one in wish.seen[-1].upgrades}
        stale = UpgradeOperation(name="b", uid="another")
        wish.want(run, ClusterPlan(upgrades=UpgradePlan(withdraw=(known["a"], stale))))
        await run.until(lambda: "a" not in {one.name for one in wish.seen[-1].upgrades}, "a to go")
        assert await names_there(api) == ["b"]


class Refusing(FakeApi):
    """Lets no operation be made."""

    asked = 0

    async def create(self, resource: Resource, obj: Object, *, subresource: str = "") -> Object:
        if resource == NODE_OPERATIONS:
            self.asked += 1
            raise refusal(403)
        return await super().create(resource, obj, subresource=subresource)


async def test_a_refusal_is_known_to_the_next_plan_and_tried_again_later() -> None:
    api = Refusing()
    api.served = {kinds.CLUSTER_POLICIES, kinds.NVIDIA_DRIVERS, NODE_OPERATIONS}
    wish = Wish(upgrades=UpgradePlan(create=tuple(operation(f"op{number}") for number in range(100))))
    async with running(api, planner=wish, settle_first=False) as run:
        await run.until(lambda: api.asked, "the first attempt")
        await run.clock.advance(5)
        asked = api.asked
        assert asked <= 8, "what one lacks, all lack"
        wish.want(run, wish.plan)
        await run.clock.advance(1)
        assert any(key.startswith("NodeOperation/op") for key in wish.seen[-1].apply_errors)
        assert api.asked == asked
        await run.clock.advance(20)
        assert api.asked > asked


async def test_annotations_of_nodes_are_written_and_taken_back() -> None:
    api = api_with_operations()
    key, foreign = names.DRIVER_UPGRADE_ENABLED, names.DRIVER_UPGRADE_INITIAL
    await api.patch(NODES, "n0", {"metadata": {"annotations": {foreign: "true"}}})
    change = NodeLabels(name="n0", labels={"a": "b"}, annotations={key: "true"}, clear_annotations=(foreign,))
    wish = Wish(nodes=(change,))
    async with running(api, planner=wish) as run:
        node = await api.get(NODES, "n0")
        assert node is not None
        assert node["metadata"]["annotations"].get(key) == "true"
        assert foreign not in node["metadata"]["annotations"]
        wish.want(run, ClusterPlan(nodes=(NodeLabels(name="n0", labels={"a": "b"}),)))
        await run.settled()
        node = await api.get(NODES, "n0")
        assert node is not None
        assert key not in node["metadata"].get("annotations", {})
