"""Mode ``wsl``: Windows Subsystem for Linux, where every GPU is behind /dev/dxg and the driver is the host's."""

from __future__ import annotations

import posixpath

from kgpu.base.errors import HostError
from kgpu.formats.cdi import ALL_DEVICE, MOUNT_OPTIONS, CdiDevice, CdiMount, ContainerEdits, merged
from kgpu.host.driver.wsl import DXG, WslStore, find_wsl_store, wsl_edits
from kgpu.toolkit.model import ModeFinding, ModeInput
from kgpu.toolkit.modes.base import VOID, Mode, check_only_all, gids

_SMI = "nvidia-smi"


def find(look: ModeInput) -> ModeFinding:
    """One device, ``all``. Raises HostError without /dev/dxg or without a driver store."""
    check_only_all(look, "wsl")
    if not look.root.has_node(DXG):
        raise HostError(
            f"{look.root.dev.local(DXG)} is not there",
            "the device through which WSL 2 reaches the GPUs",
            "run in a WSL 2 distribution of a Windows with a GPU driver, or choose another --mode",
        )
    store = find_wsl_store(look.root)
    edits = _with_hooks(look, store) if look.hooks.wanted else wsl_edits(look.root, store, machine=look.machine)
    env = tuple(variable for variable in edits.env if variable != VOID)
    node = look.root.device_node(DXG)
    return ModeFinding(
        devices=(CdiDevice(names=(ALL_DEVICE,), nodes=(node,), gids=gids(look, (node,))),),
        common=merged(ContainerEdits(env=env, mounts=edits.mounts, hooks=edits.hooks), ContainerEdits(env=(VOID,))),
    )


def _with_hooks(look: ModeInput, store: WslStore) -> ContainerEdits:
    """Each file at its own place; the link and the loader's cache are made by hooks."""
    tree = look.root.files
    every = dict.fromkeys((*store.files, *(path for _, path in store.libraries)))
    folders = (posixpath.dirname(path) for path in every if ".so" in posixpath.basename(path))
    links = [f"{path}::/usr/bin/{_SMI}" for path in store.files if posixpath.basename(path) == _SMI]
    for name, path in store.libraries:
        folder, own = posixpath.split(path)
        links += [f"{own}::{folder}/{name}"] if own != name else []
    mounts = (
        CdiMount(host_path=tree.on_host(tree.resolve(path) or path), container_path=path, options=MOUNT_OPTIONS)
        for path in every
    )
    return ContainerEdits(
        mounts=tuple(mounts), hooks=(*look.hooks.create_symlinks(links), *look.hooks.update_ldcache(folders))
    )


MODE = Mode(name="wsl", help="Windows Subsystem for Linux", find=find)
