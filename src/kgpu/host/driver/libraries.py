"""Finds a driver's libraries: their folders, their version, and the names by which programs load them.

Links are followed inside the root. A library of another word size, or with a path that a spec can't contain, is not
used, whatever its name is.
"""

from __future__ import annotations

import functools
import posixpath
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final

from kgpu.base.errors import HostError
from kgpu.host.driver.layouts import CACHES, COMPAT32_DIRS, LIBRARY_DIRS
from kgpu.host.driver.ldcache import MAX_CACHE, parse_ld_cache
from kgpu.host.driver.model import Library, Search
from kgpu.host.elf import Elf, read_elf
from kgpu.host.root import Tree

ESSENTIAL: Final = ("libcuda", "libnvidia-ml")
_ESSENTIAL: Final = re.compile(rf"({'|'.join(ESSENTIAL)})\.so\.(\d{{1,6}}\.\d{{1,6}}(?:\.\d{{1,6}})?)", re.ASCII)
_NAME: Final = re.compile(r"lib[A-Za-z0-9_+.-]+\.so[A-Za-z0-9_+.-]*", re.ASCII)
_SUBFOLDERS: Final = ("", "vdpau")
# Names by which programs load the library although few hosts have the link.
_ASKED: Final = {
    "libcuda": ("libcuda.so",),
    "libnvidia-ml": ("libnvidia-ml.so",),
    "libnvidia-opticalflow": ("libnvidia-opticalflow.so", "libnvidia-opticalflow.so.1"),
    "libnvidia-vulkan-producer": ("libnvidia-vulkan-producer.so",),
    "libGLX_nvidia": ("libGLX_indirect.so.0",),
}
# Libraries of the driver that have versions of their own.
_OWN_VERSION: Final = r"libnvidia-nvvm70\.so\.\d+|libnvidia-egl-(?:gbm|wayland2?|xcb|xlib)\.so\.\d+(?:\.\d+)+"
# The vendor-neutral dispatch libraries of libglvnd and the OpenCL loader, for images without them.
_NEUTRAL: Final = r"lib(?:EGL|GL|GLESv1_CM|GLESv2|GLX|GLdispatch|OpenCL|OpenGL|nvidia-api)\.so\.\d+(?:\.\d+)*"

_Listed = Callable[[str], tuple[str, ...]]


@dataclass(slots=True)
class FoundLibraries:
    """The libraries of one version, the folders searched, refused files (path and reason), and empty libraries."""

    version: str
    folders: tuple[str, ...]
    libraries: list[Library] = field(default_factory=list)
    refused: list[tuple[str, str]] = field(default_factory=list)
    empty: list[Library] = field(default_factory=list)


def find_libraries(tree: Tree, version: str, search: Search, *, loaded: str = "") -> FoundLibraries:
    """Find the libraries. Without ``version``, the kernel module's version ``loaded`` is preferred.

    Raises HostError if no essential library exists, or only with another version than ``version``.
    """
    folders = _with_linked(tree, real_folders(tree, search.library_dirs or LIBRARY_DIRS))
    listed = functools.cache(functools.partial(_listed, tree))
    versions = _versions(tree, folders, listed)
    if not versions and not search.library_dirs:
        folders = real_folders(tree, cached_folders(tree))
        versions = _versions(tree, folders, listed)
    if not version and loaded in versions:
        version = loaded
    libraries = FoundLibraries(_choose(tree, versions, version, search), folders)
    wanted = re.compile("|".join(_patterns(libraries.version, search)), re.ASCII)
    _collect(tree, libraries, folders, listed, wanted, bits=64)
    if search.compat32:
        _collect(tree, libraries, real_folders(tree, COMPAT32_DIRS), listed, wanted, bits=32)
    return libraries


def real_folders(tree: Tree, candidates: Iterable[str]) -> tuple[str, ...]:
    """The existing folders by their real paths, each once: /lib64 is often a link to /usr/lib64."""
    resolved = (tree.resolve(folder) for folder in candidates)
    return tuple(dict.fromkeys(folder for folder in resolved if folder and tree.is_dir(folder)))


def _with_linked(tree: Tree, folders: tuple[str, ...]) -> tuple[str, ...]:
    """The folders plus those that links of the essential libraries lead to: Debian's alternatives, a
    store's packages.
    """
    wanted = [_join(folder, f"{stem}.so.1") for folder in folders for stem in ESSENTIAL]
    linked = (posixpath.dirname(path) for name in wanted if (path := tree.resolve(name)))
    return tuple(dict.fromkeys((*folders, *linked)))


def cached_folders(tree: Tree) -> list[str]:
    """The folders of the essential libraries in the root's own loader cache, of links and of real files."""
    wanted = {f"{stem}.so.1" for stem in ESSENTIAL}
    places: list[str] = []
    for cache in CACHES:
        for entry in parse_ld_cache(tree.read(cache, MAX_CACHE)):
            if entry.abi and entry.name in wanted:
                places += [posixpath.dirname(path) for path in (tree.resolve(entry.path), entry.path) if path]
    return list(dict.fromkeys(places))


def speakable(path: str) -> bool:
    """Whether a spec can contain the path."""
    return path.isprintable()


def _versions(tree: Tree, folders: Iterable[str], listed: _Listed) -> dict[str, set[str]]:
    """Version -> the essential libraries that have it. A 32-bit library alone is not a driver."""
    found: dict[str, set[str]] = {}
    for folder in folders:
        for match in filter(None, map(_ESSENTIAL.fullmatch, listed(folder))):
            path = tree.resolve(_join(folder, match[0]))
            if path is not None and read_elf(tree.local(path)).bits != 32:
                found.setdefault(match[2], set()).add(match[1])
    return found


def _choose(tree: Tree, by_version: dict[str, set[str]], wanted: str, search: Search) -> str:
    if wanted in by_version:
        return wanted
    if not by_version:
        places = ", ".join(search.library_dirs or (*LIBRARY_DIRS[:6], "and others"))
        raise HostError(
            f"no NVIDIA driver libraries are under {tree.here}",
            f"libcuda.so.<version> in one of {places}, or where {CACHES[0]} says",
            "install the driver, or point --driver-root at the folder where it is installed or mounted"
            " (--library-search-path at an unusual folder inside it)",
        )
    if wanted:
        raise HostError(
            f"the driver is version {wanted}, but the libraries under {tree.here} are {', '.join(sorted(by_version))}",
            f"libcuda.so.{wanted}",
            "finish the driver's installation, or reboot so that kernel module and libraries match",
        )
    return max(by_version, key=lambda version: (len(by_version[version]), [int(part) for part in version.split(".")]))


def _collect(
    tree: Tree,
    libraries: FoundLibraries,
    folders: Sequence[str],
    listed: _Listed,
    wanted: re.Pattern[str],
    *,
    bits: int,
) -> None:
    """Add the libraries of the found version with this word size."""
    names: dict[str, tuple[str, str, Elf]] = {}  # subfolder and name -> real path, subfolder, facts
    for folder in folders:
        for subfolder in _SUBFOLDERS:
            for name in filter(wanted.fullmatch, listed(_join(folder, subfolder))):
                key = _join(subfolder, name)
                path = tree.resolve(_join(folder, subfolder, name))
                if path is None or key in names or not tree.is_file(path):
                    continue
                elf = read_elf(tree.local(path))
                if (elf.bits or 64) != bits:  # a file that isn't ELF may be a linker script or a stand-in
                    if bits == 64:
                        libraries.refused.append((path, "a 32-bit library"))
                elif not speakable(path):
                    libraries.refused.append((path, "a path with characters that no spec can hold"))
                else:
                    names[key] = (path, subfolder, elf)
    links = _links(tree, folders, listed, {name.rpartition("/")[2].partition(".so")[0] for name in names})
    seen: set[tuple[str, str]] = set()
    for key, (path, subfolder, elf) in names.items():
        if (path, subfolder) not in seen:
            seen.add((path, subfolder))
            every = _names_of(key.rpartition("/")[2], elf, links.get(path, ()))
            library = Library(path, every, subfolder, bits)
            libraries.libraries.append(library)
            if not elf.size:
                libraries.empty.append(library)


def _listed(tree: Tree, folder: str) -> tuple[str, ...]:
    return tuple(filter(_NAME.fullmatch, tree.names(folder)))


def _patterns(version: str, search: Search) -> Iterator[str]:
    yield rf"lib[A-Za-z0-9_+.-]+\.so\.{re.escape(version)}"
    yield _OWN_VERSION
    if search.explicit_libraries:
        yield _NEUTRAL


def _links(tree: Tree, folders: Iterable[str], listed: _Listed, stems: set[str]) -> dict[str, dict[str, None]]:
    """Real path -> the names of links to it in any of the folders, as Debian's are not in the file's folder."""
    found: dict[str, dict[str, None]] = {}
    for place in (_join(folder, subfolder) for folder in folders for subfolder in _SUBFOLDERS):
        for name in listed(place):
            if name.partition(".so")[0] in stems and (path := tree.resolve(_join(place, name))):
                found.setdefault(path, {})[name] = None
    return found


def _names_of(name: str, elf: Elf, links: Iterable[str]) -> tuple[str, ...]:
    stem = name.partition(".so")[0]
    every = {name, *(link for link in links if link.startswith(f"{stem}.so")), *_ASKED.get(stem, ())}
    if _NAME.fullmatch(elf.soname):
        every.add(elf.soname)
    return tuple(sorted(every))


def _join(*parts: str) -> str:
    return posixpath.join(*(part for part in parts if part)) if any(parts) else ""
