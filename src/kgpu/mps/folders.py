"""The folders and files of control daemons: made, marked as serving, and taken away.

Files that others may look at are made before what they speak of is offered, and removed first. Links are refused where
they could lead out of the MPS root, which clients' containers write into.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import shutil
import stat
from pathlib import Path
from typing import Final

from kgpu.base.errors import HostError
from kgpu.base.files import discard_unfinished, write_atomic
from kgpu.formats.mps_folders import ready_file, served_text, shm_folder
from kgpu.host.mounts import unmount_below
from kgpu.mps.model import DaemonSpec

SELINUX: Final = Path("/sys/fs/selinux")
CONTAINER_FILE: Final = b"system_u:object_r:container_file_t:s0\0"
MEMINFO: Final = Path("/proc/meminfo")
SMALLEST_SHM_KIB: Final = 65536
_MODE: Final = 0o755
_NOSUID_NODEV_NOEXEC: Final = 2 | 4 | 8


def prepare(spec: DaemonSpec, *, selinux: Path = SELINUX) -> None:
    """Make the daemon's folders, which containers may enter. Raises HostError."""
    for folder in (spec.folder, spec.pipe, spec.log):
        _folder(Path(folder))
    if selinux.is_dir():
        try:
            os.setxattr(spec.pipe, "security.selinux", CONTAINER_FILE)
        except OSError as error:
            raise HostError(
                f"{spec.pipe} can't be labelled for containers: {error.strerror}",
                "the right to set SELinux labels, as containers may not open its sockets otherwise",
                "run this privileged",
            ) from error


def mark(spec: DaemonSpec) -> None:
    """Say that the daemon serves. Raises HostError."""
    _touch(Path(spec.started), served_text(dict(zip(spec.gpus, spec.replicas, strict=False))))


def unmark(spec: DaemonSpec) -> None:
    """Say that it does not. Raises HostError."""
    _unlink(Path(spec.started))


def mark_ready(root: str, *, ready: bool) -> None:
    """Say whether every daemon of the node serves. Raises HostError."""
    (_touch if ready else _unlink)(Path(ready_file(root)))


def remove(spec: DaemonSpec) -> None:
    """Take away all that the daemon had on disk. Raises HostError."""
    for folder in (Path(spec.folder), Path(spec.folder).parent):
        try:
            if folder == Path(spec.folder):
                shutil.rmtree(folder)
            elif folder != Path(spec.root):
                folder.rmdir()  # the resource's domain, unless another resource has it too
        except FileNotFoundError:
            continue
        except OSError as error:
            if folder == Path(spec.folder):
                raise _refused(folder, error) from error


def remove_root(root: str) -> None:
    """Take away what all daemons shared, once none is left. The root itself may be a mount, and stays then."""
    shm = Path(shm_folder(root))
    _unlink(Path(ready_file(root)))
    with contextlib.suppress(OSError):
        discard_unfinished(ready_file(root))  # of an agent that was killed
    if shm.is_dir() and not shm.is_symlink():
        unmount_below(str(shm))
    for folder in (shm, Path(root)):
        with contextlib.suppress(OSError):  # others have files there
            folder.rmdir()


def prepare_shm(root: str, *, mounted: bool, again: bool = False) -> None:
    """Make the shared memory of daemons and clients: a tmpfs of at most half of this machine's memory.

    Without ``mounted`` a plain folder does, as a simulated driver shares no memory. With ``again`` one that is there is
    replaced; otherwise it stays, with what its users have in it. Raises HostError.
    """
    shm = Path(shm_folder(root))
    if again and shm.is_dir() and not shm.is_symlink():
        unmount_below(str(shm))
    _folder(shm)
    if not mounted or shm.is_mount():
        return
    libc = ctypes.CDLL(None, use_errno=True)
    options = f"size={shm_kib()}k".encode()
    if libc.mount(b"shm", os.fsencode(shm), b"tmpfs", ctypes.c_ulong(_NOSUID_NODEV_NOEXEC), options) != 0:
        raise HostError(
            f"no tmpfs can be mounted at {shm}: {os.strerror(ctypes.get_errno())}",
            "root with the capability SYS_ADMIN: clients and daemon of MPS meet in this memory",
            "run this privileged",
        )


def shm_kib(meminfo: Path = MEMINFO) -> int:
    """Half of this machine's memory in KiB, as the replaced program has it."""
    try:
        words = next(line.split() for line in meminfo.read_text().splitlines() if line.startswith("MemTotal:"))
        return int(words[1]) // 2
    except (OSError, ValueError, StopIteration, IndexError):
        return SMALLEST_SHM_KIB


def _folder(folder: Path) -> None:
    try:
        folder.mkdir(mode=_MODE, parents=True, exist_ok=True)
        handle = os.open(folder, os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            if stat.S_IMODE(os.fstat(handle).st_mode) & _MODE != _MODE:
                os.fchmod(handle, _MODE)
        finally:
            os.close(handle)
    except OSError as error:
        raise _refused(folder, error) from error


def _touch(file: Path, text: str = "") -> None:
    try:
        write_atomic(file, text)
    except OSError as error:
        raise _refused(file, error) from error


def _unlink(file: Path) -> None:
    try:
        file.unlink(missing_ok=True)
    except NotADirectoryError:
        return
    except OSError as error:
        raise _refused(file, error) from error


def _refused(path: Path, error: OSError) -> HostError:
    return HostError(
        f"{path} can't be made or removed: {error.strerror}",
        "a folder for MPS that this process may write into",
        "look at it and at flags.mpsRoot (MPS_ROOT)",
    )
