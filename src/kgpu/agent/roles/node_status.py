"""The role ``node-status``: the validator's results as metrics."""

from __future__ import annotations

import asyncio
import time
from typing import Final

from kgpu.agent.host import Host, Role, own_address, validations_dir
from kgpu.base.http import Address, Response, StatusServer
from kgpu.base.supervise import RoleHandle


async def _node_status(host: Host, handle: RoleHandle) -> None:
    """Serve ``/metrics`` on the agent's status pages, and on a port of its own if one is set."""
    from kgpu.agent.metrics_page import metrics_port, on_page
    from kgpu.formats.names import METRICS_TYPE
    from kgpu.validator.metrics import look, render

    options = host.options
    since = time.time()

    def text() -> str:
        return render(look(validations_dir(options), since=since), options.node_name)

    server = StatusServer({"/metrics": lambda: Response(200, text(), METRICS_TYPE)})
    port = metrics_port(options.env)
    with on_page(host, ROLE.name, text):
        try:
            where = "/metrics"
            if port:
                where = f"http://{await server.start(Address(own_address(options), port))}/metrics"
            handle.running(where)
            await asyncio.Event().wait()
        finally:
            await server.close()


ROLE: Final = Role(
    "node-status",
    _node_status,
    aliases=("node-status-exporter",),
    hardware=False,
    orders=("validations_dir",),
)
