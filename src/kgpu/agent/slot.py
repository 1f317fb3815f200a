"""One role's slot in an agent whose roles come and go: it is started, stopped and restarted independently.

Level-triggered: ``want`` sets the goal, and the slot's own task reaches it and never runs a role twice at once. A role
that does not end in time is named and asked again; nothing is started in its place before it has ended.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager
from typing import Final, Protocol, TypeAlias

from kgpu.agent.host import Host, Role
from kgpu.agent.options import AgentOptions
from kgpu.agent.shared_reader import SharedReader
from kgpu.base.advice import AdviceSink
from kgpu.base.backoff import BackoffPolicy
from kgpu.base.supervise import RoleHandle, RoleStatus, Supervisor

OpenHost: TypeAlias = Callable[[Role, AgentOptions], AbstractAsyncContextManager[Host]]

POLICY: Final = BackoffPolicy(first=0.25, cap=5.0, factor=2.0, jitter=0.3, healthy_after=30.0)


class Slot:
    """Keeps one role in the wanted state while ``run`` runs; cancelling ``run`` stops the role."""

    def __init__(self, role: Role, open_host: OpenHost, decide: AdviceSink) -> None:
        self.role = role
        self._open_host = open_host
        self._decide = decide
        self._wanted: AgentOptions | None = None
        self._running: AgentOptions | None = None
        self._supervisor: Supervisor | None = None
        self._host = contextlib.AsyncExitStack()
        self._changed = asyncio.Event()
        self._settled = asyncio.Event()
        self._settled.set()
        self.stuck = False
        """The role was told to stop and has not ended."""

    @property
    def status(self) -> RoleStatus | None:
        """The role's status, None if it is not started."""
        return self._supervisor.statuses()[0] if self._supervisor is not None else None

    def want(self, options: AgentOptions | None) -> None:
        """Run the role with these options from now on; None stops it."""
        if options != self._wanted:
            self._wanted = options
            self._settled.clear()
            self._changed.set()

    @property
    def running(self) -> AgentOptions | None:
        """The options that the role was started with, None if it is not started."""
        return self._running

    async def settled(self) -> None:
        """Wait until the last ``want`` has taken effect."""
        await self._settled.wait()

    async def run(self) -> None:
        """Bring about what is wanted, until cancelled."""
        try:
            while True:
                await self._changed.wait()
                self._changed.clear()
                if self._running is not None and self._running != self._wanted:
                    await self._end()
                if self._running is None and self._wanted is not None:
                    await self._begin(self._wanted)
                if self._running == self._wanted:
                    self._settled.set()
        finally:
            self._wanted = None
            await self._end(once=True)

    async def _begin(self, options: AgentOptions) -> None:
        host = await self._host.enter_async_context(self._open_host(self.role, options))

        async def function(handle: RoleHandle) -> None:
            await self.role.start(host, handle)

        self._running = options
        self._supervisor = Supervisor(policy=POLICY, on_advice=self._decide)
        self._supervisor.start(self.role.name, function)

    async def _end(self, *, once: bool = False) -> None:
        while self._supervisor is not None and self._running is not None:
            self.stuck = bool(await self._supervisor.stop(self._running.shutdown_seconds))
            if not self.stuck or once:
                break
        self._supervisor = self._running = None
        await self._host.aclose()


class MakeReader(Protocol):
    """Makes a shared reader for a driver root."""

    def __call__(self, options: AgentOptions) -> SharedReader: ...


class SharedReaders:
    """Hands out one shared reader per driver root, and closes it when nobody uses it any more.

    A reader's child holds the driver's files open; a driver can be unloaded only when no role needs it. ``hold`` and
    ``let_go`` close all of them for a while although roles use them.
    """

    def __init__(self, make: MakeReader) -> None:
        self._make = make
        self._open: dict[str, tuple[SharedReader, int]] = {}
        self._all: set[SharedReader] = set()
        self._held = ""
        self._exchange = False
        self._quiet = False
        self.latest: SharedReader | None = None
        """The reader that was handed out last, None if none is in use."""

    @contextlib.asynccontextmanager
    async def reader(self, options: AgentOptions) -> AsyncIterator[SharedReader]:
        """The reader for the options' root, for as long as the block lasts."""
        key = str(options.root or "/")
        reader, users = self._open.get(key) or (self._made(options), 0)
        self._open[key] = (reader, users + 1)
        self.latest = reader
        try:
            yield reader
        finally:
            _, users = self._open[key]
            self._open[key] = (reader, users - 1)
            if users == 1:
                del self._open[key]
                if self.latest is reader:
                    self.latest = next((other for other, _ in self._open.values()), None)
                await self._close(reader)

    @contextlib.asynccontextmanager
    async def own(self, options: AgentOptions) -> AsyncIterator[SharedReader]:
        """A reader that nobody else uses, for what should not read hardware; it opens nothing unless asked."""
        reader = self._made(options)
        try:
            yield reader
        finally:
            await self._close(reader)

    def hold(self, why: str, *, exchange: bool = False) -> None:
        """From now on no reader opens or asks the driver, not even one that is made later. ``exchange``: the driver
        itself is exchanged.
        """
        self._held, self._exchange = why, exchange
        for reader in self._all:
            reader.hold(why, exchange=exchange)

    async def let_go(self) -> None:
        """Close what is open, after ``hold``."""
        await asyncio.gather(*(reader.let_go() for reader in tuple(self._all)))

    def reopen(self) -> None:
        """End ``hold``."""
        self._held = ""
        for reader in self._all:
            reader.reopen()

    def quiet(self, quiet: bool) -> None:
        """While ``quiet``, no reader tells of GPUs that change; each does so once afterwards."""
        if quiet != self._quiet:
            self._quiet = quiet
            for reader in self._all:
                reader.quiet(quiet)

    def _made(self, options: AgentOptions) -> SharedReader:
        reader = self._make(options)
        reader.quiet(self._quiet)
        self._all.add(reader)
        if self._held:
            reader.hold(self._held, exchange=self._exchange)
        return reader

    async def _close(self, reader: SharedReader) -> None:
        try:
            await reader.close()
        finally:
            self._all.discard(reader)
