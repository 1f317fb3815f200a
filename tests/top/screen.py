"""A program in a pseudo terminal, and what a person would see there: a small terminal emulator for tests."""

from __future__ import annotations

import codecs
import contextlib
import fcntl
import os
import pty
import re
import select
import signal
import struct
import subprocess
import sys
import termios
import time
import unicodedata
from collections.abc import Callable, Mapping
from pathlib import Path

ROOT = Path(__file__).parents[2]
_SEQUENCE = re.compile(r"\x1b(?:\[([?0-9;]*)([A-Za-z])|\][^\x07]*\x07|[()][A-Z0-9]|[=>])")

_UNFINISHED = re.compile(r"\x1b(?:\[[?0-9;]*)?$")


def wide(char: str) -> int:
    return 0 if unicodedata.combining(char) else 2 if unicodedata.east_asian_width(char) in "WF" else 1


class Emulator:
    """The alternate screen's cells; ``colors`` counts coloured pieces.

    ``drawings`` is how many have begun. ``scrolled`` is what did not fit of the present one, ``misfits`` of the last
    whole one.
    """

    def __init__(self, columns: int, rows: int) -> None:
        self.resize(columns, rows)
        self.alternate = False
        self.cursor_shown = True
        self.colors = 0
        self.scrolled = self.misfits = self.drawings = 0

    def resize(self, columns: int, rows: int) -> None:
        self.columns, self.rows = columns, rows
        self.cells = [[" "] * columns for _ in range(rows)]
        self.x = self.y = 0

    def feed(self, text: str) -> None:
        at = 0
        while at < len(text):
            whole = _SEQUENCE.match(text, at)
            if whole:
                self._control(whole[1] or "", whole[2] or "")
                at = whole.end()
                continue
            self._char(text[at])
            at += 1

    def _control(self, numbers: str, letter: str) -> None:
        match letter:
            case "H":
                self.x = self.y = 0
                self.misfits, self.scrolled = self.scrolled, 0
                self.drawings += 1
            case "J":
                self.cells = [[" "] * self.columns for _ in range(self.rows)]
            case "m":
                self.colors += any(part.startswith(("3", "4", "9")) for part in numbers.split(";"))
            case "h" | "l" if numbers == "?1049":
                self.alternate = letter == "h"
            case "h" | "l" if numbers == "?25":
                self.cursor_shown = letter == "h"

    def _char(self, char: str) -> None:
        if char == "\n":
            self.y += 1
            self.scrolled += self.y >= self.rows
            self.y = min(self.y, self.rows - 1)
        elif char == "\r":
            self.x = 0
        elif char >= " ":
            width = wide(char)
            if self.x + width <= self.columns and width:
                self.cells[self.y][self.x] = char
                if width == 2:
                    self.cells[self.y][self.x + 1] = ""
            elif width:
                self.scrolled += 1  # a line that is too long
            self.x += width

    @property
    def lines(self) -> list[str]:
        return ["".join(row).rstrip() for row in self.cells]

    @property
    def text(self) -> str:
        return "\n".join(self.lines)


# As a shell has a job: a process group of its own in the terminal's session; only such a one can be stopped.
_JOB = """
import os, signal, sys
signal.signal(signal.SIGTTOU, signal.SIG_IGN)
pid = os.fork()
if pid == 0:
    os.setpgid(0, 0)
    os.tcsetpgrp(0, os.getpgrp())
    signal.signal(signal.SIGTTOU, signal.SIG_DFL)
    os.execv(sys.executable, [sys.executable, "-m", "kgpu", *sys.argv[1:]])
os._exit(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
"""


class Program:
    """A command in a terminal of its own; ``job``: as a shell starts it, so that it can be stopped."""

    def __init__(
        self, *words: str, columns: int = 120, rows: int = 30, env: Mapping[str, str] | None = None, job: bool = False
    ) -> None:
        self.master, slave = pty.openpty()
        self.before = termios.tcgetattr(slave)
        self.slave = slave
        self.screen = Emulator(columns, rows)
        self._size(columns, rows)
        kept = {key: value for key, value in os.environ.items() if key not in {"NO_COLOR", "COLUMNS", "LINES"}}
        whole = {**kept, "TERM": "xterm-256color", "LC_ALL": "C.UTF-8", **(env or {})}
        self.process = subprocess.Popen(
            [sys.executable, *(("-c", _JOB) if job else ("-m", "kgpu")), *words], stdin=slave, stdout=slave, stderr=slave, env=whole, cwd=ROOT,
            start_new_session=True, preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),
        )  # fmt: skip
        self._rest = ""
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def job(self) -> int:
        """The job's process id."""
        pid = self.process.pid
        return int(Path(f"/proc/{pid}/task/{pid}/children").read_text().split()[0])

    def _size(self, columns: int, rows: int) -> None:
        fcntl.ioctl(self.slave, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))

    def resize(self, columns: int, rows: int) -> None:
        self.screen.resize(columns, rows)
        self._size(columns, rows)

    def press(self, text: str) -> None:
        os.write(self.master, text.encode())

    def drawn_anew(self) -> None:
        """Return when another drawing has begun."""
        before = self.screen.drawings
        self.until(lambda _: self.screen.drawings > before)

    def read(self, seconds: float = 0.05) -> None:
        while select.select([self.master], [], [], seconds)[0]:
            try:
                text = self._rest + self._decoder.decode(os.read(self.master, 65536))
            except OSError:
                return
            unfinished = _UNFINISHED.search(text)
            self._rest = unfinished[0] if unfinished else ""
            self.screen.feed(text[: len(text) - len(self._rest)])
            seconds = 0.02

    def until(self, seen: Callable[[str], bool] | str, *, deadline: float = 60.0) -> str:
        """The screen once it shows that; fails after the deadline."""
        wanted = (lambda text: seen in text) if isinstance(seen, str) else seen
        end = time.monotonic() + deadline
        while time.monotonic() < end:
            self.read()
            if wanted(self.screen.text):
                return self.screen.text
            assert self.process.poll() is None, f"it ended with {self.process.returncode}:\n{self.screen.text}"
        raise AssertionError(f"this was not seen: {seen}\n{self.screen.text}")

    def read_until(self, holds: Callable[[], bool], *, deadline: float = 60.0) -> None:
        """Take what the program has written until that holds, whether it runs or not."""
        end = time.monotonic() + deadline
        while not holds():
            assert time.monotonic() < end, f"it does not come to hold:\n{self.screen.text}"
            self.read()

    def wait(self, deadline: float = 60.0) -> int:
        end = time.monotonic() + deadline
        while self.process.poll() is None and time.monotonic() < end:
            self.read()
        self.read()
        assert self.process.poll() is not None, "it does not end"
        return self.process.returncode

    @property
    def as_found(self) -> bool:
        """Whether the terminal has the settings that it had before."""
        return termios.tcgetattr(self.slave) == self.before

    def close(self) -> None:
        if self.process.poll() is None:
            with contextlib.suppress(OSError, IndexError):
                os.kill(self.job(), signal.SIGKILL)
            self.process.kill()
            self.process.wait()
        os.close(self.master)
        os.close(self.slave)
