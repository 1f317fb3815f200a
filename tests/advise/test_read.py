"""What is read of a cluster, and what is assumed where the API server refuses."""

from __future__ import annotations

import pytest

from kgpu.advise.model import DraService
from kgpu.advise.read import read
from kgpu.base.errors import KubeError
from kgpu.kube.fake import FakeApi
from kgpu.kube.port import NODES, KubeRefusedError, Resource

SLICES = Resource("resource.k8s.io", "v1", "resourceslices", "ResourceSlice", namespaced=False)
GPU = "nvidia.com/gpu"


def cluster() -> FakeApi:
    api = FakeApi()
    for name, labels in (("gpu-1", {f"{GPU}.product": "NVIDIA-L4"}), ("cpu-1", {})):
        api.put(
            NODES,
            {
                "metadata": {"name": name, "labels": {"kubernetes.io/os": "linux", **labels}},
                "status": {"capacity": {GPU: "1"} if labels else {}, "nodeInfo": {"kubeletVersion": "v1.35.0"}},
            },
        )
    return api


def put_slice(api: FakeApi, name: str, **spec: object) -> None:
    api.put(SLICES, {"metadata": {"name": name}, "spec": spec})


async def test_nodes_and_their_gpus() -> None:
    found = await read(cluster())
    assert (found.nodes, [one.node for one in found.gpus]) == ({"gpu-1", "cpu-1"}, ["gpu-1"])
    assert (found.gpus[0].kubelet, found.gpus[0].offered) == ((1, 35, 0), ((GPU, 1),))
    assert found.dra == DraService(kubernetes=(1, 35))


async def test_only_drivers_of_gpus_count_and_only_on_their_node() -> None:
    api = cluster()
    put_slice(api, "a", nodeName="gpu-1", driver="gpu.nvidia.com")
    put_slice(api, "b", nodeName="cpu-1", driver="dra.example.org")
    put_slice(api, "c", driver="gpu.nvidia.com", allNodes=True)
    put_slice(api, "d", nodeName=["gpu-1"], driver=7)
    found = (await read(api)).dra
    assert (found.served, found.publishers) == ("v1", {"gpu-1": frozenset({"gpu.nvidia.com"})})


async def test_slices_that_may_not_be_listed_are_not_known() -> None:
    api = cluster()
    api.served.add(SLICES)
    api.refuse["list", "resourceslices"] = 403
    assert (await read(api)).dra == DraService(kubernetes=(1, 35), served="v1", publishers=None)


async def test_slices_that_are_gone_since_are_not_served() -> None:
    api = cluster()
    api.served.add(SLICES)
    api.refuse["list", "resourceslices"] = 404
    assert (await read(api)).dra == DraService(kubernetes=(1, 35))


async def test_nodes_are_needed() -> None:
    api = cluster()
    api.refuse["list", "nodes"] = 403
    with pytest.raises(KubeRefusedError):
        await read(api)
    api = cluster()
    api.set_down(True)
    with pytest.raises(KubeError):
        await read(api)


async def test_nothing_else_is_asked() -> None:
    api = cluster()
    put_slice(api, "a", nodeName="gpu-1", driver="gpu.nvidia.com")
    api.calls.clear()
    await read(api)
    assert {(verb, plural) for verb, plural, _ in api.calls} <= {
        ("discover", ""), ("list", "nodes"), ("list", "resourceslices"),
    }  # fmt: skip
