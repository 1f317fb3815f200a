"""Files of a simulated driver that change while programs read them, and those that hang their readers."""

from __future__ import annotations

import contextlib
import os
from typing import Final

from kgpu.hw.simulator.tree import write

NOISE: Final = b"\xff\xfe\x00garbage\x80" * 9
"""What no driver writes."""


def replace_file(path: str, content: str | bytes) -> None:
    """The file with this content in one step; who hangs in the one before reads its end."""
    before = f"{path}.hung"
    if os.path.exists(path) and not os.path.isfile(path):
        os.rename(path, before)
    write(f"{path}.new", content)
    os.rename(f"{path}.new", path)
    let_go(before)


def hang(path: str) -> None:
    """A file whose readers wait until it is replaced."""
    if os.path.lexists(f"{path}.new"):
        os.unlink(f"{path}.new")
    os.mkfifo(f"{path}.new")
    os.rename(f"{path}.new", path)


def let_go(path: str) -> None:
    """Let the readers of a file that hung go on."""
    with contextlib.suppress(OSError):  # nobody reads it, or there is none
        os.close(os.open(path, os.O_WRONLY | os.O_NONBLOCK))
    if os.path.lexists(path):
        os.unlink(path)
