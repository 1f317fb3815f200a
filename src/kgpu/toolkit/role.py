"""The toolkit on a node, for as long as it runs: the parts of the role side by side, and one state for all.

Parts: the CDI spec of this node's GPUs, and what the agent adds: the container engine, links to device nodes, the NRI
plugin. One that fails starts again alone and takes no other along. The spec is written once the engine has been looked
at: a GPU is offered only after its spec is there, so that no pod is started while its engine is still restarted for it.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import logging
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Final, TypeAlias

from kgpu.base.backoff import BackoffPolicy
from kgpu.base.errors import Reason, line_of
from kgpu.base.problems import describe, obstacle_in
from kgpu.base.service import StateSink
from kgpu.base.supervise import RoleHandle, Supervisor
from kgpu.toolkit import spec_keeper
from kgpu.toolkit.spec_keeper import SPEC_NAME, SpecContext, make_spec

__all__ = ["SPEC_NAME", "SpecContext", "ToolkitContext", "make_spec", "run"]

log = logging.getLogger(__name__)

Part: TypeAlias = Callable[[StateSink], Awaitable[None]]
"""Runs until it is cancelled."""
RuntimePart: TypeAlias = Callable[[StateSink, Callable[[], None]], Awaitable[None]]
"""A part that calls its second argument whenever it has looked at the engine."""

SPEC: Final = "spec"
RUNTIME: Final = "runtime"
PATIENCE_SECONDS: Final = 120.0
"""The most seconds that the spec waits for the first look at the engine."""
STOP_SECONDS: Final = 5.0
POLICY: Final = BackoffPolicy(first=1.0, cap=60.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolkitContext(SpecContext):
    """``runtime`` keeps the container engine; ``parts`` are further ones by name. ``on_state`` hears of them all."""

    runtime: RuntimePart | None = None
    parts: Mapping[str, Part] = field(default_factory=dict)


async def run(ctx: ToolkitContext) -> None:
    """Run every part until cancelled."""
    states = _PartStates(ctx.on_state, (*([RUNTIME] if ctx.runtime else []), SPEC, *ctx.parts))
    looked = asyncio.Event()
    parts: dict[str, Part] = {SPEC: _spec(ctx, looked), **ctx.parts}
    if ctx.runtime is not None:
        parts[RUNTIME] = _runtime(ctx.runtime, looked)
    else:
        looked.set()
    supervisor = Supervisor(clock=ctx.clock, policy=POLICY, on_advice=ctx.report)
    for name, part in parts.items():
        supervisor.start(name, _told(part, states.of(name)))
    try:
        await asyncio.Event().wait()
    finally:
        await supervisor.stop(STOP_SECONDS)


def _spec(ctx: ToolkitContext, looked: asyncio.Event) -> Part:
    async def part(tell: StateSink) -> None:
        fields = {one.name: getattr(ctx, one.name) for one in dataclasses.fields(SpecContext)}
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(PATIENCE_SECONDS):
                await looked.wait()
        await spec_keeper.run(SpecContext(**{**fields, "on_state": tell}))

    return part


def _runtime(runtime: RuntimePart, looked: asyncio.Event) -> Part:
    async def part(tell: StateSink) -> None:
        await runtime(tell, looked.set)

    return part


def _told(part: Part, tell: StateSink) -> Callable[[RoleHandle], Awaitable[None]]:
    async def function(handle: RoleHandle) -> None:
        def both(ready: bool, reason: Reason, why: str = "") -> None:
            handle.report(ready, reason, why)
            tell(ready, reason)

        try:
            await part(both)
        except Exception as problem:
            obstacle = obstacle_in(problem)
            tell(False, obstacle or describe(problem))
            raise

    return function


class _PartStates:
    """The states of the parts as one: ready when all are."""

    def __init__(self, on_state: StateSink, names: tuple[str, ...]) -> None:
        self._on_state = on_state
        self._said: dict[str, tuple[bool, Reason] | None] = dict.fromkeys(names)

    def of(self, name: str) -> StateSink:
        def tell(ready: bool, reason: Reason, why: str = "") -> None:
            del why
            self._said[name] = (ready, reason)
            self._on_state(*self._state())

        return tell

    def _state(self) -> tuple[bool, Reason]:
        said = self._said.values()
        wrong = [one[1] for one in said if one is not None and not one[0]]
        if wrong:
            return False, wrong[0] if len(wrong) == 1 else "; ".join(map(line_of, wrong))
        silent = [name for name, one in self._said.items() if one is None]
        if silent:
            return False, f"not looked at yet: {', '.join(silent)}"
        return True, "; ".join(line_of(one[1]) for one in said if one is not None and one[1])
