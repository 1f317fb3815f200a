"""The agent with fixed roles: one process per node that hosts them and the hardware child that they share.

Promises: a role that lacks something (driver, kubelet socket, API server) waits and names it while the others run; a
changed configuration needs no restart; SIGTERM ends everything within the deadline, and what does not end is named and
ends with the process. The child starts first, because opening a driver takes longest.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
from collections.abc import Awaitable, Callable
from typing import Any

from kgpu import __version__
from kgpu.agent import status
from kgpu.agent.config_file import FileConfigSource
from kgpu.agent.host import Host, Role
from kgpu.agent.options import AgentOptions
from kgpu.agent.process import POLICY, AgentProcess, follow
from kgpu.agent.remembered_config import CONFIG_MEMORY, DefaultConfig, FollowedConfig, RememberedConfig
from kgpu.agent.shared_reader import SharedReader
from kgpu.base.errors import HwError
from kgpu.base.http import StatusServer, local_only
from kgpu.base.supervise import RoleHandle, Supervisor, stop_on_signals
from kgpu.hw.port import Reader
from kgpu.kube.port import KubeApi

log = logging.getLogger(__name__)


class Agent(AgentProcess):
    """One agent. ``run`` returns when ``stop`` is set. ``open_reader`` and ``api`` stand in for the real ones."""

    def __init__(
        self,
        options: AgentOptions,
        roles: tuple[Role, ...],
        *,
        open_reader: Callable[[], Awaitable[Reader]] | None = None,
        api: KubeApi | None = None,
    ) -> None:
        super().__init__(options, api=api)
        self._chosen = roles
        self.reader = SharedReader(open_reader or self._open_reader)
        self.roles = Supervisor(policy=POLICY, on_advice=self.decide)
        self._config: FollowedConfig = DefaultConfig()

    async def run(self) -> tuple[str, ...]:
        """Host the roles until ``stop``. Returns the names of what did not end. Raises UserError if it can't start."""
        warm = asyncio.create_task(self._warm_up())
        server: StatusServer | None = None
        try:
            await asyncio.sleep(0)  # let the child start before the slow imports below
            server = await self.serve_pages(self._routes())
            self._start()
            await self.stop.wait()
            log.info("stopping")
        finally:
            warm.cancel()
            stuck = await self._shut_down(server)
        log.info("stopped")
        return stuck

    def _start(self) -> None:
        options = self.options
        self._config = self._config_source()
        host = Host(
            options=options,
            reader=self.reader,
            config=self._config,
            decide=self.decide,
            api=self.api,
            pages=self.pages,
            offered=self.offered,
        )
        for role in self._chosen:
            self.roles.start(role.name, _bind(role, host))
        self.services.start("config", self._follow_config)
        if options.has_api_server and options.node_name:
            self.services.start("events", self.write_events)
        log.info("kgpu %s: roles %s", __version__, ", ".join(role.name for role in self._chosen))

    def reload(self) -> None:
        """Read the configuration file again (SIGHUP)."""
        log.info("SIGHUP: reading the configuration again")
        if isinstance(self._config, FileConfigSource):
            self._config.reload()

    async def _open_reader(self) -> Reader:
        from kgpu.hw.open import open_reader

        return open_reader(driver_root=self.options.root)

    async def _warm_up(self) -> None:
        with contextlib.suppress(HwError):  # the roles ask again and report it
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
        await follow(self._config, handle)

    async def _shut_down(self, server: StatusServer | None) -> tuple[str, ...]:
        stuck = [*await self.roles.stop(self.options.shutdown_seconds), *await self.services.stop(1.0)]
        closing = [("hardware reader", self.reader.close())]
        if server is not None:
            closing.insert(0, ("status pages", server.close()))
        return (*stuck, *await self.close_all(closing))

    def _routes(self) -> dict[str, Any]:
        return {
            "/healthz": status.healthz,
            "/readyz": lambda: status.readyz(self.roles.statuses()),
            "/statusz": local_only(lambda: status.statusz(self._document())),
        }

    def _document(self) -> dict[str, Any]:
        return self.document(
            self.roles.statuses(),
            config=status.config_row(self._config.current()),
            hardware=status.hardware(self.reader.last_inventory, self.reader.last_error),
        )


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
