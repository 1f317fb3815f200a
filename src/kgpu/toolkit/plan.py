"""Decides what a CDI spec says: which devices, under which names, with which nodes. Pure: data in, data out.

A GPU in MIG mode is offered only as its slices; a device whose nodes are not all there is left out with a note instead
of being offered incomplete; a GPU that doesn't work is offered by name but is no part of ``all``.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable

from kgpu.formats.cdi import CdiDevice, ContainerEdits, DeviceNode, build_spec
from kgpu.hw.port import Accelerator, Inventory, Partition, Problem
from kgpu.toolkit.config import GenerateConfig
from kgpu.toolkit.model import Generated, ListedSpec, Listing

# strategy -> name of a GPU, name of a slice; slice indices are "<gpu>:<position>"
_NAMES: dict[str, tuple[Callable[[Accelerator], str], Callable[[Partition], str]]] = {
    "index": (lambda gpu: str(gpu.index), lambda part: part.index),
    "uuid": (lambda gpu: gpu.uuid, lambda part: part.uuid),
    "type-index": (lambda gpu: f"gpu{gpu.index}", lambda part: f"mig{part.index}"),
}
MIG_NODES = 3


def plan_spec(
    inventory: Inventory,
    common: ContainerEdits,
    config: GenerateConfig,
    *,
    node: Callable[[str], DeviceNode],
    has_node: Callable[[str], bool],
    notes: Iterable[str] = (),
) -> Generated:
    """The spec for this inventory. ``node`` makes the CDI node of a /dev path, ``has_node`` says whether it exists.

    Raises ConfigError when nothing at all could be offered.
    """
    said = [*notes, *(found.what for found in inventory.findings)]
    devices: list[CdiDevice] = []

    def add(names: tuple[str, ...], paths: tuple[str, ...], *, usable: bool) -> None:
        missing = [path for path in paths if not has_node(path)]
        if missing:
            said.append(f"{names[0]} is left out: {', '.join(missing)} not there")
        else:
            devices.append(CdiDevice(names=names, nodes=tuple(node(path) for path in paths), in_all=usable))

    for gpu in inventory.accelerators:
        said += [found.what for found in gpu.findings]
        if any(found.problem is Problem.MISSING for found in gpu.findings):
            continue
        if not gpu.mig_enabled:
            add(_gpu_names(gpu, config), gpu.device_nodes, usable=gpu.usable)
            continue
        if not gpu.partitions:
            said.append(f"GPU {gpu.index} is in MIG mode without slices: it offers nothing")
        for part in gpu.partitions:
            names = _part_names(part, config)
            if len(part.device_nodes) < MIG_NODES:
                said.append(f"{names[0]} is left out: its capability nodes are not known")
            else:
                add(names, part.device_nodes, usable=gpu.usable)
    spec = build_spec(kind=config.kind, devices=devices, common=common, all_device=config.all_device)
    return Generated(spec, tuple(dict.fromkeys(said)))


def resolve_names(specs: Iterable[ListedSpec]) -> Listing:
    """CDI's rules: a higher folder wins; a name twice at the same priority can't be resolved at all."""
    every = list(specs)
    top: dict[str, int] = {}
    for spec in every:
        for name in spec.devices:
            top[name] = max(spec.priority, top.get(name, spec.priority))
    at_top: Counter[str] = Counter(name for spec in every for name in spec.devices if spec.priority == top[name])
    warnings: list[str] = []
    for name, count in sorted(at_top.items()):
        files = ", ".join(spec.path for spec in every if name in spec.devices)
        if count > 1:
            warnings.append(f"{name} can't be resolved: it is in {files}; remove one of them")
        elif sum(name in spec.devices for spec in every) > 1:
            warnings.append(f"{name} is in {files}; the last one counts")
    listed = dict.fromkeys(name for spec in every for name in spec.devices if at_top[name] == 1)
    return Listing(tuple(listed), tuple(warnings))


def _gpu_names(gpu: Accelerator, config: GenerateConfig) -> tuple[str, ...]:
    return tuple(_NAMES[strategy][0](gpu) for strategy in config.strategies)


def _part_names(part: Partition, config: GenerateConfig) -> tuple[str, ...]:
    return tuple(_NAMES[strategy][1](part) for strategy in config.strategies)
