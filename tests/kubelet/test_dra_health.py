"""The health of a DRA driver's devices over a real socket, as the kubelet asks for it."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from kgpu.kubelet.dra_health import HEALTH_SERVICE, WATCH, HealthStream, condition_of
from kgpu.kubelet.dra_plugin import DraPluginServer
from kgpu.kubelet.methods import GET_INFO
from kgpu.kubelet.model import ClaimDevice, ClaimDeviceHealth, ClaimRef, DeviceCondition
from kgpu.kubelet.pb import dra_health_v1alpha1_pb2 as pb
from kgpu.kubelet.pb import pluginregistration_v1_pb2 as registry
from kgpu.kubelet.rpc import RpcClient

DRIVER = "gpu.example.com"


class NoClaims:
    async def prepare(self, claim: ClaimRef) -> tuple[ClaimDevice, ...]:
        raise NotImplementedError(claim)

    async def unprepare(self, claim: ClaimRef) -> None:
        raise NotImplementedError(claim)


@contextlib.asynccontextmanager
async def served(folder: Path, health: HealthStream | None) -> AsyncIterator[RpcClient]:
    server = DraPluginServer(
        DRIVER, NoClaims(), plugins=folder / "plugins", registrar=folder / "registry", health=health
    )
    await server.start()
    async with RpcClient(folder / "registry" / f"{DRIVER}-reg.sock") as registration:
        info = await registration.call(GET_INFO, registry.InfoRequest(), timeout=20)
    assert (HEALTH_SERVICE in info.supported_versions) == (health is not None)
    assert list(info.supported_versions[:2]) == ["v1.DRAPlugin", "v1beta1.DRAPlugin"]
    async with RpcClient(Path(info.endpoint)) as client:
        yield client
    await server.close()


def of(condition: DeviceCondition) -> list[ClaimDeviceHealth]:
    return [ClaimDeviceHealth(pool="node", device="gpu-0", condition=condition)]


def rows(message: Any) -> list[tuple[str, str, DeviceCondition, int, int]]:
    return [
        (row.device.pool_name, row.device.device_name, condition_of(row), row.last_updated_time,
         row.health_check_timeout_seconds)
        for row in message.devices
    ]  # fmt: skip


async def test_who_watches_gets_the_newest_list_and_each_later_one(tmp_path: Path) -> None:
    now = 1000.7
    health = HealthStream(180, lambda: now)
    async with served(tmp_path, health) as client:
        health.update(of(DeviceCondition.UNKNOWN))
        health.update(of(DeviceCondition.HEALTHY))
        async with contextlib.aclosing(client.stream(WATCH, pb.NodeWatchResourcesRequest())) as stream:
            assert rows(await anext(stream)) == [("node", "gpu-0", DeviceCondition.HEALTHY, 1000, 180)]
            now = 1060.0
            health.update(of(DeviceCondition.HEALTHY))  # the same anew: it still holds
            assert rows(await anext(stream)) == [("node", "gpu-0", DeviceCondition.HEALTHY, 1060, 180)]
            health.update(of(DeviceCondition.UNHEALTHY))
            assert rows(await anext(stream))[0][2] is DeviceCondition.UNHEALTHY
            health.update([])
            assert rows(await anext(stream)) == []
            health.close()
            with pytest.raises(StopAsyncIteration):
                await anext(stream)


async def test_a_driver_without_it_does_not_say_that_it_has_it(tmp_path: Path) -> None:
    async with served(tmp_path, None) as client:
        with pytest.raises(Exception, match="NodeWatchResources"):
            await anext(client.stream(WATCH, pb.NodeWatchResourcesRequest()))


def test_a_state_of_a_later_version_is_not_known() -> None:
    assert condition_of(pb.DeviceHealth.FromString(b"\x10\x09")) is DeviceCondition.UNKNOWN
