"""The role ``mig-manager``: cuts this node's GPUs into the MIG slices that its Node's label names."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from kgpu.agent.host import Closing, Host, Role
from kgpu.agent.options import AgentOptions
from kgpu.base.errors import ConfigError
from kgpu.base.supervise import RoleHandle
from kgpu.formats import names
from kgpu.kube.port import KubeApi

if TYPE_CHECKING:
    from kgpu.agent.config_file import FileConfigSource
    from kgpu.hw.port import HardwareEvent, Inventory, Process, Reader
    from kgpu.kubelet.pod_resources import Holdings
    from kgpu.mig.manager.configs import ConfigLookup
    from kgpu.mig.manager.host_services import ClientServices
    from kgpu.mig.manager.run import MigManagerContext
    from kgpu.mig.survey import SurveyedGpu

NAME: Final = "mig-manager"
CLOSED: Final = "the MIG manager resets a GPU"


async def _mig_manager(host: Host, handle: RoleHandle) -> None:
    from kgpu.base.service import first_end, running
    from kgpu.formats.settings import resolve, without_effect
    from kgpu.mig.manager.configs import ConfigLookup
    from kgpu.mig.manager.run import run

    options = host.options
    if not (options.has_api_server and options.node_name):
        raise ConfigError(
            "the MIG manager has no Node to follow", "an API server, and this node's name", "set NODE_NAME"
        )
    settings = resolve(_flags(), flags=options.overrides_of(NAME), env=options.env)
    for advice in without_effect(_flags(), settings):
        host.decide(advice)
    given = _sources(settings.values["config_file"])
    defaults = _sources(settings.values["default_config_file"])
    lookup = ConfigLookup(given=given, defaults=defaults)
    view = host.reader.view()
    async with contextlib.aclosing(Closing(view)):
        context = _context(host, handle, settings.values, lookup, view)
        following = {f"mig_file_{number}": source.run() for number, source in enumerate((*given, *defaults))}
        async with running(mig_manager=run(context), **following) as tasks:
            await first_end(tasks)


def _flags() -> tuple[Any, ...]:
    from kgpu.formats.mig_manager_flags import ROLE_FLAGS

    return ROLE_FLAGS


def _sources(path: str) -> tuple[FileConfigSource, ...]:
    """The file, and the same under the other key that its ConfigMap may have."""
    from kgpu.agent.config_file import FileConfigSource

    if not path:
        return ()
    file = Path(path)
    keys = names.MIG_LAYOUTS_KEYS
    others = [file.with_name(name) for name in keys if name != file.name] if file.name in keys else []
    return tuple(FileConfigSource(one) for one in (file, *others))


def _context(
    host: Host, handle: RoleHandle, values: Mapping[str, Any], lookup: ConfigLookup, view: Reader
) -> MigManagerContext:
    from kgpu.base.boot import boot_id
    from kgpu.base.clock import SystemClock
    from kgpu.hw.follow import follow_events
    from kgpu.kubelet.pod_resources import PodResources
    from kgpu.mig.gpu_users import open_driver
    from kgpu.mig.lock import alone, run_folder
    from kgpu.mig.manager.cutting import NodeCutter
    from kgpu.mig.manager.memory import FILE_NAME, MemoryFile
    from kgpu.mig.manager.run import MigManagerContext

    options, boot = host.options, boot_id()
    root = str(options.root or "/")
    services = _services(options, values)

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
            open_driver=partial(open_driver, root), memory=MemoryFile(options.state_dir / FILE_NAME, boot=boot),
            alone=partial(alone, run_folder(root, options.env)),
            services=services.stopped if services is not None else contextlib.nullcontext,
        ),
        lookup=lookup,
        operations=options.env.get(names.ENV_MIG_OPERATIONS) == "true",
        namespace=options.env.get("POD_NAMESPACE") or options.namespace,
        holders=partial(_holders, view, PodResources(options.pod_resources_socket, in_pod=options.in_pod)),
        closed=partial(_closed, host),
        news=host.reader.changed, vendor=vendor, hear=hear, on_state=handle.report,
    )  # fmt: skip


def _services(options: AgentOptions, values: Mapping[str, Any]) -> ClientServices | None:
    """The host's services that are to be stopped for a reset, None if none are."""
    from kgpu.mig.manager.host_services import FILE_NAME, ClientServices, host_call

    if not (values["stop_clients"] and values["clients_file"]):
        return None
    given = Path(values["host_root"])
    root = given if given.is_dir() else options.host_root
    return ClientServices(
        clients=values["clients_file"], record=options.state_dir / FILE_NAME, call=host_call(root)
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
    reader: Reader, kubelet: Holdings, gpus: Sequence[SurveyedGpu]
) -> Mapping[str, Sequence[str]]:  # fmt: skip
    """Pods that have a GPU or a part of it, and processes on it, by UUID. Raises KubeletError, HwError."""
    held = await kubelet.holdings()
    inventory = await reader.inventory()
    processes = await reader.processes()
    return {
        found.uuid: (*_pods(found.uuid, held, inventory), *_processes(found.uuid, processes))
        for found in gpus
        if found.uuid
    }


def _pods(uuid: str, held: Sequence[Any], inventory: Inventory) -> list[str]:
    from kgpu.agent import node_orders
    from kgpu.formats.node_order import OrderStep, order

    asked = order(act="holders", boot="holders", step=OrderStep.WITHDRAW, gpus=(uuid,))
    return [f"pod {pod.namespace}/{pod.name}" for pod in node_orders.holders(asked, held, inventory)]


def _processes(uuid: str, processes: Sequence[Process]) -> list[str]:
    return [f"process {pid}" for pid in dict.fromkeys(one.pid for one in processes if one.uuid == uuid)]


async def _withdraw(api: KubeApi, options: AgentOptions) -> None:
    """Remove what was said of the label. Raises KubeError."""
    from kgpu.mig.manager.publish import withdraw

    await withdraw(api, options.node_name)


ROLE: Final = Role(NAME, _mig_manager, aliases=("nvidia-mig-manager",), flags=_flags, withdraw=_withdraw, cuts=True)
