"""How the exporter is fitted to this node: the role ``exporter``, and the same as a program of its own."""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from kgpu.agent.host import Closing, own_address
from kgpu.base.advice import AdviceSink
from kgpu.base.errors import Reason
from kgpu.base.http import Address
from kgpu.base.supervise import RoleHandle
from kgpu.exporter.config import Given, resolve
from kgpu.exporter.listed import ListedReader
from kgpu.exporter.options import OPTIONS
from kgpu.exporter.run import Exporter, ExporterContext
from kgpu.exporter.users_open import open_users
from kgpu.formats.names import KUBELET_DEVICE_PLUGIN_DIR, POD_RESOURCES_SOCKET
from kgpu.hw.port import Reader
from kgpu.hw.verdicts import VerdictFile, verdicts_path
from kgpu.kube.port import KubeApi

if TYPE_CHECKING:
    from kgpu.agent.roles import Host

_POD_RESOURCES: Final = next(option for option in OPTIONS if option.attr == "pod_resources")


async def exporter(host: Host, handle: RoleHandle) -> None:
    """The role ``exporter``."""
    options = host.options
    flags = options.exporter_overrides
    if not flags.get("pod_resources") and not any(options.env.get(name) for name in _POD_RESOURCES.envs):
        # Beside the folder of device plugins, wherever this node's kubelet has that.
        socket_there = options.kubelet_socket.parent.parent.joinpath(*Path(POD_RESOURCES_SOCKET).parts[-2:])
        flags = {**flags, _POD_RESOURCES.attr: str(socket_there)}
    given = resolve(flags, options.env)
    given = replace(given, address=replace(given.address, host=given.address.host or own_address(options)))
    view = host.reader.view()
    listening: list[Address] = []

    def on_state(ready: bool, reason: Reason) -> None:
        if ready:
            handle.running(f"port {listening[0].port}" if listening else "")
        else:
            handle.waiting(reason)

    def on_address(address: Address) -> None:
        listening.append(address)
        if handle.status.ready:
            on_state(True, "")

    async with contextlib.aclosing(Closing(view)):
        context = make_context(
            given,
            view,
            report=host.decide,
            api=host.api() if options.has_api_server else None,
            node=options.node_name,
            host_root=str(options.host_root),
            driver_root=options.root,
            plugins_folder=options.kubelet_socket.parent,
            env=options.env,
            on_state=on_state,
            on_address=on_address,
        )
        await Exporter(context).run()


def make_context(
    given: Given,
    reader: Reader,
    *,
    report: AdviceSink,
    api: KubeApi | None,
    node: str,
    host_root: str,
    driver_root: Path | None,
    plugins_folder: Path = Path(KUBELET_DEVICE_PLUGIN_DIR),
    env: Mapping[str, str] | None = None,
    **more: Any,
) -> ExporterContext:
    """What the exporter works with on this node; ``more`` are further fields of it."""
    env = os.environ if env is None else env
    reader = ListedReader(reader)
    return ExporterContext(
        reader=reader,
        users=open_users(
            given,
            reader,
            tell=report,
            api=api,
            node=node,
            host_root=Path(host_root),
            driver_root=driver_root,
            plugins_folder=plugins_folder,
            namespace=env.get("NAMESPACE", ""),
        ),
        given=given,
        hostname=env.get("NODE_NAME") or node or socket.gethostname(),
        report=report,
        api=_again(api),
        verdicts=VerdictFile(verdicts_path(host_root, env)),
        xid_text=_xid_text,
        **more,
    )


def _again(api: KubeApi | None) -> Callable[[], KubeApi] | None:
    return None if api is None else lambda: api


def _xid_text(code: int) -> str:
    from kgpu.formats.xid.catalogue import short_name

    return short_name(code)
