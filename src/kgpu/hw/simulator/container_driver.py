"""A simulated machine whose driver comes in a container: taken from the host, installed in ``/run/nvidia/driver``.

Such a machine has a file of settings in its root: how long the driver's container takes, and in which phase it fails.
The driver's root is what a real driver container mounts there: its own files, and the machine's ``/dev``, ``/proc`` and
``/sys``. Here these are hard links to the machine's, so that both see one state.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import msgspec

from kgpu.base.errors import ConfigError, HwError
from kgpu.base.files import write_atomic
from kgpu.base.suggest import did_you_mean
from kgpu.base.typed import decode
from kgpu.hw.simulator import create, modules, tree

SETTINGS: Final = "driver-container.json"
ROOT: Final = "run/nvidia/driver"
"""The driver's root below the machine's."""
MAX_SECONDS: Final = 3600.0
PHASES: Final[Mapping[str, str]] = {
    "pull": "the image can't be pulled",
    "manager": "the driver manager finds the old driver in use",
    "headers": "the kernel's headers are nowhere to be had",
    "build": "the modules can't be compiled",
    "sign": "Secure Boot refuses the modules",
    "load": "the modules don't find the GPUs",
    "probe": "the driver is loaded, and one of its daemons is not ready",
    "crash": "the driver is up, and its container ends soon after",
}
_SEEN: Final = ("dev", "proc", "sys")
# What pods of the driver mount from a host; a node must not take the real machine's for want of its own.
_FOLDERS: Final = (
    "run/nvidia", "run/nvidia-fabricmanager", "run/nvidia-topologyd", "run/mellanox/drivers", "var/log",
)  # fmt: skip
_FILES: Final = ("dev/log", "sys/module/firmware_class/parameters/path")


class ContainerDriver(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """``takes`` is how many seconds a driver's installation takes; ``fail`` the phase of ``PHASES`` in which it fails,
    "" for none.
    """

    takes: float = 2.0
    fail: str = ""


def settings(root: Path) -> ContainerDriver | None:
    """The settings of a machine, None for one with a driver on the host. Raises HwError if they can't be read."""
    try:
        return decode((Path(root) / SETTINGS).read_bytes(), ContainerDriver)
    except FileNotFoundError:
        return None
    except (OSError, msgspec.MsgspecError) as error:
        raise HwError(
            f"{Path(root) / SETTINGS} can't be read: {error}", "the settings of a driver container",
            "set them anew: kgpu lab hw driver fail none",
        ) from error  # fmt: skip


def change(root: Path, *, takes: float | None = None, fail: str | None = None) -> ContainerDriver:
    """Change a machine's settings. Raises ConfigError for wrong ones, and for a machine with a driver on the host."""
    if not (Path(root) / SETTINGS).exists():
        raise ConfigError(
            f"{root} is a machine with its driver on the host", "one whose driver comes in a container",
            "make it by `kgpu lab node add PROFILE --driver container`",
        )  # fmt: skip
    if takes is not None and not 0 <= takes <= MAX_SECONDS:
        raise ConfigError(f"{takes:g} seconds", f"0 to {MAX_SECONDS:g}", "give another number")
    if fail and fail not in PHASES:
        hint = did_you_mean(fail, PHASES)
        raise ConfigError(
            f'there is no phase "{fail:.40}"{"; " if hint else ""}{hint}', f"none, {', '.join(PHASES)}", "choose one"
        )
    try:
        before = settings(root) or ContainerDriver()
    except HwError:
        before = ContainerDriver()
    changes = {key: value for key, value in (("takes", takes), ("fail", fail)) if value is not None}
    after = msgspec.structs.replace(before, **changes)
    _write(Path(root), after)
    return after


def _write(root: Path, wanted: ContainerDriver) -> None:
    try:
        write_atomic(root / SETTINGS, msgspec.json.encode(wanted) + b"\n")
    except OSError as error:
        raise _unwritable(root, error) from error


def remove_from_host(root: Path) -> None:
    """Make a machine with a driver on the host one without: no modules, nodes, libraries or programs of it.

    Raises HwError while a program uses a GPU.
    """
    root = Path(root)
    modules.take_out(root)
    try:
        modules.put_aside_nodes(root)
        for path in [*tree.library_dir(root).glob("lib*.so*"), root / "usr/bin/nvidia-smi"]:
            path.unlink(missing_ok=True)
        shutil.rmtree(root / "lib/firmware/nvidia", ignore_errors=True)
        for folder in _FOLDERS:
            (root / folder).mkdir(parents=True, exist_ok=True)
        for name in _FILES:
            (root / name).parent.mkdir(parents=True, exist_ok=True)
            (root / name).touch()
    except OSError as error:
        raise _unwritable(root, error) from error
    if not (root / SETTINGS).exists():
        _write(root, ContainerDriver())


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
