"""One at a time for what changes a lab's folder; the folder and its lock file may go while somebody waits."""

from __future__ import annotations

import fcntl
import os
import stat
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from pathlib import Path
from typing import Final

from kgpu.base.errors import LabError

LOCK_FILE: Final = ".lock"
# Outside of every lab and every cache: labs of all users, homes and checkouts share the machine's networks and folders.
MACHINE_LOCK: Final = Path("/run/lock/kgpu-lab")
_POLL_S: Final = 0.05


@contextmanager
def held(
    folder: Path, name: str, *, wait_s: float = 0.0, waiting: Callable[[], AbstractContextManager[None]] = nullcontext
) -> Iterator[None]:
    """Hold the folder of the lab ``name``, which is made if need be. ``waiting`` is a context for the time of waiting.

    Raises LabError when somebody else still has it after ``wait_s``, or when the folder can't be written.
    """
    descriptor = _try(folder)
    if descriptor is None and wait_s > 0:
        with waiting():
            until = time.monotonic() + wait_s
            while descriptor is None and time.monotonic() < until:
                time.sleep(_POLL_S)
                descriptor = _try(folder)
    if descriptor is None:
        waited = f" for {wait_s:.0f} s" if wait_s else ""
        raise LabError(
            f'another kgpu has been bringing the lab "{name}" up or down{waited}',
            "one at a time",
            "wait for it to end, or end it; then try again",
        )
    try:
        yield
    finally:
        os.close(descriptor)


@contextmanager
def machine(path: Path = MACHINE_LOCK) -> Iterator[None]:
    """Hold what labs share on this machine, waiting for whoever has it: between looking for a free network or a folder
    to mount on and having taken it, no other lab may look. Raises LabError when the lock file can't be made.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(path, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    except OSError as error:
        raise LabError(f"{path}: {error.strerror}", "a lock file that can be written", "run as root") from error
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def _try(folder: Path) -> int | None:
    """The locked descriptor, None when somebody else has it. Raises LabError."""
    path = folder / LOCK_FILE
    try:
        while True:
            try:
                folder.mkdir(parents=True, exist_ok=True)
                descriptor = os.open(path, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
            except (FileNotFoundError, FileExistsError):
                if _is_something_else(folder):
                    raise
                continue  # the folder went in this moment
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                os.close(descriptor)
                return None
            # Whoever took the lab down has removed the file that we opened: another one is the lock now.
            if _is_at(descriptor, path):
                return descriptor
            os.close(descriptor)
    except OSError as error:
        raise LabError(
            f"{error.filename or folder}: {error.strerror}",
            "a folder that can be written",
            "check its owner, or choose another with --dir",
        ) from error


def _is_something_else(folder: Path) -> bool:
    """Whether what is there is no folder; by one look, as the folder may come and go between two."""
    try:
        return not stat.S_ISDIR(folder.lstat().st_mode)
    except FileNotFoundError:
        return False


def _is_at(descriptor: int, path: Path) -> bool:
    try:
        current = path.stat()
    except FileNotFoundError:
        return False
    ours = os.fstat(descriptor)
    return (current.st_dev, current.st_ino) == (ours.st_dev, ours.st_ino)


def release_folder(folder: Path) -> None:
    """Remove the lock file and the folder, which stays when something is in it; call it while holding the lock."""
    with suppress(OSError):
        (folder / LOCK_FILE).unlink()
        folder.rmdir()


def refuse_foreign(folder: Path, own: tuple[str, ...]) -> None:
    """Raises LabError for a folder in which there is something although no lab is: it would be lost with the lab."""
    try:
        names = sorted(entry.name for entry in os.scandir(folder))
    except FileNotFoundError:
        return
    except OSError as error:
        raise LabError(
            f"{folder}: {error.strerror}", "a folder that can be read and written", "choose another with --dir"
        ) from error
    if any(name in own for name in names):
        return
    foreign = [name for name in names if name != LOCK_FILE]
    if foreign:
        more = f" and {len(foreign) - 3} more" if len(foreign) > 3 else ""
        raise LabError(
            f"{folder} is no lab's folder: {', '.join(foreign[:3])}{more} is in it",
            "a new or empty folder, which goes again with the lab",
            "choose another with --dir",
        )
