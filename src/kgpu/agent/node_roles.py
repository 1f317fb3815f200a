"""How the validator, the toolkit, the status metrics and the device plugin's gate are fitted to this node.

Beside ``roles`` only so that each file stays short; the rows of the table are there.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator
from functools import partial
from typing import TYPE_CHECKING, Any

from kgpu.agent.host import Closing, driver_root, on_state, own_address, validations_dir
from kgpu.agent.options import AgentOptions
from kgpu.base.errors import ConfigError
from kgpu.base.http import Address, Response, StatusServer
from kgpu.base.supervise import RoleHandle
from kgpu.formats.names import (
    CDI_STATIC_DIR,
    ENV_KGPU_TOOLKIT,
    ENV_METRICS_PORT,
)
from kgpu.hw.nvidia import roots
from kgpu.hw.port import Reader
from kgpu.kube.port import KubeApi

if TYPE_CHECKING:
    from kgpu.agent.roles import Host


def _has_toolkit(options: AgentOptions) -> bool:
    return options.toolkit_expected and options.env.get(ENV_KGPU_TOOLKIT, "true").lower() != "false"


async def validator(host: Host, handle: RoleHandle) -> None:
    """The role ``validator``."""
    from kgpu.validator.config import Settings, recheck_seconds, skipped_checks
    from kgpu.validator.cuda import ChildCuda
    from kgpu.validator.publish import NodeObject
    from kgpu.validator.run import ValidatorContext, run

    options = host.options
    root = driver_root(options)
    seen = str(options.root or "/")
    known = options.has_api_server and options.node_name
    node = NodeObject(host.api(), node=options.node_name) if known else None
    view = host.reader.view()
    async with contextlib.aclosing(Closing(view)):
        await run(
            ValidatorContext(
                reader=view,
                root=root,
                runner=ChildCuda(root, env=options.env),
                settings=Settings(
                    folder=validations_dir(options),
                    cdi_dirs=(options.host_root / CDI_STATIC_DIR.lstrip("/"), options.cdi_dir),
                    skip=skipped_checks(options.env, toolkit=_has_toolkit(options)),
                    host_root=options.host_root,
                    recheck_seconds=recheck_seconds(options.env),
                ),
                report=host.decide,
                node=node,
                publisher=node,
                offered=lambda: host.offered,
                plugin_off=partial(host.off, "deviceplugin"),
                proc=roots.proc_root(seen),
                sys=roots.sys_root(seen),
                on_state=partial(on_state, handle),
            )
        )


async def withdraw_validator(api: KubeApi, options: AgentOptions) -> None:
    """Take the condition and the files away. Raises KubeError, HostError."""
    from kgpu.validator.files import Folder
    from kgpu.validator.publish import NodeObject

    Folder(validations_dir(options)).clear()
    await NodeObject(api, node=options.node_name).withdraw()


async def toolkit(host: Host, handle: RoleHandle) -> None:
    """The role ``toolkit``."""
    from kgpu.agent import toolkit_parts

    await toolkit_parts.toolkit(host, handle)


async def withdraw_toolkit(api: KubeApi, options: AgentOptions) -> None:
    """Take away what the toolkit has put on this node. Raises HostError."""
    from kgpu.agent import toolkit_parts

    await toolkit_parts.withdraw(api, options)


async def node_status(host: Host, handle: RoleHandle) -> None:
    """The role ``node-status``: ``/metrics`` on the agent's status pages, and on a port of its own when told one."""
    from kgpu.validator.metrics import CONTENT_TYPE, look, render

    options = host.options
    since = time.time()

    def page() -> Response:
        seen = look(validations_dir(options), since=since)
        return Response(200, render(seen, options.node_name), CONTENT_TYPE)

    server = StatusServer({"/metrics": page})
    port = _port(options.env.get(ENV_METRICS_PORT, ""))
    host.pages["/metrics"] = page
    try:
        where = "/metrics"
        if port:
            where = f"http://{await server.start(Address(own_address(options), port))}/metrics"
        handle.running(where)
        await asyncio.Event().wait()
    finally:
        host.pages.pop("/metrics", None)
        await server.close()


def _port(text: str) -> int:
    """Raises ConfigError."""
    if not text:
        return 0
    if not text.isascii() or not text.isdecimal() or int(text) > 65535:
        raise ConfigError(
            f"{ENV_METRICS_PORT} is {text!r:.40}", "a port number, 0 for none", f"correct {ENV_METRICS_PORT}"
        )
    return int(text)


@contextlib.asynccontextmanager
async def behind_gate(host: Host, handle: RoleHandle, reader: Reader) -> AsyncIterator[Any]:
    """The reader for the device plugin: entered once the validator lets anything be offered, where it is waited for."""
    folder = host.options.validations_dir
    if folder is None:
        yield reader
        return
    from kgpu.agent.gate import Gate, GatedReader
    from kgpu.base.boot import boot_id

    gate = Gate(folder, boot=boot_id(), stopped=partial(host.stopped, "validator"))
    async with gate.following():
        await gate.opened(reader, handle.waiting)
        through = GatedReader(reader, gate)
        try:
            yield through
        finally:
            await through.close()
