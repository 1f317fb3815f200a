"""What libhlml says of a card, asked in a child process with a deadline (``hlml_child.py``).

A card is asked what it is, or besides what is only measured, and each once at a time: whoever asks meanwhile gets the
same answer, and one that has not answered in time is not asked again until it has. A child that ends is started again
with the next question, at most once in ``PAUSE`` seconds.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import subprocess
import sys
from dataclasses import dataclass
from typing import Annotated, Any, Final

import msgspec

from kgpu.base.typed import decode
from kgpu.formats.names import ENV_HW_STATE, HLML_LIBRARY
from kgpu.formats.simulated import state_file
from kgpu.hw.lanes import HungError

LOST: Final = 15
"""The library's code for a card that does not answer on its bus."""
PAUSE: Final = 5.0
START: Final = 10.0
"""Seconds that the library may take to load."""
LINE: Final = 1 << 16
_BOOT: Final = (
    "import sys;sys.path[:]=sys.argv[1].split(':');from kgpu.hw.gaudi.hlml_child import main;main(sys.argv[2:])"
)
Text = Annotated[str, msgspec.Meta(max_length=300)]


class HlmlAnswer(msgspec.Struct, frozen=True):
    """``code`` is the library's, 0 for success, -1 for one that can't be loaded; ``failed`` names values."""

    id: int
    code: int = 0
    values: dict[str, int | Text] = {}
    failed: list[Text] = []
    why: Text = ""


@dataclass(frozen=True, slots=True)
class Question:
    """What a card has been asked, and until when the loop's time an answer is in time."""

    answer: asyncio.Future[HlmlAnswer]
    until: float


class HlmlGoneError(Exception):
    """The library is not there, or its process has ended; the text says which."""


class Hlml:
    """The library of one driver root."""

    def __init__(self, root: str, deadline: float) -> None:
        self._root = root
        self._path = os.path.join(root, HLML_LIBRARY)
        self._deadline = deadline
        self._process: subprocess.Popen[bytes] | None = None
        self._writer: asyncio.StreamWriter | None = None
        self._receiving: asyncio.Task[None] | None = None
        self._waiting: dict[int, asyncio.Future[HlmlAnswer]] = {}
        self._asked: dict[tuple[str, bool], Question] = {}
        self._number = 0
        self._not_before = 0.0
        self._why = ""
        self._starting = asyncio.Lock()
        self._up = False

    async def ask(self, bus: str, *, more: bool = False) -> HlmlAnswer:
        """What it says of one card; with ``more`` also what is only measured. Raises HungError, HlmlGoneError."""
        before = self._asked.get((bus, more))
        if before is not None and not before.answer.done():
            if asyncio.get_running_loop().time() >= before.until:
                raise HungError
            return await self._answer(before.answer)
        async with self._starting:
            await self._started()
        assert self._writer is not None, "it has just been started"
        self._number += 1
        loop = asyncio.get_running_loop()
        future = self._waiting[self._number] = loop.create_future()
        self._asked[bus, more] = Question(future, loop.time() + self._deadline)
        self._writer.write(msgspec.json.encode({"id": self._number, "bus": bus, "more": more}) + b"\n")
        return await self._answer(future)

    async def close(self) -> None:
        """End the child; the next question starts another."""
        self._not_before = 0.0
        if self._process is not None:
            self._process.kill()
        if self._writer is not None:
            self._writer.close()
        if self._receiving is not None:
            await asyncio.wait([self._receiving], timeout=1.0)

    async def _answer(self, future: asyncio.Future[HlmlAnswer], least: float = 0.0) -> HlmlAnswer:
        done, _ = await asyncio.wait({future}, timeout=max(least, self._deadline))
        if not done:
            raise HungError
        return future.result()

    async def _started(self) -> None:
        if self._up:
            return
        loop = asyncio.get_running_loop()
        if loop.time() < self._not_before:
            raise HlmlGoneError(self._why)
        if not os.path.isfile(self._path):  # noqa: ASYNC240 - one look, at most once a second
            raise HlmlGoneError(f"{self._path} is not there")
        self._not_before = loop.time() + PAUSE
        self._why = f"the process that asks {self._path} has ended"
        ours, theirs = socket.socketpair()
        environment = dict(os.environ)
        if state := state_file(self._root):
            environment[ENV_HW_STATE] = state
        with ours, theirs:
            words = [":".join(sys.path), str(theirs.fileno()), str(os.getpid()), self._path]
            self._process = subprocess.Popen(  # noqa: ASYNC220 - returns after the exec
                [sys.executable, "-S", "-E", "-c", _BOOT, *words],
                env=environment, stdin=subprocess.DEVNULL, pass_fds=(theirs.fileno(),),
            )  # fmt: skip
            reader, self._writer = await asyncio.open_unix_connection(sock=ours.dup(), limit=LINE)
        ready = self._waiting[0] = loop.create_future()
        self._receiving = asyncio.create_task(self._receive(reader, self._writer, self._process), name="hlml")
        try:
            first = await self._answer(ready, START)
        except HungError as error:
            self._process.kill()
            self._why = "hlml_init did not end in time"
            raise HlmlGoneError(self._why) from error
        self._up = not first.code
        if first.code:
            self._why = first.why or f"hlml_init says {first.code}"
            raise HlmlGoneError(self._why)

    async def _receive(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, process: subprocess.Popen[bytes]
    ) -> None:
        with contextlib.suppress(OSError, ValueError, msgspec.MsgspecError):
            while line := await reader.readline():
                answer = decode(line, HlmlAnswer)
                future = self._waiting.pop(answer.id, None)
                if future is not None and not future.done():
                    future.set_result(answer)
        self._up = False
        process.kill()
        writer.close()
        for future in self._waiting.values():
            if not future.done():
                future.set_exception(HlmlGoneError(self._why))
                future.exception()  # somebody may have given up on it
        self._waiting.clear()
        await asyncio.to_thread(_reap, process)


def _reap(process: subprocess.Popen[bytes]) -> None:
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(1.0)


def values_of(answer: HlmlAnswer) -> dict[str, Any]:
    """The values, without those that no library says."""
    serial = answer.values.get("serial")
    plain = isinstance(serial, str) and serial.replace("-", "").replace("_", "").isalnum() and serial.isascii()
    return {key: value for key, value in answer.values.items() if key != "serial" or plain}
