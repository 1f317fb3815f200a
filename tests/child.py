"""A process of a test's own that ends with its block, whatever happens in it: ``Popen``'s own block waits for it."""

from __future__ import annotations

import contextlib
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any


@contextlib.contextmanager
def child(words: Sequence[str | Path], **given: Any) -> Iterator[subprocess.Popen[Any]]:
    """Start it as ``subprocess.Popen`` does, and kill it in the end."""
    with subprocess.Popen(words, **given) as process:
        try:
            yield process
        finally:
            process.kill()
