"""npm, for what tests take from its registry; without it they are skipped with the reason."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest


def npm(folder: Path, *words: str) -> None:
    """Run it in the folder; skips where it is not there, or the registry can't be reached or not in time."""
    program = shutil.which("npm")
    if program is None or shutil.which("node") is None:
        pytest.skip("no Node.js and npm here")
    try:
        subprocess.run([program, *words], cwd=folder, capture_output=True, text=True, check=True, timeout=300)
    except subprocess.SubprocessError as error:
        pytest.skip(f"npm {words[0]}: {getattr(error, 'stderr', None) or error}"[:300])
