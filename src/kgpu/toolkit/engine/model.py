"""What applying an engine's config needs from outside, and what it results in."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Protocol

from kgpu.base.clock import Clock, SystemClock
from kgpu.host.engines.model import EnginePlace, FileChange, Files
from kgpu.host.engines.paths import MountedPaths

ANSWER_SECONDS: Final = 60.0
"""How long an engine may take to answer again after it was told to read its config."""

Check = Callable[[], Awaitable[str]]
"""Asks the running engine whether it is as wanted: "" when it is, else what is wrong in one line."""


class Restarter(Protocol):
    """Makes an engine read its config."""

    mode: str

    async def restart(self, place: EnginePlace) -> str:
        """What a person should know of how it was done, "" for nothing. Raises HostError.

        Returns when the engine was told to, not when it is back.
        """
        ...


class ConfigValidator(Protocol):
    """Asks an engine's own program whether a config would load."""

    async def problem(self, place: EnginePlace, files: Files) -> str:
        """The engine's complaint about a config of these files; "" when it loads, or when it can't be asked."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineContext:
    """``state_dir`` is kgpu's own folder on this node's disk, which lasts: originals and the journal are kept there.

    ``check`` is asked after a restart, beside the engine's socket taking connections, for ``deadline`` seconds at most.
    """

    paths: MountedPaths
    state_dir: Path
    restarter: Restarter
    validator: ConfigValidator
    check: Check | None = None
    clock: Clock = field(default_factory=SystemClock)
    deadline: float = ANSWER_SECONDS


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineOutcome:
    """What was done: the files written (none when everything was as wanted), whether the engine was restarted."""

    changes: tuple[FileChange, ...] = ()
    restarted: bool = False
    notes: tuple[str, ...] = ()

    @property
    def changed(self) -> bool:
        return bool(self.changes)
