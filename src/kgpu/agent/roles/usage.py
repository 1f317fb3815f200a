"""The role ``usage``: counts what this node's GPUs are used for, and by whom."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any, Final

from kgpu.agent.host import Closing, Host, Role, own_address
from kgpu.base.http import Address, StatusServer
from kgpu.base.supervise import RoleHandle
from kgpu.formats.names import ENV_CLAIMS_SHOWN, ENV_USAGE_LABELS

if TYPE_CHECKING:
    from kgpu.agent.usage_holders import UsersHolders
    from kgpu.hw.port import Reader

MOST_LABELS: Final = 64
"""Of a line's holder."""


async def _usage(host: Host, handle: RoleHandle) -> None:
    from functools import partial

    from kgpu.agent.metrics_page import metrics_port, on_page
    from kgpu.agent.usage_holders import MeasuredReader
    from kgpu.usage.node_line import about_node
    from kgpu.usage.run import UsageContext, UsageWatcher, serve, usage_store

    options = host.options
    view = MeasuredReader(host.reader)
    known = options.has_api_server and bool(options.node_name)
    async with contextlib.aclosing(Closing(view)):
        watcher = UsageWatcher(
            UsageContext(
                node=options.node_name or "node", reader=view, holders=_holders(host, view),
                store=usage_store(options.state_dir), report=host.decide, on_state=handle.report,
                labels=_labels(host), checked=host.own_work.since,
                about_node=partial(about_node, host.api, options.node_name) if known else None,
            )
        )  # fmt: skip
        port = metrics_port(options.env)
        address = Address(own_address(options), port) if port else None
        with on_page(host, ROLE.name, watcher.metrics):
            await serve(watcher, StatusServer(watcher.pages()), address)


def _holders(host: Host, reader: Reader) -> UsersHolders:
    from kgpu.agent.usage_holders import UsersHolders
    from kgpu.exporter.config import resolve
    from kgpu.exporter.users.open import open_users

    options = host.options
    flags: dict[str, Any] = {
        "kubernetes": True, "pod_resources": str(options.pod_resources_socket),
        "dra": options.env.get(ENV_CLAIMS_SHOWN, "") == "true",
    }  # fmt: skip
    known = options.has_api_server and bool(options.node_name)
    users = open_users(
        resolve(flags, {}), reader, tell=host.decide, api=host.api() if known else None, node=options.node_name,
        host_root=options.host_root, driver_root=options.root, plugins_folder=options.kubelet_socket.parent,
        namespace=options.namespace, facts=known,
    )  # fmt: skip
    return UsersHolders(users, host.config.current, _labels(host))


def _labels(host: Host) -> tuple[str, ...]:
    words = (word.strip()[:317] for word in host.options.env.get(ENV_USAGE_LABELS, "").split(","))
    return tuple(word for word in words if word)[:MOST_LABELS]


ROLE: Final = Role("usage", _usage, configured=True)
