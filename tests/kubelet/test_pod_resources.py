"""Who holds what, asked over the real API."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from kgpu.base.errors import KubeletError
from kgpu.kubelet.methods import POD_RESOURCES
from kgpu.kubelet.pb import podresources_v1_pb2 as pb
from kgpu.kubelet.pod_resources import DeviceClaim, Holding, PodResources
from kgpu.kubelet.rpc import RpcServer, Service


async def test_devices_and_claims(folder: Path) -> None:
    async def listing(_request: Any) -> Any:
        reply = pb.ListPodResourcesResponse()
        pod = reply.pod_resources.add(name="p", namespace="ns")
        container = pod.containers.add(name="c")
        container.devices.add(resource_name="nvidia.com/gpu", device_ids=["GPU-1", "GPU-2::0"])
        claim = container.dynamic_resources.add(claim_name="x", claim_namespace="ns")
        claimed = claim.claim_resources.add(driver_name="gpu.nvidia.com", pool_name="n", device_name="gpu-3")
        claimed.cdi_devices.add(name="k8s.gpu.nvidia.com/device=gpu-3")
        pod.containers.add(name="idle")
        return reply

    server = RpcServer(folder / "s", [Service(POD_RESOURCES, {"List": listing})])
    await server.start()
    try:
        assert await PodResources(folder / "s").holdings() == (
            Holding(namespace="ns", pod="p", container="c", resource="nvidia.com/gpu", devices=("GPU-1", "GPU-2::0")),
            Holding(
                namespace="ns", pod="p", container="c", resource="gpu.nvidia.com", devices=("gpu-3",),
                cdi_devices=("k8s.gpu.nvidia.com/device=gpu-3",), claim=DeviceClaim("x", "n"),
            ),
        )  # fmt: skip
    finally:
        await server.close()


async def test_to_a_pod_a_kubelet_without_any_has_just_started(folder: Path) -> None:
    reply = pb.ListPodResourcesResponse()

    async def listing(_request: Any) -> Any:
        return reply

    server = RpcServer(folder / "s", [Service(POD_RESOURCES, {"List": listing})])
    await server.start()
    try:
        with pytest.raises(KubeletError, match="names no pod, and this is one"):
            await PodResources(folder / "s", in_pod=True).holdings()
        assert await PodResources(folder / "s").holdings() == ()
        reply.pod_resources.add(name="kgpu-agent", namespace="gpu-operator")
        assert await PodResources(folder / "s", in_pod=True).holdings() == ()
    finally:
        await server.close()


async def test_a_kubelet_that_is_not_there(folder: Path) -> None:
    with pytest.raises(KubeletError):
        await PodResources(folder / "none").holdings()
