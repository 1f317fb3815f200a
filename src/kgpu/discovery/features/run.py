"""The loop that keeps a node's own feature labels up to date, over injected ports.

Promises: the node is read every minute, or as often as its worker's config says, soon after PCI devices, feature files,
rules or the config have changed, and as soon as one of kgpu's labels is gone from the Node. Beside another node feature
discovery it adds no label, and each of its own stays until the other one has published the same key. Labels that a
removed discovery has left are taken over only if the administrator says so. A failure removes no published label and is
retried.
"""

from __future__ import annotations

import logging
import random
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from kgpu.base.advice import Advice, AdviceSink
from kgpu.base.backoff import Backoff, BackoffPolicy
from kgpu.base.clock import Clock, SystemClock
from kgpu.base.errors import UserError
from kgpu.base.service import Complaint, StateSink, ignore_state
from kgpu.base.threads import beside
from kgpu.base.waits import first_of
from kgpu.discovery.features.publish import FeaturesPublisher, SeenFeatures
from kgpu.discovery.features.sources import ReadNode, changes, read_node

log = logging.getLogger(__name__)

INTERVAL: Final = 60.0  # seconds between readings without a cause, as in node feature discovery
LOOK: Final = 5.0  # seconds between checks which PCI devices and files exist
SPREAD: Final = 0.2  # random share of the interval, so that a fleet does not call the API server at the same moment
OTHER: Final = "node feature discovery"
OPERATOR: Final = "kgpu's operator"
_RETRY: Final = BackoffPolicy(first=1.0, cap=60.0)
# If something keeps removing the labels, they are restored at growing intervals, up to the usual one.
_RESTORE: Final = BackoffPolicy(first=0.2, cap=INTERVAL, factor=2.0, healthy_after=INTERVAL / 2)


@dataclass(frozen=True, slots=True, kw_only=True)
class FeaturesContext:
    """Everything that the role gets from outside.

    ``roots`` are places to look for PCI devices, the host's root first. ``foreign`` is whether another discovery is
    known in this cluster. ``take_over`` means that the administrator says there is none, and its labels on the Node are
    leftovers. ``on_state(True, what)`` reports that the labels are up to date. ``lost(labels)`` returns once the Node
    has had all of these labels and then lost one; None if nobody follows the Node, and then the next round restores it.
    ``measured`` takes the seconds that each reading has lasted.
    ``tell_operator`` publishes what was read where kgpu's operator labels Nodes; then it is the other discovery.
    """

    publisher: FeaturesPublisher
    roots: Sequence[Path]
    report: AdviceSink
    foreign: bool = False
    take_over: bool = False
    interval: float = INTERVAL
    clock: Clock = field(default_factory=SystemClock)
    on_state: StateSink = ignore_state
    read: Callable[[Sequence[Path]], ReadNode] = read_node
    devices: Callable[[Sequence[Path]], frozenset[str]] = changes
    uniform: Callable[[], float] = random.random
    lost: Callable[[Mapping[str, str]], Awaitable[None]] | None = None
    measured: Callable[[float], None] = lambda _seconds: None
    tell_operator: Callable[[ReadNode], Awaitable[None]] | None = None


@dataclass(slots=True)
class _ToldNotes:
    """What can't be used of the node's files, told when it changes."""

    report: AdviceSink
    told: frozenset[str] = frozenset()

    def tell(self, notes: Sequence[UserError]) -> None:
        for note in notes:
            if note.one_line() not in self.told:
                self.report(Advice.from_error(note, subject="features", reason="FeatureFileUnusable"))
        self.told = frozenset(note.one_line() for note in notes)


async def run(ctx: FeaturesContext) -> None:
    """Keep the labels up to date until cancelled. Only a defect ends it with an exception."""
    backoff, restoring = Backoff(_RETRY), Backoff(_RESTORE)
    complaint = Complaint(ctx.report, subject="features", reason="PublishFailed")
    notes = _ToldNotes(ctx.report)
    while True:
        devices = ctx.devices(ctx.roots)
        try:
            labels, summary, interval = await _once(ctx, notes)
        except UserError as error:
            ctx.on_state(False, error)
            complaint.of(error)
            await ctx.clock.sleep(backoff.next_delay())
            continue
        complaint.over()
        backoff.reset()
        ctx.on_state(True, summary)
        begin = ctx.clock.monotonic()
        if await _is_lost(ctx, labels, devices, interval):
            log.warning("feature labels are gone from the Node; putting them back")
            await ctx.clock.sleep(restoring.next_delay(ran_for=ctx.clock.monotonic() - begin))


async def withdraw(publisher: FeaturesPublisher) -> None:
    """Remove every label that kgpu has applied. Raises KubeError."""
    if (await publisher.look()).mine:
        await publisher.publish({})


async def _once(ctx: FeaturesContext, notes: _ToldNotes) -> tuple[Mapping[str, str], str, float]:
    """Read and publish; returns kgpu's labels, a summary for the role's state, and seconds until the next reading."""
    seen = await ctx.publisher.look()
    if ctx.take_over:
        seen = SeenFeatures(mine=seen.mine, others=seen.others - seen.discovered)
    # In a thread: files of a broken PCI function can take seconds, and this event loop also serves others.
    begin = ctx.clock.monotonic()
    read = await beside(ctx.read, ctx.roots)
    ctx.measured(ctx.clock.monotonic() - begin)
    notes.tell(read.notes)
    if ctx.tell_operator is not None:
        await ctx.tell_operator(read)
    wanted = read.labels
    kept = {key: value for key, value in wanted.items() if key not in seen.others}
    other = seen.discovery or (OTHER if ctx.foreign else "")
    if ctx.tell_operator is not None:
        other = OPERATOR
    if other:
        kept = {key: value for key, value in kept.items() if key in seen.mine}
    await _write(ctx, seen, kept)
    return kept, _summary(read, kept, other), ctx.interval if read.interval is None else read.interval


def _summary(read: ReadNode, kept: Mapping[str, str], other: str) -> str:
    if not other:
        return f"{len(kept)} labels"
    if other == OPERATOR:
        return f"{len(read.labels)} labels and the features of the node are in its NodeFeature"
    left = f", but for {len(kept)} that it has not published" if kept else ""
    return f"stands back: {other} labels this node{left}"


async def _write(ctx: FeaturesContext, seen: SeenFeatures, labels: Mapping[str, str]) -> None:
    if seen.mine != labels:
        await ctx.publisher.publish(labels)
        log.info("%d feature labels published", len(labels))


async def _is_lost(ctx: FeaturesContext, labels: Mapping[str, str], devices: frozenset[str], interval: float) -> bool:
    """Wait until it is time to read again; True if that is because labels are gone from the Node."""
    if ctx.lost is None:
        await _pause(ctx, devices, interval)
        return False
    return await first_of(ctx.lost(labels), _pause(ctx, devices, interval))


async def _pause(ctx: FeaturesContext, devices: frozenset[str], interval: float) -> None:
    """Wait until the interval has passed or the PCI devices have changed."""
    end = ctx.clock.monotonic() + interval * (1 + SPREAD * (ctx.uniform() - 0.5))
    while (left := end - ctx.clock.monotonic()) > 0:
        await ctx.clock.sleep(min(LOOK, left))
        if ctx.devices(ctx.roots) != devices:
            return
