"""What a workload's containers write: the last lines of each pod, or all of them together as they come."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from dataclasses import dataclass
from http import HTTPStatus
from typing import Final, Protocol

from kgpu.base.errors import ConfigError, KubeError
from kgpu.base.printable import counted, printable
from kgpu.formats.names import HOST_FACTS_KEY
from kgpu.kube.port import KubeRefusedError
from kgpu.workloads.pods import ServingPod

MOST_FOLLOWED: Final = 50
"""The most pods whose logs are followed at once; each has a connection to its node's kubelet."""
_AT_ONCE: Final = 8
_LONGEST: Final = 64 * 1024  # bytes of a line; what is longer is shown in parts
_QUEUED: Final = 1000
_FACTS: Final = f'{{"{HOST_FACTS_KEY}":'.encode()


class LogSource(Protocol):
    """``kube.pod_logs.PodLogs``."""

    async def logs(
        self, namespace: str, pod: str, container: str, *, previous: bool = False, tail: int = 500,
        limit: int = 256 * 1024, since: int = 0,
    ) -> bytes: ...  # fmt: skip

    def follow(
        self, namespace: str, pod: str, container: str, *, tail: int = -1, since: int = 0
    ) -> AsyncIterator[bytes]: ...  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class LogWish:
    """``container`` is "" for the one that has something to say; ``tail`` is in lines, -1 for all; ``since`` in
    seconds, 0 for all; ``limit`` in bytes per pod.
    """

    container: str = ""
    previous: bool = False
    tail: int = 100
    since: int = 0
    limit: int = 8 * 1024 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class LogLine:
    """A line of a pod's log, or in its place why there is none (``note``)."""

    pod: ServingPod
    container: str
    text: str
    note: bool = False


def container_of(pod: ServingPod, wish: LogWish) -> str:
    """Raises ConfigError for one that the pod has not got."""
    if wish.container and wish.container not in pod.containers:
        raise ConfigError(
            f"pod {pod.namespace}/{pod.name} has no container {wish.container}",
            f"one of: {', '.join(pod.containers)}", "correct the name, or leave out --container",
        )  # fmt: skip
    return wish.container or pod.container


async def written(source: LogSource, pods: Sequence[ServingPod], wish: LogWish) -> AsyncGenerator[LogLine, None]:
    """The lines that are there, pod by pod in their order. A pod whose log can't be read is told in its place.
    Raises KubeRefusedError for want of rights.
    """
    gate = asyncio.Semaphore(_AT_ONCE)

    async def read(pod: ServingPod) -> list[LogLine]:
        async with gate:
            return await _read(source, pod, wish)

    tasks = [asyncio.create_task(read(pod)) for pod in pods]
    try:
        for task in tasks:
            for line in await task:
                yield line
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _read(source: LogSource, pod: ServingPod, wish: LogWish) -> list[LogLine]:
    container = container_of(pod, wish)
    try:
        data = await source.logs(
            pod.namespace, pod.name, container, previous=wish.previous, tail=wish.tail, limit=wish.limit,
            since=wish.since,
        )  # fmt: skip
    except KubeError as error:
        if isinstance(error, KubeRefusedError) and error.code == HTTPStatus.FORBIDDEN:
            raise  # so it is for all of them
        if wish.previous and isinstance(error, KubeRefusedError) and error.code == HTTPStatus.BAD_REQUEST:
            return [LogLine(pod=pod, container=container, text=f"container {container} had no run before", note=True)]
        state = f"{pod.state}; " if pod.state else ""
        return [LogLine(pod=pod, container=container, text=f"no log ({state}{error.one_line()})", note=True)]
    return [LogLine(pod=pod, container=container, text=shown(line)) for line in data.splitlines()]


async def followed(source: LogSource, pods: Sequence[ServingPod], wish: LogWish) -> AsyncGenerator[LogLine, None]:
    """The lines of all pods as they come; ends when every container has. Raises ConfigError for too many pods."""
    if len(pods) > MOST_FOLLOWED:
        raise ConfigError(
            f"{counted(len(pods), 'pod')} can't be followed at once",
            f"{MOST_FOLLOWED} at the most",
            "name one: --node NODE",
        )
    queue: asyncio.Queue[LogLine | None] = asyncio.Queue(_QUEUED)
    for pod in pods:
        container_of(pod, wish)
    tasks = [asyncio.create_task(_follow(source, pod, wish, queue)) for pod in pods]
    try:
        left = len(tasks)
        while left:
            line = await queue.get()
            if line is None:
                left -= 1
            else:
                yield line
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _follow(source: LogSource, pod: ServingPod, wish: LogWish, queue: asyncio.Queue[LogLine | None]) -> None:
    container = container_of(pod, wish)
    why = "its container has ended, or the API server has ended the connection"
    try:
        async for line in _lines(source.follow(pod.namespace, pod.name, container, tail=wish.tail, since=wish.since)):
            await queue.put(LogLine(pod=pod, container=container, text=shown(line)))
    except KubeError as error:
        why = error.one_line()
    await queue.put(LogLine(pod=pod, container=container, text=f"no more of {pod.name}: {why}", note=True))
    await queue.put(None)


async def _lines(pieces: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    """Whole lines of a stream; one that never ends in parts."""
    rest = b""
    async for piece in pieces:
        *whole, rest = (rest + piece).split(b"\n")
        for line in whole:
            yield line
        if len(rest) > _LONGEST:
            yield rest
            rest = b""
    if rest:
        yield rest


def shown(line: bytes) -> str:
    """Fit for a terminal: what a container writes must not drive it, and facts for a program are no reading."""
    if line.startswith(_FACTS):
        return f"({len(line)} bytes of facts about this node, for kgpu doctor)"
    text = line.decode(errors="replace").rstrip("\r")
    return "\t".join(printable(part) for part in text.split("\t"))
