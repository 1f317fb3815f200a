"""The ``state`` file of a simulated AMD node: which profile it is made of, and what was done to it since.

What AMD's driver shows is files, so the simulated node is its files; this one remembers what they do not tell. Its head
is that of every simulated root (``kgpu.formats.simulated``), with another layout, so that programs which map NVIDIA's
state refuse it.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import msgspec

from kgpu.base import typed
from kgpu.base.errors import HwError
from kgpu.base.files import write_atomic
from kgpu.formats.simulated import MAGIC
from kgpu.hw.simulator.amd.profiles import AmdProfile

LAYOUT: Final = 0x414D44  # "AMD"
MAX_BYTES: Final = 1 << 20
_HEAD: Final = struct.Struct("=QII")


class GpuRecord(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """What was done to a GPU: the modes that it is cut by, its faults, errors, and processes by pid with their MiB."""

    compute: str = ""
    memory: str = ""
    faults: list[str] = []
    corrected: int = 0
    uncorrected: int = 0
    processes: dict[str, int] = {}


class AmdNodeRecord(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """The whole node."""

    profile: AmdProfile
    seed: str = ""
    loaded: bool = True
    generation: int = 1
    gpus: list[GpuRecord]


def is_amd(root: Path) -> bool:
    """Whether a root is a simulated AMD node's."""
    with contextlib.suppress(OSError), open(root / "state", "rb") as file:
        head = file.read(_HEAD.size)
        return len(head) == _HEAD.size and _HEAD.unpack(head)[:2] == (MAGIC, LAYOUT)
    return False


def read(root: Path) -> AmdNodeRecord:
    """The record. Raises HwError when there is none."""
    try:
        data = (root / "state").read_bytes()
        if len(data) > MAX_BYTES or len(data) < _HEAD.size or _HEAD.unpack_from(data)[:2] != (MAGIC, LAYOUT):
            raise _bad(root, "it is not a simulated AMD node's")
        return typed.convert(msgspec.json.decode(data[_HEAD.size :]), AmdNodeRecord)
    except (OSError, msgspec.MsgspecError, ValueError) as error:
        raise _bad(root, str(error)) from error


def save(root: Path, record: AmdNodeRecord) -> None:
    """Write it in one step."""
    body = msgspec.json.encode(record)
    write_atomic(root / "state", _HEAD.pack(MAGIC, LAYOUT, _HEAD.size + len(body)) + body)


@contextlib.contextmanager
def changing(root: Path) -> Iterator[AmdNodeRecord]:
    """The record, to be changed together with the node's files; nobody else changes them meanwhile."""
    try:
        lock = os.open(root / ".lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
    except OSError as error:
        raise _bad(root, str(error)) from error
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        record = read(root)
        try:
            yield record
            save(root, record)
        except OSError as error:
            raise HwError(
                f"the simulated node {root} can't be changed: {error}", "a root that this user owns", "check its owner"
            ) from error
    finally:
        os.close(lock)


def _bad(root: Path, why: str) -> HwError:
    return HwError(
        f"the simulated node's state {root / 'state'} can't be used: {why}",
        "a root made by this version of kgpu",
        "make it again with `kgpu lab hw create PROFILE --root DIR`",
    )
