"""Follows a configuration file: its present content, and a notification when that changes.

Files are compared by content, so touching a file changes nothing and the swapped link of a ConfigMap volume does. A
file that can't be read is reported as a problem, never taken for an empty configuration. ``reload`` reads it at once.
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any, Final

from kgpu.base.errors import ConfigError, UserError
from kgpu.base.inotify import follow_folders, homes
from kgpu.formats.config_choice import ConfigText, problem_text

# A fallback for the kernel's events, which some network file systems do not send.
POLL_SECONDS: Final = 5.0
MAX_BYTES: Final = 1 << 20  # what a ConfigMap can hold


SETTING: Final = "--config-file (CONFIG_FILE)"


def read_config(path: Path, setting: str = SETTING) -> ConfigText:
    """The file's present content; if it can't be read, the result's ``problem`` says why. ``setting`` names it."""
    name = f"file {path}"
    try:
        with open(path, "rb") as file:
            raw = file.read(MAX_BYTES + 1)
        if len(raw) > MAX_BYTES:
            raise ValueError(f"it has more than {MAX_BYTES} bytes")
        return ConfigText(name=name, text=raw.decode())
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        return problem_text(
            name,
            ConfigError(
                f"can't read the config file {path}: {reason}",
                "a readable UTF-8 file of at most 1 MiB",
                f"correct {setting} or the file",
            ),
        )


class FileConfigSource:
    """A configuration source. ``run`` must run while anyone waits in ``next``; several may wait."""

    def __init__(self, path: Path, setting: str = SETTING) -> None:
        self._path = path
        self._setting = setting
        self._current = read_config(path, setting)
        self._changed = asyncio.Event()

    @property
    def error(self) -> UserError | None:
        """Why the file can't be read, None if it can."""
        return self._current.problem

    async def next(self, after: Any) -> ConfigText:
        """The configuration in force if it differs from ``after`` (None: in any case), else wait until it does."""
        while self._current == after:
            await self._changed.wait()
        return self._current

    def current(self) -> ConfigText | None:
        """What was last read."""
        return self._current

    def reload(self) -> None:
        """Read the file now."""
        config = read_config(self._path, self._setting)
        if config != self._current:
            self._current = config
            # Those who wait keep the event they have; later ones get a fresh one.
            self._changed.set()
            self._changed = asyncio.Event()

    async def run(self) -> None:
        """Follow the file until cancelled."""
        # A ConfigMap volume swaps the link ``..data`` beside the file; a linked file changes in its own folder.
        await follow_folders(lambda: homes(self._path), self.reload, seconds=POLL_SECONDS)
