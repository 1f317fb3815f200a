"""Reads a file from an untrusted source: pipes don't block, devices and folders are refused, the size is limited."""

from __future__ import annotations

import os
import stat
from pathlib import Path

from kgpu.base.errors import HostError


def read_regular(path: Path | str, limit: int, *, what: str, follow: bool = True) -> tuple[bytes, os.stat_result]:
    """Read a regular file of at most ``limit`` bytes; return content and stat. ``what`` describes the expected file.
    Without ``follow`` a link is refused: with one, whoever may write into its folder could have any file read.

    Raises HostError, with FileNotFoundError as its cause if nothing exists there.
    """
    remedy = "correct or remove it"
    try:
        # Without O_NONBLOCK a pipe would block this process until somebody writes to it.
        links = 0 if follow else os.O_NOFOLLOW
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | links)
    except (OSError, ValueError) as error:
        raise HostError(f"{path} can't be read: {_reason(error)}", f"{what} that this user may read", remedy) from error
    try:
        about = os.fstat(descriptor)
        if not stat.S_ISREG(about.st_mode):
            raise HostError(f"{path} is no regular file", what, remedy)
        read = b""
        while len(read) <= limit and (more := os.read(descriptor, limit + 1 - len(read))):
            read += more
    except OSError as error:
        raise HostError(f"{path} can't be read: {_reason(error)}", what, remedy) from error
    finally:
        os.close(descriptor)
    if len(read) > limit:
        raise HostError(f"{path} has more than {limit} bytes", what, remedy)
    return read, about


def _reason(error: OSError | ValueError) -> str:
    return (error.strerror or str(error)) if isinstance(error, OSError) else "no file can have such a name"
