"""What this machine has that a driver's installation meets: read from files, and told as lines.

`kgpu preflight` predicts far more, from the cluster; this is for the replaced manager's command of that name.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Final

from kgpu.drivermanager.model import MachineState
from kgpu.host.root import Tree, read_some

_EFIVARS: Final = "sys/firmware/efi/efivars"
_HEAD: Final = 4
"""Bytes of attributes before an EFI variable's value."""


def report(machine: MachineState, root: Path) -> Iterator[str]:
    """Lines about the machine whose root is ``root``."""
    yield f"driver on the host: {machine.host_driver or 'none'}"
    yield f"NVIDIA's kernel modules: {'loaded' if machine.loaded else 'not loaded'}"
    yield f"nouveau: {'loaded; it is unloaded before the driver is installed' if machine.nouveau else 'not loaded'}"
    yield f"Secure Boot: {_secure_boot(root)}"
    kernel = read_some(root / "proc/sys/kernel/osrelease", 256).decode("utf-8", "replace").strip()
    if kernel:
        there = Tree.at(root).kind(f"/lib/modules/{kernel}/build") != 0
        headers = "there" if there else "none; the driver's container gets its own"
        yield f"headers of kernel {kernel} on the host: {headers}"


def _secure_boot(root: Path) -> str:
    for path in sorted(root.glob(f"{_EFIVARS}/SecureBoot-*")):
        value = read_some(path, _HEAD + 1)[_HEAD:]
        if value:
            return "on; modules have to be signed with a key that the machine knows" if value == b"\1" else "off"
    return "not known"
