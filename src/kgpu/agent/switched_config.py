"""A configuration source that can switch to another ConfigMap, or to none, while roles wait for it.

Roles keep their configuration until the new source has one.
"""

from __future__ import annotations

import asyncio
from typing import Any

from kgpu.agent.remembered_config import DefaultConfig, FollowedConfig
from kgpu.base.errors import UserError
from kgpu.base.waits import before, first_of
from kgpu.formats.config_choice import ConfigText


class SwitchedConfig:
    """A ``FollowedConfig``. At first there is no source, which means all defaults."""

    def __init__(self) -> None:
        self._source: FollowedConfig = DefaultConfig()
        self._switched = asyncio.Event()

    @property
    def error(self) -> UserError | None:
        """The present source's error."""
        return self._source.error

    def current(self) -> ConfigText | None:
        """The present source's configuration."""
        return self._source.current()

    def switch(self, source: FollowedConfig) -> None:
        """Take the configuration from this source from now on."""
        self._source = source
        # Those who wait keep the event they have; later ones get a fresh one.
        self._switched.set()
        self._switched = asyncio.Event()

    async def next(self, after: Any) -> ConfigText:
        """The configuration in force if it differs from ``after`` (None: in any case), else wait until it does."""
        while True:
            config = await before(self._switched.wait(), self._source.next(after))
            if config is not None:
                return config

    async def run(self) -> None:
        """Run the present source, until cancelled."""
        while True:
            if await first_of(self._source.run(), self._switched.wait()):
                raise RuntimeError("a configuration source ended")
