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
    DynamicPage,
    OpenAccess,
    Request,
    Response,
    StatusServer,
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
    server = StatusServer(ROUTES, deadline=5)
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
        {"/": DynamicPage(lambda _: Response(200, large, "application/octet-stream"))}, access=StrictAccess()
    )
    server.address = await server.start(LOCAL)  # type: ignore[attr-defined]
    assert (await exchange(server, b"GET /nowhere HTTP/1.1\r\n\r\n")).startswith(b"HTTP/1.1 403 ")
    reply = await exchange(server, b"GET / HTTP/1.1\r\nX-Key: open\r\n\r\n")
    assert b"X-Frame-Options: deny\r\n" in reply
    assert reply.endswith(b"\r\n\r\n" + large)
    await server.close()


def test_headers_of_a_name_are_joined_and_lines_that_are_none_left_out():
    request = parse(b"GET /a?b HTTP/1.1\r\nAccept: x\r\nbad line\r\n folded: 1\r\naccept:  y \r\n\r\n")
    assert request == Request("GET", "/a", {"accept": "x, y"})


async def test_a_head_that_is_too_long(server):
    reply = await exchange(server, b"GET /healthz HTTP/1.1\r\nX: " + b"a" * 2 * MAX_HEAD)
    assert reply.startswith(b"HTTP/1.1 431 ")


async def test_a_client_that_leaves_early_harms_nobody(server):
    _, writer = await asyncio.open_connection("127.0.0.1", server.address.port)
    writer.write(b"GET /hea")
    writer.close()
    await writer.wait_closed()
    assert b"200 OK" in await exchange(server, b"GET /healthz HTTP/1.1\r\n\r\n")


async def test_a_client_that_says_nothing_is_dropped():
    server = StatusServer(ROUTES, deadline=0.1)
    server.address = await server.start(LOCAL)  # type: ignore[attr-defined]
    assert (await exchange(server, b"GET /healthz")).startswith(b"HTTP/1.1 408 ")
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
    server = StatusServer({"/large": lambda: Response(200, "x" * 8_000_000), **ROUTES}, patience=60.0)
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
    response, with_body = answer(head, ROUTES)
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
