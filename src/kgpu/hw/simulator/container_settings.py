"""The settings of a simulated machine whose driver comes in a container: how long that takes, and where it fails.

They are a file in the machine's root; a machine with its driver on the host has none.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Final

import msgspec

from kgpu.base.errors import ConfigError, HwError
from kgpu.base.files import write_atomic
from kgpu.base.suggest import did_you_mean
from kgpu.base.typed import decode

SETTINGS: Final = "driver-container.json"
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
    "side": "the driver is up, and the containers beside it, such as GPUDirect Storage's, find no kernel headers",
}


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
    write(Path(root), after)
    return after


def write(root: Path, wanted: ContainerDriver) -> None:
    """Write a machine's settings. Raises HwError."""
    try:
        write_atomic(root / SETTINGS, msgspec.json.encode(wanted) + b"\n")
    except OSError as error:
        raise HwError(
            f"{root / SETTINGS} can't be written: {error.strerror or error}", "a simulated machine that this user owns",
            "check its owner",
        ) from error  # fmt: skip
