"""Compiles Python sources ahead of time so that the same sources always give the same bytes.

Run as a program in a process of its own: what ``marshal`` writes depends on the strings that a process has seen before
and on the order of sets. Reads a JSON list of ``[source, name, target]`` from standard input: the file to compile, the
name it will have where it runs, the ``.pyc`` to write. A source that does not compile is left out.
"""

from __future__ import annotations

import importlib.util
import json
import marshal
import struct
import sys
from pathlib import Path

UNCHECKED = 0b01  # of PEP 552: by hash, and nobody looks whether the source has changed


def compiled(source: bytes, name: str) -> bytes:
    """The ``.pyc`` of ``source``; its code says that it is from ``name``. Raises SyntaxError or ValueError."""
    code = compile(source, name, "exec", dont_inherit=True, optimize=0)
    head = importlib.util.MAGIC_NUMBER + struct.pack("<I", UNCHECKED) + importlib.util.source_hash(source)
    return head + marshal.dumps(code)


def main() -> int:
    for source, name, target in json.load(sys.stdin):
        try:
            data = compiled(Path(source).read_bytes(), name)
        except (SyntaxError, ValueError):
            continue
        Path(target).write_bytes(data)
    return 0


if __name__ == "__main__":
    sys.exit(main())
