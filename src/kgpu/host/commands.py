"""Runs a program for a limited time, whatever it does.

A program that a driver holds in the kernel can't be killed. It is left behind then, and the caller is told its pid;
nothing waits for it. Nor does anything wait for what a program leaves running with its output. Of what is printed the
end is kept.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
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
LOOK_SECONDS: Final = 0.2
"""How soon it is seen that a program has ended whose output somebody else holds open."""
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
    words: Sequence[str], *, seconds: float, env: Mapping[str, str], keep_open: Collection[int] = (),
    folder: str = "/", group: bool = False, text: str = "",
) -> CommandResult:  # fmt: skip
    """Run a program for at most ``seconds``, in ``folder``. ``keep_open``: descriptors that it inherits; ``text``: what
    it reads, of at most ``TEXT_BYTES``. ``group``: all that it starts ends with it when time is over. Raises HostError
    if it can't be started.
    """
    with _readable(text) as source:
        try:
            process = subprocess.Popen(
                list(words), stdin=source, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, env=dict(env),
                pass_fds=tuple(keep_open), cwd=folder, start_new_session=group,
            )  # fmt: skip
        except (OSError, ValueError) as error:
            raise _not_run(words[0], folder, error) from error
    until = time.monotonic() + seconds
    try:
        tail = _read(process, until)
        code = _wait(process, until - time.monotonic())
        if code is not None:
            return CommandResult(pid=process.pid, code=code, tail=tail)
        if group:
            os.killpg(process.pid, signal.SIGKILL)
        process.kill()
        killed = _wait(process, KILL_SECONDS) is not None
        if not killed:
            _left_behind.append(process)
        return CommandResult(pid=process.pid, code=None, tail=tail, killed=killed)
    finally:
        if process.stdout is not None:
            process.stdout.close()


def _not_run(program: str, folder: str, error: OSError | ValueError) -> HostError:
    if isinstance(error, OSError) and not os.path.isdir(folder):
        return HostError(f"{program} can't be run in {folder}", "a folder that is there", "make it, or name another")
    why = error.strerror if isinstance(error, OSError) else str(error)
    return HostError(f"{program} can't be run: {why}", "a program that this process may run", "look at its file")


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
    """The end of what it prints until it closes its output, has ended, or time is over."""
    assert process.stdout is not None
    descriptor, tail = process.stdout.fileno(), b""
    while (left := until - time.monotonic()) > 0:
        # Looked at before the output: what it had printed then is there.
        ended = process.poll() is not None
        if not select.select([descriptor], [], [], 0.0 if ended else min(left, LOOK_SECONDS))[0]:
            if ended:
                break
            continue
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
