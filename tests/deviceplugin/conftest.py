"""A running node for the tests of the plugin over real sockets."""

from __future__ import annotations

import tempfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from tests.deviceplugin.running import Node


@pytest.fixture
def folder() -> Iterator[Path]:
    # Unix socket names have at most 107 bytes, which pytest's own folders can exceed.
    with tempfile.TemporaryDirectory(prefix="kgpu") as name:
        yield Path(name)


@pytest.fixture
async def node(folder: Path) -> AsyncIterator[Node]:
    node = Node(folder)
    async with node.kubelet:
        yield node
        await node.stop()
