"""Commands over a node host's own port: what hostile clients send harms nobody, and what they leave ends."""

from __future__ import annotations

import asyncio
import contextlib
import json
import ssl
from collections.abc import AsyncIterator, Sequence
from urllib.parse import urlencode

import pytest
from wsproto.connection import Connection, ConnectionType
from wsproto.events import BytesMessage, CloseConnection, Message, Ping, Pong, TextMessage

from kgpu.kube.port import PODS
from kgpu.lab.nodes import channels, container_processes
from tests.lab.nodes.support import WAIT_S, Bench, pod, until

pytestmark = pytest.mark.timeout(600)
UPGRADE = {
    "Connection": "Upgrade", "Upgrade": "websocket", "Sec-WebSocket-Version": "13",
    "Sec-WebSocket-Key": "dGhlIHNhbXBsZSBub25jZQ==", "Sec-WebSocket-Protocol": "v5.channel.k8s.io",
}  # fmt: skip
STREAMS = (("input", "1"), ("output", "1"), ("error", "1"))


class Client:
    """A WebSocket client of the host."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer
        self.socket = Connection(ConnectionType.CLIENT)
        self.said: dict[int, bytes] = {}
        self.pongs = 0
        self.code = 0

    async def ask(self, query: Sequence[tuple[str, str]], headers: dict[str, str], token: str, path: str) -> str:
        """The head of the answer."""
        lines = [f"GET {path}?{urlencode(query)} HTTP/1.1", "Host: x", f"Authorization: Bearer {token}"]
        lines += [f"{name}: {value}" for name, value in headers.items()]
        self.writer.write("\r\n".join((*lines, "", "")).encode())
        return (await self.reader.readuntil(b"\r\n\r\n")).decode()

    def send(self, channel: int, data: bytes) -> None:
        self.say(BytesMessage(bytes([channel]) + data))

    def say(self, event: Message | Ping) -> None:
        self.writer.write(self.socket.send(event))

    async def hear(self, until: bytes = b"\0never") -> None:
        """Read until the words have come on a channel, or the end."""
        async with asyncio.timeout(WAIT_S):
            message = b""
            while not any(until in data for data in self.said.values()):
                data = await self.reader.read(65536)
                if not data:
                    return
                self.socket.receive_data(data)
                for event in self.socket.events():
                    if isinstance(event, BytesMessage):
                        message += event.data
                        if event.message_finished:
                            self.said[message[0]] = self.said.get(message[0], b"") + message[1:]
                            message = b""
                    elif isinstance(event, Pong):
                        self.pongs += 1
                    elif isinstance(event, CloseConnection):
                        self.code = event.code
                        return

    @property
    def status(self) -> dict:
        """The Status of the error channel."""
        return json.loads(self.said[channels.ERROR])


@contextlib.asynccontextmanager
async def connected(lab: Bench) -> AsyncIterator[tuple[Client, str]]:
    own = lab.folder / "nodes" / "host"
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    reader, writer = await asyncio.open_connection("127.0.0.1", int((own / "port").read_text()), ssl=context)
    try:
        yield Client(reader, writer), (own / "token").read_text().strip()
    finally:
        writer.transport.abort()


@contextlib.asynccontextmanager
async def command(
    lab: Bench, *words: str, streams: Sequence[tuple[str, str]] = STREAMS, protocol: str = channels.V5, to: str = "p/main"
) -> AsyncIterator[Client]:  # fmt: skip
    async with connected(lab) as (client, token):
        query = [*(("command", word) for word in words), *streams]
        headers = UPGRADE | {"Sec-WebSocket-Protocol": protocol}
        head = await client.ask(query, headers, token, f"/exec/default/{to}")
        assert head.startswith("HTTP/1.1 101 "), head
        assert f"Sec-WebSocket-Protocol: {protocol}\r\n" in head
        yield client


@pytest.fixture
async def running(lab: Bench) -> Bench:
    await lab.create(pod("p", "sleep 1000 & wait"))
    await lab.phase_is("p", "Running")
    return lab


async def test_a_command_says_its_output_and_its_exit_code(running: Bench) -> None:
    async with command(running, "sh", "-c", "echo out; echo err >&2; exit 3") as client:
        await client.hear()
        assert (client.said[1], client.said[2]) == (b"out\n", b"err\n")
        assert client.status["details"]["causes"] == [{"reason": "ExitCode", "message": "3"}]
        assert client.code == 1000


@pytest.mark.parametrize("protocol", [channels.V4, channels.V1])
async def test_older_protocols(running: Bench, protocol: str) -> None:
    async with command(running, "cat", protocol=protocol) as client:
        client.say(TextMessage("\x00in words\n"))
        await client.hear(b"in words")
    async with command(running, "true", protocol=protocol) as client:
        await client.hear()
        assert client.said[channels.ERROR] == channels.ended(protocol, 0)


@pytest.mark.parametrize(
    ("headers", "code", "words"),
    [
        ({"Sec-WebSocket-Protocol": "v6.channel.k8s.io"}, 400, "requested protocol(s) are not supported"),
        ({"Upgrade": "SPDY/3.1"}, 400, "the lab does not speak SPDY"),
        ({"Upgrade": "h2c"}, 400, "Upgrade request required"),
        ({"Sec-WebSocket-Version": "8"}, 400, "Upgrade request required"),
        ({"Sec-WebSocket-Key": "\u00e9"}, 400, "Upgrade request required"),
        ({"Sec-WebSocket-Key": ""}, 400, "Upgrade request required"),
    ],
)
async def test_what_is_no_such_stream_is_refused(
    running: Bench, headers: dict[str, str], code: int, words: str
) -> None:
    async with connected(running) as (client, token):
        head = await client.ask([("command", "ls"), *STREAMS], UPGRADE | headers, token, "/exec/default/p/main")
        assert head.startswith(f"HTTP/1.1 {code} ")
        assert words in (await client.reader.read()).decode()


@pytest.mark.parametrize(
    ("path", "query", "token", "code"),
    [
        ("/exec/default/p/main", [("command", "ls")], "", 400),
        ("/exec/default/none/main", [("command", "ls"), *STREAMS], "", 404),
        ("/exec/default/p/main/more", [("command", "ls"), *STREAMS], "", 404),
        ("/exec/default/p/main", [("command", "ls"), *STREAMS], "wrong", 401),
    ],
)
async def test_who_asks_wrongly_is_refused(
    running: Bench, path: str, query: list[tuple[str, str]], token: str, code: int
) -> None:
    async with connected(running) as (client, right):
        assert (await client.ask(query, UPGRADE, token or right, path)).startswith(f"HTTP/1.1 {code} ")


@pytest.mark.parametrize(
    ("words", "to", "why"),
    [
        (["nosuch"], "p/main", 'exec: "nosuch": executable file not found in $PATH'),
        ([], "p/main", "args must not be empty"),
        (["a\0b"], "p/main", "unable to start container process"),
        (["echo", "x" * 30000], "p/none", 'container not found ("none")'),
    ],
)
async def test_why_a_command_does_not_run(running: Bench, words: list[str], to: str, why: str) -> None:
    async with command(running, *words, to=to) as client:
        await client.hear()
        assert (client.status["code"], why in client.status["message"]) == (500, True)


async def test_channels_that_are_none_are_ignored(running: Bench) -> None:
    async with command(running, "cat") as client:
        client.send(1, b"not for a client")
        client.send(17, b"x" * 70_000)
        client.send(channels.RESIZE, b'{"Width":80,"Height":24}')
        client.send(channels.RESIZE, b"{")
        client.send(channels.CLOSE, b"\x07")
        client.say(BytesMessage(b""))
        client.say(Ping(b"there?"))
        client.send(channels.STDIN, b"input")
        await client.hear(b"input")
        client.send(channels.CLOSE, bytes([channels.STDIN]))
        await client.hear()
        assert (client.said[1], client.status["status"], client.pongs) == (b"input", "Success", 1)


async def test_a_huge_frame_goes_through_in_parts(running: Bench) -> None:
    """No more of it is kept than what the command has not read yet: this one reads nothing."""
    async with command(running, "sh", "-c", "read line; wc -c") as client:
        # A frame of a gigabyte that does not come to its end.
        client.writer.write(b"\x82\xff" + (1 << 30).to_bytes(8, "big") + b"\0\0\0\0" + b"\0line\n")
        for _ in range(64):
            client.writer.write(b"x" * 65536)
            await client.writer.drain()
        client.writer.transport.abort()
    await until(lambda: not commands_of(running))


@pytest.mark.parametrize("data", [b"\x83\xff\xff\xff", b"GET / HTTP/1.1\r\n\r\n", b"\x82\x01a"], ids=str)
async def test_what_is_no_frame_ends_the_command_alone(running: Bench, data: bytes) -> None:
    async with command(running, "sleep", "1000") as client:
        client.writer.write(data)
        await client.hear()
    await until(lambda: not commands_of(running))
    async with command(running, "echo", "still there") as client:
        await client.hear()
        assert client.said[1] == b"still there\n"


async def test_a_client_that_goes_away_ends_what_it_began(running: Bench) -> None:
    async with command(running, "sh", "-c", "trap '' HUP TERM; sleep 999 & echo on; wait") as client:
        await client.hear(b"on")
        assert len(commands_of(running)) >= 2
    await until(lambda: not commands_of(running))
    assert running.phase("p") == "Running"


async def test_a_container_that_ends_takes_its_commands_along(running: Bench) -> None:
    async with command(running, "sh", "-c", "setsid sleep 999 >/dev/null 2>&1 & echo on; wait") as client:
        await client.hear(b"on")
        await running.api.delete(PODS, "p", namespace="default")
        await client.hear()
        assert client.status["details"]["causes"] == [{"reason": "ExitCode", "message": "137"}]
    await until(lambda: not commands_of(running))


async def test_a_host_that_stops_hangs_up(running: Bench) -> None:
    async with command(running, "sh", "-c", "echo on; sleep 1000") as client:
        await client.hear(b"on")
        await running.down()
        await client.hear()
        assert channels.ERROR not in client.said
        await until(lambda: not commands_of(running))
        await running.up()


async def test_a_stand_in_runs_nothing_and_says_why(lab: Bench) -> None:
    await lab.create(pod("web", image="nginx"))
    await lab.phase_is("web", "Running")
    async with command(lab, "ls", to="web/main") as client:
        await client.hear()
        assert "nginx: the lab does not know this image; a stand-in runs in its place" in client.status["message"]


def commands_of(lab: Bench) -> list[int]:
    """The processes of commands beside the containers' own."""
    found = []
    for folder in {config.parent for config in lab.node_folder.glob("c/*/config.json")}:
        state = container_processes.read_state(folder)
        own = set(container_processes.descendants(state.shim)) | {state.shim} if state else set()
        found += [pid for pid in container_processes.processes_of(folder) if pid not in own]
    return found
