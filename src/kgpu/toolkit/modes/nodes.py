"""Modes whose one device, ``all``, is a set of device nodes: a row of data each, and one function for all of them."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

from kgpu.base.errors import HostError
from kgpu.formats.cdi import ALL_DEVICE, MOUNT_OPTIONS, CdiDevice, CdiMount
from kgpu.host.driver.model import DriverReport, Item
from kgpu.toolkit.model import ModeFinding, ModeInput
from kgpu.toolkit.modes.base import Mode, check_only_all, gids, matching, void_only


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeMode:
    """``nodes`` are patterns of device nodes; ``needs`` is what makes them.

    Beside them, where they are there: ``optional`` nodes with what their absence breaks, ``dev_mounts`` from where
    /dev is, ``mounts`` from the driver root.
    """

    name: str
    help: str
    nodes: tuple[str, ...]
    needs: str
    optional: tuple[tuple[str, str], ...] = ()
    dev_mounts: tuple[str, ...] = ()
    mounts: tuple[str, ...] = ()


def node_mode(row: NodeMode) -> Mode:
    """The row as a mode of the table; its class is its name."""
    return Mode(name=row.name, help=row.help, device_class=row.name, find=partial(_find, row))


def _find(row: NodeMode, look: ModeInput) -> ModeFinding:
    check_only_all(look, row.name)
    root = look.root
    paths = matching(root, row.nodes)
    if not paths:
        raise HostError(
            f"mode {row.name} found no device: {' or '.join(row.nodes)} is not under {root.dev.here}",
            f"the device nodes of {row.needs}",
            f"load {row.needs} on this node, point --dev-root at the folder that has /dev, or choose another --mode",
        )
    items = [Item(kind="node", name=path, found=True, path=path, why=row.help) for path in paths]
    for path, breaks in row.optional:
        exists = root.has_node(path)
        why = row.help if exists else f"{path} is not there"
        items.append(Item(kind="node", name=path, found=exists, path=path if exists else "", why=why, breaks=breaks))
        paths += (path,) if exists else ()
    mounts = tuple(
        CdiMount(host_path=tree.on_host(path), container_path=path, options=MOUNT_OPTIONS)
        for tree, optional_paths in ((root.dev, row.dev_mounts), (root.files, row.mounts))
        for path in optional_paths
        if tree.resolve(path) is not None
    )
    nodes = tuple(root.device_node(path) for path in paths)
    report = DriverReport(root=str(root.dev.here), items=tuple(items))
    return ModeFinding(
        devices=(CdiDevice(names=(ALL_DEVICE,), nodes=nodes, mounts=mounts, gids=gids(look, nodes)),),
        common=void_only(),
        notes=tuple(report.notes()),
        driver=report,
    )
