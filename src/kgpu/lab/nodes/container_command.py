"""A command beside a container's own program, as ``kubectl exec`` runs it: with pipes, or with a terminal.

It has a session of its own and ends with this process. What it prints is read when somebody wants it, so that a reader
that is slow slows it down; nothing is kept here.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import fcntl
import os
import signal
import struct
import subprocess
import sys
import termios
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from kgpu.base.errors import LabError
from kgpu.lab.nodes import container_processes, shim

CHUNK: Final = 32 * 1024
HANG_UP_S: Final = 2.0  # for a command to end when its client has gone
_SHIM: Final = str(Path(shim.__file__))
_PROBLEM_BYTES: Final = 4096


class ExecError(LabError):
    """The command could not be started; ``what`` is the container runtime's message."""


def exec_error(why: str) -> ExecError:
    """The runtime's message of a command that it could not start."""
    return ExecError(
        f"OCI runtime exec failed: exec failed: unable to start container process: {why}",
        "a command that the container has",
        "name one of its programs",
    )


@dataclass(frozen=True, slots=True)
class CommandStreams:
    """Which streams of a command somebody wants."""

    stdin: bool = False
    stdout: bool = False
    stderr: bool = False
    tty: bool = False


class CommandFd:
    """One end of a pipe or terminal, without blocking. ``close`` wakes who waits for it."""

    def __init__(self, fd: int) -> None:
        os.set_blocking(fd, False)
        self._fd = fd
        self._waiting: set[asyncio.Future[None]] = set()
        self._ending = False

    @property
    def fd(self) -> int:
        """The descriptor, -1 when it is closed."""
        return self._fd

    async def read(self) -> bytes:
        """What has come, at most ``CHUNK`` bytes; b"" at the end."""
        loop = asyncio.get_running_loop()
        while self._fd >= 0:
            try:
                return os.read(self._fd, CHUNK)
            except BlockingIOError:
                if self._ending:
                    return b""
                await self._ready(loop.add_reader, loop.remove_reader)
            except OSError as error:
                if error.errno == errno.EIO:  # a terminal that nobody has open any more
                    return b""
                raise
        return b""

    async def write(self, data: bytes) -> None:
        """Write everything; what nobody reads any more is dropped."""
        loop, left = asyncio.get_running_loop(), memoryview(data)
        while left and self._fd >= 0:
            try:
                left = left[os.write(self._fd, left[:CHUNK]) :]
            except BlockingIOError:
                await self._ready(loop.add_writer, loop.remove_writer)
            except OSError:
                self.close()

    def end(self) -> None:
        """Nothing more will come: what is there can still be read."""
        self._ending = True
        self._wake()

    def close(self) -> None:
        """Close it; whoever waits for it goes on."""
        fd, self._fd = self._fd, -1
        if fd >= 0:
            loop = asyncio.get_running_loop()
            loop.remove_reader(fd)
            loop.remove_writer(fd)
            os.close(fd)
        self._wake()

    def _wake(self) -> None:
        for future in self._waiting:
            if not future.done():
                future.set_result(None)

    async def _ready(self, add: Callable[..., None], remove: Callable[[int], bool]) -> None:
        fd, ready = self._fd, asyncio.get_running_loop().create_future()
        self._waiting.add(ready)
        add(fd, _settle, ready)
        try:
            await ready
        finally:
            self._waiting.discard(ready)
            if self._fd == fd:
                remove(fd)


def _settle(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)


class ContainerCommand:
    """A command that was started. ``stdin``, ``stdout`` and ``stderr`` are None where nobody wants them.

    With a terminal, ``stdin`` and ``stdout`` are the same, and there is no ``stderr``.
    """

    def __init__(self, process: asyncio.subprocess.Process, *, tty: bool) -> None:
        self._process = process
        self._tty = tty
        self.stdin: CommandFd | None = None
        self.stdout: CommandFd | None = None
        self.stderr: CommandFd | None = None

    async def wait(self) -> int:
        """Its exit code, 128 and the signal's number for one that a signal ended.

        What it has printed can be read for ``shim.DRAIN_S`` more, and what others print that it has left behind.
        """
        code = await self._process.wait()
        for stream in (self.stdout, self.stderr):
            if stream is not None:
                asyncio.get_running_loop().call_later(shim.DRAIN_S, stream.end)
        return code if code >= 0 else 128 - code

    def resize(self, width: int, height: int) -> None:
        """Give its terminal a size in characters; nothing without one."""
        if self._tty and self.stdout is not None and self.stdout.fd >= 0:
            fcntl.ioctl(self.stdout.fd, termios.TIOCSWINSZ, struct.pack("HHHH", height, width, 0, 0))

    def close_stdin(self) -> None:
        """Its input ends. A terminal's goes on, as with the container runtime."""
        if self.stdin is not None and not self._tty:
            self.stdin.close()

    def kill(self) -> None:
        """End it and everything of its session."""
        container_processes.signal_session(self._process.pid, signal.SIGKILL)

    async def hang_up(self) -> None:
        """End it, first as a terminal that is gone does, and close its streams. Safe to call again."""
        for stream in (self.stdin, self.stdout, self.stderr):
            if stream is not None:
                stream.close()
        if self._process.returncode is None:
            container_processes.signal_session(self._process.pid, signal.SIGHUP)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(HANG_UP_S):
                    await self._process.wait()
            self.kill()
            await self._process.wait()


async def start(config: Path, pid: int, command: Sequence[str], streams: CommandStreams) -> ContainerCommand:
    """Start the command in the container of ``pid``. Raises ExecError."""
    if not command:
        raise exec_error("args must not be empty")
    report, told = os.pipe()
    ours: dict[str, int] = {}
    theirs = [told]
    try:
        fds = _terminal(ours, theirs) if streams.tty else _pipes(streams, ours, theirs)
        try:
            process = await asyncio.create_subprocess_exec(
                sys.executable, "-I", "-S", _SHIM, "session", str(config), str(pid), str(told), *command,
                stdin=fds[0], stdout=fds[1], stderr=fds[2], pass_fds=(told,), start_new_session=True,
            )  # fmt: skip
        finally:
            for fd in theirs:
                os.close(fd)
    except (OSError, ValueError) as error:  # too many of something, or a word with a NUL
        for fd in {report, *ours.values()}:
            os.close(fd)
        raise exec_error(str(error)) from error
    running = ContainerCommand(process, tty=streams.tty)
    opened = {fd: CommandFd(fd) for fd in set(ours.values())}
    for name, fd in ours.items():
        setattr(running, name, opened[fd])
    telling = CommandFd(report)
    try:
        problem = await telling.read()
        if problem:
            raise exec_error(problem[:_PROBLEM_BYTES].decode(errors="replace"))
    except BaseException:
        await running.hang_up()
        raise
    finally:
        telling.close()
    return running


def _terminal(ours: dict[str, int], theirs: list[int]) -> tuple[int, int, int]:
    master, slave = os.openpty()
    theirs.append(slave)
    ours |= {"stdin": master, "stdout": master}
    return slave, slave, slave


def _pipes(streams: CommandStreams, ours: dict[str, int], theirs: list[int]) -> tuple[int, int, int]:
    fds = [subprocess.DEVNULL] * 3
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        if getattr(streams, name):
            reading, writing = os.pipe()
            ours[name], fds[number] = (writing, reading) if number == 0 else (reading, writing)
            theirs.append(fds[number])
    return fds[0], fds[1], fds[2]
