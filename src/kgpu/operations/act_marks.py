"""What an act leaves in ``/run/kgpu/acts`` of its machine, so that it happens at most once per ID; a reboot empties it.

``ID`` is the mark, written before the act, with what has to be put back afterwards; ``ID.result`` is how it ended. A
mark without a result: the act was begun, and nobody knows how far it came. The mark is locked while anybody is still at
work, the program that acts included: the kernel drops the lock with the last of them, however they end.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import msgspec

from kgpu.base import typed
from kgpu.base.errors import HostError
from kgpu.base.files import write_atomic
from kgpu.base.printable import one_line
from kgpu.formats.names import RUN_DIR
from kgpu.host.bounded import read_regular

FOLDER: Final = "acts"
MAX_TEXT: Final = 1000
_BYTES: Final = 16 << 10
_ID: Final = re.compile(r"[a-z0-9][-a-z0-9]{0,99}")


class ActResult(msgspec.Struct, frozen=True, kw_only=True):
    """How an act ended: an exit code of ``act_codes``, and one line for people."""

    code: int
    text: str


def check_id(act: str) -> None:
    """Raise HostError unless this is the ID of an act, which is a file's name as well."""
    if not _ID.fullmatch(act):
        raise HostError(
            f"{act[:100]!r} is not the ID of an act", "lowercase letters, digits and dashes", "give the one on record"
        )


def begin_once(path: Path) -> bool:
    """Leave an empty mark; False if there is one already. Raises HostError."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600))
    except FileExistsError:
        return False
    except OSError as error:
        raise _unwritable(path, error) from error
    return True


@dataclass(frozen=True, slots=True)
class Marks:
    """The marks of a machine, below its ``/run/kgpu``."""

    folder: Path

    def exists(self, act: str) -> bool:
        """Whether the act was begun."""
        return os.path.lexists(self.folder / act)

    @contextlib.contextmanager
    def begin(self, act: str, restore: tuple[str, ...]) -> Iterator[int | None]:
        """Leave the act's mark with what has to be put back, and hold its lock: yields the lock's descriptor, for the
        program that acts to inherit. Yields None if there is a mark already. Raises HostError.
        """
        descriptor = -1
        try:
            try:
                self.folder.mkdir(parents=True, exist_ok=True)
                descriptor, temporary = tempfile.mkstemp(prefix=f".{act}.", dir=self.folder)
                begun = _link(descriptor, temporary, self.folder / act, restore)
            except OSError as error:
                raise _unwritable(self.folder / act, error) from error
            yield descriptor if begun else None
        finally:
            if descriptor >= 0:
                os.close(descriptor)

    @contextlib.contextmanager
    def left_over(self, act: str) -> Iterator[tuple[str, ...] | None]:
        """What has to be put back of an act that was cut off; None while somebody is still at it. The lock is held
        meanwhile.
        """
        try:
            descriptor = os.open(self.folder / act, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        except OSError:
            yield ()
            return
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            restore = typed.read(os.read(descriptor, _BYTES).decode("utf-8", "replace"), tuple[str, ...], most=_BYTES)
        except OSError:
            restore = None
        else:
            restore = restore or ()
        try:
            yield restore
        finally:
            os.close(descriptor)

    def result(self, act: str) -> ActResult | None:
        """How the act ended; None if that is not on record, or not in a form that this version reads."""
        try:
            content, _ = read_regular(self._result(act), _BYTES, what="an act's result", follow=False)
        except HostError:
            return None
        result = typed.read(content.decode("utf-8", "replace"), ActResult, most=_BYTES)
        return None if result is None else msgspec.structs.replace(result, text=one_line(result.text, MAX_TEXT))

    def record(self, act: str, result: ActResult) -> None:
        """Write how the act ended. A machine that can't take it stays without: then it is unknown to later pods."""
        with contextlib.suppress(OSError):
            write_atomic(self._result(act), msgspec.json.encode(result), mode=0o600)

    def _result(self, act: str) -> Path:
        return self.folder / f"{act}.result"


def _link(descriptor: int, temporary: str, path: Path, restore: tuple[str, ...]) -> bool:
    """Give a locked file with content the mark's name; False if that is taken. Raises OSError."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        os.write(descriptor, msgspec.json.encode(restore))
        os.fsync(descriptor)
        os.link(temporary, path)
    except FileExistsError:
        return False
    finally:
        os.unlink(temporary)
    return True


def _unwritable(path: Path, error: OSError) -> HostError:
    return HostError(
        f"{path} can't be made: {error.strerror}", f"{RUN_DIR} of the host, writable", "look at the pod's mounts"
    )
