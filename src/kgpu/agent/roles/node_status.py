"""The role ``node-status``: the validator's results as metrics."""

from __future__ import annotations

import asyncio
import time
from typing import Final

from kgpu.agent.host import Host, Role, own_address, validations_dir
from kgpu.base.errors import ConfigError
from kgpu.base.http import Address, Response, StatusServer
from kgpu.base.supervise import RoleHandle
from kgpu.formats.names import ENV_METRICS_PORT


async def _node_status(host: Host, handle: RoleHandle) -> None:
    """Serve ``/metrics`` on the agent's status pages, and on a port of its own if one is set."""
    from kgpu.agent.metrics_page import on_page
    from kgpu.formats.names import METRICS_TYPE
    from kgpu.validator.metrics import look, render

    options = host.options
    since = time.time()

    def text() -> str:
        return render(look(validations_dir(options), since=since), options.node_name)

    server = StatusServer({"/metrics": lambda: Response(200, text(), METRICS_TYPE)})
    port = _port(options.env.get(ENV_METRICS_PORT, ""))
    with on_page(host, ROLE.name, text):
        try:
            where = "/metrics"
            if port:
                where = f"http://{await server.start(Address(own_address(options), port))}/metrics"
            handle.running(where)
            await asyncio.Event().wait()
        finally:
            await server.close()


def _port(text: str) -> int:
    """Read a port number, 0 for none. Raises ConfigError."""
    if not text:
        return 0
    if not text.isascii() or not text.isdecimal() or int(text) > 65535:
        raise ConfigError(
            f"{ENV_METRICS_PORT} is {text!r:.40}", "a port number, 0 for none", f"correct {ENV_METRICS_PORT}"
        )
    return int(text)


ROLE: Final = Role(
    "node-status",
    _node_status,
    aliases=("node-status-exporter",),
    hardware=False,
    orders=("validations_dir",),
)
