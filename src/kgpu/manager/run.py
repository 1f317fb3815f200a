"""The manager: it leads or stands by, serves status pages, and hosts controllers.

Only the leader writes; a process that loses the lead stops writing at once and stands by. A controller whose work fails
is restarted while the others continue. If one can't follow the cluster any more, the process ends and Kubernetes
restarts it.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final

from kgpu import __version__
from kgpu.base.clock import Clock, SystemClock
from kgpu.base.http import Address, Page, Response, Routes, StatusServer, local_only
from kgpu.base.service import end, end_within, first_end
from kgpu.formats import names
from kgpu.formats.names import METRICS_TYPE
from kgpu.kube.fence import Fenced
from kgpu.kube.leader_election import Lead, LeaseTimes, LostLeadError
from kgpu.kube.port import KubeApi
from kgpu.manager.controller import LeaderController

log = logging.getLogger(__name__)

AGAIN: Final = 1.0  # seconds until a failed controller is restarted
ENDING: Final = 4.0  # seconds for what runs to end
GIVE_BACK: Final = 2.0  # seconds for releasing the Lease


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """The process's options. An address is None to serve nothing; ``lease_namespace`` is the namespace of the Lease."""

    lease_namespace: str
    lease_name: str = names.OPERATOR_LEASE
    elect: bool = True
    lease_times: LeaseTimes = field(default_factory=LeaseTimes)
    identity: str = ""
    metrics: Address | None = None
    health: Address | None = None
    pages: Routes = field(default_factory=dict)
    """What is served beside ``/metrics``."""


class ManagerProcess:
    """One process. ``run`` returns when ``stop`` is set."""

    def __init__(
        self, api: KubeApi, controllers: Sequence[LeaderController], options: Options, *, clock: Clock | None = None
    ) -> None:
        self._api = api
        self._controllers = tuple(controllers)
        self._clock = clock or SystemClock()
        self.options = options
        self.stop = asyncio.Event()
        self.addresses: dict[str, Address] = {}
        """The addresses of the pages, by ``metrics`` and ``health``."""
        self.lead = Lead(
            api,
            namespace=options.lease_namespace,
            name=options.lease_name,
            identity=options.identity or f"kgpu-operator_{uuid.uuid4()}",
            times=options.lease_times,
            clock=clock,  # None for its own
        )

    async def run(self) -> None:
        """Watch and lead until ``stop``. Raises HostError if it can't listen on an address."""
        servers = await self._serve()
        tasks = [
            asyncio.create_task(controller.watch(), name=f"{controller.name} watches")
            for controller in self._controllers
        ]
        tasks.append(asyncio.create_task(self._work(), name="work"))
        try:
            await first_end(tasks, stop=self.stop)
        finally:
            if left := await end_within(ENDING, *tasks):
                log.error("did not end within %g s, and is left: %s", ENDING, ", ".join(left))
            for server in servers:
                await server.close()
        if self.options.elect:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(GIVE_BACK):
                    await self.lead.release()
        log.info("stopped")

    async def _work(self) -> None:
        """Lead term after term."""
        while True:
            if not self.options.elect:
                await self._term(self._api, None)
                continue
            async with self.lead.leading() as renewing:
                await self._term(Fenced(self._api, self.lead.guard), renewing)

    async def _term(self, api: KubeApi, renewing: Callable[[], asyncio.Task[None]] | None) -> None:
        """Run everything that writes until the lead is lost."""
        tasks = [
            asyncio.create_task(self._keep(controller, api), name=controller.name) for controller in self._controllers
        ]
        tasks += [renewing()] if renewing else []
        try:
            await first_end(tasks)
        except LostLeadError as error:
            log.error("%s", error.one_line())  # noqa: TRY400 - it is not a defect
        except Exception:
            log.exception("leading failed and begins anew")
            await self._clock.sleep(AGAIN)
        finally:
            await end(*tasks)

    async def _keep(self, controller: LeaderController, api: KubeApi) -> None:
        """Run a controller's work, and restart it when it ends. Raises LostLeadError."""
        while True:
            try:
                await self._once(controller, api)
            except LostLeadError:
                raise
            except Exception as error:
                log.exception("the work of %s failed and begins anew", controller.name)
                controller.failed(error)
            await self._clock.sleep(AGAIN)

    async def _once(self, controller: LeaderController, api: KubeApi) -> None:
        tasks: list[asyncio.Task[None]] = []
        try:
            tasks += [asyncio.create_task(controller) for controller in controller.term(api)]
            await first_end(tasks)
        finally:
            await end(*tasks)
            controller.ended()

    async def _serve(self) -> list[StatusServer]:
        health: dict[str, Page] = {
            "/healthz": lambda: Response(200, "ok\n"),
            "/readyz": self._readyz,
            "/statusz": local_only(self._statusz),
        }
        pages: tuple[tuple[str, Address | None, dict[str, Page]], ...] = (
            ("metrics", self.options.metrics, {"/metrics": self._metrics, **self.options.pages}),
            ("health", self.options.health, health),
        )
        servers = []
        for name, address, routes in pages:
            if address is not None:
                server = StatusServer(routes)
                self.addresses[name] = await server.start(address)
                servers.append(server)
                log.info("%s at http://%s%s", name, self.addresses[name], next(iter(routes)))
        return servers

    def _metrics(self) -> Response:
        return Response(200, "".join(controller.metrics() for controller in self._controllers), METRICS_TYPE)

    def _readyz(self) -> Response:
        """200 once the cluster has been read: a process that stands by is ready to lead."""
        lines = "".join(
            f"[-] not read yet: {unread}\n" for controller in self._controllers for unread in controller.missing()
        )
        return Response(503, lines) if lines else Response(200, "ready\n")

    def _statusz(self) -> Response:
        document: dict[str, object] = {
            key: value for controller in self._controllers for key, value in controller.status().items()
        }
        document |= {
            "version": __version__,
            "leads": self.lead.in_time or not self.options.elect,
            "leader": self.lead.holder,
        }
        return Response(200, json.dumps(document, indent=2) + "\n", "application/json")
