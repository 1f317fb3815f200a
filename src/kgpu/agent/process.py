"""What both forms of the agent share: advice and where it goes, the API client, status pages, an orderly end."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import ChainMap, deque
from collections.abc import Coroutine, Iterable
from typing import Any, Final, Protocol

from kgpu import __version__
from kgpu.agent import status
from kgpu.agent.events import EventQueue
from kgpu.agent.options import AgentOptions
from kgpu.base.advice import Advice
from kgpu.base.backoff import BackoffPolicy
from kgpu.base.errors import UserError
from kgpu.base.http import Address, Page, Routes, StatusServer
from kgpu.base.log import log_advice
from kgpu.base.supervise import RoleHandle, RoleStatus, Supervisor
from kgpu.kube.port import KubeApi

log = logging.getLogger(__name__)

# A node's agent talks to few others, so it may retry soon: a driver or socket that appears is used within seconds.
POLICY: Final = BackoffPolicy(first=0.25, cap=5.0, factor=2.0, jitter=0.3, healthy_after=30.0)
ADVICE_KEPT: Final = 50


class Followed(Protocol):
    """Something that stays up to date while ``run`` runs; ``error`` is why it may be out of date."""

    @property
    def error(self) -> UserError | None: ...

    async def run(self) -> None: ...


async def follow(followed: Followed, handle: RoleHandle) -> None:
    """A service: run ``followed``, and report its state."""
    async with asyncio.TaskGroup() as group:
        group.create_task(followed.run())
        while True:
            error = followed.error
            if error is None:
                handle.running()
            else:
                handle.waiting(error)
            await asyncio.sleep(1.0)


class AgentProcess:
    """The common part of both agents; ``stop`` ends the agent."""

    def __init__(self, options: AgentOptions, *, api: KubeApi | None = None) -> None:
        self.options = options
        self.stop = asyncio.Event()
        self.address: Address | None = None
        self.services = Supervisor(policy=POLICY, on_advice=self.decide)
        self._begin = time.monotonic()
        self._advice: deque[tuple[float, Advice]] = deque(maxlen=ADVICE_KEPT)
        self._events = EventQueue()
        self._api = api
        self.pages: dict[str, Page] = {}  # the roles' pages, besides those that every agent has
        self.offered: dict[str, int] = {}  # what the device plugin offers: healthy devices by resource

    def decide(self, advice: Advice) -> None:
        """Take the advice of a role, for the log, the status page and Events."""
        log_advice(log, advice)
        self._advice.append((time.time(), advice))
        self._events.take(advice)

    def api(self) -> KubeApi:
        """The API server's client, made on first use. Raises KubeError."""
        if self._api is None:
            from kgpu.kube.client import connect

            self._api = connect(self.options.kubeconfig)
        return self._api

    async def serve_pages(self, routes: Routes) -> StatusServer:
        """Serve the status pages at the address in the options, if there is one."""
        server = StatusServer(ChainMap(dict(routes), self.pages))
        if self.options.health_address is not None:
            self.address = await server.start(self.options.health_address)
            log.info("status pages at http://%s/statusz", self.address)
        return server

    async def write_events(self, handle: RoleHandle) -> None:
        """A service: write advice as Events about this node."""
        from kgpu.kube.events import NodeEvents

        publisher = NodeEvents(self.api(), node=self.options.node_name)
        handle.running()
        await self._events.run(publisher)

    def document(self, roles: Iterable[RoleStatus], **more: Any) -> dict[str, Any]:
        """The content of ``/statusz``, with ``more`` between the services and the advice."""
        now = time.monotonic()
        return {
            "version": __version__,
            "node": self.options.node_name,
            "uptime_seconds": round(now - self._begin, 1),
            "roles": [status.role_row(role, now) for role in roles],
            "services": [status.role_row(service, now) for service in self.services.statuses()],
            **more,
            "decisions": [{"time": round(when, 3), **status.advice_row(advice)} for when, advice in self._advice],
        }

    async def close_all(self, closing: Iterable[tuple[str, Coroutine[Any, Any, None]]]) -> list[str]:
        """Close each, and the API client; returns the names of what did not close in time."""
        stuck: list[str] = []
        also = [("API client", self._api.close())] if self._api is not None else []
        for name, coroutine in (*closing, *also):
            try:
                async with asyncio.timeout(2.0):
                    await coroutine
            except TimeoutError:
                log.error("%s did not close in time", name)  # noqa: TRY400 - where it hangs is not in the traceback
                stuck.append(name)
            except UserError as error:
                log.warning("%s: %s", name, error.one_line())
        return stuck
