"""An engine that is not there, for tests: it takes connections on its socket and counts how often it was restarted."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Self

from kgpu.host.engines.model import EnginePlace, Files


class FakeEngine:
    """Restarter and validator at once. ``broken`` decides, at each restart, whether it does not come back.

    ``complaint`` is what its program says about a candidate config, ``note`` what there is to say of a restart.
    """

    def __init__(self, socket: Path, *, mode: str = "signal") -> None:
        self.mode = mode
        self.restarts = 0
        self.broken: Callable[[], bool] = lambda: False
        self.note = ""
        self.complaint: Callable[[Files], str] = lambda _files: ""
        self._socket = socket
        self._server: asyncio.Server | None = None

    async def __aenter__(self) -> Self:
        await self._listen()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._stop()

    async def restart(self, place: EnginePlace) -> str:
        del place
        self.restarts += 1
        await self._stop()
        if not self.broken():
            await self._listen()
        return self.note

    async def problem(self, place: EnginePlace, files: Files) -> str:
        del place
        return self.complaint(files)

    async def _listen(self) -> None:
        self._socket.parent.mkdir(parents=True, exist_ok=True)
        self._socket.unlink(missing_ok=True)
        self._server = await asyncio.start_unix_server(_hang_up, self._socket)

    async def _stop(self) -> None:
        if self._server is not None:
            self._server.close()
            await self._server.wait_closed()
            self._server = None


async def _hang_up(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    del reader
    writer.close()
