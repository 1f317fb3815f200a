"""The port for the plugin's configuration text; the fake and the constant source are the same class.

The text is the v1 config file (``kgpu.formats.plugin_config``). The agent's source follows a node label and a
ConfigMap; the standalone program's follows a file.
"""

from __future__ import annotations

import asyncio
from typing import Protocol

from kgpu.formats.config_choice import ConfigText


class PluginConfigSource(Protocol):
    """A level-triggered source: a late caller still gets the newest configuration, and never the same twice."""

    async def next(self, after: ConfigText | None) -> ConfigText:
        """The configuration in force if it differs from ``after`` (None: in any case), else wait until it does."""
        ...


class MemoryConfigSource:
    """A source that a program or a test sets; it never changes by itself."""

    def __init__(self, text: str = "", name: str = "built-in defaults") -> None:
        self._current = ConfigText(name=name, text=text)
        self._changed = asyncio.Event()

    def set(self, text: str, name: str | None = None) -> None:
        """Replace the configuration's text."""
        self.put(ConfigText(name=name or self._current.name, text=text))

    def put(self, config: ConfigText) -> None:
        """Replace the configuration, or the problem with it."""
        self._current = config
        self._changed.set()

    async def next(self, after: ConfigText | None) -> ConfigText:
        while self._current == after:
            self._changed.clear()
            await self._changed.wait()
        return self._current
