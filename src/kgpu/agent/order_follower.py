"""Obeys the order for an operation on this node's GPUs, and answers it in an annotation of the Node.

``heed`` acts at once, before any role is started: it withdraws GPUs, and holds every reader back. What takes time is in
``run``: closing the driver, asking the kubelet who holds the GPUs, reading them anew, writing the answer. It does so
every two seconds while an order stands, so that the answer follows the truth. Nothing here needs the API server to end
a release: that ends by itself.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field, replace
from typing import Final, Protocol

from kgpu.agent import node_orders
from kgpu.agent.driver_users import DriverUser, driver_users
from kgpu.agent.node_orders import UNCHECKED, Standing
from kgpu.agent.order_peers import OrderPeers
from kgpu.agent.ordered import OrderedGpus
from kgpu.agent.report import OwnNode
from kgpu.agent.shared_reader import SharedReader
from kgpu.base.backoff import Backoff, BackoffPolicy
from kgpu.base.boot import boot_id, uptime
from kgpu.base.change_notifier import ChangeNotifier
from kgpu.base.clock import Clock, SystemClock
from kgpu.base.errors import HostError, HwError, KubeError, KubeletError, UserError
from kgpu.base.supervise import RoleHandle
from kgpu.base.threads import beside
from kgpu.base.waits import first_of
from kgpu.formats import names
from kgpu.formats.node_order import (
    ChangeResult,
    HolderPod,
    OrderAnswer,
    OrderedGpu,
    OrderStep,
    answer,
    encode,
    read_answer,
    read_order,
)
from kgpu.hw.port import Inventory
from kgpu.hw.verdicts import Verdicts
from kgpu.kube.port import NODES, KubeApi, Object
from kgpu.kubelet.pod_resources import Holdings

log = logging.getLogger(__name__)

POLL: Final = 2.0
"""Seconds between two looks at everything while an order stands."""
PEERS_POLL: Final = 0.25
"""The same while other processes of this node are waited for, whose answers are files."""
SETTLE: Final = 2.0
"""Seconds until an answer that the Node does not show counts as overwritten, not as on its way."""
CUTTING: Final = "the GPUs are being cut"
_RETRY: Final = BackoffPolicy(first=0.5, cap=30.0)


class FollowedNode(OwnNode, Protocol):
    """The agent's own Node, followed; ``reports`` has the order and the answer, too."""

    @property
    def revision(self) -> int: ...

    async def changed(self, after: int) -> int: ...


class DriverReaders(Protocol):
    """All readers of this process."""

    def hold(self, why: str, *, exchange: bool = False) -> None: ...
    async def let_go(self) -> None: ...
    def reopen(self) -> None: ...
    def quiet(self, quiet: bool) -> None: ...


def _purpose(standing: Standing) -> str:
    order = standing.order
    what = "exchanges the driver" if order.exchange else "parts GPUs otherwise" if order.layouts else "resets GPUs"
    return f"the operation {order.id} {what}"


def _deaf(_gpus: tuple[str, ...]) -> None:
    pass


@dataclass(frozen=True, slots=True, kw_only=True)
class OrderContext:
    """What the follower works with.

    ``reader()`` lends a reader for as long as a block lasts. ``verdicts()`` are those of health, None if there are
    none. ``was_reset(gpus)`` tells health that these were reset just now, and raises HostError; it may block.
    ``users()`` are the processes of this agent that have the driver open. ``peers`` are the node's other agents, None
    where it has one. ``cuts(vendor)`` says whether a role of this process parts that vendor's GPUs, and ``uncut``
    why no process of this node does, "" where one does.
    """

    api: Callable[[], KubeApi]
    own: FollowedNode
    node: str
    ordered: OrderedGpus
    readers: DriverReaders
    reader: Callable[[], AbstractAsyncContextManager[SharedReader]]
    holdings: Holdings
    verdicts: Callable[[], Verdicts | None] = lambda: None
    was_reset: Callable[[tuple[str, ...]], None] = _deaf
    users: Callable[[], tuple[DriverUser, ...]] = driver_users
    peers: OrderPeers | None = None
    cuts: Callable[[str], bool] = lambda _vendor: False
    uncut: Callable[[str], str] = lambda _vendor: ""
    boot: str = field(default_factory=boot_id)
    uptime: Callable[[], float] = uptime
    clock: Clock = field(default_factory=SystemClock)


class OrderFollower:
    """One agent's obedience. Call ``heed`` whenever the Node may have changed; ``run`` is a service."""

    def __init__(self, context: OrderContext) -> None:
        self._context = context
        self._standing: Standing | None = None
        self._resumed = 0.0  # when the step resume was seen, in seconds since boot
        self._inventory: Inventory | None = None
        self._wake = asyncio.Event()
        self._speaks = True  # not another process of this node; what is asked for an answer depends on it
        self._waits_for_peers = False
        self._wanted: str | None = None  # the answer, "" for none; None while that is not known
        self._news = ChangeNotifier()

    def heed(self) -> None:
        """Take the order that stands on the Node now, and do what has to be done at once."""
        context, before = self._context, self._standing
        order = read_order(context.own.reports)
        if order is not None and order.boot != context.boot:
            order = None
        own = read_answer(context.own.reports)
        self._standing = now = node_orders.heed(order, before, own, context.clock.monotonic())
        if now != before:
            self._wake.set()
        if now is not None and now.order.step is OrderStep.RESUME and (
            before is None or (before.order.id, before.order.step) != (now.order.id, OrderStep.RESUME)
        ):  # fmt: skip
            self._resumed = context.uptime()
        self._obey(now)

    def _obey(self, standing: Standing | None) -> None:
        ordered = self._context.ordered
        why = _purpose(standing) if standing is not None else ""
        withdraws, releases = (standing.withdraws, standing.releases) if standing is not None else (False, False)
        gpus = standing.order.gpus if standing is not None and withdraws else ()
        was, now = ordered.released, f"{why}: the driver is released for it" if releases else ""
        change = standing.order if standing is not None and standing.changes else None
        held = why if standing is not None and standing.frees else ""
        verifies = standing is not None and standing.order.step is OrderStep.RESUME
        ordered.set(dict.fromkeys(gpus, f"withdrawn: {why}"), now, change, held, verifies=verifies)
        self._context.readers.quiet(change is not None)
        if now and not was:
            log.info("%s", now)
            self._context.readers.hold(now, exchange=standing is not None and standing.order.exchange)
        elif was and not now:
            log.info("the driver is opened again")
            self._context.readers.reopen()

    async def run(self, handle: RoleHandle) -> None:
        """Obey and answer until cancelled."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._keep_obeying())
            group.create_task(self._keep_writing(handle))

    async def _keep_obeying(self) -> None:
        own, answers = self._context.own, self._context.ordered.answers
        while True:
            revision, answered_before = own.revision, answers.revision
            self._wake.clear()
            self.heed()
            self._speaks = self._context.peers is None or self._context.peers.speaks
            answered = await self._answer() if self._standing is not None else None
            await self._say(answered)
            pause = PEERS_POLL if self._waits_for_peers else POLL
            later = [self._context.clock.sleep(pause)] if self._standing is not None else []
            await first_of(own.changed(revision), self._wake.wait(), answers.changed(answered_before), *later)

    async def _say(self, answered: OrderAnswer | None) -> None:
        """Let the Node have the answer, or if another process speaks for this one, that process."""
        wanted: str | None = encode(answered) if answered is not None else ""
        peers, self._waits_for_peers = self._context.peers, False
        if peers is not None:
            try:
                await beside(peers.write, wanted or "")
            except HostError as error:  # whoever speaks waits for this process then
                log.warning("%s", error.one_line())
            if not self._speaks:
                wanted = None
            elif answered is not None and answered.step is not OrderStep.RESUME and self._standing is not None:
                order = self._standing.order
                others = await beside(peers.waits, order)
                self._waits_for_peers = bool(others)
                waits = "; ".join(filter(None, (answered.waits, others)))
                result = answered.result or await beside(peers.result, order)
                wanted = encode(answer(
                    order, waits=waits, refused=answered.refused, holders=answered.holders,
                    elsewhere=answered.elsewhere, result=result,
                ))  # fmt: skip
        if wanted != self._wanted:
            self._wanted = wanted
            self._news.notify()

    # --- the answer ---

    async def _answer(self) -> OrderAnswer | None:
        standing = self._standing
        assert standing is not None
        trouble = await self._check(standing) if self._is_unread(standing) else ""
        standing = self._standing  # the order may be another one, or gone, after each wait
        if standing is None:
            return None
        order = standing.order
        if standing.refused:
            return answer(order, refused=standing.refused)
        if not standing.checked:
            return answer(order, waits=f"{UNCHECKED}: {trouble}")
        if order.exchange:
            return await self._exchange(standing)
        pods, others, silent = await self._holders(standing)
        if order.step is OrderStep.WITHDRAW:
            return answer(order, waits=silent, holders=pods, elsewhere=others)
        if order.step is OrderStep.RELEASE:
            return answer(order, waits=await self._release(standing), holders=pods)
        if order.step is OrderStep.CHANGE:
            return self._change(standing, pods)
        return answer(order, holders=pods, gpus=await self._read_anew(standing))

    def _change(self, standing: Standing, pods: tuple[HolderPod, ...]) -> OrderAnswer:
        """The answer while a role cuts the GPUs, here or in another process, and afterwards."""
        context, order = self._context, standing.order
        vendor = node_orders.vendor_for(order)
        why = context.uncut(vendor)
        result = standing.result or context.ordered.answered(order.id)
        if result is None and why:
            result = ChangeResult(done=False, text=f"nothing on this node parts GPUs of {vendor}: {why}")
        if result is None:
            return answer(order, waits=CUTTING if context.cuts(vendor) else "", holders=pods)
        if self._standing == standing and standing.result is None:
            self._standing = replace(standing, result=result)
            self._obey(self._standing)
        return answer(order, holders=pods, result=result)

    async def _exchange(self, standing: Standing) -> OrderAnswer:
        """The answer while the driver itself is exchanged: who holds GPUs is for its manager to find out."""
        order = standing.order
        if order.step is OrderStep.RELEASE:
            return answer(order, waits=await self._release(standing))
        try:
            async with self._context.reader() as reader:
                self._inventory = await reader.fresh_inventory()
        except HwError as error:
            return answer(order, waits=f"the driver can't be read: {error.what}")
        return answer(order, driver=self._inventory.driver_version)

    def _is_unread(self, standing: Standing) -> bool:
        """Whether this node's GPUs are not known yet, and may be read."""
        known = standing.checked and (self._inventory is not None or standing.releases or standing.order.exchange)
        return not (standing.refused or known)

    async def _check(self, standing: Standing) -> str:
        """Find out whether the order can be carried out; returns what that waits for."""
        try:
            async with self._context.reader() as reader:
                self._inventory = await reader.inventory()
        except HwError as error:
            return f"the driver can't be read: {error.what}"
        if self._standing == standing and not standing.checked:
            self._standing = replace(standing, checked=True, refused=node_orders.unfit(standing.order, self._inventory))
            self.heed()
        return ""

    async def _holders(self, standing: Standing) -> tuple[tuple[HolderPod, ...], tuple[HolderPod, ...], str]:
        """The pods that hold the GPUs, those that hold other devices, and why that is not known.

        Of several processes the one that speaks for all asks the kubelet, and the others know of none.
        """
        if not self._speaks:
            return (), (), ""
        try:
            held = await self._context.holdings.holdings()
        except KubeletError as error:
            return (), (), f"the kubelet does not say who holds the GPUs: {error.what}"
        pods = node_orders.holders(standing.order, held, self._inventory)
        return pods, node_orders.elsewhere(pods, held), ""

    async def _release(self, standing: Standing) -> str:
        """Close the driver; returns what that waits for."""
        if standing.over:
            return standing.over
        await self._context.readers.let_go()
        users = await beside(self._context.users)
        return "; ".join(map(str, users[:8]))

    async def _read_anew(self, standing: Standing) -> tuple[OrderedGpu, ...]:
        context, order = self._context, standing.order
        if order.reset and not standing.told:
            await self._tell_health(standing)
        try:
            async with context.reader() as reader:
                inventory = await reader.fresh_inventory()
                readings = await reader.readings(node_orders.PENDING)
        except HwError as error:
            return node_orders.unread_gpus(order, error.what)
        self._inventory = inventory
        verdicts = await beside(context.verdicts)
        return node_orders.ordered_gpus(order, inventory, readings, verdicts, since=self._resumed)

    async def _tell_health(self, standing: Standing) -> None:
        try:
            await beside(self._context.was_reset, standing.order.gpus)
        except UserError as error:  # the answer then says what health still holds against the GPU
            log.warning("health does not hear of the reset: %s", error.one_line())
        else:
            log.info("reset: %s", ", ".join(standing.order.gpus))
            if self._standing is not None and self._standing.order == standing.order:
                self._standing = replace(self._standing, told=True)

    # --- the Node ---

    async def _keep_writing(self, handle: RoleHandle) -> None:
        own, clock = self._context.own, self._context.clock
        backoff, written, at = Backoff(_RETRY), "", float("-inf")
        handle.running()
        while True:
            revisions = (own.revision, self._news.revision)
            live, wanted = own.reports.get(names.OPERATION_REPORT_ANNOTATION, ""), self._wanted
            differs = wanted is not None and bool(own.uid) and wanted != live
            if differs and not (wanted == written and clock.monotonic() - at < SETTLE):
                try:
                    await self._write(wanted or "")
                except KubeError as error:
                    handle.waiting(error)
                    await clock.sleep(backoff.next_delay())
                    continue
                written, at = wanted or "", clock.monotonic()
                backoff.reset()
                handle.running()
            later = [clock.sleep(SETTLE)] if differs else []
            await first_of(own.changed(revisions[0]), self._news.changed(revisions[1]), *later)

    async def _write(self, text: str) -> None:
        """Put the answer on the Node, or with "" take it away, whoever wrote it. Raises KubeError."""
        context, key = self._context, names.OPERATION_REPORT_ANNOTATION
        # With the uid, a Node that was made again meanwhile is left alone.
        metadata: Object = {"uid": context.own.uid, "annotations": {key: text or None}}
        if not text:
            await context.api().patch(NODES, context.node, {"metadata": metadata})
            return
        await context.api().apply(
            NODES, {"metadata": {"name": context.node, **metadata}}, manager=names.NODE_ORDER_FIELD_MANAGER
        )
