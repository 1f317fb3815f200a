"""The agent: one process per node that hosts roles beside each other, and the hardware child that they share.

Promises: a role that lacks something (driver, kubelet socket, API server) waits and says for what, the others run; a
configuration is followed without a restart; SIGTERM ends everything within the deadline, and what does not end is
named and left to the exit. The child starts first, because opening a driver takes longest.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
import time
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, Final

from kgpu import __version__
from kgpu.agent import status
from kgpu.agent.config_file import FileConfigSource
from kgpu.agent.events import EventQueue
from kgpu.agent.http import Address, StatusServer
from kgpu.agent.options import AgentOptions
from kgpu.agent.remembered import DefaultConfig, FollowedConfig, RememberedConfig
from kgpu.agent.roles import Host, Role
from kgpu.agent.shared import SharedReader
from kgpu.base.backoff import BackoffPolicy
from kgpu.base.decision import Decision
from kgpu.base.errors import HwError, UserError
from kgpu.base.log import log_decision
from kgpu.base.supervise import RoleHandle, Supervisor, stop_on_signals
from kgpu.hw.port import Reader
from kgpu.kube.port import KubeApi

log = logging.getLogger(__name__)

# A node's agent talks to few others, so it may look again soon: a driver or a socket that comes is used within seconds.
POLICY: Final = BackoffPolicy(first=0.25, cap=5.0, factor=2.0, jitter=0.3, healthy_after=30.0)
DECISIONS_KEPT: Final = 50
CONFIG_MEMORY: Final = "config.json"


class Agent:
    """One agent. ``run`` returns when ``stop`` is set. ``open_reader`` and ``api`` stand in for the real ones."""

    def __init__(
        self,
        options: AgentOptions,
        roles: tuple[Role, ...],
        *,
        open_reader: Callable[[], Awaitable[Reader]] | None = None,
        api: KubeApi | None = None,
    ) -> None:
        self.options = options
        self.stop = asyncio.Event()
        self._chosen = roles
        self._begin = time.monotonic()
        self._decisions: deque[tuple[float, Decision]] = deque(maxlen=DECISIONS_KEPT)
        self._events = EventQueue()
        self._api = api
        self.address: Address | None = None
        self.reader = SharedReader(open_reader or self._open_reader)
        self.roles = Supervisor(policy=POLICY, on_decision=self.decide)
        self.services = Supervisor(policy=POLICY, on_decision=self.decide)
        self._config: FollowedConfig = DefaultConfig()

    async def run(self) -> tuple[str, ...]:
        """Host the roles until ``stop``. Returns the names of what did not end. Raises UserError for a bad start."""
        warm = asyncio.create_task(self._warm_up())
        server = StatusServer(self._routes())
        try:
            await asyncio.sleep(0)  # the child is on its way before the imports below take their time
            await self._start(server)
            await self.stop.wait()
            log.info("stopping")
        finally:
            warm.cancel()
            stuck = await self._shut_down(server)
        log.info("stopped")
        return stuck

    async def _start(self, server: StatusServer) -> None:
        options = self.options
        if options.health_address is not None:
            self.address = await server.start(options.health_address)
            log.info("status pages at http://%s/statusz", self.address)
        self._config = self._config_source()
        host = Host(options=options, reader=self.reader, config=self._config, decide=self.decide, api=self.api)
        for role in self._chosen:
            self.roles.start(role.name, _bind(role, host))
        self.services.start("config", self._follow_config)
        if options.has_api_server and options.node_name:
            self.services.start("events", self._write_events)
        log.info("kgpu %s: roles %s", __version__, ", ".join(role.name for role in self._chosen))

    def decide(self, decision: Decision) -> None:
        """Where every decision of every role goes: log, status page, Events."""
        log_decision(log, decision)
        self._decisions.append((time.time(), decision))
        self._events.take(decision)

    def api(self) -> KubeApi:
        """The API server's client, made on first use. Raises KubeError."""
        if self._api is None:
            from kgpu.kube.client import connect

            self._api = connect(self.options.kubeconfig)
        return self._api

    def reload(self) -> None:
        """Look at the configuration now (SIGHUP)."""
        log.info("SIGHUP: reading the configuration again")
        if isinstance(self._config, FileConfigSource):
            self._config.reload()

    async def _open_reader(self) -> Reader:
        from kgpu.hw.open import open_reader

        return open_reader(driver_root=self.options.root)

    async def _warm_up(self) -> None:
        with contextlib.suppress(HwError):  # the roles ask again, and tell
            await self.reader.inventory()

    def _config_source(self) -> FollowedConfig:
        options = self.options
        if options.config_file is not None:
            return FileConfigSource(options.config_file)
        if options.config_map is not None:
            from kgpu.kube.node_config import NodeConfigSource

            source = NodeConfigSource(
                self.api(),
                node=options.node_name,
                namespace=options.config_map.namespace,
                config_map=options.config_map.name,
                default=options.default_config,
                fallbacks=options.fallbacks,
            )
            return RememberedConfig(source, options.state_dir / CONFIG_MEMORY)
        return DefaultConfig()

    async def _follow_config(self, handle: RoleHandle) -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(self._config.run())
            while True:
                error = self._config.error
                if error is None:
                    handle.running()
                else:
                    handle.waiting(error.one_line())
                await asyncio.sleep(1.0)

    async def _write_events(self, handle: RoleHandle) -> None:
        from kgpu.kube.events import NodeEvents

        publisher = NodeEvents(self.api(), node=self.options.node_name)
        handle.running()
        await self._events.run(publisher)

    async def _shut_down(self, server: StatusServer) -> tuple[str, ...]:
        deadline = self.options.shutdown_seconds
        stuck = [*await self.roles.stop(deadline), *await self.services.stop(1.0)]
        closing: list[tuple[str, Coroutine[Any, Any, None]]] = [
            ("status pages", server.close()),
            ("hardware reader", self.reader.close()),
        ]
        if self._api is not None:
            closing.append(("API client", self._api.close()))
        for name, coroutine in closing:
            try:
                async with asyncio.timeout(2.0):
                    await coroutine
            except TimeoutError:
                log.error("%s did not close in time", name)  # noqa: TRY400 - where it hangs is not in the traceback
                stuck.append(name)
            except UserError as error:
                log.warning("%s: %s", name, error.one_line())
        return tuple(stuck)

    def _routes(self) -> dict[str, Any]:
        return {
            "/healthz": status.healthz,
            "/readyz": lambda: status.readyz(self.roles.statuses()),
            "/statusz": lambda: status.statusz(self._document()),
        }

    def _document(self) -> dict[str, Any]:
        now = time.monotonic()
        config = self._config.current()
        return {
            "version": __version__,
            "node": self.options.node_name,
            "uptime_seconds": round(now - self._begin, 1),
            "roles": [status.role_row(role, now) for role in self.roles.statuses()],
            "services": [status.role_row(service, now) for service in self.services.statuses()],
            "config": status.config_row(config),
            "hardware": status.hardware(self.reader.last_inventory, self.reader.last_error),
            "decisions": [{"time": round(when, 3), **status.decision_row(one)} for when, one in self._decisions],
        }


def _bind(role: Role, host: Host) -> Any:
    async def function(handle: RoleHandle) -> None:
        await role.start(host, handle)

    return function


async def serve(options: AgentOptions, roles: tuple[Role, ...]) -> tuple[str, ...]:
    """Run an agent until SIGTERM or SIGINT. Returns what did not end in time."""
    agent = Agent(options, roles)
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGHUP, agent.reload)
    with stop_on_signals(agent.stop, signal.SIGTERM, signal.SIGINT):
        return await agent.run()
