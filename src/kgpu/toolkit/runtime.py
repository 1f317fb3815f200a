"""The node's container engine for as long as the toolkit role runs: configured, asked whether it is so, and again.

Nothing is written or restarted when the config says already what is wanted; an engine that does not answer is left
alone. A package upgrade or another program that takes kgpu's part away is put right, at first at once, then with
growing pauses: two programs that each restart a node's engine must not take turns. What is reported as ready has been
asked of the running engine over the CRI, not read from a file.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Protocol

from kgpu.base.advice import Advice, AdviceSink, Severity
from kgpu.base.backoff import Backoff, BackoffPolicy
from kgpu.base.clock import Clock, SystemClock
from kgpu.base.errors import Reason, UserError
from kgpu.base.inotify import CONTENT, Inotify, nearest_existing
from kgpu.base.service import Complaint
from kgpu.base.threads import beside
from kgpu.host.engines.model import EngineOffer, EnginePlace, FileChange
from kgpu.kubelet.cri import ContainerRuntime, RuntimeStatus
from kgpu.toolkit.engine.model import Check, EngineOutcome
from kgpu.toolkit.settings import ToolkitSettings

CALM_SECONDS: Final = 60.0
TROUBLE_SECONDS: Final = 5.0
PAUSE_SECONDS: Final = 1.0
"""The wait after a change: a package manager writes several files."""
PATIENCE: Final = BackoffPolicy(first=10.0, cap=3600.0, factor=3.0, jitter=0.2, healthy_after=3600.0)
NEW_SECONDS: Final = 10.0
"""The longest pause before a config that was never seen is brought in line: somebody may be waiting for it."""
NO_ENGINE: Final = "no container engine found on this node, so none was configured"


class Engines(Protocol):
    """The engines of one node. Real: ``kgpu.toolkit.host_engines``; fake: ``kgpu.toolkit.fake_engines``."""

    async def find(self, settings: ToolkitSettings) -> EnginePlace | None:
        """The engine that the settings name, or the one that the kubelet uses; None where there is none."""
        ...

    def pending(self, place: EnginePlace, wanted: EngineOffer) -> tuple[FileChange, ...]:
        """The changes that its config needs. Raises ConfigError and HostError for one that can't be read."""
        ...

    async def configure(self, place: EnginePlace, wanted: EngineOffer, check: Check | None) -> EngineOutcome:
        """Bring its config in line and make it read it; finish what a run that was killed has begun.

        Raises UserError: the engine then runs with the config of before.
        """
        ...

    def runtime(self, place: EnginePlace) -> ContainerRuntime | None:
        """The running engine, None for one that has no CRI."""
        ...

    def folders(self, place: EnginePlace) -> tuple[Path, ...]:
        """The folders with its config, as this process sees them."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class RuntimeContext:
    """``looked`` is called after each look: from the first one on the engine is not restarted without a reason."""

    engines: Engines
    settings: ToolkitSettings
    report: AdviceSink
    clock: Clock = field(default_factory=SystemClock)
    looked: Callable[[], None] = lambda: None


@dataclass(frozen=True, slots=True)
class EngineLook:
    """What one look found; ``wait`` is how many seconds later the next is due without a reason."""

    ready: bool
    reason: Reason
    wait: float = CALM_SECONDS


async def run(ctx: RuntimeContext, tell: Callable[[bool, Reason], None]) -> None:
    """Keep the engine configured until cancelled. Raises UserError where only another setting would help."""
    keeper = EngineKeeper(ctx)
    async with Inotify() as inotify:
        while True:
            look = await keeper.look()
            tell(look.ready, look.reason)
            ctx.looked()
            inotify.watch({nearest_existing(folder) for folder in keeper.folders}, CONTENT)
            if await inotify.wait(look.wait):
                await ctx.clock.sleep(PAUSE_SECONDS)


class EngineKeeper:
    """Keeps one engine configured. ``folders`` are those to watch."""

    def __init__(self, ctx: RuntimeContext) -> None:
        self._ctx = ctx
        self._patience = EnginePatience(ctx.clock)
        self._complaint = Complaint(ctx.report, reason="RuntimeNotConfigured", severity=Severity.ERROR)
        self._failed = ""
        self._begun = False
        self.folders: tuple[Path, ...] = ()

    async def look(self) -> EngineLook:
        """See what is, and bring it in line. Never raises for what a node contains."""
        try:
            look = await self._look()
        except UserError as problem:
            look = EngineLook(ready=False, reason=problem, wait=TROUBLE_SECONDS)
            self._complaint.of(problem)
        if look.ready:
            self._complaint.over()
        return look

    async def _look(self) -> EngineLook:
        ctx = self._ctx
        place = await ctx.engines.find(ctx.settings)
        if place is None:
            self.folders = ()
            return EngineLook(ready=True, reason=NO_ENGINE)
        self.folders = ctx.engines.folders(place)
        runtime = ctx.engines.runtime(place)
        status = await _ask(runtime)
        if not ctx.settings.configure:
            return self._verdict(place, status, runtime)
        changes = await beside(ctx.engines.pending, place, ctx.settings.wanted())
        if changes or not self._begun:
            if isinstance(status, str):
                return EngineLook(
                    ready=False, reason=f"{status}; its config is not touched before", wait=TROUBLE_SECONDS
                )
            wait = self._patience.wait(_key(changes))
            if wait > 0:
                lost = f"{place.config} keeps losing what the toolkit has put there; find what else writes it"
                return EngineLook(ready=False, reason=self._failed or lost, wait=min(wait, CALM_SECONDS))
            await self._configure(place, changes, runtime)
            status = await _ask(runtime)
        return self._verdict(place, status, runtime)

    async def _configure(
        self, place: EnginePlace, changes: tuple[FileChange, ...], runtime: ContainerRuntime | None
    ) -> None:
        ctx = self._ctx

        async def check() -> str:
            status = await _ask(runtime)
            return missing(status, ctx.settings) if isinstance(status, RuntimeStatus) else status or ""

        try:
            outcome = await ctx.engines.configure(place, ctx.settings.wanted(), check if runtime is not None else None)
        except UserError as problem:
            self._failed = problem.one_line()
            self._patience.tried(_key(changes))
            raise
        self._failed, self._begun = "", True
        if not outcome.changed and not outcome.restarted:
            return
        self._patience.tried(_key(changes))
        ctx.report(
            Advice(
                subject=str(place.engine),
                what=f"{place.flavour} was configured" + (" and restarted" if outcome.restarted else ""),
                why=f"it lacked the runtime handlers {', '.join(ctx.settings.handlers)} or CDI",
                evidence=(*(change.path for change in outcome.changes), *outcome.notes),
                reason="RuntimeConfigured",
            )
        )

    def _verdict(
        self, place: EnginePlace, status: RuntimeStatus | str | None, runtime: ContainerRuntime | None
    ) -> EngineLook:
        settings = self._ctx.settings
        if runtime is None or status is None:
            return EngineLook(ready=True, reason=f"{place.flavour} is configured")
        if isinstance(status, str):
            return EngineLook(ready=False, reason=status, wait=TROUBLE_SECONDS)
        lacks = missing(status, settings)
        if lacks:
            remedy = advice(place, settings)
            return EngineLook(ready=False, reason=f"{lacks}; {remedy}", wait=TROUBLE_SECONDS)
        return EngineLook(ready=True, reason=engine_summary(status, settings))


async def _ask(runtime: ContainerRuntime | None) -> RuntimeStatus | str | None:
    """The status; why there is none; None for an engine that can't be asked."""
    if runtime is None:
        return None
    try:
        return await runtime.status()
    except UserError as problem:
        return problem.what


def missing(status: RuntimeStatus, settings: ToolkitSettings) -> str:
    """What a running engine lacks, "" for nothing. What it does not report is not missing."""
    if not status.ready:
        return f"{status} is not ready: {status.problem}"
    if settings.cdi and status.cdi is False:
        return f"{status} has CDI switched off"
    if not settings.configure:
        return ""
    lost = [name for name in settings.handlers if status.handlers is not None and name not in status.handlers]
    if lost:
        return f"{status} has no runtime handler {', '.join(lost)}"
    if settings.default and status.default_handler not in {"", settings.runtime}:
        return f"{status} has {status.default_handler} as its default handler, not {settings.runtime}"
    return ""


def advice(place: EnginePlace, settings: ToolkitSettings) -> str:
    """What a person can do about an engine whose config is right and that does not follow it."""
    if not settings.configure:
        return f"{settings.why_not}, so its config is left alone: set `enable_cdi = true` in {place.config}"
    if settings.restart == "none":
        return "RUNTIME_RESTART_MODE is none: restart it, so that it reads its config"
    return "restart it, and see its log for why it does not follow its config"


def engine_summary(status: RuntimeStatus, settings: ToolkitSettings) -> str:
    """One line about an engine that is as wanted."""
    facts = [f"handlers {', '.join(settings.handlers)}"] if settings.configure and status.handlers else []
    facts += ["CDI on"] if status.cdi else []
    facts += [f"left alone: {settings.why_not}"] if not settings.configure else []
    return f"{status}" + (f" ({'; '.join(facts)})" if facts else "")


class EnginePatience:
    """When an engine may be configured again: growing pauses after each time, short for a config never seen."""

    def __init__(self, clock: Clock, policy: BackoffPolicy = PATIENCE) -> None:
        self._clock = clock
        self._backoff = Backoff(policy)
        self._seen: set[str] = set()
        self._last: float | None = None
        self._due = 0.0

    def wait(self, key: str) -> float:
        """Seconds until the next attempt may be made; 0 for now."""
        left = max(0.0, self._due - self._clock.monotonic())
        if key in self._seen or self._last is None:
            return left
        return max(0.0, min(left, self._last + NEW_SECONDS - self._clock.monotonic()))

    def tried(self, key: str) -> None:
        """Note an attempt; ``key`` stands for the config before it."""
        now = self._clock.monotonic()
        calm = 0.0 if self._last is None else now - self._last
        self._seen.add(key)
        self._last = now
        self._due = now + self._backoff.next_delay(ran_for=calm)


def _key(changes: Iterable[FileChange]) -> str:
    digest = hashlib.sha256()
    for change in changes:
        digest.update(f"{change.path}\0{len(change.before or b'')}\0".encode())
        digest.update(change.before or b"")
    return digest.hexdigest()
