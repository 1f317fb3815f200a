"""For the DRA driver: which of this node's GPUs no claim is to get, so that none is handed out twice while a node
changes from one way of handing out to the other. ``claimed_gpus`` is the same for the device plugin.

What pods have by counted resources only the kubelet knows.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Final

from kgpu.agent.node_orders import gpu_of
from kgpu.agent.ordered import OrderedGpus
from kgpu.base.clock import Clock, SystemClock
from kgpu.base.errors import HwError, KubeletError
from kgpu.base.waits import first_of
from kgpu.formats.names import DRA_DRIVERS
from kgpu.hw.port import Inventory
from kgpu.kubelet.pod_resources import Holding, Holdings

log = logging.getLogger(__name__)

POLL_SECONDS: Final = 2.0
"""How often the kubelet is asked while pods have GPUs by counted resources, or that is not known."""
SWITCH_SECONDS: Final = 0.5
"""How soon it is noticed that this node hands out devices in the other way from now on."""
IDLE_SECONDS: Final = 10.0
"""How often the kubelet is asked while no pod has one."""


class CountedGpus:
    """The GPUs that no claim is to get, because a pod has them by a counted resource, the operator has ordered them
    back, or this node hands out no devices by claims. ``run`` is to run beside the driver.
    """

    def __init__(
        self, holdings: Holdings, inventory: Callable[[], Awaitable[Inventory]], *, ordered: OrderedGpus | None,
        off: Callable[[], str], clock: Clock | None = None,
    ) -> None:  # fmt: skip
        """``off()`` is why this node hands out no devices by claims any more, "" if it does."""
        self._holdings = holdings
        self._inventory = inventory
        self._ordered = ordered
        self.off = off
        self._clock = clock or SystemClock()
        self.known = asyncio.Event()
        """Set once the kubelet has said what pods have."""
        self._counted: Mapping[str, str] = {}

    @property
    def taken(self) -> Mapping[str, str]:
        """By UUID, and why. While the kubelet is silent, what it said last."""
        return {**self._counted, **(self._ordered.withdrawn if self._ordered is not None else {})}

    async def run(self, changed: Callable[[], None]) -> None:
        """Keep asking until cancelled; ``changed()`` is called after each change."""
        seen: tuple[Mapping[str, str], str] | None = None
        while True:
            await self.look()
            off = self.off()
            if (self.taken, off) != seen:
                seen = (self.taken, off)
                changed()
            calm = self.known.is_set() and not self._counted
            await first_of(self._clock.sleep(IDLE_SECONDS if calm else POLL_SECONDS), self._switched(self.taken, off))

    def not_to_give(self, inventory: Inventory) -> Mapping[str, str]:
        """The GPUs that no claim is to be allocated, by UUID, and why."""
        if off := self.off():
            return dict.fromkeys((gpu.uuid for gpu in inventory.accelerators), f"no claim gets it any more: {off}")
        return self.taken

    async def look(self) -> None:
        """Ask the kubelet once."""
        try:
            held = await self._holdings.holdings()
            self._counted = counted(held, (await self._inventory()) if held else None)
        except (KubeletError, HwError) as error:
            log.debug("who has GPUs by counted resources is not known now: %s", error.one_line())
        else:
            self.known.set()

    async def _switched(self, taken: Mapping[str, str], off: str) -> None:
        while (self.taken, self.off()) == (taken, off):
            await self._clock.sleep(SWITCH_SECONDS)


def counted(holdings: Iterable[Holding], inventory: Inventory | None) -> dict[str, str]:
    """The GPUs of which a pod has a part by a counted resource, by UUID, and which pod."""
    found: dict[str, str] = {}
    for holding in holdings:
        if holding.resource in DRA_DRIVERS or inventory is None:
            continue
        for device in holding.devices:
            gpu = gpu_of(device, holding.resource, inventory)
            if gpu:
                found.setdefault(gpu, f"pod {holding.namespace}/{holding.pod} has it by {holding.resource}")
    return found
