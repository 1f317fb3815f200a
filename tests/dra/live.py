"""The loop against an API server that lives: started, watched until it is content, and what is there then."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, field

from kgpu.base.advice import Advice
from kgpu.base.errors import Reason
from kgpu.dra.api import DraApi
from kgpu.dra.model import PublishRules
from kgpu.dra.publish import SlicePublisher, SlicesContext
from kgpu.hw.fake_reader import FakeReader
from kgpu.hw.port import Inventory
from kgpu.hw.verdicts import MemoryVerdicts
from kgpu.kube.port import KubeApi, Object
from kgpu.kubelet.model import ClaimDeviceHealth, DeviceCondition

DEADLINE = 60.0


@dataclass
class Live:
    api: KubeApi
    server: DraApi
    node: str
    reader: FakeReader
    rules: PublishRules
    verdicts: MemoryVerdicts = field(default_factory=MemoryVerdicts)
    told: list[Advice] = field(default_factory=list)
    states: list[tuple[bool, str]] = field(default_factory=list)
    health: dict[str, DeviceCondition] = field(default_factory=dict)
    """What the kubelet was told last of the devices."""

    def well(self, devices: Sequence[ClaimDeviceHealth]) -> None:
        assert {device.pool for device in devices} <= {self.node}
        self.health = {device.device: device.condition for device in devices}

    def state(self, ready: bool, reason: Reason, why: str = "", /) -> None:
        del why
        self.states.append((ready, str(reason)))

    async def slices(self) -> list[Object]:
        listed = (await self.api.list(self.server.resource)).items
        return [one for one in listed if one["spec"].get("nodeName") == self.node]

    async def devices(self) -> dict[str, list[str]]:
        """The taints' keys by device."""
        return {
            device["name"]: [taint["key"] for taint in device.get("taints") or ()]
            for one in await self.slices()
            for device in one["spec"].get("devices") or ()
        }

    async def until(self, holds: Callable[[dict[str, list[str]]], bool]) -> dict[str, list[str]]:
        """The devices once they are as they should be."""
        async with asyncio.timeout(DEADLINE):
            while not holds(found := await self.devices()):  # noqa: ASYNC110 - a server is asked
                await asyncio.sleep(0.05)
        return found


@contextlib.asynccontextmanager
async def live(
    api: KubeApi, server: DraApi, node: str, inventory: Inventory, *, dynamic: bool = False
) -> AsyncIterator[Live]:
    it = Live(api, server, node, FakeReader(inventory), PublishRules(dynamic=dynamic))

    async def rules(_inventory: Inventory) -> PublishRules:
        return it.rules

    publisher = SlicePublisher(
        SlicesContext(
            api=api,
            server=server,
            node=node,
            reader=it.reader,
            rules=rules,
            report=it.told.append,
            verdicts=it.verdicts,
            on_state=it.state,
            health=it.well,
        )
    )
    task = asyncio.create_task(publisher.run())
    try:
        yield it
        assert not task.done()
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task
