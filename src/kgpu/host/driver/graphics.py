"""Finds the files that rendering needs besides libraries: vendor configuration, loader links, X.Org modules.

Their paths in the container are chosen here, as they don't follow from the host's: configuration goes to the folders
that images of every distribution search, modules to those of Debian's and Fedora's X servers.
"""

from __future__ import annotations

import posixpath
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final

from kgpu.host.driver.layouts import CONFIG_DIRS
from kgpu.host.driver.model import Item, Library, PlacedFile, Search
from kgpu.host.driver.programs import first_file
from kgpu.host.root import Tree


@dataclass(frozen=True, slots=True)
class Config:
    """A configuration file: its name below a configuration folder, and the container's folder for it."""

    name: str
    into: str
    breaks: str


_EGL: Final = "EGL programs in images without it don't find the driver"
_VULKAN: Final = "Vulkan programs don't find the driver"
_NOTHING: Final = ""  # nothing breaks without it: a newer or older file has the same use
CONFIGS: Final = (
    Config("glvnd/egl_vendor.d/10_nvidia.json", "/usr/share", _EGL),
    Config("egl/egl_external_platform.d/15_nvidia_gbm.json", "/usr/share", "EGL on GBM does not work"),
    Config("egl/egl_external_platform.d/10_nvidia_wayland.json", "/usr/share", "EGL on Wayland does not work"),
    Config("egl/egl_external_platform.d/09_nvidia_wayland2.json", "/usr/share", _NOTHING),
    Config("egl/egl_external_platform.d/20_nvidia_xcb.json", "/usr/share", _NOTHING),
    Config("egl/egl_external_platform.d/20_nvidia_xlib.json", "/usr/share", _NOTHING),
    Config("nvidia/nvoptix.bin", "/usr/share", "OptiX denoising does not work"),
    Config("X11/xorg.conf.d/10-nvidia.conf", "/usr/share", _NOTHING),
    Config("X11/xorg.conf.d/nvidia-drm-outputclass.conf", "/usr/share", _NOTHING),
    Config("OpenCL/vendors/nvidia.icd", "/etc", "OpenCL programs don't find the driver"),
    Config("vulkan/icd.d/nvidia_icd.json", "/etc", _VULKAN),
    Config("vulkan/icd.d/nvidia_icd.x86_64.json", "/etc", _NOTHING),
    Config("vulkan/icd.d/nvidia_icd.aarch64.json", "/etc", _NOTHING),
    Config("vulkan/icd.d/nvidia_layers.json", "/etc", _NOTHING),
    Config("vulkan/implicit_layer.d/nvidia_layers.json", "/etc", _NOTHING),
)
# Module -> its folder below an X server's modules.
_MODULES: Final = {"nvidia_drv.so": "drivers", "libglxserver_nvidia.so": "extensions"}
_XORG_DIRS: Final = ("/usr/lib/xorg", "/usr/lib64/xorg", "/usr/X11R6/lib", "/usr/X11R6/lib64")
_XORG_TARGETS: Final = ("/usr/lib/xorg/modules", "/usr/lib64/xorg/modules")
# Mesa's buffer manager loads the allocator library under this name, below a library folder.
GBM_NAME: Final = "gbm/nvidia-drm_gbm.so"


def find_graphics(
    tree: Tree, folders: Iterable[str], version: str, search: Search
) -> tuple[list[PlacedFile], list[Item]]:
    """Find the files. ``folders`` are the libraries' real folders. A missing file is not an error:
    servers need none.
    """
    placed: list[PlacedFile] = []
    items: list[Item] = []
    rows: list[tuple[str, str, str, str, tuple[str, ...]]] = [
        *_configs(tree, search),
        *_modules(tree, tuple(folders), version),
    ]
    for kind, name, breaks, path, targets in rows:
        real = tree.resolve(path) if path else None
        why = "" if real else f"{name} is not installed"
        items.append(
            Item(kind=kind, name=name, found=bool(real), path=real or "", why=why, breaks=breaks, optional=True)
        )
        if real:
            placed.append(PlacedFile(real, targets))
    return placed, items


def gbm_library(libraries: Iterable[Library]) -> Library | None:
    """The library for ``GBM_NAME``, None if the driver has none."""
    return next((one for one in libraries if one.bits == 64 and _stem(one.path) == "libnvidia-allocator"), None)


def _configs(tree: Tree, search: Search) -> Iterator[tuple[str, str, str, str, tuple[str, ...]]]:
    for config in CONFIGS:
        path = first_file(tree, search.config_dirs or CONFIG_DIRS, config.name)
        yield "config", config.name, config.breaks, path, (posixpath.join(config.into, config.name),)


def _modules(
    tree: Tree, folders: tuple[str, ...], version: str
) -> Iterator[tuple[str, str, str, str, tuple[str, ...]]]:
    for name, below in _MODULES.items():
        places = tuple(_module_dirs(folders, below))
        path = first_file(tree, places, f"{name}.{version}") or first_file(tree, places, name)
        names = (name, f"{name}.{version}") if path.endswith(f".{version}") else (name,)
        targets = tuple(f"{base}/{below}/{one}" for base in _XORG_TARGETS for one in names)
        yield "xorg", name, "", path, targets


def _module_dirs(folders: tuple[str, ...], below: str) -> Iterator[str]:
    for folder in (*folders, "/usr/lib/x86_64-linux-gnu", "/usr/lib/aarch64-linux-gnu"):
        yield f"{folder}/nvidia/xorg"
        yield f"{folder}/xorg/modules/{below}"
        yield f"{folder}/xorg/modules/updates/{below}"
    for base in _XORG_DIRS:
        yield f"{base}/modules/{below}"
        yield f"{base}/modules/updates/{below}"
        yield base


def _stem(path: str) -> str:
    return posixpath.basename(path).partition(".so")[0]
