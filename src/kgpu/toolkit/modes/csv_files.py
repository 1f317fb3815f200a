"""Mode ``csv``: Tegra (Jetson, Thor), where the board support package lists nodes, libraries and links in CSV files.

Where NVML answers too, it says how many GPUs there are: beside the integrated one (index 0, the list's nodes) a
discrete GPU has nodes of its own. Without NVML there is one device, ``0``.
"""

from __future__ import annotations

import dataclasses
import os
import posixpath
import re
from collections.abc import Iterable, Iterator
from typing import Final

from kgpu.base.errors import ConfigError, HostError
from kgpu.formats.cdi import MOUNT_OPTIONS, CdiMount, ContainerEdits
from kgpu.formats.names import ENV_LIBCUDA_DIR, NVIDIA, NVIDIA_CONTROL_NODES
from kgpu.host.driver.edits import library_dirs
from kgpu.host.driver.model import DriverReport, Item
from kgpu.host.driver.tegra import RELEASE_FILE, is_integrated_gpu, is_orin
from kgpu.host.elf import read_elf
from kgpu.host.root import Tree
from kgpu.hw.port import Accelerator, Inventory
from kgpu.toolkit.config import ONE_CSV_DEVICE
from kgpu.toolkit.model import ModeFinding, ModeInput
from kgpu.toolkit.modes.base import VOID, Hardware, Mode, gid_of
from kgpu.toolkit.modes.csv_rows import MAX_BYTES, CsvKind, CsvRow, parse_rows, without_links
from kgpu.toolkit.plan import plan_devices

# Beside a discrete GPU the list's second node is that GPU's, and the integrated one has the third.
_OTHERS_NODE, _OWN_NODE = "/dev/nvidia1", "/dev/nvidia2"
_LIBRARY: Final = re.compile(r"lib[^/]+\.so(?:\.[0-9.]+)?", re.ASCII)
_MAX_LINKS: Final = 40


def find(look: ModeInput) -> ModeFinding:
    """Devices and their files as listed; what a list names and this board lacks is left out.

    Raises HostError when there is no list, or nothing of what it names.
    """
    rows, notes = _rows(look)
    nodes = tuple(row.path for row in rows if row.kind is CsvKind.DEV and look.root.has_node(row.path))
    common, items = _files(look, rows)
    if not nodes and not common.mounts:
        raise HostError(
            f"nothing of what {', '.join(look.config.csv.files)} list is under {look.root.files.here}",
            "the files of the board support package",
            "correct --driver-root and --csv.file, or choose another --mode",
        )
    gpus, strategies = _gpus(look, nodes)
    finding = plan_devices(
        gpus,
        dataclasses.replace(look.config, strategies=strategies),
        node=look.root.device_node,
        has_node=look.root.has_node,
        gid_of=gid_of(look),
    )
    report = DriverReport(root=str(look.root.files.here), layout="tegra", items=(*_node_items(look, rows), *items))
    return dataclasses.replace(
        finding, common=_with_hooks(look, common), notes=(*notes, *report.notes(), *finding.notes), driver=report
    )


def _rows(look: ModeInput) -> tuple[tuple[CsvRow, ...], list[str]]:
    rows: dict[CsvRow, None] = {}
    notes: list[str] = []
    tree = look.root.files
    read = 0
    for path in look.config.csv.files:
        if not tree.is_file(path):
            notes.append(f"{path} is left out: there is no such file")
            continue
        listed = parse_rows(tree.read(path, MAX_BYTES + 1), source=path)
        read += 1
        rows |= dict.fromkeys(listed.rows)
        notes += listed.complaints
    if not read:
        raise HostError(
            f"none of {', '.join(look.config.csv.files)} can be read under {tree.here}",
            "CSV files of a Tegra board support package",
            "install nvidia-l4t packages, correct --csv.file or --driver-root, or choose another --mode",
        )
    if tree.resolve(RELEASE_FILE) is not None:
        rows[CsvRow(CsvKind.LIB, RELEASE_FILE)] = None
    return without_links(rows, look.config.csv.ignore), notes


def _gpus(look: ModeInput, nodes: tuple[str, ...]) -> tuple[Inventory, tuple[str, ...]]:
    """The GPUs with the nodes that each has here, and the naming strategies that can be used."""
    known = look.inventory
    if known is None or not known.accelerators:
        strategies = tuple(strategy for strategy in look.config.strategies if strategy != "uuid")
        if not strategies:
            raise ConfigError(
                "mode csv has no UUIDs where NVML is not there", "--device-name-strategy index or type-index",
                "choose another strategy",
            )  # fmt: skip
        only = Accelerator(vendor=NVIDIA, index=0, uuid="", name="Tegra", device_nodes=nodes)
        return Inventory(vendor=NVIDIA, driver_version="", accelerators=(only,)), strategies
    several = len(known.accelerators) > 1 and ONE_CSV_DEVICE not in look.config.features
    chosen = known.accelerators if several else known.accelerators[:1]
    control = tuple(path for path in NVIDIA_CONTROL_NODES if look.root.has_node(path))
    own = tuple(path for path in nodes if path != _OTHERS_NODE)
    if look.root.has_node(_OWN_NODE):
        own = tuple(dict.fromkeys((*own, _OWN_NODE)))
    gpus = []
    for gpu in chosen:
        integrated = not several or is_integrated_gpu(gpu.name)
        mine = (own if several else nodes) if integrated else (*gpu.device_nodes, *control)
        gpus.append(dataclasses.replace(gpu, device_nodes=mine))
    return dataclasses.replace(known, accelerators=tuple(gpus)), look.config.strategies


def _files(look: ModeInput, rows: Iterable[CsvRow]) -> tuple[ContainerEdits, list[Item]]:
    """The listed files, folders and links as mounts, and in hooks' place the links as ``TARGET::LINK``."""
    tree = look.root.files
    mounts: dict[str, CdiMount] = {}
    items: list[Item] = []
    for row in rows:
        if row.kind is CsvKind.DEV:
            continue
        real = tree.resolve(row.path)
        items.append(_item(row, real or ""))
        if real is None:
            continue
        for target in _targets(look, row, real):
            mounts.setdefault(
                target, CdiMount(host_path=tree.on_host(real), container_path=target, options=MOUNT_OPTIONS)
            )
    folders = dict.fromkeys(
        posixpath.dirname(path) for path in mounts if posixpath.basename(path).startswith("libcuda.so.")
    )
    env = (f"{ENV_LIBCUDA_DIR}={':'.join(folders)}",) if folders else ()
    return ContainerEdits(env=(*env, VOID), mounts=tuple(mounts.values())), items


def _targets(look: ModeInput, row: CsvRow, real: str) -> Iterator[str]:
    """Where one row's file is put in a container: with hooks at its real place, without at every name for it."""
    if look.hooks.wanted:
        if row.kind is not CsvKind.SYM:
            yield real
        return
    chain = [link for link, _ in _links(look.root.files, row.path)]
    yield from (*chain, real) if row.kind is CsvKind.LIB else (row.path,)
    if row.kind is not CsvKind.LIB or not _LIBRARY.fullmatch(posixpath.basename(real)):
        return
    names = {posixpath.basename(path) for path in (*chain, real)} | {read_elf(look.root.files.local(real)).soname}
    for folder in library_dirs(look.machine):
        yield from (f"{folder}/{name}" for name in sorted(names) if name)


def _with_hooks(look: ModeInput, common: ContainerEdits) -> ContainerEdits:
    if not look.hooks.wanted:
        return common
    rows, _ = _rows(look)
    links = (f"{target}::{link}" for row in rows if row.kind in {CsvKind.LIB, CsvKind.SYM}
             for link, target in _links(look.root.files, row.path))  # fmt: skip
    paths = [mount.container_path for mount in common.mounts]
    folders = (posixpath.dirname(path) for path in paths if _LIBRARY.fullmatch(posixpath.basename(path)))
    inventory = look.inventory
    orin = is_orin(look.root, sys=look.config.search.sys)
    return ContainerEdits(
        env=common.env,
        mounts=common.mounts,
        hooks=(
            *look.hooks.create_symlinks(links),
            *look.hooks.enable_cuda_compat(
                cuda=inventory.cuda_version if inventory else None, root=look.config.csv.compat_root if orin else ""
            ),
            *look.hooks.update_ldcache(folders),
        ),
    )


def _links(tree: Tree, path: str) -> Iterator[tuple[str, str]]:
    """Each link on the way from ``path`` to its file, and what it says; links in the folders' names don't count."""
    for _ in range(_MAX_LINKS):
        folder = tree.resolve(posixpath.dirname(path))
        if folder is None:
            return
        try:
            target = os.readlink(tree.local(posixpath.join(folder, posixpath.basename(path))))
        except OSError:
            return
        yield path, target
        path = posixpath.normpath(posixpath.join(posixpath.dirname(path), target))


def _node_items(look: ModeInput, rows: Iterable[CsvRow]) -> Iterator[Item]:
    for row in rows:
        if row.kind is CsvKind.DEV:
            yield _item(row, row.path if look.root.has_node(row.path) else "")


def _item(row: CsvRow, path: str) -> Item:
    """A list names what other boards have, so that a missing row breaks nothing that is known here."""
    kind = "node" if row.kind is CsvKind.DEV else "library"
    return Item(kind=kind, name=row.path, found=bool(path), path=path, why=f"listed as {row.kind.value}", optional=True)


MODE = Mode(name="csv", help="Tegra, by the board's CSV files", find=find, hardware=Hardware.IF_THERE)
