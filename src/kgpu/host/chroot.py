"""The command that runs a host's program in the host's root, which is mounted below a folder.

kgpu's image has no ``chroot`` program, so its Python interpreter does it. The exit codes are those of shells: 127 if
the program does not exist, 126 if it can't be run or the root can't be entered.
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
    """The command that runs ``words`` inside ``root``; the words themselves if that is our own root."""
    if Path(root) == Path("/"):
        return list(words)
    return [sys.executable, "-I", "-S", "-c", _ENTER, str(root), *words]
