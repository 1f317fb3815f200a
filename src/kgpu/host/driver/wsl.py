"""The driver on Windows Subsystem for Linux: /dev/dxg, and Windows' own driver store under /usr/lib/wsl.

The store has a folder for each driver that Windows has ever installed. The one in use has libcuda.so.1.1 and is the
target of links in /usr/lib/wsl/lib or, without such links, the newest. Its files find each other by path, so they keep
their paths in a container; what programs load is also mounted in the loader's default folders.
"""

from __future__ import annotations

import posixpath
import re
from dataclasses import dataclass
from typing import Final

from kgpu.base.errors import HostError
from kgpu.formats import names
from kgpu.formats.cdi import MOUNT_OPTIONS, CdiMount, ContainerEdits
from kgpu.host.driver.edits import CONTAINER_BINARY_DIR, library_dirs
from kgpu.host.driver.libraries import speakable
from kgpu.host.elf import read_elf
from kgpu.host.root import DriverRoot, Tree

DXG: Final = "/dev/dxg"
LIBRARY_DIR: Final = "/usr/lib/wsl/lib"
STORE_DIR: Final = "/usr/lib/wsl/drivers"
_MARK: Final = "libcuda.so.1.1"
_DXCORE: Final = "libdxcore.so"
_SMI: Final = "nvidia-smi"
_STORED: Final = re.compile(r".+\.so(\.\d+)*|.+\.bin|.+\.dll|nvidia-smi", re.ASCII)
# Only the driver's files of /usr/lib/wsl/lib: no CUDA program loads the rest (Direct3D and its shader compiler).
_LOADED: Final = re.compile(r"lib(?:dxcore|cuda|cudadebugger|nv[A-Za-z0-9_-]+)\.so(\.\d+)*", re.ASCII)


@dataclass(frozen=True, slots=True)
class WslStore:
    """The driver store's folder, its files, and those of /usr/lib/wsl/lib that belong to the driver (real paths)."""

    folder: str
    files: tuple[str, ...]
    libraries: tuple[tuple[str, str], ...] = ()  # loader name -> path


def is_wsl(root: DriverRoot) -> bool:
    """Whether /dev/dxg and libdxcore.so exist."""
    return root.has_node(DXG) and root.files.is_file(f"{LIBRARY_DIR}/{_DXCORE}")


def find_wsl_store(root: DriverRoot) -> WslStore:
    """Find the store in use. Raises HostError if none has libcuda.so.1.1, or libdxcore.so is missing."""
    tree = root.files
    if not tree.is_file(f"{LIBRARY_DIR}/{_DXCORE}"):
        raise HostError(
            f"{LIBRARY_DIR}/{_DXCORE} is not under {tree.here}",
            "the library by which WSL's driver reaches Windows",
            "update WSL (`wsl --update`), or point --driver-root at the root that has it",
        )
    stores = [folder for name in tree.names(STORE_DIR) if tree.is_file(f"{(folder := f'{STORE_DIR}/{name}')}/{_MARK}")]
    if not stores:
        raise HostError(
            f"no folder in {STORE_DIR} has {_MARK}",
            "the NVIDIA driver that Windows brings into WSL",
            "install or update the NVIDIA driver in Windows, then restart WSL (`wsl --shutdown`)",
        )
    folder = _in_use(tree, stores)
    files = tuple(
        f"{folder}/{name}"
        for name in tree.names(folder)
        if _STORED.fullmatch(name) and tree.is_file(f"{folder}/{name}") and speakable(name)
    )
    return WslStore(folder, files, tuple(_loader_names(tree, files).items()))


def wsl_edits(root: DriverRoot, store: WslStore, *, machine: str = "") -> ContainerEdits:
    """Hook-free common edits for mode ``wsl``; /dev/dxg belongs to the device instead."""
    wanted = [(path, path) for path in store.files]
    wanted += [(path, f"{folder}/{name}") for name, path in store.libraries for folder in library_dirs(machine)]
    wanted += [(path, f"{CONTAINER_BINARY_DIR}/{_SMI}") for path in _smi(root.files, store)]
    mounts = {
        target: CdiMount(
            host_path=root.files.on_host(root.files.resolve(path) or path),
            container_path=target,
            options=MOUNT_OPTIONS,
        )
        for path, target in reversed(wanted)
    }
    return ContainerEdits(env=(f"{names.ENV_VISIBLE_DEVICES}=void",), mounts=tuple(reversed(mounts.values())))


def _in_use(tree: Tree, stores: list[str]) -> str:
    """The store to which WSL's links point, else the one with the newest files."""
    for name in tree.names(LIBRARY_DIR):
        real = tree.resolve(f"{LIBRARY_DIR}/{name}") or ""
        if posixpath.dirname(real) in stores:
            return posixpath.dirname(real)

    def age(folder: str) -> float:
        try:
            return tree.local(tree.resolve(f"{folder}/{_MARK}") or folder).lstat().st_mtime
        except OSError:
            return 0.0

    return max(stores, key=age)


def _loader_names(tree: Tree, files: tuple[str, ...]) -> dict[str, str]:
    """Loader name -> path: those of /usr/lib/wsl/lib, then further names and SONAMEs from the store."""
    names = {
        name: f"{LIBRARY_DIR}/{name}"
        for name in tree.names(LIBRARY_DIR)
        if _LOADED.fullmatch(name) and tree.is_file(f"{LIBRARY_DIR}/{name}")
    }
    for path in files:
        name = posixpath.basename(path)
        if not _LOADED.fullmatch(name):
            continue
        names.setdefault(name, path)
        soname = read_elf(tree.local(tree.resolve(path) or path)).soname
        if _LOADED.fullmatch(soname):
            names.setdefault(soname, path)
    return names


def _smi(tree: Tree, store: WslStore) -> list[str]:
    inside = f"{store.folder}/{_SMI}"
    return [path for path in (inside, f"{LIBRARY_DIR}/{_SMI}") if tree.is_file(path)][:1]
