"""The list of files that kgpu has put on this host outside its own folder, so that leaving removes exactly those.

A file that something else has written since, or that was never listed, stays. The list is a file, which is locked and
read for each use, as roles may run in threads and in separate pods. A list that can't be read counts as empty.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import logging
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

from kgpu.agent.role_decisions import string_map
from kgpu.base.errors import HostError
from kgpu.base.files import write_atomic

log = logging.getLogger(__name__)

LEDGER: Final = "host-files.json"
LOCK: Final = "host-files.lock"


class HostFiles:
    """The list, kept in ``state_dir``."""

    def __init__(self, state_dir: Path) -> None:
        self._ledger = state_dir / LEDGER

    def wrote(self, path: Path) -> None:
        """List the file as kgpu's, with its present content."""
        digest = _digest(path)
        with self._locked():
            digests = self._read()
            if digest and digests.get(str(path)) != digest:
                self._save({**digests, str(path): digest})

    def remove(self, path: Path) -> None:
        """Remove the file if it is listed and still as kgpu wrote it. Raises HostError."""
        with self._locked():
            digests = self._read()
            listed = digests.pop(str(path), None)
            if listed is None:
                return
            if _digest(path) == listed:
                _unlink(path)
            self._save(digests)

    def remove_all(self) -> None:
        """Do the same for every listed file. Raises HostError; the files after the failed one stay for the next try."""
        for name in sorted(self._read()):
            self.remove(Path(name))

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        """Hold the list's lock against all processes that share the folder; without a lock if it can't be taken."""
        with contextlib.ExitStack() as stack:
            with contextlib.suppress(OSError):
                self._ledger.parent.mkdir(parents=True, exist_ok=True)
                lock = os.open(self._ledger.with_name(LOCK), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
                stack.callback(os.close, lock)
                fcntl.flock(lock, fcntl.LOCK_EX)
            yield

    def _read(self) -> dict[str, str]:
        try:
            return string_map(json.loads(self._ledger.read_bytes()))
        except (OSError, ValueError, RecursionError):
            return {}

    def _save(self, digests: Mapping[str, str]) -> None:
        with contextlib.suppress(OSError):  # a folder that can't be written costs only the memory
            write_atomic(self._ledger, json.dumps(digests, sort_keys=True), mode=0o600)


def _unlink(path: Path) -> None:
    try:
        path.unlink(missing_ok=True)
    except OSError as error:
        raise HostError(
            f"{path}, which kgpu has put on this host, can't be removed: {error.strerror}",
            "a folder that this process may write to",
            "remove the file by hand",
        ) from error
    log.info("removed %s", path)


def _digest(path: Path) -> str:
    """The SHA-256 digest of the file's content; "" if it is not a plain file or can't be read."""
    try:
        return hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() and not path.is_symlink() else ""
    except OSError:
        return ""
