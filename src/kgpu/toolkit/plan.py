"""Decides what a CDI spec says: which devices, under which names, with which nodes. Pure: data in, data out.

A GPU in MIG mode is offered only as its slices, unless it is asked for by name; a device whose nodes are not all there
is left out and told, never offered incomplete; a GPU that doesn't work is offered by name but is no part of ``all``.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from kgpu.base.errors import ConfigError
from kgpu.base.suggest import did_you_mean
from kgpu.formats.cdi import CdiDevice, CdiDeviceNode, ContainerEdits, build_spec
from kgpu.formats.names import ENV_EMPTY_DEVICE
from kgpu.hw.port import Accelerator, Inventory, Partition, Problem
from kgpu.toolkit.config import ALL, NONE, GenerateConfig
from kgpu.toolkit.model import Beside, DeviceListing, Generated, ListedSpec, ModeFinding

# strategy -> name of a GPU, name of a slice; slice indices are "<gpu>:<position>"
_NAMES: dict[str, tuple[Callable[[Accelerator], str], Callable[[Partition], str]]] = {
    "index": (lambda gpu: str(gpu.index), lambda part: part.index),
    "uuid": (lambda gpu: gpu.uuid, lambda part: part.uuid),
    "type-index": (lambda gpu: f"gpu{gpu.index}", lambda part: f"mig{part.index}"),
}
MIG_NODES = 3
_GRAPHICS = "+gfx"
"""The attribute of a MIG profile that can display; other slices have no use for display nodes."""

BesideOf = Callable[[Accelerator], Beside]


@dataclass(frozen=True, slots=True)
class _OfferedDevice:
    """One device to offer: a GPU, or one of its slices."""

    gpu: Accelerator
    part: Partition | None = None

    @property
    def ids(self) -> tuple[str, str]:
        return (self.part.index, self.part.uuid) if self.part else (str(self.gpu.index), self.gpu.uuid)

    @property
    def nodes(self) -> tuple[str, ...]:
        return self.part.device_nodes if self.part else self.gpu.device_nodes

    @property
    def graphics(self) -> bool:
        return self.part is None or _GRAPHICS in self.part.profile

    def names(self, strategies: Iterable[str]) -> tuple[str, ...]:
        rows = (_NAMES[strategy] for strategy in strategies)
        return tuple(of_part(self.part) if self.part else of_gpu(self.gpu) for of_gpu, of_part in rows)


def plan_spec(
    inventory: Inventory,
    common: ContainerEdits,
    config: GenerateConfig,
    *,
    node: Callable[[str], CdiDeviceNode],
    has_node: Callable[[str], bool],
    notes: Iterable[str] = (),
    beside: BesideOf | None = None,
) -> Generated:
    """The spec for this inventory, what can't be offered left out; ``config.kind`` must be given.

    Raises ConfigError when nothing at all could be offered.
    """
    finding = plan_devices(inventory, config, node=node, has_node=has_node, beside=beside)
    spec = build_spec(kind=config.kind, devices=finding.devices, common=common, all_device=config.all_device)
    return Generated(spec, tuple(dict.fromkeys((*notes, *finding.notes, *finding.gaps))))


def plan_devices(
    inventory: Inventory,
    config: GenerateConfig,
    *,
    node: Callable[[str], CdiDeviceNode],
    has_node: Callable[[str], bool],
    beside: BesideOf | None = None,
    gid_of: Callable[[str], int | None] = lambda _path: None,
) -> ModeFinding:
    """The devices of this inventory that the configuration asks for.

    ``node`` makes the CDI node of a /dev path, ``has_node`` says whether it exists, ``beside`` what a GPU brings beside
    its nodes, ``gid_of`` which group a process must be in to open a node. Raises ConfigError for a device that is asked
    for by a name that nothing has.
    """
    notes = [finding.sentence for finding in inventory.findings]
    notes += [finding.sentence for gpu in inventory.accelerators for finding in gpu.findings]
    gaps: list[str] = []
    devices: list[CdiDevice] = []
    extras: dict[str, Beside] = {}
    for entry in _chosen(inventory, config.device_ids, notes):
        names = entry.names(config.strategies)
        missing = [path for path in entry.nodes if not has_node(path)]
        if entry.part and len(entry.nodes) < MIG_NODES:
            gaps.append(f"{names[0]} is left out: its capability nodes are not known")
        elif missing:
            gaps.append(f"{names[0]} is left out: {', '.join(missing)} not there")
        else:
            if entry.gpu.uuid not in extras:
                extras[entry.gpu.uuid] = beside(entry.gpu) if beside else Beside()
            more = extras[entry.gpu.uuid]
            nodes = tuple(node(path) for path in entry.nodes) + (more.nodes if entry.graphics else ())
            gids = (gid for cdi_node in nodes if (gid := gid_of(cdi_node.path)) is not None)
            devices.append(
                CdiDevice(
                    names=names,
                    nodes=nodes,
                    hooks=more.hooks if entry.graphics else (),
                    gids=tuple(dict.fromkeys(gids)),
                    annotations=more.annotations,
                    in_all=entry.gpu.usable,
                )
            )
    if NONE in config.device_ids:
        devices.append(CdiDevice(names=(NONE,), env=(f"{ENV_EMPTY_DEVICE}=",), in_all=False))
    return ModeFinding(devices=tuple(devices), notes=tuple(dict.fromkeys(notes)), gaps=tuple(gaps))


def resolve_names(specs: Iterable[ListedSpec]) -> DeviceListing:
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
    return DeviceListing(tuple(listed), tuple(warnings))


def _chosen(inventory: Inventory, ids: Iterable[str], notes: list[str]) -> list[_OfferedDevice]:
    """What is asked for, each once, in the driver's order."""
    present = [
        gpu for gpu in inventory.accelerators if all(finding.problem is not Problem.MISSING for finding in gpu.findings)
    ]
    whole = {name: entry for entry in map(_OfferedDevice, present) for name in entry.ids}
    parts = {name: entry for gpu in present for entry in _slices(gpu) for name in entry.ids}
    chosen: list[_OfferedDevice] = []
    for wanted in ids:
        if wanted == NONE:
            continue
        if wanted == ALL:
            chosen += _everything(present, notes)
        elif wanted in parts:
            chosen.append(parts[wanted])
        elif wanted in whole:
            chosen.append(whole[wanted])
            if whole[wanted].gpu.mig_enabled:
                notes.append(f"GPU {wanted} is in MIG mode: programs that are given it whole can't compute on it")
        else:
            raise _no_device(wanted, [*whole, *parts])
    order = {gpu.uuid: position for position, gpu in enumerate(present)}
    return sorted({entry.ids: entry for entry in chosen}.values(), key=lambda entry: order[entry.gpu.uuid])


def _everything(gpus: Iterable[Accelerator], notes: list[str]) -> Iterator[_OfferedDevice]:
    for gpu in gpus:
        if not gpu.mig_enabled:
            yield _OfferedDevice(gpu)
        elif gpu.partitions:
            yield from _slices(gpu)
        else:
            notes.append(f"GPU {gpu.index} is in MIG mode without slices: it offers nothing")


def _slices(gpu: Accelerator) -> list[_OfferedDevice]:
    return [_OfferedDevice(gpu, part) for part in gpu.partitions]


def _no_device(wanted: str, known: list[str]) -> ConfigError:
    hint = did_you_mean(wanted, known)
    return ConfigError(
        f'there is no device "{wanted}" on this node{"; " if hint else ""}{hint}',
        f"one of: {', '.join((ALL, NONE, *known))}",
        "choose an index, a UUID or GPU:SLICE from `nvidia-smi -L`, or leave --device-id out for all",
    )
