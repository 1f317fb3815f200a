"""Programs of a node's simulated driver that go on in the background: MPS control daemons and their servers.

An agent takes its daemons away when it ends, and takes over those that a killed one has left. A machine that is
switched off or removed has none: they are found by the hardware that they work on, which is the node's.
"""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from kgpu.formats.names import ENV_HW_STATE

_NAMES: Final = frozenset({b"nvidia-cuda-mps-control", b"nvidia-cuda-mps-server"})
_ROUNDS: Final = 3  # a daemon may start a server just now


def end(*nodes: Path) -> None:
    """End those of the nodes in these folders."""
    for _ in range(_ROUNDS):
        pids = list(_running(nodes))
        if not pids:
            return
        for pid in pids:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)


def _running(nodes: tuple[Path, ...]) -> Iterator[int]:
    folders = {path for node in nodes for path in (node.absolute(), node.resolve())}
    marks = tuple(os.fsencode(f"{ENV_HW_STATE}={folder}/") for folder in folders)
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if os.path.basename((process / "cmdline").read_bytes().partition(b"\0")[0]) not in _NAMES:
                continue
            environment = (process / "environ").read_bytes().split(b"\0")
        except OSError:  # it has ended, or belongs to another user
            continue
        if any(line.startswith(marks) for line in environment):
            yield int(process.name)
