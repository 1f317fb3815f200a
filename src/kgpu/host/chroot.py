"""The command that runs a program of the host in the host's own root, where that is mounted below a folder.

kgpu's image has no ``chroot`` program; its interpreter does it. Exit code 127: there is no such program, 126: it or
the root can't be entered, as shells say it.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

_ENTER: Final = """
import os, sys
try:
    os.chroot(sys.argv[1])
    os.chdir("/")
    os.execvp(sys.argv[2], sys.argv[2:])
except FileNotFoundError:
    sys.exit(127)
except OSError as error:
    print(error, file=sys.stderr)
    sys.exit(126)
"""


def in_root(root: Path | str, words: Sequence[str]) -> list[str]:
    """The command for ``words`` inside ``root``; the words themselves where that is our own root."""
    if Path(root) == Path("/"):
        return list(words)
    return [sys.executable, "-I", "-S", "-c", _ENTER, str(root), *words]
