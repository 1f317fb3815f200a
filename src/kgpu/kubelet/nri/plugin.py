"""An external NRI plugin: connects to the runtime, registers, and answers about containers until the line ends.

A runtime that is not there, hangs up or refuses is a KubeletError; trying again is the caller's.
"""

from __future__ import annotations

import asyncio
import contextlib
from pathlib import Path
from typing import Any, Final

from kgpu.base.errors import KubeletError, UserError
from kgpu.kubelet.nri import convert, wire
from kgpu.kubelet.nri.model import NriPluginLogic
from kgpu.kubelet.nri.session import CONFIGURE, CREATE, REGISTER, SHUTDOWN, STATE_CHANGE, SYNCHRONIZE, Session
from kgpu.kubelet.pb import nri_v1alpha1_pb2 as nri

CONNECT_SECONDS: Final = 5.0
REGISTER_SECONDS: Final = 10.0
"""From the connection until the runtime asks about containers; its own limit for registrations is 5 s."""


async def serve(socket: Path, logic: NriPluginLogic, *, name: str, index: int) -> None:
    """Be the plugin ``name`` at place ``index`` (0..99) until the runtime hangs up.

    Raises KubeletError, and what ``logic.configured`` raised.
    """
    await _NriPlugin(socket, logic, name, index).serve()


class _NriPlugin:
    def __init__(self, socket: Path, logic: NriPluginLogic, name: str, index: int) -> None:
        self._socket = socket
        self._logic = logic
        self._name = name
        self._index = index
        self._declined: UserError | None = None
        self._ready = asyncio.Event()

    async def serve(self) -> None:
        session = Session(
            *await self._connect(),
            serves=wire.PLUGIN_CONNECTION,
            calls=wire.RUNTIME_CONNECTION,
            answers={
                CONFIGURE: self._configure,
                SYNCHRONIZE: self._synchronize,
                CREATE: self._create,
                STATE_CHANGE: self._nothing,
                SHUTDOWN: self._nothing,
            },
        )
        running = asyncio.create_task(session.run(), name="nri-session")
        try:
            await session.call(
                REGISTER,
                nri.RegisterPluginRequest(plugin_name=self._name, plugin_idx=f"{self._index:02d}"),
                timeout=REGISTER_SECONDS,
            )
            await self._accepted(running)
            await running
        finally:
            running.cancel()
            with contextlib.suppress(asyncio.CancelledError, KubeletError):
                await running
            if self._declined is not None:
                raise self._declined

    async def _connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        try:
            async with asyncio.timeout(CONNECT_SECONDS):
                return await asyncio.open_unix_connection(str(self._socket))
        except (OSError, ValueError) as problem:
            detail = getattr(problem, "strerror", None) or str(problem) or "nobody answers"
            raise KubeletError(
                f"no container runtime takes NRI plugins at {self._socket}: {detail}",
                "a runtime with NRI switched on (containerd before 2.0 has it off by default)",
                "switch NRI on in the runtime's configuration, or correct the socket's path",
            ) from problem

    async def _accepted(self, running: asyncio.Task[None]) -> None:
        """Wait until the runtime has configured and synchronized the plugin."""
        waiting = asyncio.create_task(self._ready.wait())
        try:
            done, _ = await asyncio.wait(
                {running, waiting}, timeout=REGISTER_SECONDS, return_when=asyncio.FIRST_COMPLETED
            )
        finally:
            waiting.cancel()
        if not self._ready.is_set():
            how = "hung up" if running in done else f"said nothing more for {REGISTER_SECONDS:g} s"
            raise KubeletError(
                f"the container runtime at {self._socket} {how} before it took the NRI plugin",
                "a configured and synchronized plugin",
                "read the container runtime's log; it is tried again",
            )

    async def _configure(self, request: Any) -> Any:
        try:
            self._logic.configured(convert.runtime_of(request))
        except UserError as problem:
            self._declined = problem
            raise
        return nri.ConfigureResponse(events=convert.EVENTS)

    async def _synchronize(self, request: Any) -> Any:
        # Containers that are there already can't be given devices any more.
        if not request.more:
            self._ready.set()
            self._logic.ready()
        return nri.SynchronizeResponse(more=request.more)

    async def _create(self, request: Any) -> Any:
        adjustment = await self._logic.create(convert.pod_of(request.pod), convert.container_of(request.container))
        return convert.adjustment_message(adjustment)

    async def _nothing(self, _request: Any) -> Any:
        return nri.Empty()
