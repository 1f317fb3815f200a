"""The role ``deviceplugin``: offers accelerators to the kubelet, once the validator allows it."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from kgpu.agent.host import Closing, Host, Role, behind_gate, configured, verdicts
from kgpu.agent.host_files import HostFiles
from kgpu.agent.options import AgentOptions
from kgpu.base.supervise import RoleHandle
from kgpu.formats.config_choice import ConfigText

if TYPE_CHECKING:
    from kgpu.agent.plugin_specs import PluginSpecs
    from kgpu.deviceplugin.config import PluginSettings
    from kgpu.deviceplugin.run import CdiChanges, CdiWriter
    from kgpu.hw.port import Inventory


async def _device_plugin(host: Host, handle: RoleHandle) -> None:
    from kgpu.agent.claimed_gpus import ClaimedGpus, claims_folders
    from kgpu.base.boot import boot_id
    from kgpu.base.service import first_end, running
    from kgpu.deviceplugin.run import DevicePluginContext, run

    options = host.options
    withheld = ClaimedGpus(host.ordered, claims_folders(options.kubelet_folder / "plugins"), boot=boot_id())
    await configured(host, handle)
    view = host.reader.view()

    def offer(healthy: Mapping[str, int]) -> None:
        host.offered.clear()
        host.offered.update(healthy)

    async with contextlib.AsyncExitStack() as stack:
        await stack.enter_async_context(contextlib.aclosing(Closing(view)))
        proven = await stack.enter_async_context(behind_gate(host, view))
        await proven.opened(handle.waiting)
        stack.callback(host.offered.clear)
        write, changes = _specs(options, host.files)
        plugin = run(
            DevicePluginContext(
                reader=proven.reader,
                config=host.config,
                report=host.decide,
                state_dir=options.state_dir,
                kubelet_socket=options.kubelet_socket,
                cdi_dir=options.cdi_dir,
                overrides=options.overrides_of(ROLE.name),
                env=options.env,
                cdi_writer=write,
                cdi_changes=changes,
                verdicts=verdicts(options),
                orders=withheld,
                host_root=options.host_root,
                on_state=handle.report,
                on_offer=offer,
            )
        )
        async with running(device_plugin=plugin, claims=withheld.run()) as tasks:
            await first_end(tasks)


def _specs(options: AgentOptions, files: HostFiles | None) -> tuple[CdiWriter, CdiChanges]:
    """The function that writes the CDI specs for answers, and the stream of events after which they may be outdated."""
    writers: list[PluginSpecs] = []
    written, loop = asyncio.Event(), asyncio.get_running_loop()

    def write(inventory: Inventory, settings: PluginSettings) -> None:
        if not writers:  # imported only where answers refer to CDI
            from kgpu.agent.plugin_specs import PluginSpecs

            writers.append(
                PluginSpecs(options.root or Path("/"), options.cdi_dir, on_write=files.wrote if files else None)
            )
            loop.call_soon_threadsafe(written.set)
        writers[0](inventory, settings)

    async def changes() -> AsyncIterator[None]:
        await written.wait()
        async for change in writers[0].changes():
            yield change

    return write, changes


def _flags() -> tuple[Any, ...]:
    from kgpu.deviceplugin.config import FLAGS

    return FLAGS


def _agree(options: AgentOptions, config: ConfigText) -> None:
    from kgpu.deviceplugin.config import resolve
    from kgpu.formats.plugin_config_parse import parse_config

    text = parse_config(config.text, source=config.name)
    resolve(text, overrides=options.overrides_of(ROLE.name), env=options.env)


ROLE: Final = Role(
    "deviceplugin",
    _device_plugin,
    aliases=("device-plugin", "nvidia-device-plugin"),
    flags=_flags,
    orders=("validations_dir",),
    configured=True,
    agree=_agree,
)
