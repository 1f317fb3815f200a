"""``kubectl port-forward``: connections to a pod's ports as SPDY streams in the messages of one WebSocket.

A connection is two streams with the same request id: one for its data, one for an error. Promises: the pod's own
programs are reached and no others; each direction waits for its reader; one connection's end is no other's; a client
that goes away ends all of its connections.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field
from typing import Final

from kgpu.lab.nodes import spdy, streaming
from kgpu.lab.nodes.container_command import CHUNK
from kgpu.lab.nodes.reachable import PodPlace
from kgpu.lab.nodes.spdy import StreamData, StreamOpened

PROTOCOL: Final = "SPDY/3.1+portforward.k8s.io"
MOST: Final = 1000
"""Streams of one client at the same time: two for each connection."""
_AHEAD: Final = 4  # pieces that are kept for a program that does not read
_PORTS: Final = range(1, 65536)
_DATA, _ERROR = "data", "error"


@dataclass(eq=False, slots=True)
class _Pair:
    """The two streams of a connection; 0 for one that has not come yet."""

    port: int
    streams: dict[str, int] = field(default_factory=dict)
    sent: asyncio.Queue[bytes] = field(default_factory=lambda: asyncio.Queue(_AHEAD))
    """What the client sends, the empty piece last."""
    over: bool = False
    work: asyncio.Task[None] | None = None

    async def put(self, data: StreamData) -> None:
        """Wait until there is room. What comes after the connection's end is dropped."""
        for piece in (*([data.data] if data.data else []), *([b""] if data.fin else [])):
            if not self.over:
                await self.sent.put(piece)

    def end(self) -> None:
        self.over = True
        while not self.sent.empty():  # whoever waits for room goes on
            self.sent.get_nowait()


async def serve(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, headers: Mapping[str, str], place: PodPlace
) -> None:
    """Forward connections until the client has gone. Raises StreamRefusedError before anything was sent."""
    _, head = streaming.handshake(headers, (PROTOCOL,))
    writer.write(head)
    await PortForwarding(streaming.MessageSocket(reader, writer), place).run()


class PortForwarding:
    """One client's connections to a pod."""

    def __init__(self, socket: streaming.MessageSocket, place: PodPlace) -> None:
        self._socket = socket
        self._place = place
        self._frames = spdy.FrameWriter()
        self._waiting: dict[str, _Pair] = {}
        self._pairs: dict[int, _Pair] = {}

    async def run(self) -> None:
        """Until the client closes, goes away, or says what is no SPDY."""
        client = [asyncio.ensure_future(work) for work in (self._listen(), self._socket.gone(), self._socket.ping())]
        try:
            await asyncio.wait(client, return_when=asyncio.FIRST_COMPLETED)
        finally:
            tasks = [*client, *(pair.work for pair in self._pairs.values() if pair.work)]
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            with contextlib.suppress(OSError):
                await self._socket.close()

    async def _listen(self) -> None:
        with contextlib.suppress(spdy.SpdyError):
            async for frame in self._said():
                match frame:
                    case StreamOpened():
                        await self._open(frame)
                    case StreamData(stream=stream) if stream in self._pairs:
                        pair = self._pairs[stream]
                        if stream == pair.streams.get(_DATA):
                            await pair.put(frame)
                    case spdy.StreamReset(stream=stream) if stream in self._pairs:
                        self._drop(self._pairs[stream])
                    case spdy.PingAsked(number=number):
                        await self._socket.say(self._frames.ping(number))
                    case spdy.GoneAway():
                        return

    async def _said(self) -> AsyncIterator[spdy.SpdyFrame]:
        frames = spdy.FrameReader()
        async for part, _ in self._socket.parts():
            for frame in frames.take(part):
                yield frame

    async def _open(self, opened: StreamOpened) -> None:
        kind, port = opened.headers.get("streamtype", ""), _port(opened.headers.get("port", ""))
        if kind not in {_DATA, _ERROR} or port == 0 or opened.stream in self._pairs:
            await self._socket.say(self._frames.reset(opened.stream, spdy.PROTOCOL_ERROR))
            return
        identity = opened.headers.get("requestid", "")
        pair = self._waiting.get(identity) or _Pair(port)
        if kind in pair.streams or pair.port != port or len(self._pairs) >= MOST:
            await self._socket.say(self._frames.reset(opened.stream, spdy.REFUSED))
            return
        self._waiting[identity] = pair
        pair.streams[kind] = opened.stream
        self._pairs[opened.stream] = pair
        await self._socket.say(self._frames.reply(opened.stream))
        if len(pair.streams) == 2:
            del self._waiting[identity]
            pair.work = asyncio.ensure_future(self._forward(pair))

    def _drop(self, pair: _Pair) -> None:
        if pair.work is not None:
            pair.work.cancel()
        self._forget(pair)

    def _forget(self, pair: _Pair) -> None:
        pair.end()
        for stream in pair.streams.values():
            self._pairs.pop(stream, None)
        for identity in [identity for identity, one in self._waiting.items() if one is pair]:
            del self._waiting[identity]

    async def _forward(self, pair: _Pair) -> None:
        data, error = pair.streams[_DATA], pair.streams[_ERROR]
        try:
            with contextlib.suppress(OSError):  # the client has gone
                if why := await self._carry(pair, data):
                    await self._socket.say(self._frames.data(error, why.encode(), fin=True))
                    await self._socket.say(self._frames.reset(data, spdy.CANCEL))
                else:
                    await self._socket.say(self._frames.data(data, b"", fin=True))
                    await self._socket.say(self._frames.data(error, b"", fin=True))
        finally:
            self._forget(pair)

    async def _carry(self, pair: _Pair, stream: int) -> str:
        """Join the connection to the pod's program until that ends it; why that can't be, as a kubelet says it."""
        address = await asyncio.to_thread(self._place.reach, pair.port)
        try:
            if not address:
                raise ConnectionRefusedError
            reader, writer = await asyncio.open_connection(address, pair.port)
        except OSError:
            return (
                f"error forwarding port {pair.port} to pod {self._place.uid}, uid : failed to connect to "
                f"localhost:{pair.port}: dial tcp4 127.0.0.1:{pair.port}: connect: connection refused"
            )
        inbound = asyncio.ensure_future(_feed(pair, writer))
        try:
            with contextlib.suppress(ConnectionError):
                while piece := await reader.read(CHUNK):
                    await self._socket.say(self._frames.data(stream, piece))
        finally:
            inbound.cancel()
            await asyncio.gather(inbound, return_exceptions=True)
            writer.transport.abort()
        return ""


async def _feed(pair: _Pair, writer: asyncio.StreamWriter) -> None:
    """What the client sends, to the program; its end as an end of what is to be read."""
    with contextlib.suppress(ConnectionError):
        while piece := await pair.sent.get():
            writer.write(piece)
            await writer.drain()
        writer.write_eof()
    while True:  # nobody takes the rest; the client's other connections must not wait for that
        await pair.sent.get()


def _port(text: str) -> int:
    """A port's number; 0 for what is none."""
    return int(text) if text.isascii() and text.isdecimal() and len(text) <= 5 and int(text) in _PORTS else 0
