"""The role ``exporter``: the metrics of accelerators."""

from __future__ import annotations

import contextlib
from dataclasses import replace
from typing import Any, Final

from kgpu.agent.host import Closing, Host, Role, own_address
from kgpu.base.errors import Reason
from kgpu.base.http import Address
from kgpu.base.supervise import RoleHandle
from kgpu.formats.names import ROCM_HEALTH_SOCKET


async def _exporter(host: Host, handle: RoleHandle) -> None:
    from kgpu.exporter.config import resolve
    from kgpu.exporter.context import make_context
    from kgpu.exporter.options import OPTIONS
    from kgpu.exporter.run import Exporter
    from kgpu.formats import settings as settings_of

    options = host.options
    flags = options.overrides_of(ROLE.name)
    # Beside the folder of device plugins, wherever this node's kubelet has that; and on the host, as it is seen here.
    places = {
        "pod_resources": options.pod_resources_socket,
        "amd_health_socket": options.host_root / ROCM_HEALTH_SOCKET.lstrip("/"),
    }
    given = settings_of.resolve(OPTIONS, flags=flags, env=options.env).given
    flags = {**flags, **{attr: str(place) for attr, place in places.items() if attr not in given}}
    settings = resolve(flags, options.env)
    for advice in settings.without_effect:
        host.decide(advice)
    settings = replace(settings, address=replace(settings.address, host=settings.address.host or own_address(options)))
    view = host.reader.view()
    listening: list[Address] = []

    def on_state(ready: bool, reason: Reason, why: str = "") -> None:
        port = f"port {listening[0].port}" if listening else ""
        handle.report(ready, port if ready else reason, why)

    def on_address(address: Address) -> None:
        listening.append(address)
        if handle.status.ready:
            on_state(True, "")

    async with contextlib.aclosing(Closing(view)):
        context = make_context(
            settings,
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


def _flags() -> tuple[Any, ...]:
    from kgpu.exporter.options import OPTIONS
    from kgpu.formats.exporter_flags import REFUSED, WITHOUT

    return (*OPTIONS, *WITHOUT, *REFUSED)


ROLE: Final = Role("exporter", _exporter, aliases=("dcgm-exporter", "nvidia-dcgm-exporter"), flags=_flags)
