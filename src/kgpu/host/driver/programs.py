"""Finds a driver's files other than libraries: programs, firmware, and its daemons' sockets and folders.

Each search returns what it found and one report item for each thing searched for.
"""

from __future__ import annotations

import os
import posixpath
import stat
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from kgpu.host.driver.layouts import BINARY_DIRS, FIRMWARE_DIRS, LOADER_DIRS, STORES
from kgpu.host.driver.libraries import speakable
from kgpu.host.driver.model import Item, Library, PlacedFile, Search
from kgpu.host.elf import read_elf
from kgpu.host.root import DriverRoot, Tree, read_some

# Program -> what does not work in containers without it.
BINARIES: Final = {
    "nvidia-smi": "containers will not have it",
    "nvidia-debugdump": "",
    "nvidia-persistenced": "",
    "nvidia-cuda-mps-control": "no MPS daemon can be started in a container",
    "nvidia-cuda-mps-server": "no MPS daemon can be started in a container",
    "nvidia-imex": "no IMEX daemon can be started in a container",
    "nvidia-imex-ctl": "",
}
GRAPHICS_BINARIES: Final = {"nvidia-xconfig": ""}
SOCKETS: Final = {
    "nvidia-persistenced/socket": "",
    "nvidia-fabricmanager/socket": "",
}
RUN_DIRS: Final = ("/run", "/var/run")
MPS_DIR: Final = "/tmp/nvidia-mps"  # noqa: S108 - the MPS daemon's own default
IPC_PLACES: Final = (*(f"{base}/{name}" for base in RUN_DIRS for name in SOCKETS), MPS_DIR)
_FIRMWARE_PARAMETER: Final = "module/firmware_class/parameters/path"
_MAX_FIRMWARE_PATH: Final = 4096
_LIB_DIRS: Final = frozenset({"/lib", "/lib64", "/usr/lib", "/usr/lib64"})


@dataclass(frozen=True, slots=True)
class FoundPrograms:
    """Paths inside the root, and one item for each thing searched for."""

    paths: tuple[str, ...] = ()
    items: tuple[Item, ...] = ()


def sys_of(root: DriverRoot, search: Search) -> Path:
    """The node's /sys: the search's, a simulated root's own, or the real one."""
    return search.sys or _simulated(root, "/sys")


def proc_of(root: DriverRoot, search: Search) -> Path:
    """The node's /proc: the search's, a simulated root's own, or the real one."""
    return search.proc or _simulated(root, "/proc")


def _simulated(root: DriverRoot, path: str) -> Path:
    return root.files.local(path) if root.state_file is not None else Path(path)


def find_binaries(tree: Tree, search: Search) -> FoundPrograms:
    """The first of each program in the usual folders."""
    paths: list[str] = []
    items: list[Item] = []
    wanted = BINARIES | GRAPHICS_BINARIES if search.graphics else BINARIES
    for name, breaks in wanted.items():
        path = first_file(tree, BINARY_DIRS, name)
        if path:
            paths.append(path)
        why = (
            "" if path else f"{name} is in none of {', '.join(BINARY_DIRS[:6])} and {len(BINARY_DIRS) - 6} more folders"
        )
        items.append(
            Item(
                kind="binary",
                name=name,
                found=bool(path),
                path=path,
                why=why,
                breaks="" if path else breaks,
                optional=name != "nvidia-smi",
            )
        )
    return FoundPrograms(tuple(paths), tuple(items))


def find_firmware(root: DriverRoot, version: str, search: Search) -> FoundPrograms:
    """The GSP firmware of this version, from the first folder of the kernel's search path that has it."""
    tree = root.files
    searched = tuple(f"{base}/nvidia/{version}" for base in _firmware_dirs(root, search))
    for folder in searched:
        names = (name for name in tree.names(folder) if name.startswith("gsp") and name.endswith(".bin"))
        paths = tuple(path for name in names if tree.is_file(path := f"{folder}/{name}"))
        if paths:
            return FoundPrograms(paths, tuple(_item("firmware", posixpath.basename(path), path) for path in paths))
    why = f"gsp*.bin is in none of {', '.join(searched)}"
    return FoundPrograms((), (Item(kind="firmware", name="gsp", found=False, why=why, optional=True),))


def find_sockets(tree: Tree) -> FoundPrograms:
    """The sockets of the driver's running daemons."""
    paths: list[str] = []
    items: list[Item] = []
    for name, breaks in SOCKETS.items():
        path = next((path for base in RUN_DIRS if _talks(tree, path := f"{base}/{name}")), "")
        if path:
            paths.append(path)
        daemon = posixpath.dirname(name)
        why = "" if path else f"{name} is not under {' or '.join(RUN_DIRS)}: {daemon} does not run here"
        items.append(Item(kind="ipc", name=daemon, found=bool(path), path=path, why=why, breaks=breaks, optional=True))
    return FoundPrograms(tuple(paths), tuple(items))


def find_mps_folder(tree: Tree) -> FoundPrograms:
    """The MPS daemon's folder, if it is a real folder owned by root (or by us).

    Everybody can write to /tmp: a link, or a folder that another user may replace with a link after our check, could
    expose any folder of the host to containers, writable. The folder's content is open to everybody as well, because
    clients of every user talk to the daemon there.
    """
    name = posixpath.basename(MPS_DIR)
    try:
        above = tree.local(tree.resolve(posixpath.dirname(MPS_DIR)) or "/nowhere")
        everybody = above.stat().st_mode & (stat.S_IWOTH | stat.S_ISVTX) == stat.S_IWOTH
        status = above.joinpath(name).lstat()
    except OSError:
        return FoundPrograms((), (_missing_ipc(name, f"{MPS_DIR} is not there: no MPS daemon runs here"),))
    if not stat.S_ISDIR(status.st_mode):
        why = f"{MPS_DIR} is not a folder"
    elif status.st_uid not in {0, os.geteuid()}:
        why = f"{MPS_DIR} belongs to user {status.st_uid}, who may turn it into a link"
    elif everybody:
        why = f"everybody may turn {MPS_DIR} into a link: {posixpath.dirname(MPS_DIR)} has no sticky bit"
    else:
        return FoundPrograms((MPS_DIR,), (_item("ipc", name, MPS_DIR),))
    return FoundPrograms((), (_missing_ipc(name, why, breaks="containers can't reach the host's MPS daemon"),))


def find_loaders(
    tree: Tree, binaries: Iterable[str], libraries: Iterable[Library]
) -> tuple[list[PlacedFile], list[Item]]:
    """The folders that must have the same path in a container for the driver's programs to start.

    Packages of NixOS and Guix refer to their dynamic loader and to each other's libraries by absolute path.
    """
    folders: dict[str, str] = {}  # path in the container -> real path
    items: list[Item] = []
    for binary in binaries:
        real = tree.resolve(binary)
        interpreter = read_elf(tree.local(real)).interpreter if real else ""
        folder = posixpath.normpath(posixpath.dirname(interpreter)) if interpreter.startswith("/") else ""
        if not folder or folder in _LIB_DIRS:
            continue
        name = posixpath.basename(binary)
        target = tree.resolve(folder)
        if target and _may_be_mounted(folder) and _may_be_mounted(target) and tree.is_file(interpreter):
            folders[folder] = target
        else:
            items.append(_strange_loader(name, interpreter))
    for library in libraries:
        folder = posixpath.dirname(library.path)
        if folder.startswith(STORES) and _may_be_mounted(folder):
            folders.setdefault(folder, folder)
    items += [_item("loader", posixpath.basename(folder), folder) for folder in folders]
    return [PlacedFile(real, (folder,)) for folder, real in folders.items()], items


def first_file(tree: Tree, folders: Iterable[str], name: str) -> str:
    """The first path that is a regular file, links followed; "" for none."""
    for folder in folders:
        path = posixpath.join(folder, name)
        resolved = tree.resolve(path)
        if resolved is not None and speakable(resolved) and tree.is_file(resolved):
            return path
    return ""


def _firmware_dirs(root: DriverRoot, search: Search) -> Iterator[str]:
    """Firmware folders in the kernel's order: the module parameter, updates, the distribution's; then
    other systems'.
    """
    parameter = read_some(sys_of(root, search) / _FIRMWARE_PARAMETER, _MAX_FIRMWARE_PATH)
    path = parameter.decode(errors="replace").strip()
    if path.startswith("/") and speakable(path):
        path = posixpath.normpath(path)
        host = root.files.host.rstrip("/")
        # The kernel's path is the host's; in a driver container's root it lacks the root's mount point.
        if host and path.startswith(f"{host}/"):
            yield path.removeprefix(host)
        yield path
    release = search.kernel or os.uname().release
    for base in ("/lib/firmware/updates", "/lib/firmware"):
        if "/" not in release and release not in {"", ".", ".."}:
            yield f"{base}/{release}"
        yield base
    yield "/usr/lib/firmware"
    yield from FIRMWARE_DIRS


def _talks(tree: Tree, path: str) -> bool:
    """Whether the path is a socket, pipe or plain file (as in simulated roots). A link is refused: the user who owns a
    daemon's folder could use one to expose any socket or file of the host to containers.
    """
    folder = tree.resolve(posixpath.dirname(path))
    if folder is None:
        return False
    try:
        mode = tree.local(folder).joinpath(posixpath.basename(path)).lstat().st_mode
    except OSError:
        return False
    return stat.S_IFMT(mode) in {stat.S_IFSOCK, stat.S_IFREG, stat.S_IFIFO}


def _may_be_mounted(folder: str) -> bool:
    return any(folder.startswith(base) and len(folder) > len(base) for base in LOADER_DIRS)


def _item(kind: str, name: str, path: str) -> Item:
    return Item(kind=kind, name=name, found=True, path=path)


def _missing_ipc(name: str, why: str, *, breaks: str = "") -> Item:
    return Item(kind="ipc", name=name, found=False, why=why, breaks=breaks, optional=not breaks)


def _strange_loader(name: str, interpreter: str) -> Item:
    return Item(
        kind="loader",
        name=name,
        found=False,
        why=f"{name} needs {interpreter}, which is no dynamic loader that can be mounted without hiding an image's",
        breaks=f"{name} starts only in images that have it",
    )
