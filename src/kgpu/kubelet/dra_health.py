"""What a DRA driver tells the kubelet of its devices' health: the service ``v1alpha1.DRAResourceHealth``.

The kubelet (gate ResourceHealthStatus) shows it in ``containerStatuses[].allocatedResourcesStatus`` of pods that have
the devices. A list is complete, and holds for a time: who says nothing for so long has devices of unknown health. So a
list is given anew even when nothing has changed, and not when nobody knows.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Callable, Sequence
from typing import Any, Final

from kgpu.kubelet.model import ClaimDeviceHealth, DeviceCondition
from kgpu.kubelet.pb import dra_health_v1alpha1_pb2 as pb
from kgpu.kubelet.rpc import Method, Service

HEALTH_SERVICE: Final = "v1alpha1.DRAResourceHealth"
WATCH: Final = Method(
    path=f"/{HEALTH_SERVICE}/NodeWatchResources", request=pb.NodeWatchResourcesRequest,
    reply=pb.NodeWatchResourcesResponse, streams=True,
)  # fmt: skip
_STATES: Final = {
    DeviceCondition.UNKNOWN: pb.HealthStatus.UNKNOWN,
    DeviceCondition.HEALTHY: pb.HealthStatus.HEALTHY,
    DeviceCondition.UNHEALTHY: pb.HealthStatus.UNHEALTHY,
}
_CONDITIONS: Final = {number: condition for condition, number in _STATES.items()}


class HealthStream:
    """Gives every open and later stream the newest list, each holding for ``seconds``. ``now`` is the wall clock."""

    def __init__(self, seconds: int, now: Callable[[], float] = time.time) -> None:
        self._seconds = seconds
        self._now = now
        self._message: Any = None
        self._changed = asyncio.Event()
        self._closing = False
        self.service = Service([WATCH], {"NodeWatchResources": self._watch})

    def update(self, devices: Sequence[ClaimDeviceHealth]) -> None:
        """All devices of the driver, as they are now."""
        at = int(self._now())
        rows = [
            pb.DeviceHealth(
                device=pb.DeviceIdentifier(pool_name=one.pool, device_name=one.device), health=_STATES[one.condition],
                last_updated_time=at, health_check_timeout_seconds=self._seconds,
            )
            for one in devices
        ]  # fmt: skip
        self._message = pb.NodeWatchResourcesResponse(devices=rows)
        self._wake()

    def close(self) -> None:
        """End the streams."""
        self._closing = True
        self._wake()

    def _wake(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()

    async def _watch(self, _request: Any) -> AsyncGenerator[Any, None]:
        sent: Any = None
        while not self._closing:
            message, changed = self._message, self._changed
            if message is sent:
                await changed.wait()
                continue
            yield message
            sent = message


def condition_of(row: Any) -> DeviceCondition:
    """What a message says of a device; a state of a later version is not known."""
    return _CONDITIONS.get(row.health, DeviceCondition.UNKNOWN)
