"""Bounds a process's own log: the file is renamed, and the process goes on in a new one."""

from __future__ import annotations

import contextlib
import os
import sys
from pathlib import Path
from typing import Final

_STREAMS: Final = (1, 2)


def rotate(path: Path, *, most: int, streams: tuple[int, ...] = _STREAMS) -> bool:
    """When ``path`` has more than ``most`` bytes and is what the ``streams`` (descriptors) write to, rename it to
    ``path.1`` and point them to a new file. Returns whether that was done; where it can't be, nothing changes.
    """
    fresh_path = path.with_name(f"{path.name}.new")
    try:
        status = path.lstat()
        ours = [descriptor for descriptor in streams if os.path.samestat(os.fstat(descriptor), status)]
        if status.st_size <= most or not ours:
            return False
        # Opened first, since this may fail: after the rename the streams would go on writing to ``path.1`` for good.
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
    for descriptor in streams:
        os.dup2(fresh, descriptor, inheritable=descriptor in _STREAMS)
