"""Putting a config file in its place so that a reader at any moment sees the old content or the new, whole.

The new content is written to a file without a name and gets one only when it is complete and on the disk: some engines
read every file of a folder, so that not even a half-written temporary file may be seen there. The file keeps its owner,
its permissions and its SELinux label.
"""

from __future__ import annotations

import contextlib
import errno
import os
from pathlib import Path
from typing import Final

from kgpu.base.errors import HostError
from kgpu.host.engines.model import FileChange
from kgpu.host.engines.paths import MountedPaths

MODE: Final = 0o644
SELINUX: Final = "security.selinux"
NO_NAMELESS: Final = frozenset({errno.EOPNOTSUPP, errno.EISDIR, errno.ENOENT, errno.EINVAL})


def apply(change: FileChange, paths: MountedPaths, *, back: bool = False, like: str = "") -> None:
    """Write the change, or take it back; missing folders are made. Raises HostError.

    ``like``: the file whose permissions a new file gets at most, because it may hold a copy of what is secret there.
    """
    content = change.before if back else change.after
    target = paths.local(change.path)
    try:
        if content is None:
            target.unlink(missing_ok=True)
            if target.parent.is_dir():
                _sync_folder(target.parent)
            return
        for folder in reversed(missing_folders(change.path, paths)):
            local = paths.local(folder)
            local.mkdir(mode=0o755)
            _sync_folder(local.parent)
        _replace(target, content, MODE & _mode_of(paths.local(like)) if like else MODE)
    except OSError as error:
        raise HostError(
            f"{change.path} can't be written: {error.strerror}",
            "a file that this process may replace, in a folder that it may write to",
            "mount the folder so that it can be written (not the file alone), or choose another drop-in or config file",
        ) from error


def remove_folders(folders: tuple[str, ...], paths: MountedPaths) -> None:
    """Take away folders that kgpu has made, deepest first, while they are empty."""
    for folder in sorted(folders, key=len, reverse=True):
        with contextlib.suppress(OSError):
            paths.local(folder).rmdir()


def sweep(path: str, paths: MountedPaths) -> None:
    """Take away the temporary file that a killed run may have left beside this one."""
    target = paths.local(path)
    for folder in (target.parent, target.parent.parent):
        with contextlib.suppress(OSError):
            (folder / _temporary(target)).unlink()


def missing_folders(path: str, paths: MountedPaths) -> tuple[str, ...]:
    """The folders above a file that are not there, deepest first."""
    missing: list[str] = []
    folder = os.path.dirname(path)
    while folder not in {"", "/"} and not paths.exists(folder):
        missing.append(folder)
        folder = os.path.dirname(folder)
    return tuple(missing)


def _temporary(target: Path) -> str:
    return f".{target.name}.kgpu"


def _mode_of(path: Path) -> int:
    try:
        return path.stat().st_mode & 0o777
    except OSError:
        return MODE


def _replace(target: Path, content: bytes, mode: int) -> None:
    try:
        before: os.stat_result | None = target.stat()
    except FileNotFoundError:
        before = None
    folder = os.open(target.parent, os.O_RDONLY | os.O_DIRECTORY)
    temporary = _temporary(target)
    try:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(temporary, dir_fd=folder)  # of a run that was killed
        try:
            fd = os.open(target.parent, os.O_TMPFILE | os.O_WRONLY, 0o600)
        except OSError as error:
            if error.errno not in NO_NAMELESS:
                raise
            _write_named(target, content, before, mode)
        else:
            try:
                _fill(fd, target, content, before, mode)
                os.link(f"/proc/self/fd/{fd}", temporary, dst_dir_fd=folder, follow_symlinks=True)
            finally:
                os.close(fd)
            os.replace(temporary, target.name, src_dir_fd=folder, dst_dir_fd=folder)
        os.fsync(folder)
    finally:
        os.close(folder)


def _write_named(target: Path, content: bytes, before: os.stat_result | None, mode: int) -> None:
    """Where the file system knows no files without a name: a temporary one, outside of the folder if possible."""
    above = target.parent.parent
    outside = above.stat().st_dev == target.parent.stat().st_dev and os.access(above, os.W_OK)
    temporary = (above if outside else target.parent) / _temporary(target)
    fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, 0o600)
    try:
        _fill(fd, target, content, before, mode)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    finally:
        os.close(fd)
    os.replace(temporary, target)


def _fill(fd: int, target: Path, content: bytes, before: os.stat_result | None, mode: int) -> None:
    view = memoryview(content)
    while view:
        view = view[os.write(fd, view) :]
    if before is not None:
        with contextlib.suppress(PermissionError):
            os.fchown(fd, before.st_uid, before.st_gid)
        with contextlib.suppress(OSError):
            os.setxattr(fd, SELINUX, os.getxattr(target, SELINUX))
    os.fchmod(fd, before.st_mode & 0o7777 if before is not None else mode)
    os.fsync(fd)


def _sync_folder(folder: Path) -> None:
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
