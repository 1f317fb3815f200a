"""Writes the CDI specs that the device plugin's answers refer to, before a device is offered.

There is one file per class in the CDI folder, with the name that the replaced program uses, so that an upgrade
overwrites its files. Nothing is written if nothing has changed, as finding the driver's files takes tens of
milliseconds.
"""

from __future__ import annotations

import asyncio
import dataclasses
import logging
from collections.abc import AsyncGenerator, Callable, Hashable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from kgpu.base.errors import ConfigError
from kgpu.base.inotify import Inotify
from kgpu.deviceplugin.allocate import IMEX_NODE
from kgpu.deviceplugin.config import PluginSettings
from kgpu.deviceplugin.model import GpuUnit
from kgpu.formats.cdi import CdiDevice, CdiDeviceNode, CdiMount, ContainerEdits, Spec, build_spec, dump_spec, kind_of
from kgpu.formats.names import CDI_PLUGIN_VENDOR
from kgpu.host.root import DriverRoot
from kgpu.hw.port import Inventory
from kgpu.hw.vendor import Vendor, vendor_of
from kgpu.toolkit.config import GenerateConfig
from kgpu.toolkit.run import generate, keep_spec
from kgpu.toolkit.sources import PAUSE_SECONDS, SpecSources, follow_sources

log = logging.getLogger(__name__)

CALM_SECONDS: Final = 60.0


@dataclass(frozen=True, slots=True)
class Extra:
    """Devices that containers get besides GPUs: the class, whether it is wanted, and its device nodes
    by device name.
    """

    name: str
    wanted: Callable[[PluginSettings], bool]
    nodes: Callable[[PluginSettings, DriverRoot], dict[str, tuple[str, ...]]]


def _in_folder(folder: str, prefix: str = "") -> Callable[[PluginSettings, DriverRoot], dict[str, tuple[str, ...]]]:
    def nodes(_settings: PluginSettings, root: DriverRoot) -> dict[str, tuple[str, ...]]:
        return {"all": tuple(f"{folder}/{name}" for name in root.dev.names(folder) if name.startswith(prefix))}

    return nodes


EXTRAS: Final = (
    Extra(
        "imex-channel",
        lambda settings: bool(settings.imex_channel_ids),
        lambda settings, _root: {str(channel): (IMEX_NODE.format(channel),) for channel in settings.imex_channel_ids},
    ),
    Extra("gds", lambda settings: settings.gds_enabled, _in_folder("/dev", "nvidia-fs")),
    Extra("mofed", lambda settings: settings.mofed_enabled, _in_folder("/dev/infiniband")),
    Extra("gdrcopy", lambda settings: settings.gdrcopy_enabled, _in_folder("/dev", "gdrdrv")),
)


class PluginSpecs:
    """A device plugin's ``cdi_writer``. ``seen`` is the driver root as this process sees it; ``on_write`` is called
    with each file that has been written or found up to date.
    """

    def __init__(self, seen: Path, folder: Path, *, on_write: Callable[[Path], None] | None = None) -> None:
        self._seen = seen
        self._on_write = on_write or (lambda _path: None)
        self._folder = folder
        self._written: tuple[Hashable, dict[Path, str]] = (None, {})
        self._sources: SpecSources | None = None

    def __call__(self, inventory: Inventory, settings: PluginSettings) -> None:
        """Update the files. Raises HostError or ConfigError; the earlier files stay in that case."""
        vendor = vendor_of(inventory.vendor)
        if not vendor.cdi_specs:
            raise ConfigError(
                f"kgpu can't write CDI specs for accelerators of {vendor.title} yet",
                "a device list strategy without CDI",
                "set --device-list-strategy envvar (DEVICE_LIST_STRATEGY)",
            )
        if vendor.nodes_suffice:
            seen = DriverRoot.at(self._seen, driver_host=settings.driver_root)
            self._keep([_of_nodes(inventory, settings, vendor, seen.settings(vendor.host_files))])
            return
        root = DriverRoot.at(self._seen, driver_host=settings.driver_root, dev_host=settings.dev_root)
        key = _key(inventory, settings, root)
        whole = all(path.is_file() for path in self._written[1])
        if key == self._written[0] and whole and self._sources is not None and not self._sources.changed():
            return
        before = SpecSources.snapshot(root)
        specs = (self._gpus(inventory, settings, root), *_extras(settings, root))
        self._sources = before.of_specs(specs)
        self._written = (key, self._keep(specs))

    def _keep(self, specs: Iterable[Spec]) -> dict[Path, str]:
        texts = {self._folder / f"{spec.kind.replace('/', '-')}.json": dump_spec(spec, "json") for spec in specs}
        for path, text in texts.items():
            keep_spec(path, text)
            self._on_write(path)
        return texts

    async def changes(self) -> AsyncGenerator[None, None]:
        """Yield when a daemon whose socket or folder is mounted into containers has started or ended."""
        while self._sources is None:  # noqa: ASYNC110 - the first specs are written in a thread, which sets no asyncio.Event
            await asyncio.sleep(PAUSE_SECONDS)
        async with Inotify() as inotify:
            async for _ in follow_sources(inotify, self._folders, self._stale, CALM_SECONDS):
                yield

    def _folders(self) -> set[Path]:
        return self._sources.folders() if self._sources is not None else set()

    def _stale(self) -> Hashable:
        return self._sources.changed_daemons() if self._sources is not None else None

    def _gpus(self, inventory: Inventory, settings: PluginSettings, root: DriverRoot) -> Spec:
        config = GenerateConfig(
            kind=kind_of(CDI_PLUGIN_VENDOR, "gpu"), strategies=(settings.id_strategy,), all_device=False
        )
        generated = generate(lambda: _as_offered(inventory, settings), root, config)
        for note in generated.notes:
            log.info("CDI: %s", note)
        return generated.spec


def _of_nodes(
    inventory: Inventory, settings: PluginSettings, vendor: Vendor, mounts: tuple[CdiMount, ...] = ()
) -> Spec:
    """The spec of a vendor whose containers need device nodes alone: each device's, and those that all need."""
    root, by_index = settings.host_dev_root.rstrip("/"), settings.id_strategy == "index"

    def nodes(paths: Iterable[str]) -> tuple[CdiDeviceNode, ...]:
        return tuple(CdiDeviceNode(path=path, host_path=root + path if root else "") for path in paths)

    devices = [
        CdiDevice(names=(one.index if by_index else one.uuid,), nodes=nodes((*vendor.control_nodes, *one.device_nodes)))
        for gpu in inventory.accelerators
        for one in gpu.partitions or (_Whole(str(gpu.index), gpu.uuid, gpu.device_nodes),)
        if one.device_nodes
    ]
    watching = _watching(inventory, settings)
    devices += [CdiDevice(names=(unit.uuid,), nodes=nodes(unit.device_nodes)) for unit in watching]
    common = ContainerEdits(mounts=mounts)
    return build_spec(kind=kind_of(vendor.cdi_vendor, "gpu"), devices=devices, common=common, all_device=False)


def _watching(inventory: Inventory, settings: PluginSettings) -> list[GpuUnit]:
    """What programs get that monitor all GPUs."""
    if not settings.enable_monitoring:
        return []
    from kgpu.deviceplugin.by_id import wanted
    from kgpu.deviceplugin.monitors import monitor_units

    return monitor_units([gpu for gpu in inventory.accelerators if wanted(gpu, settings)], settings)


@dataclass(frozen=True, slots=True)
class _Whole:
    index: str
    uuid: str
    device_nodes: tuple[str, ...]


def _as_offered(inventory: Inventory, settings: PluginSettings) -> Inventory:
    """The inventory for the specs: with MIG strategy none a GPU in MIG mode is offered whole, so its
    name must resolve.
    """
    if settings.mig_strategy != "none":
        return inventory
    whole = tuple(dataclasses.replace(gpu, mig_enabled=False, partitions=()) for gpu in inventory.accelerators)
    return dataclasses.replace(inventory, accelerators=whole)


def _extras(settings: PluginSettings, root: DriverRoot) -> Iterator[Spec]:
    for extra in EXTRAS:
        if not extra.wanted(settings):
            continue
        devices = [
            CdiDevice(names=(name,), nodes=tuple(root.device_node(path) for path in paths))
            for name, paths in extra.nodes(settings, root).items()
            if paths and all(root.has_node(path) for path in paths)
        ]
        if devices:
            yield build_spec(kind=kind_of(CDI_PLUGIN_VENDOR, extra.name), devices=devices, all_device=False)


def _key(inventory: Inventory, settings: PluginSettings, root: DriverRoot) -> Hashable:
    """What the specs depend on; health is not part of it."""
    devices = tuple(
        (gpu.uuid, gpu.index, gpu.mig_enabled, gpu.device_nodes, gpu.partitions, root.has_node(path))
        for gpu in inventory.accelerators
        for path in gpu.device_nodes or ("",)
    )
    extras = tuple(tuple(extra.nodes(settings, root).items()) for extra in EXTRAS if extra.wanted(settings))
    return inventory.driver_version, settings.id_strategy, settings.mig_strategy, root, devices, extras
