"""The lab's state file: what exists, so that ``down`` removes exactly that and nothing else.

What is about to be created is recorded before it is.
"""

from __future__ import annotations

from pathlib import Path

import msgspec

from kgpu.base.errors import LabError
from kgpu.base.files import write_atomic
from kgpu.base.typed import decode
from kgpu.lab.processes import ProcessRecord


class LabState(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Everything that ``down`` and ``status`` need to know. ``mountpoints`` are folders made on the host.

    ``link`` is the number of the host's link to the node, which belongs to no other, as its name may; 0 before there is
    one.
    """

    name: str
    profile: str
    gpus: int | None
    agent: bool
    network_index: int
    bin_dir: str
    link: int = 0
    keeper: ProcessRecord | None = None
    mountpoints: tuple[str, ...] = ()
    cgroups: tuple[str, ...] = ()
    complete: bool = False


def save(path: Path, state: LabState) -> None:
    """Write the state file atomically."""
    write_atomic(path, msgspec.json.format(msgspec.json.encode(state), indent=2) + b"\n", mode=0o600)


def load(path: Path) -> LabState | None:
    """The state, or None when there is no such lab. Raises LabError when the file can't be understood."""
    try:
        raw = path.read_bytes()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise LabError(
            f"{path}: {error.strerror}", "a readable state file", "run as the user who made the lab"
        ) from error
    try:
        return decode(raw, LabState)
    except msgspec.MsgspecError as error:
        raise LabError(
            f"{path} is not a lab's state file: {error}",
            "the file as kgpu wrote it",
            "if the lab's processes are gone (a reboot ends them), remove the folder that holds it",
        ) from error
