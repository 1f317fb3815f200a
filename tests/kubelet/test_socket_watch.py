"""Seeing the kubelet's socket come, go and be replaced."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import AsyncIterator
from pathlib import Path

from kgpu.kubelet.socket_watch import SocketIdentity, SocketWatch, socket_identity


def bind(path: Path) -> SocketIdentity:
    with socket.socket(socket.AF_UNIX) as one:
        one.bind(str(path))
    identity = socket_identity(path)
    assert identity is not None
    return identity


async def following(changes: AsyncIterator[SocketIdentity | None]) -> SocketIdentity | None:
    async with asyncio.timeout(60):
        return await anext(changes)


async def test_every_incarnation_is_told(folder: Path) -> None:
    path = folder / "kubelet.sock"
    changes = SocketWatch(path).changes(60)
    assert await following(changes) is None
    first = bind(path)
    assert await following(changes) == first
    path.unlink()
    second = bind(path)
    told = await following(changes)
    if told is None:  # the moment between the two may be seen
        told = await following(changes)
    assert told == second != first
    path.unlink()
    assert await following(changes) is None
    await changes.aclose()


async def test_a_socket_renamed_into_place_is_told(folder: Path) -> None:
    path = folder / "kubelet.sock"
    changes = SocketWatch(path).changes(60)
    bind(path)
    assert await following(changes) is not None
    bind(folder / "new")
    os.rename(folder / "new", path)
    assert await following(changes) == socket_identity(path)
    await changes.aclose()


async def test_the_folder_may_be_missing_and_come_and_go(folder: Path) -> None:
    path = folder / "var" / "plugins" / "kubelet.sock"
    changes = SocketWatch(path).changes(60)
    assert await following(changes) is None
    for _ in range(2):
        waiting = asyncio.create_task(following(changes))
        await asyncio.sleep(0)
        path.parent.mkdir(parents=True)
        identity = bind(path)
        assert await waiting == identity
        waiting = asyncio.create_task(following(changes))
        path.unlink()
        path.parent.rmdir()
        path.parent.parent.rmdir()
        assert await waiting is None
    await changes.aclose()


def test_only_sockets_count(folder: Path) -> None:
    (folder / "kubelet.sock").touch()
    assert socket_identity(folder / "kubelet.sock") is None
    assert socket_identity(folder / "missing") is None
