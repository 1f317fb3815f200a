"""The host's services that use GPUs, such as DCGM's: stopped while GPUs are parted otherwise, and started again.

Only those that run are stopped, and which is written down before, so that they are started again whoever is killed
meanwhile. Their names come from the replaced program's file ``clients.yaml``.
"""

from __future__ import annotations

import contextlib
import logging
import re
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import msgspec

from kgpu.base import typed
from kgpu.base.errors import ConfigError, HostError
from kgpu.base.files import write_atomic
from kgpu.base.threads import beside
from kgpu.formats.yaml import load_document
from kgpu.host.bounded import read_regular
from kgpu.host.chroot import in_root
from kgpu.host.commands import CommandResult, run

log = logging.getLogger(__name__)

FILE_NAME: Final = "mig-stopped-services.json"
SYSTEMCTL: Final = "systemctl"
SECONDS: Final = 120.0
_ENVIRONMENT: Final = {"PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"}
KUBELET: Final = "kubelet.service"
_BYTES: Final = 1 << 16
_UNIT: Final = re.compile(r"[A-Za-z0-9:_.@-]{1,200}\.service", re.ASCII)
_EXPECTED: Final = "version: v1 and a list systemd-services of names such as dcgm.service"


def read_clients(path: str) -> tuple[str, ...]:
    """The services of a clients file in its order, without the kubelet. Raises ConfigError, HostError."""
    content, _ = read_regular(path, _BYTES, what="a file of GPU clients")
    value = load_document(content, source=path).value
    if value is None:
        return ()
    listed = value.get("systemd-services", []) if isinstance(value, dict) else None
    known = isinstance(value, dict) and value.get("version") == "v1" and value.keys() <= {"version", "systemd-services"}
    if not known or not isinstance(listed, list):
        raise ConfigError(f"{path} is no list of GPU clients", _EXPECTED, "correct it")
    for name in listed:
        if not (isinstance(name, str) and _UNIT.fullmatch(name)):
            raise ConfigError(f"{path}: {name!r:.100} is no service of systemd", _EXPECTED, "correct it")
    if KUBELET in listed:  # a node whose kubelet ends while it is being set up never becomes Ready
        log.warning("%s: %s goes on: it is never stopped for a change of slices", path, KUBELET)
    return tuple(dict.fromkeys(name for name in listed if name != KUBELET))


def host_call(root: Path) -> Callable[[Sequence[str]], CommandResult]:
    """What runs a program in the host's root."""
    return lambda words: run(in_root(root, words), seconds=SECONDS, env=_ENVIRONMENT, group=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientServices:
    """``clients()`` are their names, ``record`` is the file with those that were stopped. ``call`` runs a program of
    the host.
    """

    clients: Callable[[], Sequence[str]]
    record: Path
    call: Callable[[Sequence[str]], CommandResult]

    @contextlib.asynccontextmanager
    async def stopped(self) -> AsyncIterator[None]:
        """Within the block the services do not run. Raises ConfigError, HostError, and then they run as before."""
        await self.give_back()
        try:
            await beside(self._stop)
            yield
        finally:
            await self.give_back()

    async def give_back(self) -> None:
        """Start what was stopped, also by an earlier process. What can't be started stays noted, and is told."""
        await beside(self._start)

    def _stop(self) -> None:
        names = [name for name in self.clients() if name != KUBELET]
        running = [name for name in names if self.call([SYSTEMCTL, "is-active", "--quiet", name]).code == 0]
        if not running:
            return
        try:
            write_atomic(self.record, msgspec.json.encode(running), mode=0o600)
        except OSError as error:
            raise HostError(
                f"{self.record} can't be written: {error.strerror}", "a record of the services before they are stopped",
                "make room on its disk, or choose another --state-dir",
            ) from error  # fmt: skip
        for name in running:
            done = self.call([SYSTEMCTL, "stop", name])
            if done.code != 0:
                raise HostError(
                    f"the host's service {name} can't be stopped: {done.last_lines or 'systemctl says nothing'}",
                    "services that end, as they use GPUs that have to be reset", f"look at `systemctl status {name}`",
                )  # fmt: skip

    def _start(self) -> None:
        left: list[str] = []
        for name in reversed(self._noted()):
            done = self.call([SYSTEMCTL, "start", name])
            if done.code != 0:
                left.insert(0, name)
                log.warning("the host's service %s can't be started again: %s", name, done.last_lines)
        with contextlib.suppress(OSError):
            if left:
                write_atomic(self.record, msgspec.json.encode(left), mode=0o600)
            else:
                self.record.unlink(missing_ok=True)

    def _noted(self) -> list[str]:
        try:
            names = typed.decode(self.record.read_bytes(), list[str])
        except (OSError, ValueError, RecursionError):
            return []
        return [name for name in names if _UNIT.fullmatch(name)]
