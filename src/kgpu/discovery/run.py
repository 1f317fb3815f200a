"""The labels loop over injected ports: reader, configuration, node files, publisher, clock.

Promises: labels are published when something changes and checked at every interval; a failing reading, configuration
or API server removes no published label; failures are retried with growing pauses.
"""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

from kgpu.base.advice import Advice, AdviceSink, Severity
from kgpu.base.backoff import Backoff, BackoffPolicy
from kgpu.base.clock import Clock, SystemClock
from kgpu.base.errors import HwError, UserError
from kgpu.base.service import StandingAdvice, StateSink, first_end, ignore_state, running
from kgpu.base.threads import beside
from kgpu.base.waits import first_of
from kgpu.discovery.config import resolve
from kgpu.discovery.model import LabelSettings, NodeFacts
from kgpu.discovery.plan import plan
from kgpu.discovery.publish import Publisher
from kgpu.formats.config_choice import REFUSED
from kgpu.formats.plugin_config_parse import parse_config
from kgpu.hw.port import DriverReleasedError, EventKind, Inventory, Reader

log = logging.getLogger(__name__)

_RETRY: Final = BackoffPolicy(first=1.0, cap=60.0)
_CAUSES: Final = {EventKind.INVENTORY, EventKind.MIG_CHANGE, EventKind.RECOVERY_ACTION}


class ConfigTextView(Protocol):
    """One configuration file's text, or why there is none (such as ``kgpu.formats.config_choice.ConfigText``)."""

    @property
    def name(self) -> str: ...
    @property
    def text(self) -> str: ...
    @property
    def problem(self) -> UserError | None: ...


class LabelConfigSource(Protocol):
    """A level-triggered source: a late caller still gets the newest configuration, and never the same twice."""

    async def next(self, after: Any) -> ConfigTextView:
        """The configuration in force if it differs from ``after`` (None: in any case), else wait until it does."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class LabelsContext:
    """Everything that the labels role gets from outside.

    ``overrides`` are the command line flags that were given, by the attribute names of ``discovery.config.OPTIONS``;
    they override ``env``, which overrides the config file. ``facts`` reads the node's files. ``on_state(ready, reason,
    why)`` is called with whether the labels are up to date, and if not, what is missing; ``why`` is ``REFUSED`` for an
    unusable configuration. ``now`` returns Unix seconds. ``outcome`` is the log line after publishing. ``beside`` calls
    ``facts`` without blocking the loop.
    """

    reader: Reader
    config: LabelConfigSource
    publisher: Publisher
    report: AdviceSink
    facts: Callable[[LabelSettings], NodeFacts]
    clock: Clock = field(default_factory=SystemClock)
    overrides: Mapping[str, Any] = field(default_factory=dict)
    env: Mapping[str, str] = field(default_factory=lambda: dict(os.environ))
    on_state: StateSink = ignore_state
    now: Callable[[], float] = time.time
    outcome: str = "%d labels published"
    beside: Callable[[Callable[[LabelSettings], NodeFacts], LabelSettings], Awaitable[NodeFacts]] = beside


async def run(ctx: LabelsContext) -> None:
    """Keep the labels up to date until cancelled. Only a defect ends it with an exception."""
    labeller = Labeller(ctx)
    loops = running(config=labeller.follow_config(), events=labeller.follow_events(), labels=labeller.label())
    async with loops as tasks:
        await first_end(tasks)


class Labeller:
    """One run of the role: three loops that share state."""

    def __init__(self, ctx: LabelsContext) -> None:
        self._ctx = ctx
        self._settings: LabelSettings | None = None
        self._refused: UserError | None = None  # why the newest configuration is not in force
        self._timestamp: int | None = None
        self._published: dict[str, str] | None = None
        self._standing = StandingAdvice()
        self._wake = asyncio.Event()

    async def follow_config(self) -> None:
        """Apply each valid configuration; an invalid one leaves the last valid one in force."""
        current: ConfigTextView | None = None
        while True:
            current = await self._ctx.config.next(current)
            try:
                if current.problem is not None:
                    raise current.problem
                config = parse_config(current.text, source=current.name)
                settings = resolve(config, overrides=self._ctx.overrides, env=self._ctx.env).labels()
            except UserError as error:
                self._ctx.report(
                    Advice.from_error(error, subject=current.name, reason=REFUSED, severity=Severity.ERROR)
                )
                self._refused = error
                if self._settings is None:
                    self._ctx.on_state(False, self._refused, REFUSED)
                self._wake.set()
                continue
            self._settings, self._refused = settings, None
            # One timestamp per configuration, not per reading, as otherwise every reading would be a change.
            self._timestamp = int(self._ctx.now()) if settings.timestamp else None
            self._wake.set()

    async def follow_events(self) -> None:
        """Wake the labelling loop whenever the driver reports a change."""
        backoff = Backoff(_RETRY)
        while True:
            started = self._ctx.clock.monotonic()
            try:
                async for event in self._ctx.reader.events():
                    if event.kind in _CAUSES:
                        self._wake.set()
            except HwError as error:
                log.debug("no driver events: %s", error.one_line())
            await self._ctx.clock.sleep(backoff.next_delay(ran_for=self._ctx.clock.monotonic() - started))

    async def label(self) -> None:
        """Read, plan, publish; then wait for a cause, the interval, or the pause after a failure."""
        backoff = Backoff(_RETRY)
        while True:
            await self._pause(None if self._settings is None else 0)
            self._wake.clear()
            settings = self._settings
            if settings is None:
                continue
            problem = await self._attempt(settings)
            if problem is None:
                backoff.reset()
                self._ctx.on_state(True, self._refused or "", REFUSED if self._refused else "")
                await self._pause(settings.interval)
            else:
                # What was published before holds while the driver is released.
                released = isinstance(problem, DriverReleasedError) and bool(self._published)
                self._ctx.on_state(released, problem, DriverReleasedError.REASON if released else "")
                await self._pause(backoff.next_delay())

    async def _attempt(self, settings: LabelSettings) -> UserError | None:
        """Read and publish once; return the obstacle, None if there was none."""
        ctx = self._ctx
        try:
            published = await ctx.publisher.published()
        except UserError as error:
            return self._obstacle(error, "PublishFailed")
        self._published = published if published is not None else self._published
        inventory: Inventory | None = None
        problem: HwError | None = None
        try:
            inventory = await ctx.reader.inventory()
        except DriverReleasedError as released:
            return released
        except HwError as error:
            problem = error
        # In a thread: a broken PCI function's configuration space can take seconds, and others share this loop.
        facts = await ctx.beside(ctx.facts, settings)
        result = plan(inventory, settings, facts, timestamp=self._timestamp, previous=self._published, error=problem)
        self._report(result.advice)
        if not result.fresh:
            return problem or HwError("the accelerators could not be read", "a reading", "see the log")
        if published != result.labels:
            try:
                await ctx.publisher.publish(result.labels)
            except UserError as error:
                return self._obstacle(error, "PublishFailed")
            log.info(ctx.outcome, len(result.labels))
        self._published = dict(result.labels)
        return None

    def _report(self, advice: Sequence[Advice]) -> None:
        """Report each record when it is new, not at every reading."""
        for record in self._standing.news(advice):
            self._ctx.report(record)

    def _obstacle(self, error: UserError, reason: str) -> UserError:
        self._report([Advice.from_error(error, subject="labels", reason=reason)])
        return error

    async def _pause(self, seconds: float | None) -> None:
        """Wait for a cause to read again, or at most that many seconds; None waits for a cause only."""
        if self._wake.is_set() or seconds == 0:
            return
        await first_of(self._wake.wait(), *(() if seconds is None else (self._ctx.clock.sleep(seconds),)))
