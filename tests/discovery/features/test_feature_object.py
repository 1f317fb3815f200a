"""The NodeFeature of a node's agent: written when it differs, withdrawn when it is kgpu's; and the labels meanwhile."""

from __future__ import annotations

import pytest

from kgpu.discovery.features.feature_object import NodeFeatureObject
from kgpu.discovery.features.model import FeatureSet
from kgpu.discovery.features.publish import SeenFeatures
from kgpu.discovery.features.sources import ReadNode
from kgpu.discovery.rules.decode import read_feature
from kgpu.discovery.rules.model import feature_set
from kgpu.formats import names
from kgpu.kube.fake import FakeApi
from kgpu.kube.port import NODE_FEATURES

from .test_run import Node

READ = ReadNode(
    features=FeatureSet(
        flags={"kernel.loadedmodule": frozenset({"nvidia"})},
        attributes={"kernel.version": {"major": "6"}},
        instances={"pci.device": [{"vendor": "10de"}]},
    ),
    labels={names.NFD_KERNEL_FULL: "6.1"},
)


async def stored(api):
    return await api.get(NODE_FEATURES, "n1", namespace="ns")


async def test_what_was_read_can_be_read_back():
    api = FakeApi()
    await NodeFeatureObject(api, node="n1", namespace="ns").publish(READ)
    found = await stored(api)
    read = read_feature(found)
    assert not read.flaws
    assert dict(read.spec.labels) == READ.labels
    assert feature_set(read.spec.features).attributes == READ.features.attributes
    assert found["metadata"]["labels"][names.NFD_NODE_NAME_LABEL] == "n1"


async def test_it_is_written_when_it_differs():
    api = FakeApi()
    ours = NodeFeatureObject(api, node="n1", namespace="ns")
    await ours.publish(READ)
    first = await stored(api)
    await ours.publish(READ)
    assert await stored(api) == first
    await ours.publish(ReadNode(features=FeatureSet(attributes={"kernel.version": {"major": "7"}})))
    spec = (await stored(api))["spec"]
    assert spec["features"]["attributes"] == {"kernel.version": {"elements": {"major": "7"}}}
    assert not spec["labels"]


@pytest.mark.parametrize(("labels", "stays"), [({names.PART_OF_LABEL: names.KGPU}, False), ({}, True)])
async def test_only_its_own_is_withdrawn(labels, stays):
    api = FakeApi()
    await NodeFeatureObject(api, node="n1", namespace="ns").withdraw()
    api.put(NODE_FEATURES, {"metadata": {"name": "n1", "namespace": "ns", "labels": labels}, "spec": {}})
    await NodeFeatureObject(api, node="n1", namespace="ns").withdraw()
    assert (await stored(api) is not None) is stays


async def test_where_the_operator_labels_nodes_it_is_told_and_a_label_goes_once_it_has_it():
    told = []

    async def tell(read):
        told.append(read)

    node = Node(tell_operator=tell)
    kernel = node.facts.labels[names.NFD_KERNEL_FULL]
    node.publisher.seen = SeenFeatures(mine={names.NFD_KERNEL_FULL: kernel})
    async with node.running():
        await node.until(lambda: node.states)
        assert told == [node.facts]
        assert node.publisher.seen.mine == {names.NFD_KERNEL_FULL: kernel}
        assert "NodeFeature" in node.states[0][1]
        node.publisher.seen = SeenFeatures(
            mine={names.NFD_KERNEL_FULL: kernel}, others=frozenset({names.NFD_KERNEL_FULL})
        )
        node.devices = frozenset({"b"})
        await node.pass_time(6)
        await node.until(lambda: node.publisher.history)
        assert node.publisher.history[-1] == {}
