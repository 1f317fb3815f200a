"""A simulated node's side of device health: what DRA drivers say of their devices, as the kubelet (v1.35) keeps it.

Source: healthinfo.go and HandleWatchResourcesStream of the kubelet's DRA manager. Unlike it, a pod's status tells of
devices only where their driver has the service.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from kgpu.base.errors import KubeletError
from kgpu.kubelet.dra_health import HEALTH_SERVICE, WATCH, condition_of
from kgpu.kubelet.model import DeviceCondition
from kgpu.kubelet.pb import dra_health_v1alpha1_pb2 as pb
from kgpu.kubelet.rpc import RpcClient

log = logging.getLogger(__name__)

DEFAULT_S: Final = 30.0
RETRY_S: Final = 5.0


@dataclass(frozen=True, slots=True)
class ReportedHealth:
    """What was said of a device, when, and for how long it holds."""

    condition: DeviceCondition
    at: float
    seconds: float


class DeviceHealthWatch:
    """Of all drivers of a node. ``changed`` is called with the driver's name when what it says is something else."""

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self._known: dict[str, dict[tuple[str, str], ReportedHealth]] = {}
        self._tasks: dict[tuple[str, str], asyncio.Task[None]] = {}
        self.changed: Callable[[str], None] = lambda _driver: None

    def begin(self, driver: str, endpoint: str, services: Iterable[str]) -> None:
        """Follow a driver that registered."""
        self.end(driver, endpoint)
        if HEALTH_SERVICE in services:
            self._tasks[driver, endpoint] = asyncio.create_task(self._follow(driver, endpoint))

    def end(self, driver: str, endpoint: str) -> None:
        """Its socket has gone."""
        task = self._tasks.pop((driver, endpoint), None)
        if task is not None:
            task.cancel()

    async def stop(self) -> None:
        tasks = list(self._tasks.values())
        self._tasks.clear()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def says(self, driver: str) -> bool:
        """Whether the driver says how its devices are."""
        return any(name == driver for name, _ in self._tasks)

    def condition(self, driver: str, pool: str, device: str) -> DeviceCondition:
        found = self._known.get(driver, {}).get((pool, device))
        if found is None or self._now() - found.at > found.seconds:
            return DeviceCondition.UNKNOWN
        return found.condition

    def update(self, driver: str, message: Any) -> None:
        """Take in a complete list. What is not in it is unknown once its time is over."""
        known, now = self._known.setdefault(driver, {}), self._now()
        before = {key: (found.condition, found.seconds) for key, found in known.items()}
        for row in message.devices:
            seconds = float(row.health_check_timeout_seconds)
            found = ReportedHealth(condition_of(row), now, seconds if seconds > 0 else DEFAULT_S)
            known[row.device.pool_name, row.device.device_name] = found
        for key, found in list(known.items()):
            if now - found.at > found.seconds:
                known[key] = ReportedHealth(DeviceCondition.UNKNOWN, now, found.seconds)
        if before != {key: (found.condition, found.seconds) for key, found in known.items()}:
            self.changed(driver)

    async def _follow(self, driver: str, endpoint: str) -> None:
        while True:
            try:
                async with RpcClient(Path(endpoint)) as client:
                    async for message in client.stream(WATCH, pb.NodeWatchResourcesRequest()):
                        self.update(driver, message)
            except KubeletError as error:
                log.info("the health of devices of %s: %s", driver, error.one_line())
            finally:
                if self._known.pop(driver, None):
                    self.changed(driver)
            await asyncio.sleep(RETRY_S)
