"""Where one driver root keeps what the hardware port reads: the NVML library, /proc, /sys and the simulation's state.

A root other than ``/`` is a driver container's tree or a simulated one; what it doesn't hold is read from the host's
own ``/``. Imported by the hardware child, so it stays clear of dataclasses and pathlib.
"""

from __future__ import annotations

import os

from kgpu.base.symlinks import resolve_inside

LIBRARY = "libnvidia-ml.so.1"
# The replaced device plugin's order (`--driver-root-ctr-path`): the first hit under the root wins.
LIBRARY_DIRS = (
    "usr/lib64",
    "usr/lib/x86_64-linux-gnu",
    "usr/lib/aarch64-linux-gnu",
    "lib64",
    "lib/x86_64-linux-gnu",
    "lib/aarch64-linux-gnu",
)
# Where special systems keep it, looked at last and left out of messages: Debian's alternatives, NixOS, Talos, GKE's and
# other installers' folders, Bottlerocket, Arch. `kgpu.host.driver.layouts` has the same places for everything else.
FURTHER_DIRS = (
    "usr/local/nvidia/lib64",
    "opt/nvidia/lib64",
    "usr/lib/x86_64-linux-gnu/nvidia/current",
    "usr/lib/aarch64-linux-gnu/nvidia/current",
    "run/opengl-driver/lib",
    "usr/local/glibc/usr/lib64",
    "usr/local/glibc/usr/lib",
    "usr/local/glibc/lib64",
    "usr/local/glibc/lib",
    "usr/local/lib",
    "home/kubernetes/bin/nvidia/lib64",
    "var/lib/nvidia/lib64",
    "x86_64-bottlerocket-linux-gnu/sys-root/usr/lib/nvidia/tesla",
    "aarch64-bottlerocket-linux-gnu/sys-root/usr/lib/nvidia/tesla",
    "usr/lib64/nvidia",
    "usr/lib",
)


def library_candidates(root: str) -> list[str]:
    """The usual paths under the root, in the order of the search."""
    return [os.path.join(root, folder, LIBRARY) for folder in LIBRARY_DIRS]


def find_library(root: str) -> str | None:
    """The NVML library under the root with links followed inside it, or None: then the loader path decides."""
    for folder in LIBRARY_DIRS + FURTHER_DIRS:
        inside = resolve_inside(root, f"{folder}/{LIBRARY}")
        if inside is not None and os.path.isfile(path := root.rstrip("/") + inside):
            return path
    return None


def proc_root(root: str) -> str:
    """The folder that stands for /proc: the root's own when it has an nvidia driver in it."""
    own = os.path.join(root, "proc")
    return own if os.path.isdir(os.path.join(own, "driver")) else "/proc"


def sys_root(root: str) -> str:
    """The folder that stands for /sys: the root's own when it holds a PCI bus."""
    own = os.path.join(root, "sys")
    return own if os.path.isdir(os.path.join(own, "bus", "pci")) else "/sys"
