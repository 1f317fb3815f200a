"""What the roles that part GPUs have in common: the manager's context, from what this agent has.

Both follow a label of the Node, and make changes that the operator orders (``OrderedGpus``). Who uses a GPU is what the
kubelet and the driver say.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from kgpu.formats import names

if TYPE_CHECKING:
    from kgpu.agent.host import Host
    from kgpu.agent.shared_reader import SharedReader
    from kgpu.base.supervise import RoleHandle
    from kgpu.hw.port import HardwareEvent, Inventory, Process, Reader
    from kgpu.kubelet.pod_resources import Holdings
    from kgpu.mig.manager.configs import ConfigSource
    from kgpu.mig.manager.host_services import ClientServices
    from kgpu.mig.manager.kind import FoundGpu, LayoutKind
    from kgpu.mig.manager.run import MigManagerContext

CLOSED: Final = "GPUs are parted otherwise, for which no program may have the driver open"


def make_context(
    host: Host, handle: RoleHandle, view: Reader, kind: LayoutKind, *, file: str, sources: Sequence[ConfigSource],
    services: ClientServices | None,
) -> MigManagerContext:  # fmt: skip
    """The context of a manager of this kind; ``file`` is the name of its record."""
    from kgpu.base.boot import boot_id
    from kgpu.base.clock import SystemClock
    from kgpu.hw.follow import follow_events
    from kgpu.kubelet.pod_resources import PodResources
    from kgpu.mig.lock import alone, run_folder
    from kgpu.mig.manager.cutting import NodeCutter
    from kgpu.mig.manager.memory import MemoryFile
    from kgpu.mig.manager.run import MigManagerContext

    options, boot = host.options, boot_id()
    kubelet = PodResources(options.pod_resources_socket, in_pod=options.in_pod)
    root = str(options.root or "/")

    async def vendor() -> str:
        return (await view.inventory()).vendor

    async def hear(wake: Callable[[], None]) -> None:
        def heard(event: HardwareEvent) -> None:
            from kgpu.hw.port import EventKind

            if event.kind is EventKind.INVENTORY:
                wake()

        await follow_events(view, heard, clock=SystemClock(), missed=wake)

    return MigManagerContext(
        api=host.api, node=options.node_name, boot=boot, orders=host.ordered, report=host.decide,
        cutter=NodeCutter(
            kind=kind, memory=MemoryFile(options.state_dir / file, boot=boot),
            alone=partial(alone, run_folder(root, options.env)),
            services=services.stopped if services is not None else contextlib.nullcontext,
        ),
        sources=sources,
        operations=options.env.get(names.ENV_MIG_OPERATIONS) == "true",
        namespace=options.env.get("POD_NAMESPACE") or options.namespace,
        holders=partial(_holders, host.reader, kubelet), stranded=partial(_stranded, view, kubelet),
        closed=partial(_closed, host),
        news=host.reader.changed, vendor=vendor, hear=hear, on_state=handle.report,
    )  # fmt: skip


@contextlib.asynccontextmanager
async def _closed(host: Host) -> AsyncIterator[None]:
    """Within the block no role of this process has the driver open."""
    host.reader.hold(CLOSED)
    try:
        await host.reader.let_go()
        yield
    finally:
        host.reader.reopen()


async def _holders(
    reader: SharedReader, kubelet: Holdings, gpus: Sequence[FoundGpu]
) -> Mapping[str, Sequence[str]]:  # fmt: skip
    """Pods that have a GPU or a part of it, and processes on it, by UUID, as of now: GPUs are cut by it. Raises
    KubeletError, HwError.
    """
    held = await kubelet.holdings()
    inventory = await reader.inventory()
    processes = await reader.fresh_processes()
    return {
        found.uuid: (*_pods(found.uuid, held, inventory), *_processes(found.uuid, processes))
        for found in gpus
        if found.uuid
    }


async def _stranded(reader: Reader, kubelet: Holdings) -> tuple[str, ...]:
    """The pods that hold parts of GPUs that are gone. Raises KubeletError, HwError."""
    from kgpu.agent import node_orders

    held = await kubelet.holdings()
    return tuple(
        f"{pod.namespace}/{pod.name}" for pod in node_orders.stranded(held, await reader.inventory())
    )  # fmt: skip


def _pods(uuid: str, held: Sequence[Any], inventory: Inventory) -> list[str]:
    from kgpu.agent import node_orders
    from kgpu.formats.node_order import OrderStep, order

    asked = order(act="holders", boot="holders", step=OrderStep.WITHDRAW, gpus=(uuid,))
    return [f"pod {pod.namespace}/{pod.name}" for pod in node_orders.holders(asked, held, inventory)]


def _processes(uuid: str, processes: Sequence[Process]) -> list[str]:
    return [f"process {pid}" for pid in dict.fromkeys(one.pid for one in processes if one.uuid == uuid)]
