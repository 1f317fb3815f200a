"""A folder whose name is short enough for unix sockets, and a host of one simulated node."""

from __future__ import annotations

import tempfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from tests.lab.nodes.support import Bench, bench


@pytest.fixture
def folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="kgpu", ignore_cleanup_errors=True) as name:
        yield Path(name)


@pytest.fixture
async def lab(folder: Path) -> AsyncIterator[Bench]:
    async with bench(folder) as made:
        yield made
