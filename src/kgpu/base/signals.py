"""Signals: children that start as a program expects to, and an interrupt that leaves no trace on the screen.

What a process ignores or blocks its children inherit, through every exec: under ``nohup`` that is SIGHUP, in a shell's
background job SIGINT. A container engine that ignores SIGHUP never reads a new config, and nobody sees why.
"""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Final

ALL: Final = tuple(sorted(signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}))
"""Every signal that a process may ignore: what ``posix_spawn`` is given as ``setsigdef``, with an empty mask."""
# Python ignores these itself, and ``subprocess`` gives them back to the children that it starts.
_RESTORED: Final = frozenset({signal.SIGPIPE, signal.SIGXFSZ})
_RESET: Final = """
import os, signal, sys
for number in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}:
    signal.signal(number, signal.SIG_DFL)
signal.pthread_sigmask(signal.SIG_SETMASK, ())
try:
    os.execvp(sys.argv[1], sys.argv[1:])
except FileNotFoundError as error:
    print(f"{sys.argv[1]}: {error.strerror}", file=sys.stderr)
    sys.exit(127)
except OSError as error:
    print(f"{sys.argv[1]}: {error.strerror}", file=sys.stderr)
    sys.exit(126)
"""


def with_defaults(command: Sequence[str]) -> list[str]:
    """The command for ``subprocess`` and its like, so that it starts with every signal's default and none blocked.

    It is the command itself unless this process would hand something down. Otherwise an interpreter gives the defaults
    back and becomes the command, under the same pid; exit code 127 means that there is no such program, 126 that it
    can't be run.
    """
    if not _handed_down():
        return list(command)
    return [sys.executable, "-I", "-S", "-c", _RESET, *command]


def _handed_down() -> bool:
    """Whether a child of this thread would inherit an ignored or blocked signal."""
    ignored = {number for number in ALL if signal.getsignal(number) is signal.SIG_IGN}
    return bool(ignored - _RESTORED or signal.pthread_sigmask(signal.SIG_BLOCK, ()))


@contextmanager
def untraced_interrupts() -> Iterator[None]:
    """No traceback of a KeyboardInterrupt that Python drops.

    Raised by a signal's handler while a weak reference's callback or a ``__del__`` runs, it goes no further, and Python
    prints it as "Exception ignored in". Whoever raises it must look again later whether the signal came.
    """
    before = sys.unraisablehook

    def told(lost: sys.UnraisableHookArgs) -> None:
        if not issubclass(lost.exc_type, KeyboardInterrupt):
            before(lost)

    sys.unraisablehook = told
    try:
        yield
    finally:
        sys.unraisablehook = before


@contextmanager
def interrupts(*numbers: int) -> Iterator[Callable[[], None]]:
    """Within the block each of the signals raises KeyboardInterrupt, so that what was started is taken down.

    What is yielded raises it as well, where a signal has come and its exception was lost: Python drops one that is
    raised in a weak reference's callback, of which an import has some.
    """
    interrupted = False

    def end(number: int, frame: object) -> None:
        nonlocal interrupted
        del number, frame
        interrupted = True
        raise KeyboardInterrupt

    def check() -> None:
        if interrupted:
            raise KeyboardInterrupt

    before = {number: signal.signal(number, end) for number in numbers}
    try:
        with untraced_interrupts():
            yield check
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def forget_interrupt() -> None:
    """After a KeyboardInterrupt that was caught: let Python exit with the code that it is given.

    One that was raised while ``exec`` ran a text, as it does for every dataclass that an import makes, is noted as
    unhandled whoever catches it, and ``python -m`` then ends itself by SIGINT. The next text that is run clears that.
    """
    exec("")  # noqa: S102 - an empty text
