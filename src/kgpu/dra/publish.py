"""The loop that keeps a node's ResourceSlices true, over injected ports: reader, verdicts, API server, clock.

Promises: a change of hardware, health or slices is published at once; nothing is forgotten, because every round
compares all that is wanted with all that is there; failures of the API server are retried with growing pauses; a
reading that fails removes no device. An API server that drops taints or counters is noticed by its answer, and is then
sent only what is safe without them. Two programs that publish for one node do not write as fast as they can.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from kgpu.base.advice import Advice, AdviceSink, Severity
from kgpu.base.backoff import Backoff, BackoffPolicy
from kgpu.base.clock import Clock, SystemClock
from kgpu.base.errors import HwError, UserError
from kgpu.base.service import StandingAdvice, StateSink, ignore_state, running
from kgpu.base.waits import woken
from kgpu.dra.api import DraApi
from kgpu.dra.devices import node_devices
from kgpu.dra.health import device_health
from kgpu.dra.model import PublishedNode, PublishRules
from kgpu.dra.plan import PoolWrites, dropped, plan
from kgpu.dra.slices import PoolOwner, pool_slices
from kgpu.formats.names import DRA_FIELD_MANAGER
from kgpu.hw.follow import follow_events
from kgpu.hw.port import DriverReleasedError, EventKind, HardwareEvent, Inventory, Reader
from kgpu.hw.verdicts import GpuVerdict, Verdicts, VerdictSource
from kgpu.kube.informer import Informer, Scope
from kgpu.kube.nodes import get_node
from kgpu.kube.port import KubeApi, Object, Selector, name_of
from kgpu.kubelet.model import ClaimDeviceHealth

log = logging.getLogger(__name__)

INTERVAL: Final = 60.0
SETTLE: Final = 0.1
"""How long changes may gather before they are published together."""
_CAUSES: Final = frozenset({EventKind.INVENTORY, EventKind.MIG_CHANGE, EventKind.RECOVERY_ACTION})
_RETRY: Final = BackoffPolicy(first=0.2, cap=30.0)
_READING: Final = BackoffPolicy(first=1.0, cap=30.0)
_RIVALRY: Final = BackoffPolicy(first=1.0, cap=60.0)
_GATES: Final[Mapping[str, tuple[str, str]]] = {
    "taints": ("DRADeviceTaints", "devices that are not to be used are left out instead"),
    "counters": ("DRAPartitionableDevices", "slices that are not there yet are left out"),
}
"""By the field that an API server drops: its feature gate, and what follows."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SlicesContext:
    """What the loop gets from outside.

    ``rules`` gives how an inventory is published now; it may read files. ``server`` is how the API server has slices
    (``api.served_api``). ``on_state(ready, reason)`` is told whether what is published is true.
    """

    api: KubeApi
    server: DraApi
    node: str
    reader: Reader
    rules: Callable[[Inventory], Awaitable[PublishRules]]
    report: AdviceSink
    verdicts: VerdictSource | None = None
    health: Callable[[Sequence[ClaimDeviceHealth]], None] | None = None
    clock: Clock = field(default_factory=SystemClock)
    on_state: StateSink = ignore_state


class SlicePublisher:
    """The loop. ``run`` is to be called once; ``changed`` says that what ``rules`` gives may be another."""

    def __init__(self, ctx: SlicesContext) -> None:
        self._ctx = ctx
        self._server = ctx.server
        self._wake = asyncio.Event()
        self._stale = True
        self._inventory: Inventory | None = None
        self._known: Mapping[str, GpuVerdict] | None = None
        self._owner = PoolOwner(name=ctx.node)
        self._published: tuple[Object, ...] | None = None
        self._true: object = None
        self._retry = Backoff(_RETRY)
        self._reading = Backoff(_READING)
        self._rivalry = Backoff(_RIVALRY)
        self._restored = 0.0
        self._not_before = 0.0
        self._advice = StandingAdvice()
        selector = Selector(fields=(("spec.nodeName", ctx.node),))
        self._slices = Informer(
            ctx.api, Scope(ctx.server.resource, selector=selector), clock=ctx.clock, on_state=self._wake.set,
            on_change=lambda _change, _object: self._slice_changed(),
        )  # fmt: skip

    def _slice_changed(self) -> None:
        self._true = None
        self._wake.set()

    def changed(self) -> None:
        """Read everything again."""
        self._stale = True
        self._wake.set()

    async def run(self) -> None:
        """Keep the slices true until cancelled."""
        clock, source = self._ctx.clock, self._ctx.verdicts
        self._hear(source.read() if source is not None else None)
        async with running(slices=self._slices.run(), events=self._events(), verdicts=self._verdicts()) as tasks:
            while True:
                self._wake.clear()
                pause = await self._round()
                await woken(self._wake, pause, clock=clock, beside=tasks)
                if not self._wake.is_set():
                    self._stale = True  # nothing has happened for so long: look whether that is so
                await clock.sleep(SETTLE)

    async def _events(self) -> None:
        def hear(event: HardwareEvent) -> None:
            if event.kind in _CAUSES:
                self.changed()

        await follow_events(self._ctx.reader, hear, clock=self._ctx.clock, missed=self.changed)

    async def _verdicts(self) -> None:
        source = self._ctx.verdicts
        if source is None:
            await asyncio.Event().wait()
            return
        async for verdicts in source.follow():
            self._hear(verdicts)

    def _hear(self, verdicts: Verdicts | None) -> None:
        self._known = None if verdicts is None else verdicts.by_uuid
        self._wake.set()

    async def _round(self) -> float:
        """Publish what is wanted now; returns the seconds until the next look if nothing happens before."""
        await self._read()
        if self._inventory is None or not self._slices.synced.is_set():
            if self._inventory is not None:
                self._ctx.on_state(False, self._slices.error or "the ResourceSlices are being read")
            return INTERVAL if self._inventory is not None else self._reading.next_delay()
        try:
            return await self._publish(self._inventory)
        except UserError as error:
            self._ctx.on_state(False, error)
            pause = self._retry.next_delay()
            log.debug("publishing again in %.1f s: %s", pause, error.one_line())
            return pause

    async def _read(self) -> None:
        """Read the hardware if it may have changed. What was read last holds while that fails."""
        if not self._stale:
            return
        self._stale = False
        try:
            self._inventory = await self._ctx.reader.inventory()
            self._reading.reset()
        except DriverReleasedError:
            return
        except HwError as error:
            self._stale = True
            self._ctx.on_state(False, error)

    async def _publish(self, inventory: Inventory) -> float:
        rules = await self._ctx.rules(inventory)
        devices = node_devices(inventory, rules, self._known)
        if self._ctx.health is not None and not self._stale:
            self._ctx.health(device_health(devices, self._ctx.node, self._known))
        for advice in self._advice.news(devices.advice):
            self._ctx.report(advice)
        content = _content(devices)
        if content == self._true and self._published is not None:
            self._tell(self._published)
            return self._pause()
        if not self._owner.uid:
            await self._find_owner()
        wanted, writes = self._plan(devices)
        if writes.count:
            await self._find_owner()  # a Node that was made anew has another UID
            wanted, writes = self._plan(devices)
        if writes.count and wanted == self._published and (pause := self._rival_pause()):
            return pause
        if not await self._write(writes):
            return 0.0
        self._published = wanted
        self._retry.reset()
        self._tell(wanted)
        if not writes.count:
            self._true = content
        return self._pause()

    def _pause(self) -> float:
        return self._reading.next_delay() if self._stale else INTERVAL

    def _rival_pause(self) -> float:
        """Somebody else has changed what was published: seconds until it may be restored, 0 for now. Each time is later
        than the one before, unless long has passed.
        """
        now = self._ctx.clock.monotonic()
        if now < self._not_before:
            return self._not_before - now
        self._not_before = now + self._rivalry.next_delay(ran_for=now - self._restored)
        self._restored = now
        return 0.0

    def _plan(self, devices: PublishedNode) -> tuple[tuple[Object, ...], PoolWrites]:
        wanted = pool_slices(devices, self._owner, self._server)
        observed = self._slices.objects.values()
        return wanted, plan(wanted, observed, driver=devices.driver, node=self._owner.name)

    async def _find_owner(self) -> None:
        node = await get_node(self._ctx.api, self._ctx.node)
        self._owner = PoolOwner(name=self._ctx.node, uid=str(node["metadata"].get("uid") or ""))

    async def _write(self, writes: PoolWrites) -> bool:
        """Do the writes; False when the API server has dropped something, so that others are to be made."""
        api, resource = self._ctx.api, self._server.resource
        for one in (*writes.updates, *writes.creates):
            answer = await api.apply(resource, one, manager=DRA_FIELD_MANAGER)
            await self._slices.learn(answer)
            if lost := dropped(one, answer):
                self._lose(lost)
                return False
        for one in writes.deletes:
            await api.delete(resource, name_of(one), uid=str(one["metadata"].get("uid") or ""))
        if writes.count:
            log.info("ResourceSlices: %d written, %d deleted", writes.count - len(writes.deletes), len(writes.deletes))
        return True

    def _lose(self, fields: frozenset[str]) -> None:
        self._server = replace(
            self._server,
            taints=self._server.taints and "taints" not in fields,
            counters=self._server.counters and "counters" not in fields,
        )
        for name in sorted(fields):
            gate, follows = _GATES[name]
            self._ctx.report(
                Advice(
                    subject=self._ctx.node,
                    what=f"the API server drops the {name} of devices: {follows}",
                    why=f"its feature gate {gate} is off",
                    severity=Severity.WARNING,
                    reason="FieldsDropped",
                    remedy=f"turn {gate} on for the API server and the scheduler, then restart this process",
                )
            )

    def _tell(self, wanted: tuple[Object, ...]) -> None:
        if self._slices.error is not None:
            self._ctx.on_state(False, self._slices.error)
        elif not self._stale:
            devices = sum(len(one["spec"].get("devices") or ()) for one in wanted)
            self._ctx.on_state(True, f"{devices} devices in {len(wanted)} ResourceSlices{self._without()}")

    def _without(self) -> str:
        """What the API server drops, behind what is published."""
        kept = {"taints": self._server.taints, "counters": self._server.counters}
        return "".join(f"; {gate} is off: {follows}" for name, (gate, follows) in _GATES.items() if not kept[name])


def _content(node: PublishedNode) -> object:
    """What is published of a node: which instance a device has now is not, so that it is equal while claims come and
    go, and nothing has to be planned for them.
    """
    devices = [replace(device, instance=None, compute=None) for device in node.devices]
    return devices, [gpu.counters for gpu in node.gpus]
