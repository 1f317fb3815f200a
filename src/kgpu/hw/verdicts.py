"""What the health role has concluded about each GPU, in the file by which other roles and processes act on it.

The file is written whole, at every change and every few seconds. It holds for the boot in which it was written and for
``STALE_SECONDS``: when the health role is gone, its last words stop counting, and whoever reads has to judge by
itself. Reading is total: what is no such file, or too large, or of another boot, is None.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import stat
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Protocol

import msgspec

from kgpu.base.boot import boot_id, uptime
from kgpu.base.errors import HostError
from kgpu.base.files import write_atomic
from kgpu.base.inotify import folder_changes, nearest_existing
from kgpu.base.typed import decode
from kgpu.formats.names import ENV_RUN_DIR, HEALTH_VERDICTS, RUN_DIR

FORMAT: Final = 1
STALE_SECONDS: Final = 60.0
"""So old a file counts for nothing; it is written anew several times in this time."""
LOOK_SECONDS: Final = 5.0
_LIMIT: Final = 4 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class XidCount:
    """How often one Xid came since the boot, of the whole GPU or of one of its instances."""

    code: int
    count: int
    gpu_instance: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class DcgmSystem:
    """What does not pass of one system that DCGM watches, such as MEM; ``status`` 10 warns, 20 is a failure."""

    system: str
    status: int
    code: str = ""


class GpuVerdict(msgspec.Struct, frozen=True, kw_only=True, rename={"remedy": "todo", "remedy_key": "remedy"}):
    """What is true of one GPU now.

    ``uuid`` is "" for a GPU that only the kernel log names, by ``pci``. ``action`` is ignore, restart-app, inspect,
    drain, reset-gpu, reboot or replace. ``withdraws``: it should get no new work. ``causes`` are the names of the
    evidence for that, such as ``xid:79`` or ``driver:lost``. ``reason`` is one CamelCase word, ``what`` a sentence,
    ``evidence`` all that is known, ``facts`` the same as names, ``remedy`` what a person can do and ``remedy_key`` its
    key in ``kgpu.formats.gpu_remedies``. ``since`` is in seconds since 1970. ``muted`` says why the evidence is not
    acted on, "" when it is. ``xids`` are all that came since the boot, ignored ones too. ``watches`` is the same
    evidence in DCGM's words; a system that is not there passes.
    """

    uuid: str
    index: int | None = None
    pci: str = ""
    action: str = "ignore"
    withdraws: bool = False
    causes: tuple[str, ...] = ()
    reason: str = ""
    severity: str = "info"
    what: str = ""
    remedy: str = ""
    remedy_key: str = ""
    evidence: tuple[str, ...] = ()
    facts: tuple[str, ...] = ()
    since: float = 0.0
    muted: str = ""
    xids: tuple[XidCount, ...] = ()
    watches: tuple[DcgmSystem, ...] = ()

    @property
    def healthy(self) -> bool:
        """The opposite of ``withdraws``: what a metric shows."""
        return not self.withdraws


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdicts:
    """The file. ``uptime`` is when it was written, in seconds since boot (suspended time included)."""

    boot: str
    uptime: float
    node: str = ""
    gpus: tuple[GpuVerdict, ...] = ()
    problems: tuple[str, ...] = ()
    format: int = field(default=FORMAT)

    @property
    def by_uuid(self) -> Mapping[str, GpuVerdict]:
        """Those of GPUs that are known by their uuid."""
        return {verdict.uuid: verdict for verdict in self.gpus if verdict.uuid}


class VerdictSource(Protocol):
    """Where verdicts come from; the fake is ``MemoryVerdicts``."""

    def read(self) -> Verdicts | None:
        """The verdicts that hold now, None when there are none."""
        ...

    def follow(self) -> AsyncIterator[Verdicts | None]:
        """The verdicts that hold now, and again after each possible change; None once no process writes them."""
        ...


class MemoryVerdicts:
    """The fake: ``put`` sets the verdicts."""

    def __init__(self, verdicts: Verdicts | None = None) -> None:
        self._verdicts = verdicts
        self._changed = asyncio.Event()

    def put(self, *gpus: GpuVerdict) -> None:
        """Set the verdicts that hold from now on."""
        self._verdicts = Verdicts(boot="memory", uptime=0.0, gpus=gpus)
        self._changed.set()

    def end(self) -> None:
        """From now on there are no verdicts."""
        self._verdicts = None
        self._changed.set()

    def read(self) -> Verdicts | None:
        return self._verdicts

    async def follow(self) -> AsyncIterator[Verdicts | None]:
        while True:
            self._changed.clear()
            yield self._verdicts
            await self._changed.wait()


class VerdictFile:
    """The file at ``path``; ``boot`` and ``uptime`` are those of the running kernel unless told."""

    def __init__(
        self,
        path: Path,
        *,
        boot: str | None = None,
        uptime: Callable[[], float] = uptime,
        look_seconds: float = LOOK_SECONDS,
    ) -> None:
        self.path = path
        self.boot = boot_id() if boot is None else boot
        self._uptime = uptime
        self._look_seconds = look_seconds

    def write(self, gpus: tuple[GpuVerdict, ...], *, node: str = "", problems: tuple[str, ...] = ()) -> None:
        """Replace the file. Raises HostError."""
        verdicts = Verdicts(boot=self.boot, uptime=self._uptime(), node=node, gpus=gpus, problems=problems)
        try:
            write_atomic(self.path, msgspec.json.format(msgspec.json.encode(verdicts), indent=1))
        except OSError as error:
            raise HostError(
                f"the GPUs' verdicts can't be written to {self.path}: {error.strerror or error}",
                "a folder that may be written, which is the same for every process of this node",
                f"mount {RUN_DIR} of the host there, writable",
            ) from error

    def remove(self) -> None:
        """Remove the file: no process writes verdicts here any more. Raises HostError."""
        try:
            self.path.unlink(missing_ok=True)
        except OSError as error:
            raise HostError(
                f"{self.path} can't be removed: {error.strerror or error}", "a folder that may be written", "remove it"
            ) from error

    def read(self) -> Verdicts | None:
        raw = _read(self.path)
        if raw is None:
            return None
        try:
            verdicts = decode(raw, Verdicts)
        except (msgspec.DecodeError, UnicodeDecodeError):
            return None
        age = self._uptime() - verdicts.uptime
        # Without a boot id nobody knows of which boot it is.
        of_now = verdicts.format == FORMAT and verdicts.boot == self.boot != ""
        return verdicts if of_now and -1.0 <= age <= STALE_SECONDS else None

    async def follow(self) -> AsyncIterator[Verdicts | None]:
        before: tuple[object, ...] = ()
        changes = folder_changes(lambda: {nearest_existing(self.path.parent)}, seconds=self._look_seconds)
        async with contextlib.aclosing(changes):
            async for _ in changes:
                verdicts = self.read()
                now = () if verdicts is None else (verdicts.gpus, verdicts.problems, verdicts.node)
                if not before or now != before[0]:
                    before = (now,)
                    yield verdicts


def verdicts_path(host_root: Path | str, env: Mapping[str, str]) -> Path:
    """Where a node's file is for a process that sees the host's root at ``host_root``."""
    run = env.get(ENV_RUN_DIR) or os.path.join(host_root, RUN_DIR.lstrip("/"))
    return Path(run, os.path.relpath(HEALTH_VERDICTS, RUN_DIR))


def _read(path: Path) -> bytes | None:
    """The content of a regular file of root's or this user's, None for anything else."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY)
    except OSError:
        return None
    with contextlib.suppress(OSError), os.fdopen(fd, "rb") as file:
        about = os.fstat(fd)
        if stat.S_ISREG(about.st_mode) and about.st_uid in {0, os.geteuid()} and about.st_size <= _LIMIT:
            return file.read(_LIMIT)
    return None
