"""The parent's end of one hardware child: start it, ask it with a deadline per answer, kill it.

Promise: a request either yields every answer or raises ``Stalled``/``Died``/``Refused`` naming the GPU it was about;
nothing here waits without a deadline, not even for a killed child, which a driver can keep in the kernel for good.
"""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Final, TypeVar

import msgspec

from kgpu.base.typed import decode
from kgpu.formats.names import ENV_HW_STATE
from kgpu.formats.simulated import state_file
from kgpu.hw.nvidia.wire import DriverEvent, Frame, Trouble

_BOOT: Final = "import sys;sys.path[:]=sys.argv[1].split(':');from kgpu.hw.nvidia.child import main;main(sys.argv[2:])"
_REAP_S: Final = 1.0
_LINE_LIMIT: Final = 1 << 20
_ENCODER: Final = msgspec.json.Encoder()
_LINGERING: Final[list[subprocess.Popen[bytes]]] = []  # killed, but held by the driver; kept so that they get reaped

T = TypeVar("T")


class Stalled(Exception):  # noqa: N818 - says what the child did
    """No answer within the deadline; ``gpu`` is the one being asked, None when it was about the whole driver."""

    def __init__(self, op: str, gpu: int | None, deadline: float) -> None:
        super().__init__(f"a driver call ({op}) did not answer within {deadline:g} s")
        self.op = op
        self.gpu = gpu
        self.deadline = deadline


class Died(Exception):  # noqa: N818 - says what the child did
    """The child ended while (or before) answering; ``signal_name`` is "" when it exited by itself."""

    def __init__(self, op: str, gpu: int | None, returncode: int | None) -> None:
        code = returncode or 0
        self.signal_name = signal.Signals(-code).name if code < 0 else ""
        super().__init__(f"the process reading the driver ended ({self.signal_name or f'exit code {returncode}'})")
        self.op = op
        self.gpu = gpu


class Refused(Exception):  # noqa: N818 - says what the driver did
    """The driver answered a node-wide request with an error."""

    def __init__(self, trouble: Trouble) -> None:
        super().__init__(f"{trouble[0]}: {trouble[2]}")
        self.trouble = trouble


def _end(process: subprocess.Popen[bytes]) -> None:
    """Kill it without waiting; whoever starts the next one reaps it."""
    process.kill()
    if process.poll() is None:
        _LINGERING.append(process)


class ChildProcess:
    """One running child. Requests are answered one at a time; the owner serialises them."""

    def __init__(self, process: subprocess.Popen[bytes], writer: asyncio.StreamWriter) -> None:
        self.pid = process.pid
        self.attached: set[int] = set()
        self.listening: set[int] = set()
        self._process = process
        self._writer = writer
        self._answers: asyncio.Queue[Frame | None] = asyncio.Queue()
        self._number = 0
        self._task: asyncio.Task[None] | None = None

    @classmethod
    async def start(cls, driver_root: str, on_event: Callable[[DriverEvent], None]) -> ChildProcess:
        """Start a child for this driver root; returns as soon as it is spawned."""
        _LINGERING[:] = [process for process in _LINGERING if process.poll() is None]
        ours, theirs = socket.socketpair()
        environment = dict(os.environ)
        if state := state_file(driver_root):
            environment[ENV_HW_STATE] = state
        # -S and our own search path: no .pth file is processed, which saves time and memory.
        arguments = [":".join(sys.path), str(theirs.fileno()), str(os.getpid()), driver_root]
        try:
            process = subprocess.Popen(  # noqa: ASYNC220 - returns after the exec; asyncio's own needs a child watcher
                [sys.executable, "-S", "-E", "-c", _BOOT, *arguments],
                env=environment,
                stdin=subprocess.DEVNULL,
                pass_fds=(theirs.fileno(),),
            )
        except BaseException:
            ours.close()
            raise
        finally:
            theirs.close()
        try:
            reader, writer = await asyncio.open_unix_connection(sock=ours, limit=_LINE_LIMIT)
        except BaseException:
            ours.close()
            _end(process)
            raise
        child = cls(process, writer)
        child._task = asyncio.create_task(child._receive(reader, on_event), name=f"hw-child-{process.pid}")
        return child

    @property
    def alive(self) -> bool:
        """False once the child's socket has closed."""
        return self._task is not None and not self._task.done()

    @property
    def ended(self) -> bool:
        """True once the process is gone; a driver can hold a killed one in the kernel for good."""
        return self._process.poll() is not None

    async def ask(self, op: str, kind: type[T], deadline: float, **arguments: object) -> T:
        """One request that has one answer."""
        number = self._send({"op": op, **arguments})
        result: T | None = None
        while True:
            frame = await self._next(number, op, None, deadline)
            if frame.error is not None:
                raise Refused(frame.error)
            if frame.end:
                assert result is not None, "the child ends an answer only after its data"
                return result
            if frame.data:
                result = decode(frame.data, kind)

    async def each(
        self,
        op: str,
        gpus: Sequence[int],
        kind: type[T],
        deadline: float,
        *,
        attach_deadline: float | None = None,
        others: Sequence[int] = (),
        keys: Sequence[str] | None = None,
    ) -> AsyncIterator[tuple[int, T | Trouble]]:
        """One answer per GPU, in order: its data or its trouble. A GPU's first answer may take ``attach_deadline``."""
        request: dict[str, object] = {"op": op, "gpus": list(gpus), "others": list(others)}
        if keys is not None or op == "readings":
            request["keys"] = keys
        number = self._send(request)
        for gpu in gpus:
            limit = deadline if gpu in self.attached else max(deadline, attach_deadline or deadline)
            frame = await self._next(number, op, gpu, limit)
            if frame.gpu is None and frame.error is not None:
                raise Refused(frame.error)
            self.attached.add(gpu)
            if frame.error is not None:
                yield gpu, frame.error
            else:
                yield gpu, decode(frame.data, kind)

    def kill(self) -> None:
        """End the child now without waiting, since a process stuck in a driver may not die; ``close`` reaps it."""
        self._process.kill()
        self._writer.close()

    async def close(self, patience: float = 1.0) -> None:
        """Close the socket, which ends a healthy child, and kill what doesn't end within ``patience`` seconds."""
        self._writer.close()
        loop = asyncio.get_running_loop()
        end = loop.time() + patience
        try:
            while self._process.poll() is None and loop.time() < end:  # noqa: ASYNC110 - a process gives no event
                await asyncio.sleep(0.005)
        finally:
            _end(self._process)
        if self._task is not None:
            await asyncio.wait([self._task], timeout=patience + _REAP_S)

    def _send(self, request: dict[str, object]) -> int:
        self._number += 1
        self._writer.write(_ENCODER.encode({"id": self._number, **request}) + b"\n")
        return self._number

    async def _next(self, number: int, op: str, gpu: int | None, deadline: float) -> Frame:
        try:
            async with asyncio.timeout(deadline):
                while True:
                    frame = await self._answers.get()
                    if frame is None:
                        self._answers.put_nowait(None)
                        raise Died(op, gpu, await self._returncode())
                    # Answers to a request that was given up are still on their way.
                    if frame.id == number:
                        return frame
        except TimeoutError:
            raise Stalled(op, gpu, deadline) from None

    async def _returncode(self) -> int | None:
        """The exit status, None when the process can't be reaped yet."""
        loop = asyncio.get_running_loop()
        end = loop.time() + _REAP_S
        while (code := self._process.poll()) is None and loop.time() < end:  # noqa: ASYNC110 - as above
            await asyncio.sleep(0.005)
        return code

    async def _receive(self, reader: asyncio.StreamReader, on_event: Callable[[DriverEvent], None]) -> None:
        try:
            while line := await reader.readline():
                frame = decode(line, Frame)
                if frame.event is not None:
                    on_event(frame.event)
                else:
                    self._answers.put_nowait(frame)
        except (OSError, ValueError):
            pass
        finally:
            self._answers.put_nowait(None)
            self._process.kill()
        if await self._returncode() is None:
            _LINGERING.append(self._process)
