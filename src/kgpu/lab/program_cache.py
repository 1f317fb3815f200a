"""Finds programs in the cache of what was built for labs. ``real.build`` builds them."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path


def cache_root(env: Mapping[str, str] | None = None) -> Path:
    """``$XDG_CACHE_HOME/kgpu/real``, or ``~/.cache/kgpu/real``."""
    cache_home = (os.environ if env is None else env).get("XDG_CACHE_HOME")
    return (Path(cache_home) if cache_home else Path.home() / ".cache") / "kgpu" / "real"


def find_built(name: str) -> Path | None:
    """The newest build of the program; None when there is none."""
    built = [path for path in cache_root().glob(f"*/bin/{name}") if os.access(path, os.X_OK)]
    return max(built, key=lambda path: path.stat().st_mtime) if built else None
