"""A simulated machine whose driver comes in a container: taken from the host, installed in ``/run/nvidia/driver``.

The driver's root is what a real driver container mounts there: its own files, and the machine's ``/dev``, ``/proc`` and
``/sys``. Here these are hard links to the machine's, so that both see one state.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Final

from kgpu.base.errors import HwError
from kgpu.hw.simulator import container_settings, create, modules, tree
from kgpu.hw.simulator.container_settings import ContainerDriver

ROOT: Final = "run/nvidia/driver"
"""The driver's root below the machine's."""
_SEEN: Final = ("dev", "proc", "sys")
# What pods of the driver mount from a host; a node must not take the real machine's for want of its own.
_FOLDERS: Final = (
    "run/nvidia", "run/nvidia-fabricmanager", "run/nvidia-topologyd", "run/mellanox/drivers", "var/log",
)  # fmt: skip
_FILES: Final = ("dev/log", "sys/module/firmware_class/parameters/path")


def remove_from_host(root: Path) -> None:
    """Make a machine with a driver on the host one without: no modules, nodes, libraries or programs of it.

    Raises HwError while a program uses a GPU.
    """
    root = Path(root)
    modules.take_out(root)
    try:
        modules.put_aside_nodes(root)
        for path in [*tree.library_dir(root).glob("lib*.so*"), *(root / "usr/bin").glob("nvidia-*")]:
            path.unlink(missing_ok=True)
        shutil.rmtree(root / "lib/firmware/nvidia", ignore_errors=True)
        for folder in _FOLDERS:
            (root / folder).mkdir(parents=True, exist_ok=True)
        for name in _FILES:
            (root / name).parent.mkdir(parents=True, exist_ok=True)
            (root / name).touch()
    except OSError as error:
        raise _unwritable(root, error) from error
    if not (root / container_settings.SETTINGS).exists():
        container_settings.write(root, ContainerDriver())


def install(machine: Path, files: Path, version: str) -> Path:
    """Put the libraries and programs of driver ``version`` into the driver's root; ``files`` has them as they are
    built. Returns that root. Raises HwError.
    """
    place = Path(machine) / ROOT
    words = {"lib": str(tree.library_dir(place).relative_to(place)), "version": version}
    try:
        for name, destination in create.ARTIFACTS.items():
            if not (files / name).exists():
                continue
            copy = place / destination.format(**words)
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(files / name, copy)
            copy.chmod(0o755)
        for link, target in create.LINKS.items():
            tree.symlink(place / link.format(**words), target.format(**words))
        firmware = place / "lib/firmware/nvidia" / version
        firmware.mkdir(parents=True, exist_ok=True)
        (firmware / "gsp_ga10x.bin").write_text("simulated GSP firmware\n")
        # The containers beside the driver's wait for its sources, which they build against.
        (place / "usr/src" / f"nvidia-{version}").mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise _unwritable(place, error) from error
    return place


def mount(machine: Path) -> None:
    """Show the machine's devices, and what its kernel tells, in the driver's root. Raises HwError."""
    machine = Path(machine)
    place = machine / ROOT
    try:
        for name in _SEEN:
            shutil.rmtree(place / name, ignore_errors=True)
            _link_tree(machine / name, place / name)
        (place / "state").unlink(missing_ok=True)
        os.link(machine / "state", place / "state")
    except OSError as error:
        raise _unwritable(place, error) from error


def _link_tree(source: Path, target: Path) -> None:
    target.mkdir(parents=True, exist_ok=True)
    for entry in os.scandir(source):
        place = target / entry.name
        if entry.is_dir(follow_symlinks=False):
            _link_tree(Path(entry.path), place)
        elif entry.is_symlink():
            place.symlink_to(os.readlink(entry.path))
        else:
            os.link(entry.path, place)


def _unwritable(place: Path, error: OSError) -> HwError:
    return HwError(
        f"the driver's files in {place} can't be made: {error.strerror or error}",
        "a simulated machine that this user owns", "check its owner",
    )  # fmt: skip
