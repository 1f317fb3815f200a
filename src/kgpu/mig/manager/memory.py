"""What the manager has to know after it was killed, in one file.

When the label was set, which wish was fulfilled, and the change that is under way with the layouts that its GPUs had:
that is written before the first step. What was noted in an earlier boot of the machine says nothing about its GPUs.
"""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Final

import msgspec

from kgpu.base import typed
from kgpu.base.errors import HostError
from kgpu.base.files import write_atomic
from kgpu.formats.mig_checkpoint import SavedGpu
from kgpu.formats.mig_request import MigLayout
from kgpu.formats.node_order import ChangeResult

log = logging.getLogger(__name__)

FILE_NAME: Final = "mig-manager.json"
MODES_FILE_NAME: Final = "config-manager.json"
"""The same of GPUs that are parted by modes."""
_MOST: Final = 1 << 20


class ChangeRecord(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """A change by ``act``: how its GPUs are to be, how they were, and what has come of it, None while it is under way.
    ``former`` are GPUs with slices, ``former_modes`` those that are parted by modes. ``alone``: no operator has ordered
    it.
    """

    act: str
    layouts: tuple[MigLayout, ...]
    former: tuple[SavedGpu, ...] = ()
    former_modes: tuple[MigLayout, ...] = ()
    alone: bool = False
    result: ChangeResult | None = None


class MigMemory(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """``value`` is the label's and ``stamp`` the Node's version when it was first seen. ``settled`` is the key of the
    wish that was fulfilled in this boot, ``losses`` how often that was lost since. ``again``: it was fulfilled before
    this boot, and not yet in it.
    """

    boot: str = ""
    value: str = ""
    stamp: str = ""
    settled: str = ""
    losses: int = 0
    again: bool = False
    change: ChangeRecord | None = None


class MemoryFile:
    """The memory of one node. ``now`` is what is known; ``save`` blocks."""

    def __init__(self, path: Path, *, boot: str) -> None:
        self._path = path
        self._boot = boot
        self._saved = self.now = self._load()

    def save(self) -> None:
        """Write what has changed. Raises HostError."""
        if self.now == self._saved:
            return
        try:
            write_atomic(self._path, msgspec.json.encode(self.now), mode=0o600)
        except OSError as error:
            raise HostError(
                f"{self._path} can't be written: {error.strerror}",
                "a record of a change of GPUs before it begins",
                "make room on its disk, or choose another --state-dir",
            ) from error
        self._saved = self.now

    def seen(self, value: str, version: str) -> None:
        """The label has this value in this version of the Node."""
        if value != self.now.value:
            self.now = msgspec.structs.replace(self.now, value=value, stamp=version, losses=0, again=False)

    def settle(self, key: str) -> None:
        """The wish ``key`` is fulfilled."""
        if key != self.now.settled or self.now.again:
            self.now = msgspec.structs.replace(self.now, settled=key, again=False)

    def lose(self) -> None:
        """What was made is gone."""
        self.now = msgspec.structs.replace(self.now, settled="", losses=self.now.losses + 1)

    def note(self, change: ChangeRecord | None) -> None:
        """A change begins, has a result, or is over. Raises HostError, and then it is not noted."""
        before = self.now
        self.now = msgspec.structs.replace(before, change=change)
        try:
            self.save()
        except HostError:
            self.now = before
            raise

    def _load(self) -> MigMemory:
        fresh = MigMemory(boot=self._boot)
        try:
            with self._path.open("rb") as file:
                found = typed.decode(file.read(_MOST), MigMemory)
        except FileNotFoundError:
            return fresh
        except (OSError, ValueError, RecursionError) as error:
            log.warning("%s can't be read, so that no earlier change of GPUs is known: %s", self._path, error)
            return fresh
        if found.boot != self._boot:
            again = found.again or bool(found.settled)
            return msgspec.structs.replace(fresh, value=found.value, stamp=found.stamp, again=again)
        return found
