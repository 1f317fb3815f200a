"""Collects what is known of a node in a short-lived process of its own: ``kgpu collect --node``.

What a node and its pods have written is hostile, and reading it takes many times the operator's memory. The process has
a limit on its time, memory and output: whatever goes wrong in it, the operator is told in one line and goes on.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import resource
import signal
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Protocol

from kgpu.base.errors import HostError
from kgpu.base.printable import one_line
from kgpu.operations.bundles import MAX_BYTES

COMMAND: Final = (sys.executable, "-m", "kgpu", "collect")
MAX_SAID: Final = 4096
"""Bytes of what the process says on stderr that are kept: the last ones."""
_SHOWN: Final = 300
_CHUNK: Final = 64 * 1024
_END_SECONDS: Final = 5.0


class EvidenceCollector(Protocol):
    """Gets what is known of a node."""

    async def collect(self, node: str) -> bytes:
        """An archive that ``kgpu doctor --from`` reads, of at most ``MAX_BYTES``. Raises UserError."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class CollectLimits:
    """``seconds`` for all of it, ``memory`` for the process's data and ``output`` for the archive, in bytes."""

    seconds: float = 60.0
    memory: int = 256 * 1024 * 1024
    output: int = MAX_BYTES


class CollectingProcess:
    """Runs one process per call."""

    def __init__(
        self, *, kubeconfig: str = "", namespace: str = "", command: Sequence[str] = COMMAND,
        limits: CollectLimits | None = None,
    ) -> None:  # fmt: skip
        """``namespace`` is the only one whose pods' logs and events are read, "" for all."""
        self._namespace = namespace
        self._command = tuple(command)
        self._kubeconfig = kubeconfig
        self._limits = limits or CollectLimits()

    async def collect(self, node: str) -> bytes:
        """The archive that the process has written. Raises HostError; a cancelled call ends the process."""
        limits = self._limits
        words = [*self._command, "--node", node, "--max-bytes", str(limits.output), "-o", "-"]
        words += ["--namespace", self._namespace] if self._namespace else []
        words += ["--kubeconfig", self._kubeconfig] if self._kubeconfig else []
        try:
            process = await _started(words)
        except OSError as error:
            raise _failed(f"it can't be started: {error.strerror}") from error
        try:
            _bound(process.pid, limits.memory)
            async with asyncio.timeout(limits.seconds):
                data, said = await asyncio.gather(_read(process.stdout, limits.output), _last(process.stderr))
                code = await process.wait()
        except TimeoutError as error:
            raise _failed(f"it was not done after {limits.seconds:g} s") from error
        finally:
            await _end(process)
        if code != 0 or not data:
            raise _failed(_why(code, said))
        return data


async def _started(words: Sequence[str]) -> asyncio.subprocess.Process:
    """Start a process in a session of its own. Raises OSError.

    Not to be cancelled halfway: asyncio would end the process alone, and wait for ever for pipes that its child has.
    """
    starting = asyncio.ensure_future(
        asyncio.create_subprocess_exec(
            *words, stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE, start_new_session=True,
        )
    )  # fmt: skip
    try:
        return await asyncio.shield(starting)
    except asyncio.CancelledError:
        await _end(await starting)
        raise


def _bound(pid: int, memory: int) -> None:
    """Limit the memory of a process, and let the kernel end it rather than the operator when memory is short."""
    with contextlib.suppress(OSError):  # it has ended already
        resource.prlimit(pid, resource.RLIMIT_DATA, (memory, memory))
        with open(f"/proc/{pid}/oom_score_adj", "w") as file:
            file.write("1000")


async def _read(stream: asyncio.StreamReader | None, most: int) -> bytes:
    """All of a stream. Raises HostError as soon as it is more than ``most`` bytes."""
    data = bytearray()
    while stream is not None and (chunk := await stream.read(_CHUNK)):
        data += chunk
        if len(data) > most:
            raise _failed(f"it has written more than {most} bytes")
    return bytes(data)


async def _last(stream: asyncio.StreamReader | None) -> bytes:
    """The last bytes of a stream, which is read to its end: a process whose pipe is full would wait."""
    data = b""
    while stream is not None and (chunk := await stream.read(_CHUNK)):
        data = (data + chunk)[-MAX_SAID:]
    return data


async def _end(process: asyncio.subprocess.Process) -> None:
    """End the process with all that it has started."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    with contextlib.suppress(TimeoutError):  # what has left the group may keep a pipe open
        async with asyncio.timeout(_END_SECONDS):
            await process.wait()
    # asyncio closes a pipe only at its end, which nobody reads any more, or which another process keeps from coming.
    transport: asyncio.SubprocessTransport = process._transport  # type: ignore[attr-defined]
    transport.close()


def _why(code: int, said: bytes) -> str:
    how = f"signal {-code} has ended it" if code < 0 else f"exit code {code}"
    words = one_line(said.decode(errors="replace"), _SHOWN).strip()
    return f"{how}: {words}" if words else how


def _failed(why: str) -> HostError:
    return HostError(f"kgpu collect has failed: {why}", "an archive", "collect it by hand: kgpu collect")
