"""What this node has to be given back: which compute mode each GPU had, and which daemons were started.

It is written before anything is changed, so that an agent that is killed at any point finds it again. A compute mode
does not outlive the machine's boot, and what was noted in an earlier one is forgotten.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable
from pathlib import Path
from typing import Final

import msgspec

from kgpu.base.advice import Advice, AdviceSink, Severity
from kgpu.base.errors import HostError
from kgpu.base.files import write_atomic
from kgpu.base.typed import decode
from kgpu.mps.driver import MpsDriver
from kgpu.mps.model import DaemonSpec

EXCLUSIVE: Final = "EXCLUSIVE_PROCESS"
SLICE: Final = "MIG-"
"""How UUIDs of slices begin, which have no compute mode of their own."""
FILE_NAME: Final = "mps.json"
_MOST: Final = 1 << 20


class _StartedDaemon(msgspec.Struct, frozen=True):
    root: str
    resource: str
    gpus: tuple[str, ...]
    title: str = ""


class _Record(msgspec.Struct, frozen=True):
    boot: str = ""
    modes: dict[str, str] = {}
    daemons: tuple[_StartedDaemon, ...] = ()


class NodeRecord:
    """The record of one node, in a file. Safe to use from several threads; its calls block."""

    def __init__(self, path: Path, driver: MpsDriver, *, boot: str, report: AdviceSink) -> None:
        self._path = path
        self._driver = driver
        self._boot = boot
        self._report = report
        self._lock = threading.RLock()
        self._record = self._load()

    @property
    def daemons(self) -> tuple[DaemonSpec, ...]:
        """The daemons that were started and not taken away, without their limits."""
        return tuple(
            DaemonSpec(root=one.root, resource=one.resource, gpus=one.gpus, title=one.title)
            for one in self._record.daemons
        )

    @property
    def modes(self) -> dict[str, str]:
        """The former compute mode of each GPU that was changed, by UUID."""
        return dict(self._record.modes)

    def start(self, spec: DaemonSpec) -> None:
        """Note that a daemon is started, and give its GPUs to one process: the server. Raises HostError.

        A GPU whose mode can't be read or set is left out and told, as the others can be served; if it is so with all
        of them, that is raised. A slice has no mode.
        """
        with self._lock:
            noted = _StartedDaemon(root=spec.root, resource=spec.resource, gpus=spec.gpus, title=spec.title)
            others = tuple(
                one for one in self._record.daemons if one.resource != spec.resource or one.root != spec.root
            )
            self._save(msgspec.structs.replace(self._record, daemons=(*others, noted)))
            whole = [gpu for gpu in spec.gpus if not gpu.startswith(SLICE)]
            problems = [problem for gpu in whole if (problem := self._exclusive(gpu)) is not None]
            for problem in problems:
                self._report(Advice.from_error(problem, subject=spec.subject, reason="MpsComputeMode"))
            if len(problems) == len(spec.gpus) and problems:
                raise problems[0]

    def stop(self, spec: DaemonSpec, *, restore: bool = True) -> None:
        """Note that a daemon is gone, and give its GPUs their former mode. Raises HostError if that fails for one.

        Without ``restore`` the driver is not asked: the modes are given back later.
        """
        with self._lock:
            others = tuple(
                one for one in self._record.daemons if one.resource != spec.resource or one.root != spec.root
            )
            if others != self._record.daemons:
                self._save(msgspec.structs.replace(self._record, daemons=others))
            if restore:
                self.restore(spec.gpus)

    def restore(self, gpus: Iterable[str]) -> None:
        """Give GPUs the compute mode that they had, each whatever comes of the others. Raises HostError."""
        with self._lock:
            failed: HostError | None = None
            for gpu in gpus:
                former = self._record.modes.get(gpu)
                if former is None:
                    continue
                try:
                    self._driver.set_mode(gpu, former)
                except HostError as problem:
                    failed = problem
                    continue
                modes = {uuid: mode for uuid, mode in self._record.modes.items() if uuid != gpu}
                self._save(msgspec.structs.replace(self._record, modes=modes))
            if failed is not None:
                raise failed

    def _exclusive(self, gpu: str) -> HostError | None:
        try:
            mode = self._driver.mode(gpu)
            if gpu not in self._record.modes:
                self._save(msgspec.structs.replace(self._record, modes={**self._record.modes, gpu: mode}))
            if mode != EXCLUSIVE:
                self._driver.set_mode(gpu, EXCLUSIVE)
        except HostError as problem:
            return problem
        return None

    def _load(self) -> _Record:
        fresh = _Record(boot=self._boot)
        try:
            with self._path.open("rb") as file:
                raw = file.read(_MOST)
            found = decode(raw, _Record)
        except FileNotFoundError:
            return fresh
        except (OSError, msgspec.DecodeError, ValueError) as error:
            self._report(
                Advice(
                    subject=str(self._path),
                    what="what MPS has changed on this node before is not known",
                    why=f"its record can't be read: {error}",
                    severity=Severity.WARNING,
                    remedy="GPUs that stay in compute mode EXCLUSIVE_PROCESS: nvidia-smi -c DEFAULT",
                    reason="MpsRecordUnreadable",
                )
            )
            return fresh
        return found if found.boot == self._boot else msgspec.structs.replace(fresh, daemons=found.daemons)

    def _save(self, record: _Record) -> None:
        try:
            if record.modes or record.daemons:
                write_atomic(self._path, msgspec.json.encode(record), mode=0o600)
            else:
                self._path.unlink(missing_ok=True)
        except OSError as error:
            raise HostError(
                f"{self._path} can't be written: {error.strerror}",
                "a record of what is changed, before it is changed",
                "make room on its disk, or choose another --state-dir",
            ) from error
        self._record = record
