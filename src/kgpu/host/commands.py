"""Runs a program for a limited time, whatever it does.

A program that a driver holds in the kernel can't be killed. It is left behind then, and the caller is told its pid;
nothing waits for it. Of what it prints the end is kept.
"""

from __future__ import annotations

import contextlib
import os
import select
import subprocess
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from kgpu.base.errors import HostError
from kgpu.base.printable import one_line

TAIL: Final = 8192
"""Bytes of output that are kept."""
TEXT_BYTES: Final = 4096
"""What a pipe takes at least, whatever its user has open (pipe(7))."""
KILL_SECONDS: Final = 5.0
_LINES: Final = 6
_CHARACTERS: Final = 400
_left_behind: Final[list[subprocess.Popen[bytes]]] = []
"""Those that could not be killed; this process ends before them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CommandResult:
    """``code`` is the exit code, negative for a signal; None if it did not end in time. Then ``killed`` is whether it
    could be killed. ``tail`` is the end of its output and error output.
    """

    pid: int
    code: int | None
    tail: str
    killed: bool = False

    @property
    def last_lines(self) -> str:
        """The last lines that it printed, on one printable line; "" if it printed none."""
        lines = [line for line in self.tail.splitlines() if line.strip()]
        return one_line(" ".join(lines[-_LINES:]), _CHARACTERS)


def run(
    words: Sequence[str],
    *,
    seconds: float,
    env: Mapping[str, str],
    keep_open: Collection[int] = (),
    text: str = "",
) -> CommandResult:
    """Run a program for at most ``seconds``. ``keep_open``: descriptors that it inherits; ``text``: what it reads, of
    at most ``TEXT_BYTES``. Raises HostError if it can't be started.
    """
    try:
        with _readable(text) as source:
            process = subprocess.Popen(
                list(words), stdin=source, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, env=dict(env),
                pass_fds=tuple(keep_open), cwd="/",
            )  # fmt: skip
    except OSError as error:
        raise HostError(
            f"{words[0]} can't be run: {error.strerror}", "a program that this process may run", "look at its file"
        ) from error
    until = time.monotonic() + seconds
    try:
        tail = _read(process, until)
        code = _wait(process, until - time.monotonic())
        if code is not None:
            return CommandResult(pid=process.pid, code=code, tail=tail)
        process.kill()
        killed = _wait(process, KILL_SECONDS) is not None
        if not killed:
            _left_behind.append(process)
        return CommandResult(pid=process.pid, code=None, tail=tail, killed=killed)
    finally:
        if process.stdout is not None:
            process.stdout.close()


@contextlib.contextmanager
def _readable(text: str) -> Iterator[int]:
    """A descriptor that gives the text and then ends. It is in the pipe before anybody reads: nothing waits."""
    if not text:
        yield subprocess.DEVNULL
        return
    raw = text.encode()
    if len(raw) > TEXT_BYTES:
        msg = f"{len(raw)} bytes for a program to read; a pipe takes {TEXT_BYTES} without a reader"
        raise ValueError(msg)
    source, sink = os.pipe()
    try:
        os.write(sink, raw)
        os.close(sink)
        yield source
    finally:
        os.close(source)


def _read(process: subprocess.Popen[bytes], until: float) -> str:
    """The end of what it prints until it closes its output or time is over."""
    assert process.stdout is not None
    descriptor, tail = process.stdout.fileno(), b""
    while (left := until - time.monotonic()) > 0 and select.select([descriptor], [], [], left)[0]:
        chunk = os.read(descriptor, TAIL)
        if not chunk:
            break
        tail = (tail + chunk)[-TAIL:]
    return tail.decode("utf-8", "replace")


def _wait(process: subprocess.Popen[bytes], seconds: float) -> int | None:
    try:
        return process.wait(max(0.0, seconds))
    except subprocess.TimeoutExpired:
        return None
