"""Reading a file that somebody else put there: no pipe blocks, devices and folders are refused, a size is a limit."""

from __future__ import annotations

import os
import stat
from pathlib import Path

from kgpu.base.errors import HostError


def read_regular(path: Path | str, limit: int, *, what: str, follow: bool = True) -> tuple[bytes, os.stat_result]:
    """The content of a regular file of at most ``limit`` bytes, and its state. ``what`` is what it should be, in words.
    Without ``follow`` a link is refused: whoever may write into its folder would have any file read for them.

    Raises HostError, with FileNotFoundError as its cause where nothing is there.
    """
    remedy = "correct or remove it"
    try:
        # Without O_NONBLOCK a pipe would hold this process until somebody writes to it.
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
