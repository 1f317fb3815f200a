"""Two plugins of one resource at a kubelet, one after the other: the play that the fake and the real kubelet both get."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from pathlib import Path

from kgpu.kubelet.device_plugin import DevicePluginServer, register
from kgpu.kubelet.model import ContainerAllocation, DeviceState, PreferenceRequest, Registration

RESOURCE = "example.com/followed"


class Plugin:
    """A plugin that always has the same devices, and knows when the kubelet listens to it."""

    def __init__(self, folder: Path, name: str, *, resource: str = RESOURCE) -> None:
        self._kubelet = folder / "kubelet.sock"
        self._heard = asyncio.Event()
        registration = Registration(resource=resource, endpoint=f"{name}.sock")
        self.server = DevicePluginServer(folder, registration, self, on_stream=self._heard.set)
        self.server.update([DeviceState(id=f"{name}-{number}") for number in range(2)])

    def allocate(self, ids: Sequence[str]) -> ContainerAllocation:
        return ContainerAllocation(envs={"IDS": ",".join(ids)})

    def prefer(self, request: PreferenceRequest) -> Sequence[str]:
        return request.available[: request.size]

    async def register(self) -> None:
        """Serve, register, and wait until the kubelet has the devices."""
        if not self.server.exists:
            await self.server.start()
        await register(self._kubelet, self.server.registration)
        await self.until(lambda: self.server.delivered == self.server.version)

    async def until(self, condition: Callable[[], bool]) -> None:
        async with asyncio.timeout(60):
            while not condition():
                self._heard.clear()
                await self._heard.wait()


async def the_first_one_ends(folder: Path) -> None:
    """The second plugin is let go of together with the first one, and is taken on again when it says so."""
    first, second = Plugin(folder, "first"), Plugin(folder, "second")
    try:
        await first.register()
        await second.register()
        assert first.server.streams == 1, "the first one is still listened to"
        await first.server.close()
        await second.until(lambda: second.server.streams == 0)
        await second.register()
        assert second.server.streams == 1
    finally:
        await first.server.close()
        await second.server.close()
