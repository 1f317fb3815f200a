"""Shows a person how far a long step is: a spinner on a terminal, plain lines elsewhere.

A step prints its title again when it ends, with the seconds it took, so that a log shows where time went.
Plain output also prints a line every ``HEARTBEAT_S`` seconds while a step runs, so that silence means a hang.
"""

from __future__ import annotations

import contextlib
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager
from typing import Final, Protocol, TextIO

HEARTBEAT_S: Final = 20.0


class Progress(Protocol):
    """Where long work reports."""

    def step(self, title: str) -> AbstractContextManager[None]:
        """A context in which ``title`` is being done."""
        ...

    def note(self, text: str) -> None:
        """One finished fact worth a line."""
        ...


class QuietProgress:
    """Reports nowhere."""

    @contextlib.contextmanager
    def step(self, title: str) -> Iterator[None]:
        del title
        yield

    def note(self, text: str) -> None:
        del text


class PlainProgress:
    """Lines on a stream, by default standard error."""

    def __init__(self, out: TextIO | None = None, heartbeat_s: float = HEARTBEAT_S) -> None:
        self._out = out
        self._heartbeat_s = heartbeat_s

    @contextlib.contextmanager
    def step(self, title: str) -> Iterator[None]:
        begun, stop = time.monotonic(), threading.Event()

        def beat() -> None:
            while not stop.wait(self._heartbeat_s):
                self.note(f"  ... {title} ({time.monotonic() - begun:.0f} s so far)")

        ticker = threading.Thread(target=beat, daemon=True)
        ticker.start()
        try:
            yield
        except BaseException as error:
            what = "interrupted" if isinstance(error, KeyboardInterrupt) else "failed"
            self.note(f"  {what} after {time.monotonic() - begun:.0f} s: {title}")
            raise
        finally:
            stop.set()
            ticker.join()
        self.note(f"  {title}: {time.monotonic() - begun:.1f} s")

    def note(self, text: str) -> None:
        print(text, file=self._out or sys.stderr, flush=True)


class RichProgress:
    """A spinner with the running time, then the same closing lines as the plain one."""

    def __init__(self) -> None:
        from rich.console import Console

        self._console = Console(stderr=True)

    @contextlib.contextmanager
    def step(self, title: str) -> Iterator[None]:
        from rich.progress import Progress as Bar
        from rich.progress import SpinnerColumn, TextColumn, TimeElapsedColumn

        begun = time.monotonic()
        columns = (SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn())
        with Bar(*columns, console=self._console, transient=True) as bar:
            bar.add_task(title, total=None)
            yield
        self.note(f"  {title}: {time.monotonic() - begun:.1f} s")

    def note(self, text: str) -> None:
        self._console.print(text, markup=False, highlight=False)


def for_terminal() -> Progress:
    """The rich one when standard error is a terminal, the plain one otherwise."""
    return RichProgress() if sys.stderr.isatty() else PlainProgress()
