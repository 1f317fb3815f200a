"""One change of slices at a time on a machine: a lock that the kernel drops with its holder, however that ends.

It is in the run folder: of a simulated driver root its own, which is a machine of its own.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

from kgpu.base.errors import HostError
from kgpu.base.printable import one_line
from kgpu.formats.names import ENV_RUN_DIR, RUN_DIR
from kgpu.formats.simulated import state_file

LOCK: Final = "mig.lock"
_BYTES: Final = 400


def run_folder(root: str, env: Mapping[str, str]) -> Path:
    """The run folder of the machine whose driver is under ``root``, "" for this one."""
    if state_file(root or "/"):
        return Path(root or "/") / RUN_DIR.lstrip("/")
    return Path(env.get(ENV_RUN_DIR) or RUN_DIR)


@contextlib.contextmanager
def alone(folder: Path, what: str) -> Iterator[None]:
    """Hold the lock; ``what`` is told to whoever wants it meanwhile. Raises HostError if somebody else has it."""
    path = folder / LOCK
    try:
        folder.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK, 0o600)
    except OSError as error:
        raise HostError(
            f"{path} can't be written: {error.strerror}", "a lock, so that changes of slices do not cross",
            "run it as root, or correct the folder",
        ) from error  # fmt: skip
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            holder = one_line(os.pread(descriptor, _BYTES, 0).decode("utf-8", "replace"))
            raise HostError(
                f"GPUs of this machine are being cut already, by {holder or 'another program'}", "one change at a time",
                "wait for it to end, then do it again",
            ) from error  # fmt: skip
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, f"process {os.getpid()} ({what})".encode()[:_BYTES], 0)
        try:
            yield
        finally:
            os.ftruncate(descriptor, 0)
    finally:
        os.close(descriptor)
