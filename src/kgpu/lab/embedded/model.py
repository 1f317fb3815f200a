"""An embedded lab's state file and first node. Data only."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Final

import msgspec

from kgpu.base.errors import LabError
from kgpu.base.files import write_atomic
from kgpu.base.typed import decode
from kgpu.lab.common import EMBEDDED_STATE
from kgpu.lab.nodes.spec import HOST_DRIVER
from kgpu.lab.processes import ProcessRecord

STATE_FILE: Final = EMBEDDED_STATE
DEFAULT_PROFILE: Final = "hgx-h100"


@dataclass(frozen=True, slots=True, kw_only=True)
class FirstNode:
    """The node that ``up`` adds; ``gpus`` None for as many as the profile has, ``driver`` as in ``NodeSpec``."""

    profile: str = DEFAULT_PROFILE
    gpus: int | None = None
    agent: bool = True
    driver: str = HOST_DRIVER


class EmbeddedState(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The state of a lab. ``port`` is kept over restarts; ``data`` is the folder of stored objects, "" for none.

    ``profile`` is the first node's, "" for a cluster that was started without one; ``gates`` are feature gates, as
    ``NAME=true``; ``usage``: the operator has usage recorded and policies about it followed.
    """

    name: str
    port: int
    data: str = ""
    profile: str = ""
    gpus: int | None = None
    agent: bool = True
    driver: str = HOST_DRIVER
    gates: str = ""
    usage: bool = False
    server: ProcessRecord | None = None
    complete: bool = False

    @property
    def first(self) -> FirstNode | None:
        """The lab's first node, None when it was started without one."""
        if not self.profile:
            return None
        return FirstNode(profile=self.profile, gpus=self.gpus, agent=self.agent, driver=self.driver)


def load(folder: Path, name: str) -> EmbeddedState | None:
    """The state of the lab in ``folder``; None when there is none. Raises LabError."""
    path = folder / STATE_FILE
    try:
        return decode(path.read_bytes(), EmbeddedState)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise LabError(
            f"{path}: {error.strerror}",
            "a readable state file",
            "run as the user who made the lab, or choose another --name or --dir",
        ) from error
    except msgspec.MsgspecError as error:
        raise LabError(
            f"{path} is not an embedded lab's state file: {error}",
            "the file as kgpu wrote it",
            f'"kgpu lab down --name {name}" removes it together with the lab',
        ) from error


def save(folder: Path, state: EmbeddedState) -> None:
    """Write the state file. Raises OSError."""
    write_atomic(folder / STATE_FILE, msgspec.json.format(msgspec.json.encode(state), indent=2) + b"\n", mode=0o600)
