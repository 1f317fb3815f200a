"""A folder whose name is short enough for unix sockets, which pytest's own may not be."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest


@pytest.fixture
def folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="kgpu") as name:
        yield Path(name)
