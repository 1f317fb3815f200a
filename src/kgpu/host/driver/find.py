"""Finds the files of an installed NVIDIA driver that a container needs: libraries, programs, firmware, sockets, nodes.

Promises: links are followed inside the driver root; each library has every name by which programs load it; whatever is
missing is in the report, or a HostError if nothing works without it.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from kgpu.base.errors import HostError
from kgpu.formats.names import NVIDIA_CONTROL_NODES
from kgpu.host.driver import programs
from kgpu.host.driver.graphics import find_graphics
from kgpu.host.driver.layouts import layout_of
from kgpu.host.driver.libraries import FoundLibraries, find_libraries
from kgpu.host.driver.model import DriverFiles, DriverReport, Item, Search
from kgpu.host.driver.params import params_item, read_params
from kgpu.host.root import DriverRoot, read_some


@dataclass(frozen=True, slots=True)
class _Node:
    """A control device: its path, what does not work without it, and the remedy."""

    path: str
    breaks: str
    remedy: str
    essential: bool = False
    optional: bool = False


_CTL, _UVM, _UVM_TOOLS, _MODESET = NVIDIA_CONTROL_NODES
_NODES: Final = (
    _Node(_CTL, "no container can use a GPU", "load the driver and run `nvidia-modprobe`", essential=True),
    _Node(_UVM, "CUDA will not start", "run `nvidia-modprobe -u -c0`", essential=True),
    _Node(_UVM_TOOLS, "CUDA debuggers and profilers don't work", "run `nvidia-modprobe -u -c0`", optional=True),
    _Node(_MODESET, "nothing can be drawn on a display", "run `nvidia-modprobe -m`", optional=True),
)
_MAX_VERSION: Final = 4096
_MODULE_VERSION: Final = re.compile(rb"Kernel Module\b.{0,40}?\b(\d{1,6}\.\d{1,6}(?:\.\d{1,6})?)\b")
# Libraries of every complete current driver -> what does not work without one. Many nodes lack some on purpose (server
# packages leave out graphics), so a missing one is in the report and not a warning.
_EXPECTED: Final = {
    "libnvidia-ptxjitcompiler": "CUDA programs with code for other GPUs (PTX) don't start",
    "libnvidia-nvvm": "CUDA's link-time optimization does not work",
    "libcudadebugger": "cuda-gdb does not work",
    "libnvidia-opencl": "OpenCL does not work",
    "libnvidia-encode": "video encoding (NVENC) does not work",
    "libnvcuvid": "video decoding (NVDEC) does not work",
    "libnvidia-opticalflow": "optical flow does not work",
    "libEGL_nvidia": "rendering by EGL does not work",
    "libGLX_nvidia": "rendering by GLX does not work",
    "libnvidia-glcore": "OpenGL does not work",
    "libnvidia-glvkspirv": "Vulkan does not work",
    "libnvoptix": "OptiX does not work",
    "libnvidia-allocator": "buffers can't be shared with a display server (GBM)",
}


def find_driver_files(root: DriverRoot, *, version: str = "", search: Search | None = None) -> DriverFiles:
    """Search the root. ``version`` is NVML's driver version, "" if unknown.

    Raises HostError if the essential libraries or nvidiactl are missing, or only another version's libraries exist.
    Everything else that is missing is in ``report`` (and, with what it breaks, in ``notes``).
    """
    search = search or Search()
    tree = root.files
    loaded = module_version(root, search)
    libraries = find_libraries(tree, version, search, loaded=loaded)
    nodes = tuple(path for path in NVIDIA_CONTROL_NODES if root.has_node(path))
    if _CTL not in nodes:
        raise HostError(
            f"{root.dev.local(_CTL)} is not there",
            "the driver's control device, without which no container can use a GPU",
            "load the driver and make its nodes (`nvidia-modprobe`), or point --dev-root at the folder that has /dev",
        )
    binaries = programs.find_binaries(tree, search)
    firmware = programs.find_firmware(root, libraries.version, search)
    sockets = programs.find_sockets(tree) if search.ipc else programs.FoundPrograms()
    folders = programs.find_mps_folder(tree) if search.ipc else programs.FoundPrograms()
    graphics, graphics_items = (
        find_graphics(tree, libraries.folders, libraries.version, search) if search.graphics else ([], [])
    )
    loaders, loader_items = programs.find_loaders(tree, binaries.paths, libraries.libraries)
    report = DriverReport(
        version=libraries.version,
        root=str(tree.here),
        layout=layout_of(tree),
        folders=tuple(dict.fromkeys(posixpath.dirname(library.path) for library in libraries.libraries)),
        items=(
            *_node_items(root),
            *_library_items(root, libraries),
            *binaries.items,
            *firmware.items,
            *sockets.items,
            *folders.items,
            *loader_items,
            *graphics_items,
            params_item(read_params(root, search)),
            *_module_items(libraries, version, loaded),
        ),
    )
    return DriverFiles(
        version=libraries.version,
        libraries=tuple(libraries.libraries),
        binaries=binaries.paths,
        firmware=firmware.paths,
        sockets=sockets.paths,
        folders=folders.paths,
        control_nodes=nodes,
        graphics=tuple(graphics),
        loaders=tuple(loaders),
        notes=(*report.notes(), *_stand_ins(root, nodes)),
        report=report,
    )


def module_version(root: DriverRoot, search: Search | None = None) -> str:
    """The loaded kernel module's version from /proc/driver/nvidia/version; "" if none is loaded or it can't be read."""
    text = read_some(programs.proc_of(root, search or Search()) / "driver/nvidia/version", _MAX_VERSION)
    match = _MODULE_VERSION.search(text)
    return match[1].decode() if match else ""


def _module_items(libraries: FoundLibraries, version: str, loaded: str) -> Iterator[Item]:
    """An item if the module's version is not the libraries', for searches without NVML (which would have refused)."""
    if not version and loaded and loaded != libraries.version:
        yield Item(
            kind="module",
            name="nvidia",
            found=False,
            why=f"the loaded kernel module is version {loaded}, the libraries are {libraries.version}",
            breaks="NVML and CUDA refuse to start; finish the driver's update by a reboot",
            essential=True,
        )


def _node_items(root: DriverRoot) -> Iterator[Item]:
    for node in _NODES:
        exists = root.has_node(node.path)
        yield Item(
            kind="node",
            name=node.path,
            found=exists,
            path=node.path if exists else "",
            why="" if exists else f"{node.path} is not there",
            breaks="" if exists else f"{node.breaks}; {node.remedy}",
            essential=node.essential,
            optional=node.optional,
        )


def _library_items(root: DriverRoot, libraries: FoundLibraries) -> Iterator[Item]:
    stems: set[str] = set()
    for library in libraries.libraries:
        stem = posixpath.basename(library.path).partition(".so")[0]
        stems |= {stem, *(name.partition(".so")[0] for name in library.names)}
        yield Item(kind="library", name=stem, found=True, path=library.path)
    for library in libraries.empty:
        if root.state_file is None:
            yield Item(
                kind="library",
                name=posixpath.basename(library.path),
                found=False,
                path=library.path,
                why=f"{library.path} is empty, as a container's end leaves the places of its mounts",
                breaks="programs that load it fail; install the driver again, or give the right --driver-root",
                essential=any(name.startswith(("libcuda.so", "libnvidia-ml.so")) for name in library.names),
            )
    for stem, breaks in {"libcuda": "CUDA will not start", "libnvidia-ml": "nvidia-smi does not work"}.items():
        if stem not in stems:
            yield _missing_library(libraries, stem, breaks, essential=True)
    for stem, breaks in _EXPECTED.items():
        if not any(other.startswith(stem) for other in stems):
            yield _missing_library(libraries, stem, breaks, essential=False)
    for path, reason in libraries.refused:
        yield Item(kind="library", name=posixpath.basename(path), found=False, why=f"{path!r} is left out: {reason}")


def _missing_library(found: FoundLibraries, stem: str, breaks: str, *, essential: bool) -> Item:
    return Item(
        kind="library",
        name=stem,
        found=False,
        why=f"{stem}.so.{found.version} is not beside the driver's other libraries",
        breaks=breaks,
        essential=essential,
        optional=not essential,
    )


def _stand_ins(root: DriverRoot, nodes: tuple[str, ...]) -> Iterator[str]:
    if stand_ins := [path for path in nodes if root.is_stand_in(path)]:
        yield f"{len(stand_ins)} device nodes are plain files (simulated without the right to make nodes)"
