"""A webhook's receiver: a real HTTP server on this machine that answers as a test tells it."""

from __future__ import annotations

import asyncio
import contextlib
import json
import ssl
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

HANG = b""
"""An answer that never comes."""


def status(code: int, *headers: str, body: bytes = b"") -> bytes:
    """An answer's bytes."""
    lines = "".join(f"{header}\r\n" for header in headers)
    return f"HTTP/1.1 {code} Whatever\r\n{lines}Content-Length: {len(body)}\r\n\r\n".encode() + body


@dataclass
class Received:
    """One request."""

    path: str
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)


@dataclass
class LocalReceiver:
    """Answers in their order, the last one for ever. ``got`` are the requests; ``port`` is where it listens."""

    answers: list[bytes]
    port: int = 0
    got: list[Received] = field(default_factory=list)
    news: asyncio.Event = field(default_factory=asyncio.Event)
    drip: float = 0.0
    """Seconds between two bytes of an answer."""

    async def until(self, enough: Callable[[], bool]) -> None:
        """Wait for requests; only a broken test waits long."""
        async with asyncio.timeout(30):
            while not enough():
                self.news.clear()
                await self.news.wait()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One connection."""
        try:
            with contextlib.suppress(asyncio.IncompleteReadError, OSError):
                while True:
                    await self._one(reader, writer)
        finally:
            writer.transport.abort()

    async def _one(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
        pairs = (line.partition(": ") for line in head[1:] if line)
        headers = {name.lower(): value for name, _, value in pairs}
        body = await reader.readexactly(int(headers.get("content-length", 0)))
        self.got.append(Received(head[0].split(" ")[1], headers, body))
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        self.news.set()
        if answer == HANG:
            await asyncio.Event().wait()
        for chunk in [answer] if not self.drip else [bytes([byte]) for byte in answer]:
            writer.write(chunk)
            await writer.drain()
            await asyncio.sleep(self.drip)


@contextlib.asynccontextmanager
async def receiving(
    *answers: bytes, drip: float = 0.0, context: ssl.SSLContext | None = None, host: str = "127.0.0.1"
) -> AsyncIterator[LocalReceiver]:
    """A receiver that listens for the length of the block."""
    receiver = LocalReceiver(list(answers) or [status(200)], drip=drip)
    connections: set[asyncio.Task[None]] = set()

    def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connection = asyncio.create_task(receiver.serve(reader, writer))
        connections.add(connection)
        connection.add_done_callback(connections.discard)

    server = await asyncio.start_server(accept, host, 0, ssl=context)
    receiver.port = server.sockets[0].getsockname()[1]
    try:
        yield receiver
    finally:
        server.close()
        for connection in list(connections):
            connection.cancel()
        if connections:
            await asyncio.wait(connections)


@contextlib.contextmanager
def receiving_beside(*answers: bytes, host: str) -> Iterator[LocalReceiver]:
    """The same in a thread, for tests without a loop. ``got`` is read as it is."""
    there, over = threading.Event(), threading.Event()
    found: list[LocalReceiver] = []

    async def serve() -> None:
        async with receiving(*answers, host=host) as receiver:
            found.append(receiver)
            there.set()
            await asyncio.to_thread(over.wait)

    def run() -> None:
        try:
            asyncio.run(serve())
        finally:
            there.set()

    thread = threading.Thread(target=run, name="receiver", daemon=True)
    thread.start()
    try:
        there.wait()
        assert found, f"nothing can listen at {host}"
        yield found[0]
    finally:
        over.set()
        thread.join()
