"""Commands in containers over a WebSocket, as ``kubectl exec`` speaks it: one connection, one command.

Promises: no more than a few ``CHUNK`` bytes are kept for either side; a client that goes away ends its command, an
idle one stays; whatever a client sends, it harms its own command alone.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import TYPE_CHECKING, Final

from kgpu.lab.nodes import channels
from kgpu.lab.nodes.container_command import CHUNK, CommandFd, CommandStreams, ContainerCommand, ExecError

if TYPE_CHECKING:
    from wsproto.events import Event

    from kgpu.lab.nodes.runtime import Running

log = logging.getLogger(__name__)

PING_S: Final = 10.0  # how soon a client that has gone without a word is found
GOODBYE_S: Final = 5.0  # for a client to close its side
_TRUE: Final = "1"


class StreamRefusedError(Exception):
    """Why a request is no stream: the HTTP status and the words."""

    def __init__(self, code: int, text: str) -> None:
        super().__init__(text)
        self.code = code


def wanted_streams(query: Mapping[str, Sequence[str]]) -> CommandStreams:
    """The streams of a kubelet's query. Raises StreamRefusedError without any."""
    stdin, stdout, stderr, tty = (_TRUE in query.get(name, ()) for name in ("input", "output", "error", "tty"))
    if not (stdin or stdout or stderr):
        raise StreamRefusedError(400, "you must specify at least 1 of stdin, stdout, stderr")
    return CommandStreams(stdin=stdin, stdout=stdout, stderr=stderr and not tty, tty=tty)


def handshake(headers: Mapping[str, str], known: Sequence[str] = channels.PROTOCOLS) -> tuple[str, bytes]:
    """(protocol of the ``known`` ones, head of the answer) for a request's headers. Raises StreamRefusedError."""
    from wsproto.utilities import generate_accept_token

    upgrade = headers.get("upgrade", "").lower()
    if upgrade.startswith("spdy"):
        raise StreamRefusedError(
            400,
            "the lab does not speak SPDY; expected: a WebSocket; "
            "to do: use kubectl 1.31 or newer, without KUBECTL_REMOTE_COMMAND_WEBSOCKETS=false or "
            "KUBECTL_PORT_FORWARD_WEBSOCKETS=false",
        )
    key = headers.get("sec-websocket-key", "")
    if upgrade != "websocket" or headers.get("sec-websocket-version") != "13" or not key.isascii() or not key:
        raise StreamRefusedError(400, "Upgrade request required")
    offered = headers.get("sec-websocket-protocol", "")
    protocol = channels.choose(offered, known)
    if not protocol:
        raise StreamRefusedError(400, channels.offered_but_unknown(offered, known))
    lines = [
        "HTTP/1.1 101 Switching Protocols", "Upgrade: websocket", "Connection: Upgrade",
        f"Sec-WebSocket-Accept: {generate_accept_token(key.encode()).decode('ascii')}",
    ]  # fmt: skip
    if offered:
        lines.append(f"Sec-WebSocket-Protocol: {protocol}")
    return protocol, "\r\n".join((*lines, "", "")).encode()


class MessageSocket:
    """The binary messages of an open WebSocket."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        from wsproto.connection import Connection, ConnectionType

        self._reader = reader
        self._writer = writer
        self._socket = Connection(ConnectionType.SERVER)
        self._sending = asyncio.Lock()

    async def parts(self) -> AsyncIterator[tuple[bytes, bool]]:
        """What the client says, until it closes or goes away: parts of messages, and whether each is a last one."""
        from wsproto import events

        while data := await self._reader.read(CHUNK):
            self._socket.receive_data(data)
            for event in self._socket.events():
                if isinstance(event, events.Ping):
                    await self._say(event.response())
                elif isinstance(event, events.CloseConnection):
                    await self._say(event.response())
                    return
                elif isinstance(event, events.Message):
                    said = event.data.encode() if isinstance(event.data, str) else bytes(event.data)
                    yield said, event.message_finished

    async def say(self, data: bytes) -> None:
        """Send a message, when the client has taken what came before. Raises OSError when it has gone."""
        from wsproto.events import BytesMessage

        await self._say(BytesMessage(data))

    async def ping(self) -> None:
        """Ping the client for ever. Raises OSError when it has gone."""
        from wsproto.events import Ping

        while True:
            await asyncio.sleep(PING_S)
            await self._say(Ping(b""))

    async def close(self) -> None:
        """Say goodbye. Raises OSError when the client has gone."""
        from wsproto.events import CloseConnection

        await self._say(CloseConnection(1000))

    async def gone(self) -> None:
        """Return when the connection has ended."""
        # Its future is one for all who wait: it must not be cancelled with this one.
        with contextlib.suppress(OSError):
            await asyncio.shield(asyncio.ensure_future(self._writer.wait_closed()))

    async def _say(self, event: Event) -> None:
        from wsproto.utilities import LocalProtocolError

        async with self._sending:
            with contextlib.suppress(LocalProtocolError):  # closed already
                self._writer.write(self._socket.send(event))
            await self._writer.drain()


class ChannelSocket(MessageSocket):
    """The channels of an open WebSocket."""

    async def receive(self) -> AsyncIterator[channels.ChannelPiece]:
        """What the client says, until it closes or goes away."""
        pieces = channels.ChannelReader()
        async for said, finished in self.parts():
            for piece in pieces.take(said, finished=finished):
                yield piece

    async def send(self, channel: int, data: bytes) -> None:
        """Send a message, when the client has taken what came before. Raises OSError when it has gone."""
        await self.say(bytes([channel]) + data)


async def serve(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, headers: Mapping[str, str],
    query: Mapping[str, Sequence[str]], running: Running | str,
) -> None:  # fmt: skip
    """Run the command of the request in ``running``, or tell why there is no such container.

    Raises StreamRefusedError before anything was sent.
    """
    streams = wanted_streams(query)
    protocol, head = handshake(headers)
    writer.write(head)
    socket = ChannelSocket(reader, writer)
    # A first empty message tells the client that the connection is there.
    await socket.send(channels.STDOUT if streams.stdout else channels.STDERR if streams.stderr else channels.ERROR, b"")
    if isinstance(running, str):
        await _part(socket, channels.failed(protocol, f"unable to upgrade connection: {running}"))
        return
    try:
        command = await running.command(query.get("command", ()), streams)
    except ExecError as error:
        why = f"error executing command in container: failed to exec in container: failed to start exec: {error.what}"
        # Said twice by the real API server, which wraps the kubelet's error, to clients of the newest version.
        twice = "Internal error occurred: " if protocol == channels.V5 else ""
        await _part(socket, channels.failed(protocol, f"{twice}{why}: unknown"))
        return
    try:
        code = await _talk(socket, command)
    finally:
        await asyncio.shield(command.hang_up())
    if code is not None:
        await _part(socket, channels.ended(protocol, code))


async def _talk(socket: ChannelSocket, command: ContainerCommand) -> int | None:
    """Pass everything between client and command; its exit code, None when the client has gone."""
    printed = asyncio.ensure_future(_all_printed(socket, command))
    client = [asyncio.ensure_future(work) for work in (_listen(socket, command), socket.gone(), socket.ping())]
    try:
        await asyncio.wait((printed, *client), return_when=asyncio.FIRST_COMPLETED)
        return printed.result() if printed.done() and printed.exception() is None else None
    finally:
        for task in (printed, *client):
            task.cancel()
        await asyncio.gather(printed, *client, return_exceptions=True)


async def _all_printed(socket: ChannelSocket, command: ContainerCommand) -> int:
    """The exit code, once the client has everything that was printed."""
    async with asyncio.TaskGroup() as group:
        code = group.create_task(command.wait())
        for channel, fd in ((channels.STDOUT, command.stdout), (channels.STDERR, command.stderr)):
            if fd is not None:
                group.create_task(_pump(socket, channel, fd))
    return code.result()


async def _pump(socket: ChannelSocket, channel: int, fd: CommandFd) -> None:
    while data := await fd.read():
        await socket.send(channel, data)


async def _listen(socket: ChannelSocket, command: ContainerCommand) -> None:
    """Until the client closes the connection."""
    async for piece in socket.receive():
        if piece.channel == channels.STDIN and command.stdin is not None:
            await command.stdin.write(piece.data)
        elif piece.channel == channels.RESIZE:
            size = channels.terminal_size(piece.data)
            if size is not None:
                command.resize(*size)
        elif piece.channel == channels.CLOSE and piece.data[:1] == bytes([channels.STDIN]):
            command.close_stdin()


async def _part(socket: ChannelSocket, message: bytes) -> None:
    """Send the last message, and wait for the client to close its side."""
    with contextlib.suppress(OSError, TimeoutError):
        async with asyncio.timeout(GOODBYE_S):
            await socket.send(channels.ERROR, message)
            await socket.close()
            async for _ in socket.receive():
                pass
