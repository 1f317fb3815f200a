"""Giving every container engine that kgpu has configured on this node back its own config.

Asked for every few seconds until it succeeds, by whoever leaves the node; each failed attempt may have restarted an
engine, so the next one waits longer, and longer than the process that asks may live.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Awaitable, Callable
from typing import Final

import msgspec

from kgpu.base.errors import HostError, UserError
from kgpu.toolkit.engine.model import EngineOutcome
from kgpu.toolkit.memory import Configured, EngineMemory

log = logging.getLogger(__name__)

FIRST_SECONDS: Final = 10.0
CAP_SECONDS: Final = 600.0
Undo = Callable[[Configured], Awaitable[EngineOutcome]]
"""Takes kgpu's part out of one engine's config. Raises UserError: the engine then runs as it did."""


async def release(memory: EngineMemory, undo: Undo, now: Callable[[], float] = time.time) -> None:
    """Undo what is remembered, engine by engine. Raises HostError for those that could not be; they stay remembered."""
    problems: list[str] = []
    for engine in memory.engines():
        name = f"{engine.place.flavour} ({engine.place.config})"
        if 0 < engine.due - now() <= CAP_SECONDS:  # a clock that was set back does not stop this for years
            problems.append(f"{name}: it failed {engine.tries} times and is tried again later")
            continue
        try:
            outcome = await undo(engine)
        except UserError as problem:
            tries = engine.tries + 1
            wait = min(CAP_SECONDS, FIRST_SECONDS * 2.0 ** min(engine.tries, 10))
            _remember(memory, msgspec.structs.replace(engine, tries=tries, due=now() + wait))
            problems.append(f"{name}: {problem.one_line()}")
        else:
            memory.drop(engine.place)
            log.info("%s is as it was before%s", name, " and was restarted" if outcome.restarted else "")
    if problems:
        raise HostError(
            f"the container engine's config is not as it was before kgpu: {'; '.join(problems)}",
            "an engine that takes its own config back",
            "correct what is said; kgpu's copy of the original is in its state folder, under engines/",
        )


def _remember(memory: EngineMemory, engine: Configured) -> None:
    try:
        memory.put(engine)
    except OSError as error:
        log.warning("what failed can't be written down: %s", error.strerror)
