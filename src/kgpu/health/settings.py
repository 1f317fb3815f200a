"""The health role's configuration as it is now: the text of one variable, or a file that may change.

A configuration that is wrong at the start, or becomes so, is reported; the last good one stays in force, and until
there is one the defaults hold, because GPUs fail whether or not somebody has made a typing error.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Final, Self

from kgpu.base.advice import AdviceSink, Severity
from kgpu.base.errors import ConfigError
from kgpu.base.inotify import follow_folders, homes
from kgpu.base.service import Complaint, running
from kgpu.formats.names import ENV_HEALTH_CONFIG, ENV_HEALTH_CONFIG_FILE
from kgpu.formats.settings import Restart, Setting, read_path, resolve
from kgpu.health.config import HealthConfig, parse_config

LOOK_SECONDS: Final = 10.0
MAX_BYTES: Final = 1 << 20


SOURCES: Final = (
    Setting(attr="text", envs=(ENV_HEALTH_CONFIG,), help="The configuration itself."),
    Setting(attr="file", envs=(ENV_HEALTH_CONFIG_FILE,), read=read_path, default=None, help="Its file; followed.",
            restart=Restart.NONE),
)  # fmt: skip
"""Where the configuration comes from; a file that can be read counts more."""


class HealthSettings:
    """Follows the configuration within ``following``."""

    def __init__(self, env: Mapping[str, str], report: AdviceSink, *, look_seconds: float = LOOK_SECONDS) -> None:
        sources = resolve(SOURCES, env=env).values
        self._text: str = sources["text"]
        self._file: Path | None = sources["file"]
        self._look_seconds = look_seconds
        self._config = HealthConfig()
        self._seen: bytes | None = None
        self._complaint = Complaint(report, reason="HealthConfigRefused", severity=Severity.ERROR)

    def current(self) -> HealthConfig:
        """The configuration in force."""
        return self._config

    @contextlib.asynccontextmanager
    async def following(self) -> AsyncIterator[Self]:
        """Apply changes of the file while the block runs."""
        if self._text:
            self._take(self._text.encode(), ENV_HEALTH_CONFIG)
        self.look()
        async with running(health_config=self._follow()):
            yield self

    def look(self) -> None:
        """Read the file, if one is named."""
        if self._file is None:
            return
        try:
            with open(self._file, "rb") as file:
                raw = file.read(MAX_BYTES)
        except OSError as error:
            self._complaint.of(
                ConfigError(
                    f"{self._file} can't be read: {error.strerror or error}",
                    f"the file that {ENV_HEALTH_CONFIG_FILE} names",
                    "put it there, or name another one",
                )
            )
            return
        if raw != self._seen:
            self._seen = raw
            self._take(raw, str(self._file))

    def _take(self, raw: bytes, source: str) -> None:
        try:
            self._config = parse_config(raw, source=source)
        except ConfigError as error:
            self._complaint.of(error)
        else:
            self._complaint.over()

    async def _follow(self) -> None:
        file = self._file
        if file is not None:
            await follow_folders(lambda: homes(file), self.look, seconds=self._look_seconds)
