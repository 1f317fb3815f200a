"""Whose feature labels are whose on a Node, and that only kgpu's own ever go."""

from __future__ import annotations

import pytest

from kgpu.base.errors import KubeError
from kgpu.discovery.features.publish import NodeFeatureLabels, seen_on
from kgpu.discovery.features.run import withdraw
from kgpu.formats import names
from kgpu.kube.fake import FakeApi
from kgpu.kube.port import NODES

PCI = names.NFD_PCI_NVIDIA[0]
KERNEL = names.NFD_KERNEL_FULL


@pytest.fixture
def api():
    api = FakeApi()
    api.put(NODES, {"metadata": {"name": "n", "labels": {"team": "a"}}})
    return api


@pytest.fixture
def publisher(api):
    return NodeFeatureLabels(api, node="n")


async def labels(api):
    return (await api.get(NODES, "n"))["metadata"]["labels"]


async def test_labels_are_written_changed_and_withdrawn(api, publisher):
    await publisher.publish({PCI: "true", KERNEL: "6.1"})
    assert (await publisher.look()).mine == {PCI: "true", KERNEL: "6.1"}
    await publisher.publish({KERNEL: "6.2"})
    assert await labels(api) == {"team": "a", KERNEL: "6.2"}
    await withdraw(publisher)
    assert await labels(api) == {"team": "a"}


async def test_writing_what_is_there_changes_nothing(api, publisher):
    await publisher.publish({PCI: "true"})
    before = await api.get(NODES, "n")
    await publisher.publish({PCI: "true"})
    assert await api.get(NODES, "n") == before


async def test_a_node_that_is_not_there_is_an_obstacle_and_is_not_made(api):
    with pytest.raises(KubeError, match='no node "other"'):
        await NodeFeatureLabels(api, node="other").look()
    assert await api.get(NODES, "other") is None


async def test_a_node_that_was_made_anew_is_not_written_to_under_its_old_uid(api, publisher):
    await publisher.look()
    await api.delete(NODES, "n")
    api.put(NODES, {"metadata": {"name": "n"}})
    with pytest.raises(KubeError):
        await publisher.publish({PCI: "true"})


def node(labels, *owners, annotations=None):
    """``owners`` are (manager, operation, keys)."""
    fields = [
        {
            "manager": manager,
            "operation": operation,
            "fieldsV1": {"f:metadata": {"f:labels": {".": {}, **{f"f:{key}": {} for key in keys}}}},
        }
        for manager, operation, keys in owners
    ]
    return {"metadata": {"name": "n", "labels": labels, "managedFields": fields, "annotations": annotations or {}}}


def test_a_discovery_is_known_by_what_it_writes_on_every_node():
    labels = {KERNEL: "6.1", names.NFD_OS_ID: "ubuntu"}
    seen = seen_on(node(labels, ("nfd-master", "Update", list(labels))), manager="kgpu-features")
    assert (seen.discovery, seen.others, dict(seen.mine)) == ("nfd-master", set(labels), {})
    by_hand = node({**labels, PCI: "true"}, ("nfd-master", "Update", list(labels)), ("kubectl-label", "Update", [PCI]))
    seen = seen_on(by_hand, manager="kgpu-features")
    assert (seen.discovered, seen.others) == (set(labels), {*labels, PCI})


def test_a_discovery_is_known_by_its_annotation_with_an_instance_too():
    found = node({}, annotations={"x.nfd.node.kubernetes.io/feature-labels": "pci-10de.present"})
    assert seen_on(found, manager="kgpu-features").discovery == "node feature discovery"


@pytest.mark.parametrize("key", [PCI, KERNEL, names.NFD_OS_ID])
def test_a_label_set_by_hand_is_no_discovery(key):
    seen = seen_on(node({key: "true"}, ("kubectl-label", "Update", [key])), manager="kgpu-features")
    assert (seen.discovery, seen.others) == ("", {key})


def test_our_own_labels_are_no_discovery():
    seen = seen_on(node({KERNEL: "6.1"}, ("kgpu-features", "Apply", [KERNEL])), manager="kgpu-features")
    assert (seen.discovery, dict(seen.mine)) == ("", {KERNEL: "6.1"})


@pytest.mark.parametrize("fields", [None, [], {"f:metadata": None}, {"f:metadata": {"f:labels": 3}}, {"f:metadata": 1}])
def test_managed_fields_of_any_shape(fields):
    found = node({KERNEL: "6.1"})
    found["metadata"]["managedFields"] = [{"manager": "x", "operation": "Apply", "fieldsV1": fields}]
    assert seen_on(found, manager="kgpu-features").others == frozenset()
