"""Turns a driver's files into CDI edits: hook-free ones, and those for specs with hooks. Pure except for following
links.

Hook-free: each library is mounted under all its names in the loader's default folders, so that the container needs
neither links nor a loader cache. With hooks: each file is mounted once, at the host's path.
"""

from __future__ import annotations

import platform
import posixpath
from collections.abc import Callable, Iterable, Iterator
from typing import Final

from kgpu.formats import names
from kgpu.formats.cdi import MOUNT_OPTIONS, SOCKET_OPTIONS, CdiMount, ContainerEdits
from kgpu.host.driver.graphics import GBM_NAME, gbm_library
from kgpu.host.driver.model import DriverFiles, Library
from kgpu.host.driver.params import PARAMS
from kgpu.host.root import DriverRoot

# The dynamic loader's default folders, which are compiled into it and need no cache: those of Debian and Ubuntu, of
# Fedora, RHEL and SUSE, and of a plain glibc build (Wolfi, Yocto), which shares no other folder with them. Debian's
# loader searches the last one too, but an image's own driver is in the first.
CONTAINER_LIBRARY_DIRS: Final = {
    "x86_64": ("/usr/lib/x86_64-linux-gnu", "/usr/lib64", "/usr/lib"),
    "aarch64": ("/usr/lib/aarch64-linux-gnu", "/usr/lib64", "/usr/lib"),
}
CONTAINER_LIBRARY_DIRS_32: Final = ("/usr/lib/i386-linux-gnu", "/usr/lib")
CONTAINER_BINARY_DIR: Final = "/usr/bin"


def library_dirs(machine: str = "") -> tuple[str, ...]:
    """The container's library folders for ``machine`` (uname's name; the default is this machine's)."""
    return CONTAINER_LIBRARY_DIRS.get(machine or platform.machine(), CONTAINER_LIBRARY_DIRS["x86_64"])


def driver_edits(root: DriverRoot, files: DriverFiles, *, machine: str = "", params_file: str = "") -> ContainerEdits:
    """The hook-free edits that every container with a GPU needs: the ``common`` of ``formats.cdi.build_spec``.

    ``params_file`` is a prepared copy of /proc/driver/nvidia/params (host path), for runtimes that accept mounts inside
    /proc: crun does, runc does not (see ``params``). A simulated root's state file is mounted, too.
    """
    mounts = [
        *_library_mounts(root, files.libraries, library_dirs(machine)),
        *_shared_mounts(root, files, lambda path: f"{CONTAINER_BINARY_DIR}/{posixpath.basename(path)}"),
    ]
    if params_file:
        mounts.append(_mount(params_file, PARAMS))
    return _edits(root, files, mounts, env=_told(files.libraries, library_dirs(machine)))


def host_edits(root: DriverRoot, files: DriverFiles) -> ContainerEdits:
    """The edits for specs with hooks: each file is mounted once, at its path in the driver root, without further names.

    ``link_pairs`` are then the ``create-symlinks`` arguments, ``library_folders`` those of ``update-ldcache``.
    """
    libraries = [_mount(root.files.on_host(library.path), library.path) for library in files.libraries]
    return _edits(root, files, [*libraries, *_shared_mounts(root, files, lambda path: path)])


def link_pairs(files: DriverFiles) -> tuple[str, ...]:
    """``TARGET::LINK`` pairs for every further name of the libraries, for NVIDIA's create-symlinks hook.

    A bare name (``libcuda.so``) links to the versioned name that programs load (``libcuda.so.1``), and that to the
    file.
    """
    pairs: list[str] = []
    for library in files.libraries:
        folder, file = posixpath.split(library.path)
        others = sorted((name for name in library.names if name != file), key=len, reverse=True)
        for at, name in enumerate(others):
            longer = (other for other in reversed(others[:at]) if other.startswith(f"{name}."))
            pairs.append(f"{next(longer, file)}::{folder}/{name}")
    if (allocator := gbm_library(files.libraries)) is not None:
        folder, file = posixpath.split(allocator.path)
        pairs.append(f"../{file}::{folder}/{GBM_NAME}")
    return tuple(dict.fromkeys(pairs))


def library_folders(files: DriverFiles) -> tuple[str, ...]:
    """The folders in which ``host_edits`` mounts libraries, for NVIDIA's update-ldcache hook."""
    return tuple(sorted({posixpath.dirname(library.path) for library in files.libraries}))


def _told(libraries: Iterable[Library], folders: tuple[str, ...]) -> tuple[str, ...]:
    """The variable with libcuda's folder for Triton, and so for torch.compile and vLLM. Triton looks in the loader
    cache, which only a hook could write, or reads this variable.
    """
    there = any(library.bits == 64 and "libcuda.so.1" in library.names for library in libraries)
    return (f"{names.ENV_TRITON_LIBCUDA}={folders[0]}",) if there else ()


def _edits(
    root: DriverRoot, files: DriverFiles, mounts: Iterable[CdiMount], *, env: tuple[str, ...] = ()
) -> ContainerEdits:
    """The edits with control nodes, environment and a simulation's state; each path in the container is used once."""
    every_env = [*env, f"{names.ENV_VISIBLE_DEVICES}=void"]
    every = list(mounts)
    if (state := root.state_file) is not None:
        options = ("rw", *MOUNT_OPTIONS[1:])
        every.append(CdiMount(host_path=root.files.on_host(state), container_path=names.HW_STATE_PATH, options=options))
        every_env.append(f"{names.ENV_HW_STATE}={names.HW_STATE_PATH}")
    by_place: dict[str, CdiMount] = {}
    for mount in every:
        by_place.setdefault(mount.container_path, mount)
    return ContainerEdits(
        env=tuple(every_env),
        device_nodes=tuple(root.device_node(path) for path in files.control_nodes),
        mounts=tuple(by_place.values()),
    )


def _library_mounts(root: DriverRoot, libraries: Iterable[Library], folders: Iterable[str]) -> Iterator[CdiMount]:
    places = {64: tuple(folders), 32: CONTAINER_LIBRARY_DIRS_32}
    # 32-bit libraries come first: RHEL's 32-bit programs search only /usr/lib, and the user asked for them.
    for library in sorted(libraries, key=lambda one: one.bits):
        host = root.files.on_host(library.path)
        for folder in places[library.bits]:
            for name in library.names:
                yield _mount(host, posixpath.join(folder, library.subfolder, name))
    if (allocator := gbm_library(libraries)) is not None:
        for folder in places[64]:
            yield _mount(root.files.on_host(allocator.path), f"{folder}/{GBM_NAME}")


def _shared_mounts(root: DriverRoot, files: DriverFiles, place: Callable[[str], str]) -> Iterator[CdiMount]:
    """The mounts that are the same with and without hooks; ``place`` returns a program's path in the container."""
    for path in files.binaries:
        yield _mount(_on_host(root, path), place(path))
    for path in files.firmware:
        yield _mount(_on_host(root, path), path)
    for path in (*files.sockets, *files.folders):
        yield CdiMount(host_path=_on_host(root, path), container_path=path, options=SOCKET_OPTIONS)
    for placed in (*files.graphics, *files.loaders):
        for target in placed.targets:
            yield _mount(root.files.on_host(placed.path), target)


def _on_host(root: DriverRoot, path: str) -> str:
    """The real path on the host: the runtime would follow a driver root's absolute link out of the root."""
    return root.files.on_host(root.files.resolve(path) or path)


def _mount(host: str, container: str) -> CdiMount:
    return CdiMount(host_path=host, container_path=container, options=MOUNT_OPTIONS)
