"""Sets up the follower of orders for operations on GPUs, with what this agent and its roles have."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import AsyncIterator, Callable, Iterable
from pathlib import Path

from kgpu.agent.driver_place import DriverPlace
from kgpu.agent.host import verdicts
from kgpu.agent.options import AgentOptions
from kgpu.agent.order_follower import OrderContext, OrderFollower
from kgpu.agent.order_peers import OrderPeers
from kgpu.agent.ordered import OrderedGpus
from kgpu.agent.orders import Orders
from kgpu.agent.role_decisions import why_stopped
from kgpu.agent.roles import ROLES
from kgpu.agent.shared_reader import SharedReader
from kgpu.agent.slot import SharedReaders, Slot
from kgpu.kube.port import KubeApi
from kgpu.kubelet.pod_resources import PodResources


def reading_roles(orders: Orders) -> tuple[str, ...]:
    """The roles on this node, in whichever process, that read the driver."""
    config = orders.config
    roles = [role.name for role in ROLES if role.hardware] if config is not None else []
    return tuple(name for name in roles if config is not None and not why_stopped(config, orders.labels, name))


def why_uncut(orders: Orders, vendor: str) -> str:
    """Why no process of this node runs the role that parts a vendor's GPUs, "" if one does or nothing is known."""
    config = orders.config
    roles = [role.name for role in ROLES if role.cuts == vendor]
    if config is None:
        return ""
    return next((why_stopped(config, orders.labels, name) for name in roles), "this agent has no role for it")


def make_follower(
    options: AgentOptions, orders: Orders, ordered: OrderedGpus, readers: SharedReaders, *,
    api: Callable[[], KubeApi], place: Callable[[], DriverPlace | None], slots: Iterable[Slot], alone: bool = True,
) -> OrderFollower:  # fmt: skip
    """``place()`` is where the driver is, for an agent none of whose roles reads it now. ``alone``: no other agent is
    on this node.
    """
    slots = tuple(slots)
    own = {slot.role.name for slot in slots if slot.role.hardware}
    file = verdicts(options)
    peers = None if alone else OrderPeers(file.path.parent.parent, own, lambda: reading_roles(orders))

    @contextlib.asynccontextmanager
    async def reader() -> AsyncIterator[SharedReader]:
        if readers.latest is not None:
            yield readers.latest
            return
        found = place()
        root = None if found is None or found.seen == Path("/") else found.seen
        async with readers.own(dataclasses.replace(options, root=root)) as lent:
            yield lent

    def was_reset(gpus: tuple[str, ...]) -> None:
        for slot in slots:
            if slot.role.was_reset is not None and slot.running is not None:
                slot.role.was_reset(slot.running, gpus)

    return OrderFollower(
        OrderContext(
            api=api, own=orders, node=options.node_name, ordered=ordered, readers=readers, reader=reader,
            holdings=PodResources(options.pod_resources_socket, in_pod=options.in_pod),
            verdicts=file.read, was_reset=was_reset, peers=peers,
            cuts=lambda vendor: any(slot.role.cuts == vendor for slot in slots),
            uncut=lambda vendor: why_uncut(orders, vendor),
        )
    )  # fmt: skip
