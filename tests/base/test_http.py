"""The status server answers its pages and survives whatever a client sends, or does not send."""

from __future__ import annotations

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kgpu.base import connection_limits, http
from kgpu.base.connection_limits import PeerConnection
from kgpu.base.errors import ConfigError, HostError
from kgpu.base.http import (
    MAX_HEAD,
    Address,
    AwaitedPage,
    DynamicPage,
    OpenAccess,
    PostedPage,
    Request,
    Response,
    StatusServer,
    Stream,
    StreamedPage,
    answer,
    encode,
    local_only,
    parse,
    parse_address,
)


def broken() -> Response:
    raise KeyError("secret detail")


ROUTES = {"/healthz": lambda: Response(200, "ok\n"), "/broken": broken}
LOCAL = Address("127.0.0.1", 0)


@pytest.fixture
async def server():
    server = StatusServer(ROUTES, deadline=60, patience=60)
    server.address = await server.start(LOCAL)  # type: ignore[attr-defined]
    yield server
    await server.close()


async def exchange(server, data: bytes) -> bytes:
    reader, writer = await asyncio.open_connection("127.0.0.1", server.address.port)
    try:
        writer.write(data)
        await writer.drain()
        return await asyncio.wait_for(reader.read(), 60)
    finally:
        writer.close()


async def eventually(condition) -> None:
    async with asyncio.timeout(60):
        while not condition():  # noqa: ASYNC110 - the condition is another object's state
            await asyncio.sleep(0.001)


async def test_a_page(server):
    reply = await exchange(server, b"GET /healthz?verbose=1 HTTP/1.1\r\nHost: x\r\n\r\n")
    head, _, body = reply.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 200 OK\r\n")
    assert b"Connection: close" in head
    assert b"Content-Length: 3" in head
    assert body == b"ok\n"


@pytest.mark.parametrize(
    ("request_head", "status"),
    [
        (b"HEAD /healthz HTTP/1.0", 200),
        (b"GET /nowhere HTTP/1.1", 404),
        (b"GET /broken HTTP/1.1", 500),
        (b"POST /healthz HTTP/1.1\r\nContent-Length: 3", 405),
        (b"GET /healthz HTTP/2.0", 505),
        (b"GET  /healthz HTTP/1.1", 400),
        (b"GET /hea\x00lthz HTTP/1.1", 400),
        (b"GET ../../etc/passwd HTTP/1.1", 400),
        (b"GET /../../etc/passwd HTTP/1.1", 404),
        (b"\x16\x03\x01\x02\x00\x01\x00", 400),
        (b"", 400),
    ],
)
async def test_status_codes(server, request_head, status):
    reply = await exchange(server, request_head + b"\r\n\r\n")
    assert int(reply.split(b" ")[1]) == status
    assert b"secret detail" not in reply
    if request_head.startswith(b"HEAD"):
        assert reply.endswith(b"\r\n\r\n")


class StrictAccess(OpenAccess):
    async def refuse(self, request: Request) -> Response | None:
        return None if request.headers.get("x-key") == "open" else Response(403, "no\n")

    def headers(self):
        return (("X-Frame-Options", "deny"),)


async def test_an_access_policy_decides_before_any_page_is_made():
    large = b"x" * 3_000_000
    server = StatusServer(
        {"/": DynamicPage(lambda _: Response(200, large, "application/octet-stream"))}, access=StrictAccess(),
        deadline=60, patience=60,
    )  # fmt: skip
    server.address = await server.start(LOCAL)  # type: ignore[attr-defined]
    assert (await exchange(server, b"GET /nowhere HTTP/1.1\r\n\r\n")).startswith(b"HTTP/1.1 403 ")
    reply = await exchange(server, b"GET / HTTP/1.1\r\nX-Key: open\r\n\r\n")
    assert b"X-Frame-Options: deny\r\n" in reply
    assert reply.endswith(b"\r\n\r\n" + large)
    await server.close()


def test_headers_of_a_name_are_joined_and_lines_that_are_none_left_out():
    request = parse(b"GET /a?b HTTP/1.1\r\nAccept: x\r\nbad line\r\n folded: 1\r\naccept:  y \r\n\r\n")
    assert request == Request("GET", "/a", {"accept": "x, y"}, query="b")


async def test_a_head_that_is_too_long(server):
    reply = await exchange(server, b"GET /healthz HTTP/1.1\r\nX: " + b"a" * 2 * MAX_HEAD)
    assert reply.startswith(b"HTTP/1.1 431 ")


async def test_a_client_that_leaves_early_harms_nobody(server):
    _, writer = await asyncio.open_connection("127.0.0.1", server.address.port)
    writer.write(b"GET /hea")
    writer.close()
    await writer.wait_closed()
    assert b"200 OK" in await exchange(server, b"GET /healthz HTTP/1.1\r\n\r\n")


@pytest.mark.parametrize(("said", "told"), [(b"GET /healthz", b"HTTP/1.1 408 "), (b"G", b"HTTP/1.1 408 "), (b"", b"")])
async def test_a_client_that_does_not_ask_is_dropped_and_told_so_if_it_had_begun(said, told):
    """A browser opens connections ahead, and would take a 408 for the answer to what it asks next."""
    server = StatusServer(ROUTES, deadline=0.1)
    server.address = await server.start(LOCAL)  # type: ignore[attr-defined]
    reader, writer = await asyncio.open_connection("127.0.0.1", server.address.port)  # type: ignore[attr-defined]
    writer.write(said)
    reply = await asyncio.wait_for(reader.read(), 60)
    assert reply[: len(told) or None] == told
    writer.close()
    await server.close()


async def silent(server, count: int, source: str):
    """Connections that say nothing, from an address of this machine that stands for another one."""
    return [
        await asyncio.open_connection("127.0.0.1", server.address.port, local_addr=(source, 0)) for _ in range(count)
    ]


@pytest.fixture
def abroad(monkeypatch):
    """Only 127.0.0.1 is this machine: 127.x.y.z are other ones."""
    monkeypatch.setattr(http, "connection_from", lambda peer, _here, _node: PeerConnection(peer, peer == "127.0.0.1"))


@pytest.mark.parametrize("sources", [1, 20], ids=["of one", "of many"])
async def test_silent_connections_take_the_page_from_nobody(server, abroad, sources):
    """32 of them took ``/healthz`` from the kubelet, which then restarted the pod."""
    idle = []
    for number in range(sources):
        idle += await silent(server, 400 // sources, f"127.9.0.{number + 1}")
    await eventually(
        lambda: len(server._open) == (connection_limits.MOST_OF_PEER if sources == 1 else connection_limits.MOST)
    )
    for source in ("127.0.0.1", "127.9.0.1", "127.8.0.1"):
        reader, writer = await asyncio.open_connection("127.0.0.1", server.address.port, local_addr=(source, 0))
        writer.write(b"GET /healthz HTTP/1.1\r\n\r\n")
        assert b"200 OK" in await asyncio.wait_for(reader.read(), 60)
        writer.close()
    for _, writer in idle:
        writer.close()
    await eventually(lambda: not server._open)


async def test_clients_that_do_not_take_their_answer_take_the_page_from_nobody(abroad):
    """64 of them, of four pods, had every scrape refused for as long as an answer may take."""
    server = StatusServer({"/large": lambda: Response(200, "x" * 8_000_000), **ROUTES}, deadline=60, patience=60)
    server.address = await server.start(LOCAL)  # type: ignore[attr-defined]
    slow = [
        one
        for number in range(4)
        for one in await silent(server, connection_limits.MOST_OF_PEER, f"127.9.0.{number + 1}")
    ]
    for _, writer in slow:
        writer.transport.pause_reading()
        writer.write(b"GET /large HTTP/1.1\r\n\r\n")
    await eventually(lambda: sum(one.sending and not one.answered for one in server._open) == connection_limits.MOST)
    reader, writer = await asyncio.open_connection("127.0.0.1", server.address.port, local_addr=("127.8.0.1", 0))  # type: ignore[attr-defined]
    writer.write(b"GET /healthz HTTP/1.1\r\n\r\n")
    assert b"200 OK" in await asyncio.wait_for(reader.read(), 60)
    for _, one in (*slow, (reader, writer)):
        one.close()
    await server.close()


async def test_where_everybody_waits_for_an_answer_the_next_one_is_told(server, abroad):
    for one in range(connection_limits.MOST):
        server._open[PeerConnection(f"127.9.1.{one}", own=False, asked=True)] = asyncio.create_task(asyncio.sleep(60))
    reader, writer = await asyncio.open_connection("127.0.0.1", server.address.port, local_addr=("127.7.0.1", 0))
    writer.write(b"GET /healthz HTTP/1.1\r\n\r\n")
    assert (await asyncio.wait_for(reader.read(), 60)).startswith(b"HTTP/1.1 503 ")
    assert b"200 OK" in await exchange(server, b"GET /healthz HTTP/1.1\r\n\r\n"), "the node has room of its own"
    writer.close()


@pytest.mark.parametrize(("peer", "status"), [("127.0.0.1", b"200"), ("10.0.0.1", b"403")])
async def test_a_page_for_this_machine_alone(monkeypatch, peer, status):
    server = StatusServer({"/statusz": local_only(lambda: Response(200, "all"))})
    monkeypatch.setattr(http, "_host", lambda _name: peer)
    server.address = await server.start(LOCAL)  # type: ignore[attr-defined]
    assert (await exchange(server, b"GET /statusz HTTP/1.1\r\n\r\n")).startswith(b"HTTP/1.1 " + status)
    await server.close()


async def test_close_drops_open_connections():
    server = StatusServer(ROUTES)
    address = await server.start(LOCAL)
    reader, writer = await asyncio.open_connection("127.0.0.1", address.port)
    await eventually(lambda: len(server._open) == 1)
    await server.close()
    assert await asyncio.wait_for(reader.read(), 60) == b""
    writer.close()


async def test_an_address_in_use_is_an_error_in_three_parts(server):
    with pytest.raises(HostError, match="can't listen on"):
        await StatusServer(ROUTES).start(server.address)


@given(st.binary(max_size=200))
def test_any_head_has_an_answer(head):
    response, with_body = asyncio.run(answer(head, ROUTES))
    assert encode(response, with_body=with_body).startswith(b"HTTP/1.1 ")
    assert response.status in {200, 400, 404, 405, 500, 505}


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("127.0.0.1:8080", Address("127.0.0.1", 8080)),
        (":0", Address("", 0)),
        ("[::1]:80", Address("::1", 80)),
        ("localhost:1", Address("localhost", 1)),
    ],
)
def test_addresses(text, address):
    assert parse_address(text) == address


@pytest.mark.parametrize("text", ["", "8080", "host:", "host:http", "host:65536", "::1:80", "host:-1", "host:\u0661"])
def test_wrong_addresses(text):
    with pytest.raises(ConfigError, match="HOST:PORT"):
        parse_address(text)


async def test_a_page_may_wait_while_others_are_answered():
    gate = asyncio.Event()

    async def slow(request: Request) -> Response:
        await gate.wait()
        return Response(200, request.query)

    server = StatusServer({"/slow": AwaitedPage(slow), "/now": lambda: Response(200, "here")})
    address = await server.start(Address("127.0.0.1", 0))
    try:
        reader, writer = await asyncio.open_connection("127.0.0.1", address.port)
        writer.write(b"GET /slow?since=1 HTTP/1.1\r\n\r\n")
        other, second = await asyncio.open_connection("127.0.0.1", address.port)
        second.write(b"GET /now HTTP/1.1\r\n\r\n")
        assert (await other.read()).endswith(b"here")
        gate.set()
        assert (await reader.read()).endswith(b"since=1")
        writer.close()
        second.close()
    finally:
        await server.close()


@pytest.mark.parametrize(
    ("query", "value", "number"),
    [
        ("", "", 7),
        ("a=5", "5", 5),
        ("b=1&a=6&a=9", "6", 6),
        ("a=%C3%A9+x", "é x", 7),
        ("a=", "", 7),
        ("a=-1", "-1", 7),
        ("a=" + "9" * 12, "9" * 12, 7),
        ("a=%D9%A3", "\u0663", 7),
        ("a=5&" + "&".join(f"x{at}=1" for at in range(200)), "", 7),
    ],
)
def test_values_of_a_query(query: str, value: str, number: int) -> None:
    request = Request("GET", "/", query=query)
    assert (request.value("a"), request.number("a", 7)) == (value, number)


@given(st.text())
def test_no_query_is_too_strange(query: str) -> None:
    request = Request("GET", "/", query=query)
    assert isinstance(request.value("a"), str)
    assert request.number("a", 7) >= 0


class Pieces:
    """A stream of pieces that a test sends, and whether it was closed."""

    def __init__(self) -> None:
        self.queue: asyncio.Queue[bytes | None] = asyncio.Queue()
        self.closed = asyncio.Event()

    async def __call__(self, request: Request) -> Stream:
        assert request.method == "GET"
        return Stream(self._pieces(), "text/event-stream")

    async def _pieces(self):
        try:
            while (piece := await self.queue.get()) is not None:
                yield piece
        finally:
            self.closed.set()


async def test_an_answer_goes_on_until_it_ends_or_its_client_goes():
    first, second = Pieces(), Pieces()
    server = StatusServer({"/first": StreamedPage(first), "/second": StreamedPage(second)}, access=OpenAccess())
    address = await server.start(LOCAL)
    try:
        reader, writer = await asyncio.open_connection("127.0.0.1", address.port)
        writer.write(b"GET /first HTTP/1.1\r\n\r\n")
        head = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), 60)
        assert b"Content-Length" not in head
        assert b"Content-Type: text/event-stream\r\n" in head
        first.queue.put_nowait(b"one")
        assert await asyncio.wait_for(reader.readexactly(3), 60) == b"one"
        first.queue.put_nowait(b"two")
        first.queue.put_nowait(None)
        assert await asyncio.wait_for(reader.read(), 60) == b"two"
        writer.close()
        reader, writer = await asyncio.open_connection("127.0.0.1", address.port)
        writer.write(b"GET /second HTTP/1.1\r\n\r\n")
        second.queue.put_nowait(b"one")
        await asyncio.wait_for(reader.readuntil(b"one"), 60)
        writer.close()
        await asyncio.wait_for(second.closed.wait(), 60)
    finally:
        await server.close()


async def test_a_client_that_takes_no_piece_within_the_patience_is_dropped():
    pieces = Pieces()
    server = StatusServer({"/": StreamedPage(pieces)}, patience=0.05)
    address = await server.start(LOCAL)
    _, writer = await asyncio.open_connection("127.0.0.1", address.port, limit=1024)
    try:
        writer.write(b"GET / HTTP/1.1\r\n\r\n")
        pieces.queue.put_nowait(b"x" * (64 << 20))
        await asyncio.wait_for(pieces.closed.wait(), 60)
    finally:
        writer.transport.abort()
        await server.close()


async def test_a_stream_ends_with_the_server():
    pieces = Pieces()
    server = StatusServer({"/": StreamedPage(pieces)})
    address = await server.start(LOCAL)
    reader, writer = await asyncio.open_connection("127.0.0.1", address.port)
    writer.write(b"GET / HTTP/1.1\r\n\r\n")
    pieces.queue.put_nowait(b"one")
    await asyncio.wait_for(reader.readuntil(b"one"), 60)
    await server.close()
    assert pieces.closed.is_set()
    writer.close()


@pytest.mark.parametrize(
    ("request_head", "status"),
    [
        (b"POST /form HTTP/1.1\r\nContent-Length: 3\r\n\r\nabc", 200),
        (b"POST /form HTTP/1.1\r\nContent-Length: 0\r\n\r\n", 200),
        (b"POST /form HTTP/1.1\r\nContent-Length: 5\r\n\r\nabcde", 413),
        (b"POST /form HTTP/1.1\r\nContent-Length: 99999999999999999999\r\n\r\n", 413),
        (b"POST /form HTTP/1.1\r\n\r\n", 411),
        (b"POST /form HTTP/1.1\r\nContent-Length: -1\r\n\r\n", 411),
        (b"POST /form HTTP/1.1\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\nab", 411),
        (b"POST /form HTTP/1.1\r\nContent-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\nabc", 411),
        (b"GET /form HTTP/1.1\r\n\r\n", 405),
        (b"PUT /form HTTP/1.1\r\nContent-Length: 0\r\n\r\n", 405),
        (b"HEAD /stream HTTP/1.1\r\n\r\n", 405),
    ],
)
async def test_a_form_is_taken_where_a_page_takes_one(request_head, status):
    async def form(request: Request) -> Response:
        return Response(200, request.body)

    server = StatusServer({"/form": PostedPage(form, most=4), "/stream": StreamedPage(Pieces())})
    server.address = await server.start(LOCAL)  # type: ignore[attr-defined]
    try:
        reply = await exchange(server, request_head)
        head, _, body = reply.partition(b"\r\n\r\n")
        assert head.split()[1] == str(status).encode()
        if status == 200:
            assert body == request_head.partition(b"\r\n\r\n")[2]
    finally:
        await server.close()


async def test_a_body_that_does_not_come_is_not_waited_for():
    async def form(request: Request) -> Response:
        return Response(200, request.body)

    server = StatusServer({"/form": PostedPage(form)}, deadline=0.05)
    server.address = await server.start(LOCAL)  # type: ignore[attr-defined]
    try:
        reply = await exchange(server, b"POST /form HTTP/1.1\r\nContent-Length: 3\r\n\r\nab")
        assert reply.startswith(b"HTTP/1.1 408 ")
    finally:
        await server.close()
