"""Keys from the terminal, without echo and at once; its settings are given back at the end.

Where standard input is no terminal there are no keys, and nothing is touched.
"""

from __future__ import annotations

import asyncio
import codecs
import contextlib
import os
import sys
import termios
import tty
from collections.abc import Callable
from typing import Any, Final, Self

from kgpu.top.keys import keys

ESCAPE_WAIT: Final = 0.05  # seconds after which an Esc is no beginning of a longer key


class Terminal:
    """Used with ``with`` in a running loop; ``typed`` gets the names of keys."""

    def __init__(self, typed: Callable[[list[str]], None]) -> None:
        self._typed = typed
        self._descriptor = sys.stdin.fileno() if sys.stdin is not None and sys.stdin.isatty() else -1
        self._before: list[Any] | None = None
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._rest = ""
        self._later: asyncio.TimerHandle | None = None

    def __enter__(self) -> Self:
        self.take()
        if self._descriptor >= 0:
            asyncio.get_running_loop().add_reader(self._descriptor, self._read)
        return self

    def __exit__(self, *problem: object) -> None:
        if self._later is not None:
            self._later.cancel()
        if self._descriptor >= 0:
            asyncio.get_running_loop().remove_reader(self._descriptor)
        self.restore()

    def take(self) -> None:
        """Switch the terminal to single keys without echo."""
        if self._descriptor >= 0:
            self._before = self._before or termios.tcgetattr(self._descriptor)
            tty.setcbreak(self._descriptor)

    def restore(self) -> None:
        """Restore the settings that the terminal had."""
        if self._before is not None:
            with contextlib.suppress(termios.error):  # the terminal is gone
                termios.tcsetattr(self._descriptor, termios.TCSADRAIN, self._before)

    def _read(self) -> None:
        if self._later is not None:
            self._later.cancel()
            self._later = None
        try:
            data = os.read(self._descriptor, 4096)
        except OSError:
            data = b""
        if not data:  # the terminal is gone
            asyncio.get_running_loop().remove_reader(self._descriptor)
            self._typed(["ctrl-c"])
            return
        pressed, self._rest = keys(self._rest + self._decoder.decode(data))
        if self._rest:
            self._later = asyncio.get_running_loop().call_later(ESCAPE_WAIT, self._flush)
        if pressed:
            self._typed(pressed)

    def _flush(self) -> None:
        pressed, self._rest = keys(self._rest, last=True)
        self._typed(pressed)
