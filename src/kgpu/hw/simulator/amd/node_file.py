"""The ``state`` file of a simulated AMD node (``kgpu.hw.simulator.node_file``)."""

from __future__ import annotations

from typing import Final

import msgspec

from kgpu.hw.simulator.amd.profiles import AmdProfile
from kgpu.hw.simulator.node_file import NodeFile

LAYOUT: Final = 0x414D44  # "AMD"


class GpuRecord(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """What was done to a GPU: its modes, faults, errors, resets, and processes by pid with their MiB.

    ``requested`` is the memory mode that the driver's next start puts in force, "" for the one that is.
    """

    compute: str = ""
    memory: str = ""
    requested: str = ""
    faults: list[str] = []
    corrected: int = 0
    uncorrected: int = 0
    resets: int = 0
    processes: dict[str, int] = {}


class AmdNodeRecord(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """The whole node."""

    profile: AmdProfile
    seed: str = ""
    loaded: bool = True
    generation: int = 1
    gpus: list[GpuRecord]


FILE: Final = NodeFile(LAYOUT, AmdNodeRecord, "AMD")
is_amd, read, save, changing = FILE.is_here, FILE.read, FILE.save, FILE.changing
