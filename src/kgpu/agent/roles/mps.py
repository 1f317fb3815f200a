"""The role ``mps``: the control daemons of GPUs that the device plugin offers as shared by MPS."""

from __future__ import annotations

import contextlib
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from kgpu.agent.host import DRIVER_PLACE, Closing, Host, Role, configured
from kgpu.agent.options import AgentOptions
from kgpu.base.supervise import RoleHandle
from kgpu.formats.config_choice import ConfigText
from kgpu.formats.mps_folders import MPS_CONTAINER_ROOT
from kgpu.formats.names import ENV_MPS_FOLDER

if TYPE_CHECKING:
    from kgpu.deviceplugin.config import PluginSettings
    from kgpu.hw.port import Accelerator, Inventory
    from kgpu.mps.model import MpsOrder, SharedGpu


async def _mps(host: Host, handle: RoleHandle) -> None:
    from kgpu.mps.driver import DriverMps
    from kgpu.mps.programs import DriverPrograms
    from kgpu.mps.record import FILE_NAME
    from kgpu.mps.run import MpsContext, run

    options = host.options
    await configured(host, handle)
    programs = DriverPrograms(str(options.root or "/"))
    view = host.reader.view()
    async with contextlib.aclosing(Closing(view)):
        await run(
            MpsContext(
                reader=view,
                config=host.config,
                order=partial(order_of, options),
                driver=DriverMps(programs),
                record=options.state_dir / FILE_NAME,
                report=host.decide,
                shared_memory=not programs.simulated,
                on_state=handle.report,
            )
        )


def order_of(options: AgentOptions, config: ConfigText, inventory: Inventory) -> MpsOrder:
    """What the device plugin offers as shared by MPS, by its own plan. Raises ConfigError."""
    from kgpu.deviceplugin.plan import plan
    from kgpu.formats.plugin_config import SharingKind
    from kgpu.mps.model import MpsOrder, MpsShare

    if config.problem is not None:
        raise config.problem
    settings = _settings(options, config)
    if settings.sharing is None or settings.sharing.kind is not SharingKind.MPS:
        return MpsOrder()
    known = {gpu.uuid: gpu for gpu in inventory.accelerators}
    shares = []
    for resource in plan(inventory.accelerators, settings).resources:
        replicas: dict[str, int] = {}
        for device in resource.devices:
            if device.is_replica and device.unit.uuid in known:
                replicas[device.unit.uuid] = replicas.get(device.unit.uuid, 0) + 1
        if resource.sharing is SharingKind.MPS and replicas:
            gpus = tuple(_shared(known[uuid], count) for uuid, count in replicas.items())
            shares.append(MpsShare(resource=resource.name, gpus=gpus))
    return MpsOrder(root=mps_root(options, settings.mps_root), shares=tuple(shares))


def _settings(options: AgentOptions, config: ConfigText) -> PluginSettings:
    """The device plugin's. Raises ConfigError."""
    from kgpu.deviceplugin.config import resolve
    from kgpu.formats.plugin_config_parse import parse_config

    overrides = {**options.overrides_of(DRIVER_PLACE), **options.overrides_of(ROLE.name)}
    return resolve(parse_config(config.text, source=config.name), overrides=overrides, env=options.env)


def _agree(options: AgentOptions, config: ConfigText) -> None:
    _settings(options, config)


def mps_root(options: AgentOptions, configured_root: str) -> str:
    """The MPS root as this process sees it: where the replaced program's manifests mount it, else where it is."""
    if folder := options.env.get(ENV_MPS_FOLDER):
        return folder
    return MPS_CONTAINER_ROOT if Path(MPS_CONTAINER_ROOT).is_mount() else configured_root.rstrip("/")


def _shared(gpu: Accelerator, replicas: int) -> SharedGpu:
    from kgpu.mps.model import SharedGpu

    return SharedGpu(
        uuid=gpu.uuid,
        index=gpu.index,
        replicas=replicas,
        memory_mib=gpu.memory_mib,
        capability=gpu.compute_capability,
        mig=gpu.mig_enabled,
    )


def _flags() -> tuple[Any, ...]:
    """The device plugin's, which say what is offered as shared."""
    from kgpu.deviceplugin.config import FLAGS

    return FLAGS


ROLE: Final = Role("mps", _mps, aliases=("mps-control-daemon",), flags=_flags, configured=True, agree=_agree)
