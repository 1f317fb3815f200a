"""The loop: the Node's label, the config and the driver, and what is done and said about them.

Promises: what is ordered is done before anything else, and what was broken off is finished before anything new; the
driver is not opened while it is released for somebody; one wish is tried once; a Node that says what is so already is
not written.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Final, Protocol

from kgpu.base.advice import Advice, AdviceSink, Severity
from kgpu.base.clock import Clock, SystemClock
from kgpu.base.errors import HostError, HwError, KubeError, UserError
from kgpu.base.service import StateSink, first_end, ignore_state, running
from kgpu.base.threads import beside
from kgpu.base.waits import first_of
from kgpu.formats import names
from kgpu.formats.mig_request import MigLabelState, report
from kgpu.formats.node_order import ChangeResult, NodeOrder
from kgpu.formats.partition_mode import by_modes
from kgpu.hw.open import NoHardwareError
from kgpu.kube.informer import Informer, Scope
from kgpu.kube.port import NODES, Change, KubeApi, Object, Selector
from kgpu.mig.manager.configs import ConfigSource
from kgpu.mig.manager.cutting import NodeCutter
from kgpu.mig.manager.kind import FoundGpu
from kgpu.mig.manager.label import node_part, read_view
from kgpu.mig.manager.model import MigDecision, MigLabelledNode, MigReason, MigWish
from kgpu.mig.manager.plan import Known, RefusedWishError, changed_under, decide, refused, two_labels
from kgpu.mig.manager.publish import ConfigMapWriter, NodeWords, NodeWriter
from kgpu.mig.wanted import LayoutError

log = logging.getLogger(__name__)

RETRY_SECONDS: Final = 5.0
"""How soon is looked again for what changes without news: who uses GPUs, a driver that comes."""
Holders = Callable[[Sequence[FoundGpu]], Awaitable[Mapping[str, Sequence[str]]]]


class ChangeOrders(Protocol):
    """What the operator orders of this node's GPUs now."""

    change: NodeOrder | None
    """The order by whose layouts GPUs are to be cut now."""
    released: str
    """Why the driver may not be opened, "" while it may."""

    @property
    def revision(self) -> int: ...

    async def changed(self, after: int) -> int: ...

    def answer(self, act: str, result: ChangeResult) -> None: ...

    def withhold(self, gpus: Mapping[str, str], *, by: str) -> None:
        """Offer these to no pod, by UUID, and why; all others as ordered, and as the others than ``by`` say."""
        ...


@contextlib.asynccontextmanager
async def _nothing_open() -> AsyncIterator[None]:
    yield


async def _none() -> Sequence[str]:
    return ()


async def _nobody(_gpus: Sequence[FoundGpu]) -> Mapping[str, Sequence[str]]:
    return {}


@dataclass(frozen=True, slots=True, kw_only=True)
class MigManagerContext:
    """Everything that comes from outside.

    ``sources`` are the files in which the label's value is looked up: a change of one is news. ``orders`` is None where
    nobody follows any, and ``operations`` is whether changes are asked of the operator.
    ``holders(gpus)`` are those who use GPUs, by UUID, for people, and ``stranded()`` the pods that hold parts of GPUs
    that are gone; both raise UserError where that is not known.
    ``closed()``: within the block nothing of this process has the driver open, as a reset needs it. ``news()`` is
    called after a change of the hardware, and ``vendor()`` says whose accelerators the node has. ``hear(wake)`` calls
    ``wake`` when the hardware may have changed, until cancelled.
    """

    api: Callable[[], KubeApi]
    node: str
    boot: str
    cutter: NodeCutter
    sources: Sequence[ConfigSource] = ()
    orders: ChangeOrders | None = None
    operations: bool = False
    namespace: str = ""
    holders: Holders = _nobody
    stranded: Callable[[], Awaitable[Sequence[str]]] = _none
    closed: Callable[[], AbstractAsyncContextManager[None]] = _nothing_open
    news: Callable[[], None] = lambda: None
    vendor: Callable[[], Awaitable[str]]
    hear: Callable[[Callable[[], None]], Awaitable[None]] | None = None
    report: AdviceSink
    clock: Clock = field(default_factory=SystemClock)
    on_state: StateSink = ignore_state


async def run(ctx: MigManagerContext) -> None:
    """Follow the Node until cancelled."""
    await _Manager(ctx).run()


class _Manager:
    def __init__(self, ctx: MigManagerContext) -> None:
        self._ctx = ctx
        self._memory = ctx.cutter.memory
        self._label = ctx.cutter.kind.label
        self._writer = NodeWriter(api=ctx.api, node=ctx.node, label=self._label, clock=ctx.clock)
        self._config_map = ConfigMapWriter(api=ctx.api, node=ctx.node, namespace=ctx.namespace)
        self._wake = asyncio.Event()
        self._tried: dict[str, UserError] = {}
        self._warned: tuple[str, ...] = ()
        self._informer = Informer(
            ctx.api(), Scope(NODES, selector=Selector.named(ctx.node)), clock=ctx.clock,
            project=partial(node_part, label=self._label), on_change=self._saw,
        )  # fmt: skip

    async def run(self) -> None:
        ctx, informer = self._ctx, self._informer
        ctx.on_state(False, "its Node is not known yet")
        follow = asyncio.gather(*map(self._follow, ctx.sources)) if ctx.sources else None
        hear = asyncio.ensure_future(ctx.hear(self._wake.set)) if ctx.hear is not None else None
        others = [task for task in (follow, hear) if task is not None]
        try:
            await self._withhold_all()
            async with running(mig_node=informer.run(), mig_loop=self._loop()) as tasks:
                await first_end([*tasks, *others])
        finally:
            self._withhold(())
            for task in others:
                task.cancel()
            await asyncio.gather(*others, return_exceptions=True)

    def _saw(self, change: Change, node: Object) -> None:
        """Each version of the Node: a label that was removed and set again is another wish."""
        if change is not Change.DELETED:
            view = read_view(node, self._ctx.boot, self._label)
            self._memory.seen(view.value, view.version)

    async def _follow(self, source: ConfigSource) -> None:
        known = source.current()
        while True:
            known = await source.next(known)
            self._wake.set()

    async def _loop(self) -> None:
        informer, orders, clock = self._informer, self._ctx.orders, self._ctx.clock
        await informer.synced.wait()
        while True:
            self._wake.clear()
            revision, ordered = informer.revision, orders.revision if orders is not None else 0
            pause = await self._once()
            waits = [clock.sleep(pause)] if pause is not None else []
            if orders is not None:
                waits.append(orders.changed(ordered))  # type: ignore[arg-type]
            await first_of(informer.changed(revision), self._wake.wait(), *waits)

    @property
    def _view(self) -> MigLabelledNode:
        return read_view(self._informer.objects.get(("", self._ctx.node)), self._ctx.boot, self._label)

    async def _once(self) -> float | None:
        """Do what is to be done now; returns in how many seconds to look again, None to wait for news."""
        orders = self._ctx.orders
        if orders is not None and orders.change is not None and self._is_mine(orders.change):
            await self._obey(orders, orders.change)
            return None
        if orders is not None and orders.released:
            return None
        try:
            if (problem := await self._tidy()) is not None:
                return await self._say(refused(MigReason.BROKEN, problem, again=True))
            decision = await self._decision()
            await beside(self._memory.save)
        except HostError as problem:
            self._ctx.on_state(False, problem)
            return RETRY_SECONDS
        if decision is not None and decision.lost:
            log.warning("what %s made of GPUs is gone; it is to be made again", self._view.value)
            self._memory.lose()
            return 0.0
        if decision is not None and decision.apply:
            await self._say(decision)
            await self._apply(decision)
            return 0.0
        return await self._say(decision)

    def _is_mine(self, order: NodeOrder) -> bool:
        return by_modes(order.layouts) is (self._label.vendor == names.AMD)

    # --- changes ---

    async def _obey(self, orders: ChangeOrders, order: NodeOrder) -> None:
        self._ctx.on_state(True, f"cuts GPUs for the operation {order.id}")
        result = await self._ctx.cutter.obey(order.id, order.layouts)
        self._ctx.news()
        orders.answer(order.id, result)

    async def _apply(self, decision: MigDecision) -> None:
        layouts = tuple(one.layout for one in decision.apply)
        async with self._ctx.closed() if any(one.release for one in decision.apply) else _nothing_open():
            result = await self._ctx.cutter.obey(f"label-{decision.key}", layouts, alone=True)
        self._ctx.news()
        # Who begins to use a GPU while it is being cut makes the driver refuse: then the wish waits, as it would have.
        if not result.done and not await self._in_use(decision):
            self._tried[decision.key] = RefusedWishError(
                f"the GPUs could not be cut: {result.text}", "a change that the driver makes", "see the agent's log",
                MigReason.FAILED,
            )  # fmt: skip

    async def _in_use(self, decision: MigDecision) -> bool:
        """Whether somebody is known to use a GPU that was to be cut."""
        try:
            holders = await self._ctx.holders(await self._ctx.cutter.survey())
        except UserError:
            return False
        return any(holders.get(one.gpu) for one in decision.apply)

    async def _tidy(self) -> UserError | None:
        """Finish what was broken off; returns why that can't be done now."""
        known, order = self._memory.now.change, self._view.order
        if known is None or (order is not None and order.id == known.act):
            return None
        if known.result is not None:
            await self._ctx.cutter.forget()
            return None
        try:
            await self._ctx.cutter.recover(await self._ctx.holders(await self._ctx.cutter.survey()))
        except UserError as problem:
            return problem
        self._ctx.news()
        return None

    # --- the label ---

    async def _decision(self) -> MigDecision | None:
        """What becomes of the label, None where there is nothing to say."""
        view = self._view
        if not view.value or not view.uid:
            self._withhold(())
            return None
        if view.acts and (two := two_labels(view, self._label)) is not None:
            return refused(two.reason, two)
        try:
            gpus = await self._ctx.cutter.survey()
        except NoHardwareError as problem:
            return await self._without_driver(problem)
        except HwError as problem:
            return refused(MigReason.UNREADABLE, problem, again=True)
        decision = await self._decided(view, gpus)
        concerned = [one.gpu for one in decision.request.layouts] if decision.request is not None else []
        concerned += [one.gpu for one in decision.apply]
        self._withhold(concerned if decision.state is MigLabelState.PENDING else ())
        return decision

    # --- what a reboot has taken ---

    async def _withhold_all(self) -> None:
        """Before the Node is known: whatever is to be made again is one of these."""
        if self._memory.now.again:
            with contextlib.suppress(UserError):  # a driver that can't be read offers nothing either
                self._withhold([found.uuid for found in await self._ctx.cutter.survey()])

    def _withhold(self, uuids: Sequence[str]) -> None:
        if self._ctx.orders is None:
            return
        memory = self._memory.now
        why = f"{self._label.key}={memory.value} is not in force again after a reboot"
        self._ctx.orders.withhold(dict.fromkeys(uuids, why) if memory.again else {}, by=self._label.key)

    async def _decided(self, view: MigLabelledNode, gpus: Sequence[FoundGpu]) -> MigDecision:
        memory = self._memory.now
        label = self._label
        wish = MigWish(
            value=view.value, stamp=memory.stamp, boot=self._ctx.boot, losses=memory.losses, noun=label.noun
        )  # fmt: skip
        try:
            aimed = self._ctx.cutter.kind.aim(gpus, view.value)
        except RefusedWishError as problem:
            return refused(problem.reason, problem)
        except HwError as problem:
            return refused(MigReason.UNREADABLE, problem, again=True)
        except LayoutError as problem:
            return refused(MigReason.LAYOUT, problem)
        except UserError as problem:
            return refused(MigReason.CONFIG, problem)
        await self._publish_configs(aimed.generated, view.uid)
        self._warn(aimed.warnings)
        try:
            holders = {} if self._ctx.operations else await self._ctx.holders(gpus)
        except UserError as problem:
            return refused(MigReason.IN_USE, problem, again=True)
        known = Known(operations=self._ctx.operations, settled=memory.settled, tried=self._tried, holders=holders)
        try:
            decision = decide(view, wish, known, aimed, label)
        except LayoutError as problem:
            return refused(MigReason.LAYOUT, problem)
        return decision if decision.reason is not MigReason.CHANGED_SINCE else await self._with_stranded(decision)

    async def _with_stranded(self, decision: MigDecision) -> MigDecision:
        try:
            return changed_under(decision, await self._ctx.stranded())
        except UserError as error:
            log.info("which pods hold parts that are gone is not known: %s", error.one_line())
            return replace(decision, again=True)

    async def _without_driver(self, problem: NoHardwareError) -> MigDecision:
        try:
            vendor = await self._ctx.vendor()
        except HwError:
            vendor = ""
        key, title = self._label.key, self._label.title
        if vendor and vendor != self._label.vendor:
            return refused(
                MigReason.VENDOR,
                RefusedWishError(
                    f"this node's accelerators are of {vendor}, and {key} is about {title} GPUs", f"{title} GPUs",
                    f"remove the label {key} from the node", MigReason.VENDOR,
                ),
            )  # fmt: skip
        return MigDecision(
            state=MigLabelState.PENDING, reason=MigReason.NO_DRIVER, message=problem.one_line(), again=True
        )

    async def _publish_configs(self, text: str, uid: str) -> None:
        if not text or self._ctx.operations:  # an agent of kgpu's operator has no right to ConfigMaps
            return
        try:
            await self._config_map.write(text, uid)
        except KubeError as error:  # it is for people; the next look tries again
            log.info("the generated configs are not published: %s", error.one_line())

    def _warn(self, warnings: tuple[str, ...]) -> None:
        if warnings != self._warned:
            self._warned = warnings
            for warning in warnings:
                self._ctx.report(
                    Advice(
                        subject=self._label.key, what=warning, severity=Severity.WARNING,
                        reason=f"{self._label.reasons}ConfigWithoutEffect", remedy="correct the config file",
                    )
                )  # fmt: skip

    # --- what is said ---

    async def _say(self, decision: MigDecision | None) -> float | None:
        view = self._view
        if decision is None:
            self._ctx.on_state(True, f"no label {self._label.key}" if view.uid else "its Node is not in the cluster")
            words = NodeWords()
        else:
            if decision.settled:
                self._memory.settle(decision.key)
                await beside(self._memory.save)
            if self._is_quiet(view, decision):
                self._ctx.on_state(True, decision.message)
                return RETRY_SECONDS if decision.again else None
            reason = decision.reason.word(self._label)
            told = report(
                config=view.value, state=decision.state, reason=reason, message=decision.message, pods=decision.pods
            )  # fmt: skip
            words = NodeWords(told, decision.request)
            self._ctx.on_state(True, decision.message, told.reason if decision.problem is not None else "")
            if told != view.report:
                self._tell(view, decision)
        return await self._write(view, words, RETRY_SECONDS if decision is not None and decision.again else None)

    def _is_quiet(self, view: MigLabelledNode, decision: MigDecision) -> bool:
        """Whether a value that nobody means has met something that only its meaning would make worth telling."""
        return not view.acts and (decision.problem is not None or decision.reason is MigReason.NO_DRIVER)

    async def _write(self, view: MigLabelledNode, words: NodeWords, later: float | None) -> float | None:
        due = self._writer.due(view, words)
        if due is None or due > 0:
            return later if due is None else min(due, later if later is not None else due)
        try:
            await self._informer.learn(await self._writer.write(view, words))
        except KubeError as error:
            self._ctx.on_state(False, error)
            return RETRY_SECONDS
        return later

    def _tell(self, view: MigLabelledNode, decision: MigDecision) -> None:
        subject, reason = self._label.key, decision.reason.word(self._label)
        if decision.problem is not None:
            problem = decision.problem
            self._ctx.report(Advice.from_error(problem, subject=subject, reason=reason, severity=Severity.WARNING))
            return
        done = decision.reason is MigReason.APPLIED
        what = f"GPUs are cut as {subject}={view.value} asks" if done else f"{subject}={view.value}: {decision.message}"
        severity = Severity.WARNING if decision.pods else Severity.INFO
        self._ctx.report(Advice(subject=subject, what=what, reason=reason, severity=severity))
