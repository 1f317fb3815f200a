"""The port to the driver's part of MPS, and the real one: programs and processes. Every call has a deadline.

The calls block; callers run them in threads. The in-memory fake is ``kgpu.mps.driver_fake``.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Protocol

from kgpu.base.errors import HostError
from kgpu.formats.names import ENV_MPS_PIPE_DIRECTORY
from kgpu.host.commands import run
from kgpu.mps.model import DaemonSpec
from kgpu.mps.programs import CONTROL, SERVER, DriverPrograms
from kgpu.mps.smi import SmiSettings

START_SECONDS: Final = 30.0
TELL_SECONDS: Final = 10.0
END_SECONDS: Final = 5.0
_PAUSE: Final = 0.05
_PROC: Final = Path("/proc")
_DAEMON_FLAGS: Final = frozenset({b"-d", b"-f"})
_LOST: Final = "reboot the node if the driver answers nothing; else look at the log beside the pipe folder"


@dataclass(frozen=True, slots=True, kw_only=True)
class RunningMps:
    """The processes of a spec. ``daemon`` is 0 if only servers are left; ``visible`` are the GPUs that it was given."""

    daemon: int = 0
    visible: str = ""
    servers: tuple[int, ...] = ()

    @property
    def pids(self) -> tuple[int, ...]:
        """All of them, the daemon first: it would start servers again."""
        return (*((self.daemon,) if self.daemon else ()), *self.servers)


class MpsDriver(Protocol):
    """What the daemons' supervisor asks of the driver. All but ``ended`` block, and raise HostError."""

    def mode(self, uuid: str) -> str:
        """A GPU's compute mode: ``DEFAULT``, ``EXCLUSIVE_PROCESS``, ``PROHIBITED``."""
        ...

    def set_mode(self, uuid: str, mode: str) -> None:
        """Set a GPU's compute mode."""
        ...

    def start(self, spec: DaemonSpec) -> None:
        """Start a daemon; it listens on return."""
        ...

    def tell(self, spec: DaemonSpec, commands: Sequence[str], *, seconds: float = TELL_SECONDS) -> str:
        """What the daemon answers to the commands."""
        ...

    def running(self, spec: DaemonSpec) -> RunningMps:
        """Which processes with the spec's pipe folder there are."""
        ...

    def end(self, spec: DaemonSpec) -> tuple[int, ...]:
        """End what runs of the spec, whatever it does; the PIDs that this took a signal for."""
        ...

    async def ended(self, pid: int) -> None:
        """Return as soon as the process has ended."""
        ...


class DriverMps:
    """The driver's own programs."""

    def __init__(self, programs: DriverPrograms) -> None:
        self._programs = programs
        self._smi = SmiSettings(programs)

    def mode(self, uuid: str) -> str:
        return self._smi.mode(uuid)

    def set_mode(self, uuid: str, mode: str) -> None:
        self._smi.set_mode(uuid, mode)

    def start(self, spec: DaemonSpec) -> None:
        command = self._programs.sharing(spec.root, CONTROL, "-d")
        environment = {**self._environment(spec), "CUDA_VISIBLE_DEVICES": spec.visible}
        # A file takes its words: the daemon may keep them open for good.
        with tempfile.TemporaryFile() as told:
            code = _started(command, environment, told.fileno())
            told.seek(0)
            words = " ".join(told.read(4096).decode(errors="replace").split())
        if code != 0:
            raise HostError(
                f"the MPS control daemon of {spec.subject} can't be started: "
                + (f"it has ended with {code}: {words or 'it printed nothing'}" if code is not None else "it hangs"),
                "a daemon that listens",
                _LOST,
            )
        self._await(spec)

    def tell(self, spec: DaemonSpec, commands: Sequence[str], *, seconds: float = TELL_SECONDS) -> str:
        done = run(
            self._programs.sharing(spec.root, CONTROL),
            seconds=seconds,
            env=self._environment(spec),
            text="".join(f"{command}\n" for command in commands),
        )
        if done.code != 0:
            said = "no answer in time" if done.code is None else done.last_lines or f"exit code {done.code}"
            raise HostError(
                f"the MPS control daemon of {spec.subject} refuses {commands[0].split()[0]}: {said}",
                "a daemon that answers",
                _LOST,
            )
        return done.tail

    def running(self, spec: DaemonSpec) -> RunningMps:
        daemon, visible, servers = 0, "", []
        for pid, words, environment in _mps_processes():
            if environment.get(ENV_MPS_PIPE_DIRECTORY) != spec.pipe:
                continue
            if os.path.basename(words[0]) == SERVER.encode():
                servers.append(pid)
            elif _DAEMON_FLAGS.intersection(words[1:]):
                daemon, visible = pid, environment.get("CUDA_VISIBLE_DEVICES", "")
        return RunningMps(daemon=daemon, visible=visible, servers=tuple(servers))

    def end(self, spec: DaemonSpec) -> tuple[int, ...]:
        ended: list[int] = []
        left: tuple[int, ...] = ()
        for number in (signal.SIGTERM, signal.SIGKILL):
            until = time.monotonic() + END_SECONDS
            pids = self.running(spec).pids
            for pid in pids:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, number)
            ended += [pid for pid in pids if pid not in ended]
            while (left := self.running(spec).pids) and time.monotonic() < until:
                time.sleep(_PAUSE)
            if not left:
                return tuple(ended)
        raise HostError(
            f"processes {', '.join(map(str, left))} of MPS for {spec.subject} can't be ended",
            "processes that end when they are killed",
            "reboot the node: the driver holds them in the kernel",
        )

    async def ended(self, pid: int) -> None:
        try:
            handle = os.pidfd_open(pid)
        except ProcessLookupError:
            return
        loop = asyncio.get_running_loop()
        over = asyncio.Event()
        loop.add_reader(handle, over.set)
        try:
            await over.wait()
        finally:
            loop.remove_reader(handle)
            os.close(handle)
        _reap(pid)

    def _environment(self, spec: DaemonSpec) -> dict[str, str]:
        folders = {ENV_MPS_PIPE_DIRECTORY: spec.pipe, "CUDA_MPS_LOG_DIRECTORY": spec.log}
        return {**self._programs.environment(), **folders}

    def _await(self, spec: DaemonSpec) -> None:
        """Return once the daemon answers: it may listen only after the program that started it has ended."""
        until = time.monotonic() + START_SECONDS
        while True:
            try:
                self.tell(spec, ("get_default_active_thread_percentage",))
            except HostError:
                if time.monotonic() > until:
                    raise
                time.sleep(_PAUSE)
            else:
                return


def _reap(pid: int) -> None:
    """Let it go from the list of processes, where this process is the one that orphans fall to."""
    with contextlib.suppress(ChildProcessError):
        os.waitpid(pid, os.WNOHANG)


def _started(command: Sequence[str], environment: Mapping[str, str], output: int) -> int | None:
    """The exit code of a program that goes into the background, None if it does not."""
    try:
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=output, stderr=output, env=dict(environment), cwd="/",
            start_new_session=True,
        )  # fmt: skip
    except OSError as error:
        raise HostError(
            f"{command[0]} can't be run: {error.strerror}", "a program that this process may run", "look at its file"
        ) from error
    try:
        return process.wait(START_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        return None


def _mps_processes() -> Iterator[tuple[int, list[bytes], dict[str, str]]]:
    """PID, words and environment of every program of MPS that this process may look at."""
    for folder in _PROC.glob("[0-9]*"):
        try:
            words = (folder / "cmdline").read_bytes().rstrip(b"\0").split(b"\0")
            if os.path.basename(words[0]) not in {CONTROL.encode(), SERVER.encode()}:
                continue
            raw = (folder / "environ").read_bytes().split(b"\0")
        except OSError:
            continue
        pairs = (os.fsdecode(line).partition("=") for line in raw)
        yield int(folder.name), words, {name: value for name, _, value in pairs}
