"""NodeFeatureGroups: who belongs to one, what is written, how often, and what is kept where nothing is known."""

from __future__ import annotations

from dataclasses import replace

import pytest

from kgpu.base.clock import VirtualClock
from kgpu.discovery.features.model import FeatureSet
from kgpu.discovery.master.groups import PACE, GroupKeeper, members
from kgpu.discovery.master.model import StoredFeature, StoredGroup, group_of
from kgpu.discovery.rules.model import GroupSource
from kgpu.formats.crd.nodefeatures import FeatureMatcherTerm, MatchExpression, MatchingRule
from kgpu.kube.fake import FakeApi
from kgpu.kube.kinds import NODE_FEATURE_GROUPS
from kgpu.kube.port import KubeRefusedError

NAMESPACE = "gpu-operator"
NEW = MatchingRule(
    name="new",
    match_features=(
        FeatureMatcherTerm(
            feature="kernel.version", match_expressions={"major": MatchExpression(op="Ge", value=("6",))}
        ),
    ),
)
GROUP = StoredGroup(
    namespace=NAMESPACE, uid="u", generation=1, used=True, source=GroupSource(name="new-kernels", rules={0: NEW})
)


def feature(node: str, major: str, version: str = "1") -> StoredFeature:
    found = FeatureSet(attributes={"kernel.version": {"major": major}})
    return StoredFeature(
        namespace=NAMESPACE, name=node, uid=node, version=version, node=node, used=True, features=found
    )


NODES = ("n2", "n1", "n3")
FOUND = {"n1": [feature("n1", "6")], "n2": [feature("n2", "7")], "n3": [feature("n3", "5")]}


@pytest.mark.parametrize(
    ("before", "seen", "after"),
    [
        ((), {"n1", "n2", "n3"}, ("n1", "n2")),
        (("n3", "gone"), {"n1", "n2", "n3"}, ("n1", "n2")),
        (("n3", "gone"), {"n1"}, ("n1", "n3")),  # of n2 and n3 nothing was read since the start
    ],
)
def test_who_belongs_to_a_group(before, seen, after):
    matched = {"n1": True, "n2": True, "n3": False}
    assert members(replace(GROUP, members=before), NODES, matched, seen.__contains__) == after


class World:
    def __init__(self) -> None:
        self.api = FakeApi()
        self.clock = VirtualClock()
        self.count = 0
        self.keeper = GroupKeeper(NAMESPACE, self.clock, self._wrote)
        self.group = GROUP

    def _wrote(self) -> None:
        self.count += 1

    async def begin(self) -> None:
        obj = {"metadata": {"name": "new-kernels", "namespace": NAMESPACE}, "spec": {"featureGroupRules": []}}
        made = await self.api.create(NODE_FEATURE_GROUPS, obj)
        self.group = replace(GROUP, uid=made["metadata"]["uid"])

    async def keep(self, found=FOUND, nodes=NODES) -> tuple[str, ...]:
        """The members after one pass, which the next one sees."""
        await self.keeper.keep(self.api, [self.group], nodes, found, lambda _name: True)
        obj = await self.api.get(NODE_FEATURE_GROUPS, "new-kernels", namespace=NAMESPACE)
        names = group_of(obj or {}, used=True).members
        self.group = replace(self.group, members=names)
        return names


@pytest.fixture
async def world():
    one = World()
    await one.begin()
    return one


async def test_the_status_follows_what_nodes_have(world):
    assert await world.keep() == ("n1", "n2")
    await world.clock.advance(PACE)
    assert await world.keep({**FOUND, "n2": [feature("n2", "5", "2")]}) == ("n1",)
    await world.clock.advance(PACE)
    assert await world.keep(nodes=("n2", "n3")) == ("n2",)


async def test_without_a_change_nothing_is_written_and_many_changes_are_one_write(world):
    await world.keep()
    await world.keep()
    assert world.count == 1
    changed = {**FOUND, "n3": [feature("n3", "6", "2")]}
    assert await world.keep(changed) == ("n1", "n2")
    assert world.keeper.put_off
    await world.clock.advance(PACE)
    assert await world.keep(changed) == ("n1", "n2", "n3")
    assert not world.keeper.put_off


async def test_a_changed_spec_is_evaluated_anew_and_a_wrong_rule_is_told_of(world):
    await world.keep()
    wrong = MatchingRule(
        name="wrong",
        match_features=(
            FeatureMatcherTerm(
                feature="kernel.version", match_expressions={"major": MatchExpression(op="Gt", value=("x",))}
            ),
        ),
    )
    source = GroupSource(name="new-kernels", rules={0: wrong})
    world.group = replace(world.group, generation=2, source=source)
    await world.clock.advance(PACE)
    assert await world.keep() == ()
    assert [(node, one.index) for node, one in world.keeper.failures(world.group)] == [("n1", 0), ("n2", 0), ("n3", 0)]


async def test_a_group_that_is_gone_is_left_and_a_refusal_is_not_swallowed(world):
    await world.api.delete(NODE_FEATURE_GROUPS, "new-kernels", namespace=NAMESPACE)
    await world.keeper.keep(world.api, [world.group], NODES, FOUND, lambda _name: True)
    world.api.refuse["patch", "nodefeaturegroups"] = 403
    await world.clock.advance(PACE)
    with pytest.raises(KubeRefusedError):
        await world.keeper.keep(world.api, [world.group], NODES, FOUND, lambda _name: True)


def test_of_other_namespaces_nothing_is_kept_and_any_object_can_be_read():
    obj = {"metadata": {"name": "g", "namespace": "tenant"}, "spec": {"featureGroupRules": [{"name": "all"}]}}
    assert group_of(obj, used=False).source.rules == {}
    assert len(group_of(obj, used=True).source.rules) == 1
    odd = {"metadata": {"generation": "x"}, "spec": 7, "status": {"nodes": [1, {"name": 2}]}}
    assert group_of(odd, used=True).members == ("", "")
