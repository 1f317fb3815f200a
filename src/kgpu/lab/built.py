"""The cache of programs that are built for labs, and looking one up. ``real.build`` builds them."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path


def cache_root(env: Mapping[str, str] | None = None) -> Path:
    """``$XDG_CACHE_HOME/kgpu/real``, or ``~/.cache/kgpu/real``."""
    found = (os.environ if env is None else env).get("XDG_CACHE_HOME")
    return (Path(found) if found else Path.home() / ".cache") / "kgpu" / "real"


def find_built(name: str) -> Path | None:
    """One of the programs where it was built before, the newest; None for none."""
    built = [path for path in cache_root().glob(f"*/bin/{name}") if os.access(path, os.X_OK)]
    return max(built, key=lambda path: path.stat().st_mtime) if built else None
