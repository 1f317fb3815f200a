"""A process's own log stays bounded: what it writes to is put aside, and it goes on in a new file."""

from __future__ import annotations

import contextlib
import os
import sys
from pathlib import Path
from typing import Final

_STREAMS: Final = (1, 2)


def rotate(path: Path, *, most: int, streams: tuple[int, ...] = _STREAMS) -> bool:
    """When the ``streams`` (descriptors) write to ``path`` and it is above ``most`` bytes, keep it as ``path.1`` and
    let them write to a new one. True when that was done; a disk or folder that does not let us changes nothing.
    """
    fresh_path = path.with_name(f"{path.name}.new")
    try:
        status = path.lstat()
        ours = [descriptor for descriptor in streams if os.path.samestat(os.fstat(descriptor), status)]
        if status.st_size <= most or not ours:
            return False
        # First, for it may fail: whatever was put aside already would be written on, and never be looked at again.
        fresh = os.open(fresh_path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    except OSError:
        return False
    try:
        path.replace(path.with_name(f"{path.name}.1"))
        fresh_path.replace(path)
    except OSError:
        with contextlib.suppress(OSError):
            fresh_path.unlink()
        return False
    else:
        _write_to(fresh, ours)
        return True
    finally:
        os.close(fresh)


def _write_to(fresh: int, streams: list[int]) -> None:
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):
            stream.flush()
    for one in streams:
        os.dup2(fresh, one, inheritable=one in _STREAMS)
