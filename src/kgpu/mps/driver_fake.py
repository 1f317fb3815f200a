"""An ``MpsDriver`` in memory: daemons that listen, die, hang and refuse as a test says."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Sequence
from dataclasses import replace

from kgpu.base.errors import HostError
from kgpu.mps.driver import TELL_SECONDS, RunningMps
from kgpu.mps.model import DaemonSpec


def refusal(what: str) -> HostError:
    """An error of the fake."""
    return HostError(what, "a driver that does it", "nothing: it is a test")


class FakeMpsDriver:
    """``calls`` is what was done, in order. Words in ``broken`` (``mode GPU-a``, ``set GPU-a``, ``start``, ``tell``)
    make that fail.
    """

    def __init__(self, **modes: str) -> None:
        self.modes = dict(modes)
        self.processes: dict[str, RunningMps] = {}
        self.told: dict[str, list[str]] = {}
        self.calls: list[str] = []
        self.broken: set[str] = set()
        self._pids = itertools.count(100)
        self._ends: dict[int, asyncio.Event] = {}

    def mode(self, uuid: str) -> str:
        self._try(f"mode {uuid}")
        return self.modes.get(uuid, "DEFAULT")

    def set_mode(self, uuid: str, mode: str) -> None:
        self.calls.append(f"{uuid} {mode}")
        self._try(f"set {uuid}")
        self.modes[uuid] = mode

    def start(self, spec: DaemonSpec) -> None:
        self.calls.append(f"start {spec.resource}")
        self._try("start")
        self.put(spec)

    def put(self, spec: DaemonSpec, *, visible: str | None = None) -> int:
        """A daemon that is there; its PID."""
        pid = next(self._pids)
        self._ends[pid] = asyncio.Event()
        self.processes[spec.pipe] = RunningMps(daemon=pid, visible=spec.visible if visible is None else visible)
        return pid

    def tell(self, spec: DaemonSpec, commands: Sequence[str], *, seconds: float = TELL_SECONDS) -> str:
        del seconds
        self._try("tell")
        if not self.running(spec).daemon:
            raise refusal(f"no daemon for {spec.resource}")
        if commands[0].startswith("quit"):
            self.calls.append(f"quit {spec.resource}")
            self._gone(spec)
            return ""
        self.told.setdefault(spec.resource, []).extend(commands)
        return f"{spec.percentage}.0\n"

    def running(self, spec: DaemonSpec) -> RunningMps:
        return self.processes.get(spec.pipe, RunningMps())

    def end(self, spec: DaemonSpec) -> tuple[int, ...]:
        pids = self.running(spec).pids
        if pids:
            self.calls.append(f"kill {spec.resource}")
        self._gone(spec)
        return pids

    def die(self, spec: DaemonSpec, *servers: int) -> None:
        """The daemon dies and leaves servers behind. Call it on the loop."""
        was = self.running(spec)
        self.processes[spec.pipe] = replace(was, daemon=0, servers=servers)
        self._ends[was.daemon].set()

    async def ended(self, pid: int) -> None:
        if pid in self._ends:
            await self._ends[pid].wait()

    def _gone(self, spec: DaemonSpec) -> None:
        self.processes.pop(spec.pipe, None)

    def _try(self, word: str) -> None:
        if word in self.broken:
            raise refusal(f"{word} fails")
