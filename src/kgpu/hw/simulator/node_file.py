"""The ``state`` file of a simulated node whose driver shows files: its profile, and what was done to it since.

Such a node is its files; this one remembers what they do not tell. Its head is that of every simulated root
(``kgpu.formats.simulated``), with a layout of each vendor's own, so that programs which map NVIDIA's state refuse it.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, Generic, TypeVar

import msgspec

from kgpu.base import typed
from kgpu.base.errors import HwError
from kgpu.base.files import write_atomic
from kgpu.formats.simulated import MAGIC

MAX_BYTES: Final = 1 << 20
_HEAD: Final = struct.Struct("=QII")
R = TypeVar("R", bound=msgspec.Struct)


def layout_of(root: Path | str) -> int:
    """The layout of a root's state; 0 where there is none."""
    with contextlib.suppress(OSError), open(Path(root) / "state", "rb") as file:
        head = file.read(_HEAD.size)
        if len(head) == _HEAD.size and _HEAD.unpack(head)[0] == MAGIC:
            return int(_HEAD.unpack(head)[1])
    return 0


class NodeFile(Generic[R]):
    """The files of one vendor's nodes; ``title`` is the vendor for people."""

    def __init__(self, layout: int, record: type[R], title: str) -> None:
        self.layout = layout
        self._record: Any = record
        self._title = title

    def is_here(self, root: Path) -> bool:
        """Whether a root is a simulated node of this vendor."""
        return layout_of(root) == self.layout

    def read(self, root: Path) -> R:
        """The record. Raises HwError when there is none."""
        try:
            data = (root / "state").read_bytes()
            head = _HEAD.unpack_from(data)[:2] if _HEAD.size <= len(data) <= MAX_BYTES else ()
            if head != (MAGIC, self.layout):
                raise _bad(root, f"it is not a simulated node's of {self._title}")
            record: R = typed.convert(msgspec.json.decode(data[_HEAD.size :]), self._record)
        except (OSError, msgspec.MsgspecError, ValueError) as error:
            raise _bad(root, str(error)) from error
        return record

    def save(self, root: Path, record: R) -> None:
        """Write it in one step."""
        body = msgspec.json.encode(record)
        write_atomic(root / "state", _HEAD.pack(MAGIC, self.layout, _HEAD.size + len(body)) + body)

    @contextlib.contextmanager
    def changing(self, root: Path) -> Iterator[R]:
        """The record, to be changed together with the node's files; nobody else changes them meanwhile."""
        try:
            lock = os.open(root / ".lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        except OSError as error:
            raise _bad(root, str(error)) from error
        try:
            fcntl.flock(lock, fcntl.LOCK_EX)
            record = self.read(root)
            try:
                yield record
                self.save(root, record)
            except OSError as error:
                raise HwError(
                    f"the simulated node {root} can't be changed: {error}",
                    "a root that this user owns",
                    "check its owner",
                ) from error
        finally:
            os.close(lock)


def _bad(root: Path, why: str) -> HwError:
    return HwError(
        f"the simulated node's state {root / 'state'} can't be used: {why}",
        "a root made by this version of kgpu",
        "make it again with `kgpu lab hw create PROFILE --root DIR`",
    )
