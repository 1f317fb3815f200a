"""A configuration source with a memory: an API server that is unavailable at the start must not cost a node its GPUs.

The last configuration in force is kept in a file. If the real source has nothing within ``patience`` seconds, the
remembered one is used until it does. Only configurations from the source are remembered, so a start never applies one
that this node was not given.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
from pathlib import Path
from typing import Any, Final, Protocol

from kgpu.base.clock import Clock, SystemClock
from kgpu.base.errors import UserError
from kgpu.base.files import write_atomic
from kgpu.base.threads import beside
from kgpu.base.waits import within
from kgpu.formats.config_choice import ConfigText

log = logging.getLogger(__name__)

PATIENCE: Final = 3.0  # seconds; a reachable API server answers in a fraction of one
WRITE_SECONDS: Final = 2.0  # for the file; the configuration is used in any case
CONFIG_MEMORY: Final = "config.json"
_FIELDS: Final = {"name", "text"}


class FollowedConfig(Protocol):
    """A configuration source that must run while it is used. It is level-triggered and never gives the same twice."""

    @property
    def error(self) -> UserError | None:
        """Why the configuration may be out of date; None while it is followed."""
        ...

    def current(self) -> ConfigText | None:
        """The configuration in force, None while nothing is known."""
        ...

    async def next(self, after: Any) -> ConfigText:
        """The configuration in force if it differs from ``after`` (None: in any case), else wait until it does."""
        ...

    async def run(self) -> None:
        """Follow it until cancelled."""
        ...


class DefaultConfig:
    """No source: every setting is a flag's, the environment's or the default."""

    def __init__(self) -> None:
        self._text = ConfigText(name="no configuration file")

    @property
    def error(self) -> UserError | None:
        return None

    def current(self) -> ConfigText | None:
        return self._text

    async def next(self, after: Any) -> ConfigText:
        while self._text == after:
            await asyncio.Event().wait()
        return self._text

    async def run(self) -> None:
        await asyncio.Event().wait()


class RememberedConfig:
    """A configuration source in front of another."""

    def __init__(
        self, source: FollowedConfig, path: Path, *, clock: Clock | None = None, patience: float = PATIENCE
    ) -> None:
        self._source = source
        self._path = path
        self._clock = clock or SystemClock()
        self._patience = patience
        self._remembered = load(path)

    @property
    def error(self) -> UserError | None:
        """The source's error."""
        return self._source.error

    def current(self) -> ConfigText | None:
        """The source's configuration, else the remembered one."""
        return self._source.current() or self._remembered

    async def next(self, after: Any) -> ConfigText:
        """The source's next configuration, or the remembered one if the source is silent and nothing
        else is in force.
        """
        if after is None and self._source.current() is None and self._remembered is not None:
            config = await within(self._patience, self._source.next(None), clock=self._clock)
            if config is None:
                log.warning("the configuration can't be read now; using the last one: %s", self._remembered.name)
                self._patience = 0.0  # the next caller need not wait again
                return self._remembered
        else:
            config = await self._source.next(after)
        await self._remember(config)
        return config

    async def run(self) -> None:
        """Run the source."""
        await self._source.run()

    async def _remember(self, config: ConfigText) -> None:
        if config.problem is not None or config == self._remembered:
            return
        self._remembered = config
        # In a thread: a disk that hangs would stop every role and the probes.
        data = json.dumps({"name": config.name, "text": config.text})
        with contextlib.suppress(OSError, TimeoutError):  # a folder that can't be written costs only the memory
            async with asyncio.timeout(WRITE_SECONDS):
                await beside(write_atomic, self._path, data, mode=0o600)


def load(path: Path) -> ConfigText | None:
    """The remembered configuration; None if there is none or it can't be read."""
    try:
        document = json.loads(path.read_bytes())
    except (OSError, ValueError):
        return None
    if (
        not isinstance(document, dict)
        or set(document) != _FIELDS
        or not all(isinstance(value, str) for value in document.values())
    ):
        return None
    return ConfigText(name=document["name"], text=document["text"])
