"""Small requests over kept connections, against servers that behave and servers that don't."""

from __future__ import annotations

import asyncio
import contextlib
import gzip
import ssl
import time
from collections.abc import AsyncIterator, Callable

import pytest

from kgpu.kube.guard import guarded
from kgpu.kube.wire import MOST_CONNECTIONS, AnswerTooLongError, Wire, WireError

OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}"


class Server:
    """Answers each request with what ``answer(number of the request)`` says; None closes the connection unanswered."""

    def __init__(self, answer: Callable[[int], bytes | None]) -> None:
        self.answer = answer
        self.requests: list[bytes] = []
        self.connections = 0
        self.open = 0
        self.most = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        self.open += 1
        self.most = max(self.most, self.open)
        try:
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                length = int(head.lower().split(b"content-length: ")[1].split(b"\r\n")[0])
                self.requests.append(head + await reader.readexactly(length))
                said = self.answer(len(self.requests))
                if said is None:
                    return
                writer.write(said)
                await writer.drain()
                if b"content-length" not in said.lower() and b"chunked" not in said.lower():
                    return
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()
            with contextlib.suppress(ConnectionError):
                await writer.wait_closed()
            self.open -= 1


async def until(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < end
        await asyncio.sleep(0.001)


@contextlib.asynccontextmanager
async def running(answer: Callable[[int], bytes | None]) -> AsyncIterator[tuple[Server, Wire]]:
    server = Server(answer)
    listening = await asyncio.start_server(server.serve, "127.0.0.1", 0)
    port = listening.sockets[0].getsockname()[1]
    wire = Wire(f"http://127.0.0.1:{port}/prefix", ssl.create_default_context())
    try:
        yield server, wire
    finally:
        await wire.close()
        listening.close()
        await until(lambda: not server.open)


async def send(wire: Wire, method: str = "PATCH") -> tuple[int, bytes]:
    answer = await asyncio.wait_for(wire.request(method, "/api?x=1", {"A": "b"}, b"body"), 20)
    return answer.status_code, answer.content


@pytest.mark.parametrize(
    ("said", "body"),
    [
        (OK, b"{}"),
        (
            b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\nA;x=y\r\n0123456789\r\n0\r\n\r\n",
            b"abc0123456789",
        ),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1\r\na\r\n0\r\nTrailer: x\r\n\r\n", b"a"),
        (b"HTTP/1.1 200 OK\r\n\r\nto the end", b"to the end"),
        (b"HTTP/1.1 100 Continue\r\n\r\n" + OK, b"{}"),
        (b"HTTP/1.0 200 OK\r\nContent-Length: 1\r\n\r\nx", b"x"),
    ],
)
async def test_every_way_of_saying_a_body(said: bytes, body: bytes) -> None:
    async with running(lambda _: said) as (server, wire):
        assert await send(wire) == (200, body)
        assert server.requests[0].startswith(b"PATCH /prefix/api?x=1 HTTP/1.1\r\nHost: 127.0.0.1:")
        assert server.requests[0].endswith(b"A: b\r\nContent-Length: 4\r\n\r\nbody")


@pytest.mark.parametrize(
    "said",
    [
        b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n123456789",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\n12345\r\n4\r\n6789\r\n0\r\n\r\n",
        b"HTTP/1.1 200 OK\r\n\r\n123456789",
    ],
)
async def test_an_answer_is_no_longer_than_asked_for(said: bytes) -> None:
    async with running(lambda _: said) as (_, wire):
        assert (await wire.request("GET", "/", {}, b"", limit=9)).content == b"123456789"
    async with running(lambda _: said) as (_, wire):
        with pytest.raises(WireError):
            await wire.request("GET", "/", {}, b"", limit=8)


def packed(body: bytes, coding: bytes = b"gzip") -> bytes:
    head = b"HTTP/1.1 200 OK\r\nContent-Encoding: " + coding
    return head + b"\r\nContent-Length: " + str(len(body)).encode() + b"\r\n\r\n" + body


async def test_what_was_packed_is_given_unpacked() -> None:
    text = b"a long list " * 9000
    async with running(lambda _: packed(gzip.compress(text))) as (server, wire):
        assert await send(wire, "GET") == (200, text)
        assert (await wire.request("GET", "/", {}, b"", limit=len(text))).content == text
        assert server.connections == 1
        with pytest.raises(AnswerTooLongError):
            await wire.request("GET", "/", {}, b"", limit=len(text) - 1)


@pytest.mark.parametrize(
    "said",
    [packed(b"no gzip"), packed(gzip.compress(b"cut off" * 99)[:-9]), packed(b""), packed(b"x", b"br")],
)
async def test_what_can_not_be_unpacked_is_no_answer(said: bytes) -> None:
    async with running(lambda _: said) as (_, wire):
        with pytest.raises(WireError):
            await send(wire, "GET")


async def test_a_connection_is_kept() -> None:
    async with running(lambda _: OK) as (server, wire):
        for _ in range(5):
            await send(wire)
        assert server.connections == 1


async def test_no_more_connections_than_allowed() -> None:
    async with running(lambda _: OK) as (server, wire):
        await asyncio.gather(*(send(wire) for _ in range(3 * MOST_CONNECTIONS)))
        assert server.most <= MOST_CONNECTIONS
        assert len(server.requests) == 3 * MOST_CONNECTIONS


async def test_a_kept_connection_that_has_died_is_replaced() -> None:
    async with running(lambda number: None if number == 2 else OK) as (server, wire):
        await send(wire)
        assert await send(wire) == (200, b"{}")  # the second request was seen and not answered: sent again
        assert (len(server.requests), server.connections) == (3, 2)


async def test_creations_in_a_row_share_a_connection() -> None:
    async with running(lambda _: OK) as (server, wire):
        for _ in range(5):
            await send(wire, "POST")
        assert server.connections == 1


async def test_a_creation_takes_no_connection_that_has_long_been_idle() -> None:
    """The server may be about to close it, and what it then has or has not seen is not known."""
    async with running(lambda _: OK) as (server, wire):
        await send(wire)
        wire._kept[-1].kept_at -= 60
        await send(wire, "POST")
        assert server.connections == 2
        await send(wire)
        assert server.connections == 2


async def test_a_creation_is_never_sent_twice() -> None:
    async with running(lambda number: None if number == 2 else OK) as (server, wire):
        await send(wire)
        with pytest.raises(WireError):
            await send(wire, "POST")
        assert len(server.requests) == 2


@pytest.mark.parametrize(
    "said",
    [
        None,
        b"",
        b"HTTP/1.1 200 OK\r\nContent-Length: -1\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 99999999999999\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nffffffffff\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nxyz\r\n",
        b"HTTP/1.1 abc\r\nContent-Length: 0\r\n\r\n",
        b"SSH-2.0-OpenSSH\r\nContent-Length: 0\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nX: " + b"y" * 200_000 + b"\r\nContent-Length: 0\r\n\r\n",
    ],
)
async def test_what_is_no_answer_is_said_so(said: bytes | None) -> None:
    async with running(lambda _: said) as (_, wire):
        with pytest.raises(WireError):
            await send(wire)


async def test_nobody_gets_the_answer_of_a_request_that_was_given_up() -> None:
    half, whole = (
        b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nsl",
        b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nquick",
    )
    async with running(lambda number: half if number == 2 else whole) as (server, wire):
        await send(wire)
        sending = asyncio.create_task(send(wire))
        await until(lambda: len(server.requests) == 2)
        sending.cancel()
        with pytest.raises(asyncio.CancelledError):
            await sending
        assert await send(wire) == (200, b"quick")
        assert server.connections == 2


async def test_what_is_in_use_while_all_is_closed_is_not_kept() -> None:
    async with running(lambda _: OK) as (server, wire):
        sending = asyncio.create_task(send(wire))
        await asyncio.sleep(0)  # it has begun, and has no connection yet
        await wire.close()
        assert (await sending)[0] == 200
        await until(lambda: server.connections == 1 and not server.open)


async def test_a_line_break_does_not_become_a_header() -> None:
    async with running(lambda _: OK) as (server, wire):
        with pytest.raises(WireError, match="line break"):
            await wire.request("PATCH", "/a", {"X": "1\r\nAuthorization: root"}, b"")
        assert server.requests == []


async def test_a_guard_is_asked_before_every_attempt() -> None:
    allowed = True

    def guard() -> None:
        if not allowed:
            raise RuntimeError

    def answer(number: int) -> bytes | None:
        nonlocal allowed
        allowed = number != 2  # while the second is under way, writing is forbidden
        return None if number == 2 else OK

    async with running(answer) as (server, wire):
        with guarded(guard):
            await send(wire)
            with pytest.raises(RuntimeError):
                await send(wire)
            assert await send(wire, "GET") == (200, b"{}"), "reading is always allowed"
        allowed = False
        assert await send(wire) == (200, b"{}"), "only in its block"
        assert len(server.requests) == 4
