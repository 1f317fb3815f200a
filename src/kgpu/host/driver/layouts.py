"""Where distributions, driver containers and managed clusters put the driver: rows of data, and one function.

Every row is searched in every root, because a root says little about itself (a driver container has no mark at all);
the marks only name the root in reports. Paths are inside the driver root. Pure except for looking for the marks.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from kgpu.host.root import Tree


@dataclass(frozen=True, slots=True, kw_only=True)
class RootLayout:
    """One kind of root, recognised by any of ``marks``; the folders are in search order."""

    name: str
    marks: tuple[str, ...]
    libraries: tuple[str, ...] = ()
    binaries: tuple[str, ...] = ()
    configs: tuple[str, ...] = ()
    firmware: tuple[str, ...] = ()
    caches: tuple[str, ...] = ()


# The first row with an existing mark names the root: special systems come before the ordinary ones that they resemble.
LAYOUTS: Final = (
    RootLayout(
        name="NixOS",
        marks=("/run/opengl-driver", "/etc/NIXOS"),
        libraries=("/run/opengl-driver/lib",),
        binaries=("/run/current-system/sw/bin", "/run/opengl-driver/bin"),
        configs=("/run/opengl-driver/share", "/run/opengl-driver/etc"),
        firmware=("/run/current-system/firmware",),
    ),
    RootLayout(
        name="Talos",
        marks=("/usr/local/glibc", "/usr/share/talos", "/system/etc/hosts"),
        libraries=(
            "/usr/local/glibc/usr/lib64",
            "/usr/local/glibc/usr/lib",
            "/usr/local/glibc/lib64",
            "/usr/local/glibc/lib",
            "/usr/local/lib",
        ),
        binaries=("/usr/local/bin",),
        configs=("/usr/local/glibc/usr/share", "/usr/local/share"),
        caches=("/usr/local/glibc/etc/ld.so.cache",),
    ),
    RootLayout(
        name="Container-Optimized OS",
        marks=("/home/kubernetes/bin", "/etc/cos-package-info.json", "/vulkan/icd.d"),
        libraries=("/home/kubernetes/bin/nvidia/lib64", "/var/lib/nvidia/lib64"),
        binaries=("/home/kubernetes/bin/nvidia/bin", "/var/lib/nvidia/bin"),
        configs=("/home/kubernetes/bin/nvidia", "/var/lib/nvidia", "/"),
        firmware=("/home/kubernetes/bin/nvidia/firmware", "/var/lib/nvidia/firmware", "/firmware"),
    ),
    RootLayout(
        name="Bottlerocket",
        marks=("/x86_64-bottlerocket-linux-gnu", "/aarch64-bottlerocket-linux-gnu"),
        libraries=(
            "/x86_64-bottlerocket-linux-gnu/sys-root/usr/lib/nvidia/tesla",
            "/aarch64-bottlerocket-linux-gnu/sys-root/usr/lib/nvidia/tesla",
        ),
        binaries=(
            "/x86_64-bottlerocket-linux-gnu/sys-root/usr/libexec/nvidia/tesla/bin",
            "/aarch64-bottlerocket-linux-gnu/sys-root/usr/libexec/nvidia/tesla/bin",
        ),
    ),
    RootLayout(name="Fedora CoreOS", marks=("/run/ostree-booted", "/ostree/repo", "/sysroot/ostree")),
    RootLayout(name="RHEL", marks=("/etc/redhat-release", "/etc/fedora-release"), libraries=("/usr/lib64/nvidia",)),
    RootLayout(
        name="Debian",
        marks=("/etc/debian_version", "/usr/lib/x86_64-linux-gnu", "/usr/lib/aarch64-linux-gnu"),
        libraries=(
            "/usr/lib/x86_64-linux-gnu",
            "/usr/lib/aarch64-linux-gnu",
            "/usr/lib/x86_64-linux-gnu/nvidia/current",
            "/usr/lib/aarch64-linux-gnu/nvidia/current",
            "/lib/x86_64-linux-gnu",
            "/lib/aarch64-linux-gnu",
            "/lib/x86_64-linux-gnu/nvidia/current",
            "/lib/aarch64-linux-gnu/nvidia/current",
        ),
    ),
)
# Folders of nearly every root, searched first; /usr/lib is last, as it has 32-bit libraries on systems with lib64.
_COMMON: Final = RootLayout(
    name="",
    marks=(),
    libraries=("/usr/lib64", "/lib64", "/usr/local/nvidia/lib64", "/opt/nvidia/lib64"),
    binaries=(
        "/usr/local/sbin",
        "/usr/local/bin",
        "/usr/sbin",
        "/usr/bin",
        "/sbin",
        "/bin",
        "/usr/local/nvidia/bin",
        "/opt/nvidia/bin",
        "/opt/bin",
    ),
    configs=("/etc", "/usr/local/share", "/usr/share", "/usr/local/nvidia/share", "/usr/local/nvidia"),
    caches=("/etc/ld.so.cache",),
)
_LAST: Final = ("/usr/lib", "/")


def _folders(*groups: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(folder for group in groups for folder in group))


LIBRARY_DIRS: Final = _folders(_COMMON.libraries, *(row.libraries for row in reversed(LAYOUTS)), _LAST)
BINARY_DIRS: Final = _folders(_COMMON.binaries, *(row.binaries for row in reversed(LAYOUTS)))
CONFIG_DIRS: Final = _folders(_COMMON.configs, *(row.configs for row in reversed(LAYOUTS)))
FIRMWARE_DIRS: Final = _folders(*(row.firmware for row in LAYOUTS))
CACHES: Final = _folders(_COMMON.caches, *(row.caches for row in LAYOUTS))
COMPAT32_DIRS: Final = ("/usr/lib/i386-linux-gnu", "/usr/lib32", "/usr/lib/i386-linux-gnu/nvidia/current", "/usr/lib")

# Packages of such systems refer to each other by absolute paths here, which must be the same in a container.
STORES: Final = ("/nix/store/", "/gnu/store/")
# Where a program of an unusual system may have its dynamic loader; other folders could hide an image's own files.
LOADER_DIRS: Final = (*STORES, "/usr/local/glibc/")


def layout_of(tree: Tree) -> str:
    """The name of the first row with an existing mark, "" for none."""
    return next((row.name for row in LAYOUTS if any(tree.kind(mark) for mark in row.marks)), "")
