"""Makes folders of a host root that is mounted read-only writable, for as long as they are written to.

A container with the host's root read-only at ``/host`` may need to write a few folders whose paths only the node knows.
Mounting each in its pod would create empty folders on hosts that lack them, and leave them writable all the time. A
privileged process can instead mount a writable view over exactly those folders, in its own mount namespace, and unmount
it again: nothing is visible outside this container, and nothing is left if it is killed.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final

from kgpu.base.errors import HostError
from kgpu.base.inotify import nearest_existing

_MS_REMOUNT: Final = 0x20
_MS_BIND: Final = 0x1000
_MS_REC: Final = 0x4000
_MNT_DETACH: Final = 0x2
# statvfs's flags of a mount and mount(2)'s values for them; they are kept.
_KEPT: Final = ((os.ST_NOSUID, 0x2), (os.ST_NODEV, 0x4), (os.ST_NOEXEC, 0x8), (os.ST_NOATIME, 0x400),
                (os.ST_NODIRATIME, 0x800), (os.ST_RELATIME, 0x200000))  # fmt: skip


@contextlib.contextmanager
def writable(folders: Iterable[Path]) -> Iterator[None]:
    """Within the block each folder, or its nearest existing parent, is writable; links in them are not followed.

    Raises HostError if this process may not mount. A folder that is writable already is left alone; a file system that
    is itself read-only stays so, and writing fails.
    """
    laid: list[Path] = []
    try:
        for folder in sorted({nearest_existing(place) for place in folders}):
            if is_read_only(folder):
                _lay(folder)
                laid.append(folder)
        yield
    finally:
        for folder in reversed(laid):
            with contextlib.suppress(OSError):
                _call("umount2", os.fsencode(folder), _MNT_DETACH)


def is_read_only(folder: Path) -> bool:
    """Whether the folder is on a read-only mount; False if it is missing."""
    try:
        return bool(os.statvfs(folder).f_flag & os.ST_RDONLY)
    except OSError:
        return False


def _lay(folder: Path) -> None:
    mount_flags = os.statvfs(folder).f_flag
    flags = sum(mount for seen, mount in _KEPT if mount_flags & seen)
    name = os.fsencode(folder)
    try:
        _call("mount", name, name, None, _MS_BIND | _MS_REC, None)
        try:
            _call("mount", None, name, None, _MS_REMOUNT | _MS_BIND | flags, None)
        except OSError:
            _call("umount2", name, _MNT_DETACH)
            raise
    except OSError as error:
        missing = error.errno in {errno.EPERM, errno.EACCES}
        raise HostError(
            f"{folder} is mounted read-only, and no writable view of it can be made: {error.strerror}",
            "a privileged container, or the folder mounted so that it can be written",
            "run the agent privileged, as the chart does" if missing else "see the kernel's log",
        ) from error


def _call(name: str, *arguments: bytes | int | None) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    words = [ctypes.c_ulong(word) if isinstance(word, int) and name == "mount" else word for word in arguments]
    if getattr(libc, name)(*words) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
