"""A parent that ignores and blocks signals, as one under nohup does, and what its children make of that."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Iterator
from pathlib import Path

from kgpu.base import signals

IGNORED = frozenset({signal.SIGHUP, signal.SIGINT, signal.SIGPIPE, signal.SIGTERM, signal.SIGUSR1})
BLOCKED = frozenset({signal.SIGUSR2})


@contextlib.contextmanager
def parent() -> Iterator[None]:
    """This process ignores signals, and its main thread blocks one."""
    before = {number: signal.signal(number, signal.SIG_IGN) for number in IGNORED}
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, BLOCKED)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        for number, handler in before.items():
            signal.signal(number, handler)


def unheard(status: str) -> set[int]:
    """The signals that a process ignores or blocks, by the text of its ``/proc/PID/status``.

    Two that the C library keeps to itself don't count.
    """
    masks = [int(line.split()[1], 16) for line in status.splitlines() if line.startswith(("SigIgn:", "SigBlk:"))]
    assert len(masks) == 2, status
    return {number for number in signals.ALL for mask in masks if mask >> number - 1 & 1}


def unheard_by(pid: int) -> set[int]:
    """The same for a process that runs."""
    return unheard(Path(f"/proc/{pid}/status").read_text())
