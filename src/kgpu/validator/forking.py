"""The parent's end of ``cuda_fork``: tests as forks of one process, which is started when the first is wanted and ends
when none has been for a while.

Promise: whatever becomes of that process, nobody waits for it in vain. A test whose end is not told is ``lost``.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import os
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from typing import Any, Final

from kgpu.validator.cuda_fork import MAX_MESSAGE

BOOT: Final = "from kgpu.validator.cuda_fork import serve;sys.exit(serve(sys.argv[2:]))"
_PATHS: Final = "import sys;sys.path[:]=sys.argv[1].split(':');"
IDLE_SECONDS: Final = 1.0
REAP_SECONDS: Final = 1.0


class ForkedTest:
    """One test. ``pid`` is 0 until it is forked; ``returncode`` is negative for the signal that ended it."""

    def __init__(self, forker: Forker, number: int) -> None:
        self.pid = 0
        self.returncode: int | None = None
        self.lost = False
        self.error = ""
        self._forker = forker
        self._number = number
        self._changed = asyncio.Event()

    @property
    def over(self) -> bool:
        """Whether it has ended, or nobody will ever tell."""
        return self.lost or self.returncode is not None or bool(self.error)

    def kill(self) -> None:
        """End it by force; a driver can hold it nevertheless."""
        if not self.over:
            self._forker.send({"kill": self._number})

    async def begun(self) -> None:
        """Wait until it is forked. Raises OSError if it could not be."""
        while not (self.pid or self.over):
            await self._next()
        if self.error or not self.pid:
            raise OSError(self.error or "the process that starts the tests has ended")

    async def end(self, patience: float) -> bool:
        """Wait for its end; False if it has not come within ``patience`` seconds."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(patience):
                while not self.over:
                    await self._next()
        return self.over

    async def _next(self) -> None:
        self._changed.clear()
        await self._changed.wait()

    def told(self, *, pid: int = 0, ended: int | None = None, error: str = "", lost: bool = False) -> None:
        """What the forking process says of it."""
        self.pid = pid or self.pid
        self.returncode = ended if self.returncode is None else self.returncode
        self.error = error or self.error
        self.lost = lost
        self._changed.set()


class Forker:
    """One forking process, from its start to its end."""

    def __init__(self, process: subprocess.Popen[bytes], control: socket.socket) -> None:
        self._process = process
        self._control = control
        self._numbers = itertools.count(1)
        self._tests: dict[int, ForkedTest] = {}
        self._idle: asyncio.TimerHandle | None = None
        self.open = True
        self._task = asyncio.create_task(self._receive(), name=f"cuda-fork-{process.pid}")

    @classmethod
    def start(cls, env: Mapping[str, str], *, boot: str = BOOT) -> Forker:
        """Start it; ``boot`` replaces its program in tests. Raises OSError."""
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        # -S and our own search path: no .pth file is processed, which saves time and memory.
        command = [sys.executable, "-S", "-E", "-c", _PATHS + boot, ":".join(sys.path)]
        try:
            process = subprocess.Popen(
                [*command, str(theirs.fileno()), str(os.getpid())],
                env=dict(env),
                stdin=subprocess.DEVNULL,
                pass_fds=(theirs.fileno(),),
            )
        except BaseException:
            ours.close()
            raise
        finally:
            theirs.close()
        ours.setblocking(False)
        return cls(process, ours)

    def fork(self, arguments: Sequence[str], *, out: int, environment: Mapping[str, str]) -> ForkedTest:
        """Ask for a test that writes to the descriptor ``out``. Raises OSError."""
        if self._idle is not None:
            self._idle.cancel()
        number = next(self._numbers)
        test = self._tests[number] = ForkedTest(self, number)
        message = {"test": number, "arguments": list(arguments), "environment": dict(environment)}
        try:
            socket.send_fds(self._control, [json.dumps(message).encode()], [out])
        except OSError:
            del self._tests[number]
            raise
        return test

    def send(self, message: Mapping[str, Any]) -> None:
        """Send a message, unless nobody reads it any longer."""
        with contextlib.suppress(OSError):
            self._control.send(json.dumps(message).encode())

    def close(self) -> None:
        """End it, and what it has forked with it."""
        self._task.cancel()

    async def _receive(self) -> None:
        loop = asyncio.get_running_loop()
        try:
            while raw := await loop.sock_recv(self._control, MAX_MESSAGE):
                self._hear(json.loads(raw))
        except (OSError, ValueError):
            pass
        finally:
            self._over()
            await self._reap()

    def _hear(self, answer: dict[str, Any]) -> None:
        number = answer.pop("test")
        test = self._tests.get(number)
        if test is None:
            return
        test.told(**answer)
        if test.over:
            del self._tests[number]
        if not self._tests:
            self._idle = asyncio.get_running_loop().call_later(IDLE_SECONDS, self.close)

    def _over(self) -> None:
        self.open = False
        if self._idle is not None:
            self._idle.cancel()
        self._control.close()
        self._process.kill()  # its tests end with it
        for test in self._tests.values():
            test.told(lost=True)
        self._tests.clear()

    async def _reap(self) -> None:
        """It never loads a driver, so that a kill ends it at once."""
        loop = asyncio.get_running_loop()
        end, pause = loop.time() + REAP_SECONDS, 0.001
        try:
            while self._process.poll() is None and loop.time() < end:
                await asyncio.sleep(pause)
                pause = min(2 * pause, 0.02)
        finally:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(REAP_SECONDS)  # when the loop ends, nobody else would
