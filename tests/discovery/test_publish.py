"""Publishers: what they write, what they leave alone, and that the second time changes nothing."""

from __future__ import annotations

import io
import os
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kgpu.base.errors import HostError, KubeError
from kgpu.discovery.lines import as_lines, from_lines
from kgpu.discovery.publish import (
    FilePublisher,
    MemoryLabelPublisher,
    NodeFeaturePublisher,
    NodeLabelsPublisher,
    Publisher,
    StreamPublisher,
)
from kgpu.kube.fake import FakeApi
from kgpu.kube.port import NODE_FEATURES, NODES, PODS, KubeRefusedError, Object, Resource, version_of

LABELS = {"nvidia.com/gpu.count": "8", "nvidia.com/gpu.product": "NVIDIA-L4", "nvidia.com/gpu.sharing-strategy": ""}
OTHERS = {"kubernetes.io/hostname": "n", "nvidia.com/gpu.present": "true"}


def node(labels: dict[str, str] | None = None) -> Object:
    return {"metadata": {"name": "n", "labels": OTHERS if labels is None else labels}}


def cluster() -> FakeApi:
    api = FakeApi()
    api.put(NODES, node())
    return api


MAKERS: dict[str, Callable[[Path], Publisher]] = {
    "memory": lambda _folder: MemoryLabelPublisher(),
    "file": lambda folder: FilePublisher(str(folder / "features.d" / "gfd")),
    "stream": lambda _folder: StreamPublisher(io.StringIO()),
    "node-feature": lambda _folder: NodeFeaturePublisher(cluster(), node="n", namespace="gpu"),
    "node": lambda _folder: NodeLabelsPublisher(cluster(), node="n"),
}


@pytest.mark.parametrize("kind", MAKERS)
async def test_every_publisher_replaces_the_whole_set(kind: str, tmp_path: Path) -> None:
    publisher = MAKERS[kind](tmp_path)
    assert await publisher.published() is None
    await publisher.publish(LABELS)
    assert await publisher.published() == LABELS
    fewer = {"nvidia.com/gpu.count": "4", "nvidia.com/new": "1"}
    await publisher.publish(fewer)
    assert await publisher.published() == fewer
    await publisher.close()


async def test_node_feature_object() -> None:
    api = FakeApi()
    pod_owner = {"apiVersion": "apps/v1", "kind": "DaemonSet", "name": "kgpu", "uid": "u1", "controller": True}
    api.put(
        PODS,
        {
            "metadata": {
                "name": "kgpu-x", "namespace": "gpu", "uid": "u2",
                "ownerReferences": [pod_owner, {"apiVersion": "v1", "kind": "Other", "name": "o", "uid": "u3"}],
            }
        },
    )  # fmt: skip
    publisher = NodeFeaturePublisher(api, node="n", namespace="gpu", pod="kgpu-x")
    await publisher.publish(LABELS)
    found = await api.get(NODE_FEATURES, "nvidia-features-for-n", namespace="gpu")
    assert found is not None
    assert (found["apiVersion"], found["kind"]) == ("nfd.k8s-sigs.io/v1alpha1", "NodeFeature")
    assert found["metadata"]["labels"] == {"nfd.node.kubernetes.io/node-name": "n"}
    assert found["metadata"]["ownerReferences"] == [
        pod_owner,
        {"apiVersion": "v1", "kind": "Pod", "name": "kgpu-x", "uid": "u2"},
    ]
    assert found["spec"] == {"features": {"flags": {}, "attributes": {}, "instances": {}}, "labels": LABELS}
    await publisher.publish(LABELS)
    again = await api.get(NODE_FEATURES, "nvidia-features-for-n", namespace="gpu")
    assert again is not None
    assert version_of(again) == version_of(found)


async def test_node_feature_of_another_writer_is_taken_over() -> None:
    api = FakeApi()
    api.put(
        NODE_FEATURES,
        {
            "metadata": {"name": "nvidia-features-for-n", "namespace": "gpu"},
            "spec": {"labels": {"nvidia.com/gpu.count": "1", "nvidia.com/old": "x"}},
        },
    )
    publisher = NodeFeaturePublisher(api, node="n", namespace="gpu")
    assert await publisher.published() == {"nvidia.com/gpu.count": "1", "nvidia.com/old": "x"}
    await publisher.publish(LABELS)
    assert await publisher.published() == LABELS


async def test_a_pod_that_is_gone_gives_no_owner() -> None:
    api = FakeApi()
    await NodeFeaturePublisher(api, node="n", namespace="gpu", pod="gone").publish(LABELS)
    found = await api.get(NODE_FEATURES, "nvidia-features-for-n", namespace="gpu")
    assert found is not None
    assert "ownerReferences" not in found["metadata"]


async def test_with_the_rights_of_the_replaced_program_alone_objects_are_made_and_replaced_whole() -> None:
    """Its chart gives get, create and update of NodeFeatures, and in older ones nothing of pods."""
    api = FakeApi()
    api.refuse = {("apply", "nodefeatures"): 403, ("patch", "nodefeatures"): 403, ("get", "pods"): 403}
    replaced: list[Object] = []

    async def replace(resource: Resource, obj: Object) -> Object:
        replaced.append(obj)
        return api.put(resource, obj)

    with pytest.raises(KubeRefusedError):
        await NodeFeaturePublisher(api, node="n", namespace="gpu").publish(LABELS)
    publisher = NodeFeaturePublisher(api, node="n", namespace="gpu", pod="kgpu-x", replace=replace)
    await publisher.publish({"nvidia.com/old": "x"})
    assert await publisher.published() == {"nvidia.com/old": "x"}
    there = await api.get(NODE_FEATURES, "nvidia-features-for-n", namespace="gpu")
    assert there is not None
    api.put(NODE_FEATURES, {**there, "other": 1, "metadata": {**there["metadata"], "labels": {"a": "b"}}})
    await publisher.publish(LABELS)
    await publisher.publish(LABELS)
    assert await publisher.published() == LABELS
    (whole,) = replaced
    assert whole["other"] == 1, "it is written as it was read"
    assert whole["metadata"]["labels"] == {"a": "b", "nfd.node.kubernetes.io/node-name": "n"}
    assert whole["metadata"]["resourceVersion"]
    assert "ownerReferences" not in whole["metadata"]


async def test_node_labels_of_others_stay() -> None:
    api = cluster()
    publisher = NodeLabelsPublisher(api, node="n")
    await publisher.publish(LABELS)
    found = await api.get(NODES, "n")
    assert found is not None
    assert found["metadata"]["labels"] == OTHERS | LABELS
    await publisher.publish({})
    found = await api.get(NODES, "n")
    assert found is not None
    assert found["metadata"]["labels"] == OTHERS


async def test_a_node_that_does_not_exist_is_told_and_not_made() -> None:
    api = FakeApi()
    with pytest.raises(KubeError, match='no node "n"'):
        await NodeLabelsPublisher(api, node="n").publish(LABELS)
    assert await api.get(NODES, "n") is None


async def test_feature_files_mode_content_and_end(tmp_path: Path) -> None:
    path = tmp_path / "gfd"
    publisher = FilePublisher(str(path), remove_on_close=True)
    await publisher.publish(LABELS)
    assert path.read_text() == (
        "nvidia.com/gpu.count=8\nnvidia.com/gpu.product=NVIDIA-L4\nnvidia.com/gpu.sharing-strategy=\n"
    )
    assert path.stat().st_mode & 0o777 == 0o644
    assert os.listdir(tmp_path) == ["gfd"]
    await publisher.close()
    await publisher.close()
    assert not path.exists()


async def test_files_that_can_not_be_used_are_three_part_errors(tmp_path: Path) -> None:
    with pytest.raises(HostError, match="can't be read"):
        await FilePublisher(str(tmp_path)).published()
    (tmp_path / "file").write_text("")
    with pytest.raises(HostError, match="can't be written"):
        await FilePublisher(str(tmp_path / "file" / "gfd")).publish(LABELS)


async def test_streams_separate_sets() -> None:
    out = io.StringIO()
    publisher = StreamPublisher(out)
    await publisher.publish({"a": "1"})
    await publisher.publish({"a": "2"})
    assert out.getvalue() == "a=1\n\na=2\n"


KEY = st.from_regex(r"[a-z]{1,8}(\.[a-z]{1,8})?/[a-z][a-z.]{0,8}", fullmatch=True)
VALUE = st.from_regex(r"([A-Za-z0-9]([-A-Za-z0-9_.]{0,10}[A-Za-z0-9])?)?", fullmatch=True)


@given(st.dictionaries(KEY, VALUE))
def test_lines_and_labels_are_inverse(labels: dict[str, str]) -> None:
    assert from_lines(as_lines(labels)) == labels


@given(st.text())
def test_any_file_can_be_read(text: str) -> None:
    assert all(isinstance(value, str) for value in from_lines(text).values())
