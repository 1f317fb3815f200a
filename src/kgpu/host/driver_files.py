"""Finds what of an installed NVIDIA driver a container needs: libraries, programs, firmware, sockets, control nodes.

Promise: links are followed inside the driver root; each library comes with every name by which programs ask for it;
what is missing is a note (or, for what nothing works without, a HostError), never a silent gap. ``find_driver_files``,
then ``driver_edits`` give the ``common`` of ``formats.cdi.build_spec``, for the toolkit and the device plugin alike.
"""

from __future__ import annotations

import os
import platform
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Final

from kgpu.base.errors import HostError
from kgpu.formats import names
from kgpu.formats.cdi import MOUNT_OPTIONS, SOCKET_OPTIONS, ContainerEdits, Mount
from kgpu.host.elf import soname
from kgpu.host.root import DriverRoot, Tree

# Where distributions, driver containers and managed clusters put the libraries; the first folders are the usual ones.
LIBRARY_DIRS: Final = (
    "/usr/lib64",
    "/usr/lib/x86_64-linux-gnu",
    "/usr/lib/aarch64-linux-gnu",
    "/usr/lib/x86_64-linux-gnu/nvidia/current",
    "/usr/lib/aarch64-linux-gnu/nvidia/current",
    "/lib64",
    "/lib/x86_64-linux-gnu",
    "/lib/aarch64-linux-gnu",
    "/lib/x86_64-linux-gnu/nvidia/current",
    "/lib/aarch64-linux-gnu/nvidia/current",
    "/usr/local/nvidia/lib64",
    "/opt/nvidia/lib64",
)
BINARY_DIRS: Final = ("/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin", "/sbin", "/bin")
BINARIES: Final = (
    "nvidia-smi",
    "nvidia-debugdump",
    "nvidia-persistenced",
    "nvidia-cuda-mps-control",
    "nvidia-cuda-mps-server",
    "nvidia-imex",
    "nvidia-imex-ctl",
)
SOCKETS: Final = ("nvidia-persistenced/socket", "nvidia-fabricmanager/socket")
CONTROL_NODES: Final = ("/dev/nvidiactl", "/dev/nvidia-uvm", "/dev/nvidia-uvm-tools", "/dev/nvidia-modeset")
# Default folders of the dynamic loader that need no cache: Debian's and Fedora's glibc.
CONTAINER_LIBRARY_DIRS: Final = {
    "x86_64": ("/usr/lib/x86_64-linux-gnu", "/usr/lib64"),
    "aarch64": ("/usr/lib/aarch64-linux-gnu", "/usr/lib64"),
}
_VERSIONED: Final = re.compile(r"(lib[A-Za-z0-9_+.-]+?)\.so\.(\d+\.\d+(?:\.\d+)?)", re.ASCII)
_ESSENTIAL: Final = ("libcuda", "libnvidia-ml")
# Programs also ask for these without a version, whether or not the host has the link.
_BARE: Final = ("libcuda", "libnvidia-ml")
_CACHED: Final = re.compile(rb"(/[!-~]{1,512})/libcuda\.so\.1\x00")
_EXTRA: Final = re.compile(r"libnvidia-nvvm70\.so\.\d+", re.ASCII)


@dataclass(frozen=True, slots=True)
class Library:
    """One library: its real path inside the root, and every file name under which the loader may ask for it."""

    path: str
    names: tuple[str, ...]
    subfolder: str = ""  # vdpau libraries are looked for in a folder of that name


@dataclass(frozen=True, slots=True, kw_only=True)
class DriverFiles:
    """What was found; paths are inside the root. ``notes`` say what was looked for in vain, and what that costs."""

    version: str
    libraries: tuple[Library, ...]
    binaries: tuple[str, ...] = ()
    firmware: tuple[str, ...] = ()
    sockets: tuple[str, ...] = ()
    control_nodes: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


def find_driver_files(root: DriverRoot, *, version: str = "") -> DriverFiles:
    """Look under the root. ``version`` is what NVML says, "" when unknown.

    Raises HostError when the essential libraries are not there, when only another version's are, or when nvidiactl is
    missing.
    """
    folders = _library_folders(root.files, LIBRARY_DIRS)
    found = _versions(root.files, folders)
    if not found:
        folders = _library_folders(root.files, _cached_folders(root.files))
        found = _versions(root.files, folders)
    chosen = _choose_version(root.files, found, version)
    libraries = tuple(_libraries(root.files, folders, chosen))
    notes: list[str] = []
    nodes = tuple(path for path in CONTROL_NODES if root.has_node(path))
    if CONTROL_NODES[0] not in nodes:
        raise HostError(
            f"{root.dev.local(CONTROL_NODES[0])} is not there",
            "the driver's control device, without which no container can use a GPU",
            "load the driver and make its nodes (`nvidia-modprobe`), or point --dev-root at the folder that has /dev",
        )
    if "/dev/nvidia-uvm" not in nodes:
        notes.append("/dev/nvidia-uvm is not there, so CUDA will not start: run `nvidia-modprobe -u -c0`")
    if stand_ins := [path for path in nodes if root.is_stand_in(path)]:
        notes.append(f"{len(stand_ins)} device nodes are plain files (simulated without the right to make nodes)")
    binaries = tuple(path for name in BINARIES if (path := _first(root.files, BINARY_DIRS, name)))
    if not any(path.endswith("/nvidia-smi") for path in binaries):
        notes.append(f"nvidia-smi is in none of {', '.join(BINARY_DIRS)}; containers will not have it")
    return DriverFiles(
        version=chosen,
        libraries=libraries,
        binaries=binaries,
        firmware=tuple(_firmware(root.files, chosen)),
        sockets=tuple(path for name in SOCKETS if (path := _first(root.files, ("/run", "/var/run"), name))),
        control_nodes=nodes,
        notes=tuple(notes),
    )


def driver_edits(root: DriverRoot, files: DriverFiles, *, machine: str = "") -> ContainerEdits:
    """The edits that every container with a GPU needs, free of hooks: the ``common`` of ``formats.cdi.build_spec``.

    Each library is mounted under all its names in the loader's default folders for ``machine`` (default: this one's),
    so that neither links nor a loader cache have to be made inside the container. A simulated root brings its state.
    """
    folders = CONTAINER_LIBRARY_DIRS.get(machine or platform.machine(), CONTAINER_LIBRARY_DIRS["x86_64"])
    mounts: list[Mount] = []
    for library in files.libraries:
        host = root.files.on_host(library.path)
        for folder in folders:
            target = PurePosixPath(folder, library.subfolder)
            mounts += [_mount(host, str(target / name)) for name in library.names]
    mounts += [
        _mount(root.files.on_host(_real(root.files, path)), f"/usr/bin/{os.path.basename(path)}")
        for path in files.binaries
    ]
    mounts += [_mount(root.files.on_host(_real(root.files, path)), path) for path in files.firmware]
    mounts += [
        Mount(host_path=root.files.on_host(path), container_path=path, options=SOCKET_OPTIONS) for path in files.sockets
    ]
    env = [f"{names.ENV_VISIBLE_DEVICES}=void"]
    if (state := root.state_file) is not None:
        options = ("rw", *MOUNT_OPTIONS[1:])
        mounts.append(Mount(host_path=root.files.on_host(state), container_path=names.HW_STATE_PATH, options=options))
        env.append(f"{names.ENV_HW_STATE}={names.HW_STATE_PATH}")
    return ContainerEdits(
        env=tuple(env),
        device_nodes=tuple(root.device_node(path) for path in files.control_nodes),
        mounts=tuple(mounts),
    )


def _mount(host: str, container: str) -> Mount:
    return Mount(host_path=host, container_path=container, options=MOUNT_OPTIONS)


def _cached_folders(tree: Tree) -> list[str]:
    """Where the root's own loader cache says that libcuda is, for drivers in unusual places."""
    try:
        cache = tree.local(tree.resolve("/etc/ld.so.cache") or "/etc/ld.so.cache").read_bytes()
    except OSError:
        return []
    return [match[1].decode("ascii") for match in _CACHED.finditer(cache)]


def _library_folders(tree: Tree, candidates: Iterable[str]) -> tuple[str, ...]:
    """The folders that exist, by their real names and each once: /lib64 is often a link to /usr/lib64."""
    resolved = (tree.resolve(folder) for folder in candidates)
    return tuple(dict.fromkeys(folder for folder in resolved if folder and tree.local(folder).is_dir()))


def _versions(tree: Tree, folders: Iterable[str]) -> dict[str, set[str]]:
    """Version -> which essential libraries have it."""
    found: dict[str, set[str]] = {}
    for folder in folders:
        for name in tree.names(folder):
            match = _VERSIONED.fullmatch(name)
            if match and match[1] in _ESSENTIAL:
                found.setdefault(match[2], set()).add(match[1])
    return found


def _choose_version(tree: Tree, found: dict[str, set[str]], wanted: str) -> str:
    if wanted in found:
        return wanted
    if not found:
        raise HostError(
            f"no NVIDIA driver libraries are under {tree.here}",
            f"libcuda.so.<version> in one of {', '.join(LIBRARY_DIRS)}",
            "install the driver, or point --driver-root at the folder where it is installed or mounted",
        )
    if wanted:
        raise HostError(
            f"the driver is version {wanted}, but the libraries under {tree.here} are {', '.join(sorted(found))}",
            f"libcuda.so.{wanted}",
            "finish the driver's installation, or reboot so that kernel module and libraries match",
        )
    return max(found, key=lambda version: (len(found[version]), [int(part) for part in version.split(".")]))


def _libraries(tree: Tree, folders: Iterable[str], version: str) -> Iterable[Library]:
    seen: set[str] = set()
    for folder in folders:
        for subfolder in ("", "vdpau"):
            place = f"{folder}/{subfolder}".rstrip("/")
            listed = tree.names(place)
            for name in listed:
                if not name.endswith(f".so.{version}") and not _EXTRA.fullmatch(name):
                    continue
                path = tree.resolve(f"{place}/{name}")
                if path is None or name in seen:
                    continue
                seen.add(name)
                yield Library(path, _names_of(tree, place, name, path, listed), subfolder)


def _names_of(tree: Tree, place: str, name: str, path: str, listed: Iterable[str]) -> tuple[str, ...]:
    stem = name.partition(".so")[0]
    every = {name}
    every |= {other for other in listed if other.startswith(f"{stem}.so") and tree.resolve(f"{place}/{other}") == path}
    if wanted := soname(tree.local(path)):
        every.add(wanted)
    if stem in _BARE:
        every.add(f"{stem}.so")
    return tuple(sorted(every))


def _firmware(tree: Tree, version: str) -> Iterable[str]:
    for base in ("/lib/firmware/updates", "/lib/firmware"):
        folder = f"{base}/nvidia/{version}"
        found = [f"{folder}/{name}" for name in tree.names(folder) if name.startswith("gsp") and name.endswith(".bin")]
        if found:
            return found
    return []


def _first(tree: Tree, folders: Iterable[str], name: str) -> str:
    for folder in folders:
        path = f"{folder}/{name}"
        resolved = tree.resolve(path)
        if resolved is not None and tree.local(resolved).exists():
            return path
    return ""


def _real(tree: Tree, path: str) -> str:
    return tree.resolve(path) or path
