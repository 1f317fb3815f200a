"""What an offer sends to the kubelet when its devices change at an awkward moment."""

from __future__ import annotations

import asyncio
import contextlib

from kgpu.base.clock import SystemClock
from kgpu.deviceplugin.offer import Offer
from kgpu.kubelet.device_plugin import DevicePluginServer
from kgpu.kubelet.fake import FakeKubelet
from kgpu.kubelet.model import DeviceState

RESOURCE = "nvidia.com/gpu"


async def test_devices_that_change_while_the_server_starts_reach_the_kubelet(tmp_path, monkeypatch):
    """GPUs that come back from an operation do so within milliseconds of the first list of their slices."""
    start = DevicePluginServer.start

    async def start_late(server):
        await start(server)
        offer.set((DeviceState(id="GPU-1", healthy=True),))

    monkeypatch.setattr(DevicePluginServer, "start", start_late)
    kubelet = FakeKubelet(tmp_path / "device-plugins")
    await kubelet.start()
    offer = Offer(
        RESOURCE, core=None, kubelet_socket=kubelet.socket, clock=SystemClock(), report=lambda _: None,
        identity=lambda: (1, 1), on_progress=lambda: None, look_seconds=5.0,
    )  # fmt: skip
    offer.set((DeviceState(id="GPU-1", healthy=False),))
    task = asyncio.create_task(offer.run())
    try:
        await kubelet.wait_for(lambda: kubelet.allocatable().get(RESOURCE) == 1, seconds=10)
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task
        await kubelet.stop()
