"""Keys of ConfigMaps as files, for roles that read files: what a volume of a pod shows, at once and without a restart.

Promises: a file is whole at any time; while the API server can't be read it stays as it was, also over a restart of the
agent; it goes with its ConfigMap or key.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

from kgpu.agent.remembered_config import PATIENCE
from kgpu.base.clock import Clock, SystemClock
from kgpu.base.errors import HostError
from kgpu.base.files import write_atomic
from kgpu.base.plain import mapping, strings
from kgpu.base.supervise import RoleHandle
from kgpu.base.threads import beside
from kgpu.base.waits import before, first_of
from kgpu.formats.agent_config import ConfigKey
from kgpu.formats.names import CONFIG_FILE_PREFIX
from kgpu.kube.informer import Informer, Scope
from kgpu.kube.port import CONFIG_MAPS, KubeApi, Object, Selector

Wanted = Mapping[str, Mapping[str, ConfigKey]]
"""By role and variable."""
NONE: Final[Wanted] = {}


class ConfigMapFiles:
    """``want`` names the files, ``run`` keeps them, ``env`` has their paths."""

    def __init__(
        self, api: Callable[[], KubeApi], *, namespace: str, folder: Path, clock: Clock | None = None,
        patience: float = PATIENCE,
    ) -> None:  # fmt: skip
        self._api = api
        self._namespace = namespace
        self._folder = folder
        self._clock = clock or SystemClock()
        self._patience = patience
        self._wanted = NONE
        self._known: set[str] = set()
        self._renewed = asyncio.Event()
        self._news = asyncio.Event()

    def want(self, wanted: Wanted) -> None:
        """Keep these files from now on."""
        if wanted != self._wanted:
            self._wanted = wanted
            self._known.intersection_update(self._names())
            self._renewed.set()

    def env(self, role: str) -> dict[str, str] | None:
        """A role's variables with the paths; None while it is not known yet what belongs into the files."""
        files = self._wanted.get(role, {})
        if not all(file.config_map in self._known for file in files.values()):
            return None
        return {variable: str(self._path(role, variable)) for variable in files}

    async def changed(self) -> None:
        """Wait until more is known."""
        await self._news.wait()
        self._news.clear()

    async def run(self, handle: RoleHandle) -> None:
        """A service: follow the ConfigMaps and write the files. Raises KubeError, HostError."""
        handle.running()
        while True:
            self._renewed.clear()
            await before(self._renewed.wait(), self._follow(self._names()))

    def _names(self) -> set[str]:
        return {file.config_map for files in self._wanted.values() for file in files.values()}

    def _path(self, role: str, variable: str) -> Path:
        return self._folder / f"{CONFIG_FILE_PREFIX}{role}.{variable}"

    async def _follow(self, names: set[str]) -> None:
        if not names:
            await asyncio.Event().wait()
        async with asyncio.TaskGroup() as group:
            for name in sorted(names):
                scope = Scope(CONFIG_MAPS, self._namespace, Selector.named(name))
                informer = Informer(self._api(), scope, clock=self._clock)
                group.create_task(informer.run())
                group.create_task(self._write_all(name, informer))

    async def _write_all(self, name: str, informer: Informer) -> None:
        if not await first_of(informer.synced.wait(), self._clock.sleep(self._patience)):
            self._know(name)  # the files of the last time are better than nothing
            await informer.synced.wait()
        while True:
            revision = informer.revision
            await beside(self._write, name, informer.objects.get((self._namespace, name), {}))
            self._know(name)
            await informer.changed(revision)

    def _know(self, name: str) -> None:
        self._known.add(name)
        self._news.set()

    def _write(self, name: str, obj: Object) -> None:
        content = strings(mapping(obj).get("data"))
        for role, files in self._wanted.items():
            for variable, file in files.items():
                if file.config_map == name:
                    _put(self._path(role, variable), content.get(file.key))


def _put(path: Path, text: str | None) -> None:
    try:
        if text is None:
            path.unlink(missing_ok=True)
        elif not path.is_file() or path.read_bytes() != text.encode():
            write_atomic(path, text)
    except OSError as error:
        raise HostError(
            f"{path} can't be written: {error.strerror or error}",
            "the agent's folder, with room for a ConfigMap",
            "look at the node's disk",
        ) from error
