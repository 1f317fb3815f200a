"""The CDI specs that the plugin's own ``cdi-*`` answers refer to: exactly what is offered, under the ids in force.

Specs are ``k8s.device-plugin.nvidia.com-<class>.json`` in the CDI folder. The GPU class holds every unit of hardware
that is offered; the others hold what settings ask for and the node has. Decisions are pure; ``write`` does the writing.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

from kgpu.base.errors import HostError
from kgpu.base.files import write_atomic
from kgpu.deviceplugin.allocate import IMEX_NODE
from kgpu.deviceplugin.config import Settings
from kgpu.deviceplugin.host_facts import GDRCOPY_NODE
from kgpu.deviceplugin.model import HostFacts, Plan, Unit
from kgpu.formats.cdi import CdiDevice, ContainerEdits, DeviceNode, Mount, Spec, build_spec, dump_spec, kind_of
from kgpu.formats.names import CDI_PLUGIN_VENDOR
from kgpu.host.driver_files import driver_edits, find_driver_files
from kgpu.host.root import DriverRoot

GDS_CONFIG: Final = "/etc/cufile.json"
MakeNode = Callable[[str], DeviceNode]


def offered_units(plan: Plan) -> tuple[Unit, ...]:
    """Every unit of hardware in the plan once, in order."""
    units = dict.fromkeys(device.unit for resource in plan.resources for device in resource.devices)
    return tuple(sorted(units, key=lambda unit: (unit.gpu_index, unit.index)))


def gpu_spec(
    units: Sequence[Unit],
    settings: Settings,
    common: ContainerEdits,
    *,
    node: MakeNode,
    has_node: Callable[[str], bool],
) -> Spec | None:
    """The spec of the GPU class; None when no unit has all its device nodes. Without a device ``all``."""
    devices = [
        CdiDevice(
            names=(unit.index if settings.id_strategy == "index" else unit.uuid,),
            nodes=tuple(node(path) for path in unit.device_nodes),
        )
        for unit in units
        if unit.device_nodes and all(has_node(path) for path in unit.device_nodes)
    ]
    if not devices:
        return None
    return build_spec(kind=kind_of(CDI_PLUGIN_VENDOR, "gpu"), devices=devices, common=common, all_device=False)


def extra_specs(
    settings: Settings, host: HostFacts, *, node: MakeNode, names: Callable[[str], Sequence[str]]
) -> list[Spec]:
    """IMEX channels and the gated classes. ``names`` lists a folder under the device root."""
    nodes: dict[str, dict[str, list[str]]] = {
        "imex-channel": {str(channel): [IMEX_NODE.format(channel)] for channel in host.imex_channels},
        "gds": {"all": [f"/dev/{name}" for name in names("/dev") if name.startswith("nvidia-fs")]},
        "mofed": {"all": [f"/dev/infiniband/{name}" for name in names("/dev/infiniband")]},
        "gdrcopy": {"all": [GDRCOPY_NODE]},
    }
    wanted = {
        "imex-channel": True,
        "gds": settings.gds_enabled and host.gds,
        "mofed": settings.mofed_enabled and host.mofed,
        "gdrcopy": settings.gdrcopy_enabled and host.gdrcopy,
    }
    mounts = {"gds": (Mount(host_path=GDS_CONFIG, container_path=GDS_CONFIG, options=("ro", "bind")),)}
    specs = []
    for kind, by_name in nodes.items():
        devices = [
            CdiDevice(names=(name,), nodes=tuple(map(node, paths)), mounts=mounts.get(kind, ()))
            for name, paths in by_name.items()
            if paths and wanted[kind]
        ]
        if devices:
            specs.append(build_spec(kind=kind_of(CDI_PLUGIN_VENDOR, kind), devices=devices, all_device=False))
    return specs


def driver_root(settings: Settings) -> DriverRoot:
    """The driver root as this process and as the host sees it."""
    mounted = settings.container_driver_root
    if os.path.isdir(mounted):
        return DriverRoot.at(mounted, driver_host=settings.driver_root, dev_host=settings.dev_root)
    return DriverRoot.at(settings.driver_root or "/", dev_host=settings.dev_root)


def write(folder: Path, plan: Plan, settings: Settings, host: HostFacts, *, driver_version: str) -> None:
    """Write every spec that the answers may name, atomically. Raises HostError, ConfigError."""
    root = driver_root(settings)
    common = driver_edits(root, find_driver_files(root, version=driver_version))
    specs = extra_specs(settings, host, node=root.device_node, names=root.dev.names)
    gpus = gpu_spec(offered_units(plan), settings, common, node=root.device_node, has_node=root.has_node)
    if gpus is not None:
        specs.insert(0, gpus)
    for spec in specs:
        path = folder / f"{spec.kind.replace('/', '-')}.json"
        try:
            write_atomic(path, dump_spec(spec, "json") + "\n")
        except OSError as problem:
            raise HostError(
                f"the CDI spec {path} can't be written: {problem.strerror}",
                "a writable folder that the container runtime reads",
                "mount the host's folder there, or name another with --cdi-dir",
            ) from problem
    if plan.resources and gpus is None:
        raise HostError(
            "no offered device has its device nodes",
            f"nodes such as /dev/nvidia0 under {root.dev.here}",
            "make the nodes (`nvidia-modprobe`), or point --dev-root at the folder that has /dev",
        )
