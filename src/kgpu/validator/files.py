"""The folder ``/run/nvidia/validations``: files that others wait for, files with reasons, and the whole report.

Names and ``driver-ready`` (KEY=value, for a shell to source) are the replaced program's; ``<check>-not-ready`` has the
reason, ``kgpu-validation.json`` everything. Promises: a reader sees a whole file or none; nothing else in the folder
(links, pipes, folders, other users' files) can redirect a write, make a read hang, or fake a result.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import shlex
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import msgspec

from kgpu.base.errors import HostError
from kgpu.base.typed import decode
from kgpu.validator.model import Check, NodeValidation, Roots
from kgpu.validator.modules import BY_COMPONENT

REPORT: Final = "kgpu-validation.json"
FORMAT: Final = 1
MAX_REPORT: Final = 4 << 20
DRIVER_KEYS: Final = (
    ("IS_HOST_DRIVER", "host_driver"),
    ("NVIDIA_DRIVER_ROOT", "driver"),
    ("DRIVER_ROOT_CTR_PATH", "driver_here"),
    ("NVIDIA_DEV_ROOT", "dev"),
    ("DEV_ROOT_CTR_PATH", "dev_here"),
)


class _Document(msgspec.Struct, frozen=True):
    format: int
    report: NodeValidation


def ready(check: str) -> str:
    """The name of the file that says that a check passed, or that a component's module is loaded."""
    return f"{check}-ready"


def not_ready(check: str) -> str:
    """The name of the file that says why it did not."""
    return f"{check}-not-ready"


OURS: Final = (REPORT, *(name(check) for check in (*Check, *BY_COMPONENT) for name in (ready, not_ready)))


def driver_ready_text(roots: Roots) -> str:
    """The content of ``driver-ready`` for a shell to source; values are quoted if needed."""
    values = ((key, getattr(roots, name)) for key, name in DRIVER_KEYS)
    return "".join(f"{key}={_word(value)}\n" for key, value in values)


def _word(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else shlex.quote(str(value))


def parse_driver_ready(text: str) -> dict[str, str]:
    """The values of such a file by key; lines other than KEY=value are ignored."""
    values: dict[str, str] = {}
    for line in text.splitlines():
        key, equals, value = line.strip().partition("=")
        if not equals or not key.isidentifier():
            continue
        with contextlib.suppress(ValueError):
            values[key] = "".join(shlex.split(value))
    return values


def encode_report(report: NodeValidation) -> bytes:
    """The report as JSON; the same report always gives the same bytes."""
    raw = msgspec.json.encode(_Document(format=FORMAT, report=report), order="sorted")
    return msgspec.json.format(raw, indent=1) + b"\n"


def decode_report(raw: bytes) -> NodeValidation | None:
    """Parse a report; None if it is not one of this format."""
    try:
        document = decode(raw, _Document)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    return document.report if document.format == FORMAT else None


class Folder:
    """The folder. Each call opens it again, so that a ``/run`` that was emptied or recreated is no problem."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def read(self, name: str, limit: int = MAX_REPORT) -> bytes | None:
        """A file's content; None if it is missing, too large, or not a plain file of root's or ours."""
        try:
            with self._open() as folder:
                return _read(folder, name, limit)
        except (OSError, HostError):
            return None

    def report(self) -> NodeValidation | None:
        """The present report, None without a trustworthy one."""
        raw = self.read(REPORT)
        return None if raw is None else decode_report(raw)

    def exists(self, name: str) -> bool:
        """Whether a trustworthy file of that name exists."""
        return self.read(name) is not None

    def apply(self, files: Mapping[str, bytes | None]) -> bool:
        """Write the files, and remove those with None. True if something changed. Raises HostError.

        Removals come first: nobody may see a ``ready`` beside the file that contradicts it.
        """
        changed = False
        try:
            self.path.mkdir(mode=0o755, parents=True, exist_ok=True)
            with self._open() as folder:
                for name, content in sorted(files.items(), key=lambda item: item[1] is not None):
                    changed |= _remove(folder, name) if content is None else _write(folder, name, content)
        except OSError as error:
            raise HostError(
                f"the results can't be written to {self.path}: {error.strerror or error}",
                "a folder that may be written, which pods that wait for the driver read",
                f"look at what is in {self.path} on the node; mount /run/nvidia writable",
            ) from error
        return changed

    def clear(self) -> None:
        """Remove every file of ours. Raises HostError."""
        if self.path.is_dir():
            self.apply(dict.fromkeys(OURS))

    @contextlib.contextmanager
    def _open(self):  # type: ignore[no-untyped-def]  # noqa: ANN202
        fd = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            yield fd
        finally:
            os.close(fd)


def _read(folder: int, name: str, limit: int) -> bytes | None:
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY
    fd = os.open(name, flags, dir_fd=folder)
    try:
        status = os.fstat(fd)
        if not stat.S_ISREG(status.st_mode) or status.st_uid not in {0, os.geteuid()} or status.st_size > limit:
            return None
        data = b""
        while len(data) <= limit and (more := os.read(fd, limit + 1 - len(data))):
            data += more
        return data if len(data) <= limit else None
    finally:
        os.close(fd)


def _remove(folder: int, name: str) -> bool:
    try:
        os.unlink(name, dir_fd=folder)
    except FileNotFoundError:
        return False
    except IsADirectoryError:
        os.rmdir(name, dir_fd=folder)
    return True


def _write(folder: int, name: str, content: bytes) -> bool:
    with contextlib.suppress(OSError):
        if _read(folder, name, len(content)) == content:
            return False
    temporary = f".{name}.{secrets.token_hex(6)}"
    fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o644, dir_fd=folder)
    try:
        with os.fdopen(fd, "wb") as out:
            out.write(content)
            out.flush()
            os.fchmod(out.fileno(), 0o644)
        with contextlib.suppress(FileNotFoundError, NotADirectoryError):
            os.rmdir(name, dir_fd=folder)  # an empty folder in the file's place would make the rename fail
        os.replace(temporary, name, src_dir_fd=folder, dst_dir_fd=folder)
    except BaseException:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(temporary, dir_fd=folder)
        raise
    return True
