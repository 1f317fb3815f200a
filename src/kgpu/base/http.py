"""Answers requests for a handful of fixed paths: enough for probes, scrapers, a person with curl, and one live page.

Only GET, except where a route takes a POST.

A web framework would cost 6 MB of memory; this costs nothing beyond asyncio. Promises: a request's head is at
most 8 KiB and must arrive within the deadline, the TLS handshake included; the number of open connections is bounded,
and silent ones are dropped first (``connection_limits``); every connection carries one request; nothing that a client
sends reaches a log or a file. An ``AccessPolicy`` decides at every connection who is let in and with which certificate,
so both can change while the server runs.
"""

from __future__ import annotations

import asyncio
import logging
import re
import socket
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeAlias

from kgpu.base.connection_limits import ROOM, PeerConnection, connection_from, make_room, node_addresses
from kgpu.base.errors import ConfigError, HostError
from kgpu.base.service import end

if TYPE_CHECKING:
    from ssl import SSLContext

log = logging.getLogger(__name__)

MAX_HEAD: Final = 8192
MAX_FIELDS: Final = 32  # of a query
BACKLOG: Final = 128
REFUSED_AT_ONCE: Final = 16  # connections that are being told that there is no room
DEADLINE: Final = 5.0  # seconds for a request to arrive
LINGER: Final = 1.0  # seconds for a client to take its answer and close

REASONS: Final = {
    200: "OK",
    303: "See Other",
    400: "Bad Request",
    401: "Unauthorized",
    403: "Forbidden",
    404: "Not Found",
    405: "Method Not Allowed",
    408: "Request Timeout",
    411: "Length Required",
    413: "Content Too Large",
    431: "Request Header Fields Too Large",
    500: "Internal Server Error",
    503: "Service Unavailable",
    505: "HTTP Version Not Supported",
}
_NO_REQUEST: Final = "this is not an HTTP request\n"
_REQUEST_LINE: Final = re.compile(rb"(?P<method>[A-Z]{1,16}) (?P<path>/[\x21-\x7e]*) (?P<version>HTTP/\d\.\d)")


Headers: TypeAlias = tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class Request:
    """What was asked: the path, and its query apart; headers by name in lower case, several of a name joined by commas.

    ``certificate`` is the client's as ``SSLSocket.getpeercert`` has it, None where none was shown. ``local``: it came
    over the loopback interface.
    """

    method: str
    path: str
    headers: Mapping[str, str] = field(default_factory=dict)
    certificate: Mapping[str, Any] | None = None
    local: bool = False
    query: str = ""
    body: bytes = b""

    def value(self, name: str) -> str:
        """A value of the query, the first of several; "" where there is none, or the query can't be read."""
        from urllib.parse import parse_qs

        try:
            return parse_qs(self.query, max_num_fields=MAX_FIELDS).get(name, [""])[0]
        except ValueError:
            return ""

    def number(self, name: str, otherwise: int) -> int:
        """The same as a whole number."""
        value = self.value(name)
        return int(value) if value.isascii() and value.isdecimal() and len(value) < 12 else otherwise


@dataclass(frozen=True, slots=True)
class Response:
    """What to answer."""

    status: int
    body: str | bytes
    content_type: str = "text/plain; charset=utf-8"
    headers: Headers = ()


@dataclass(frozen=True, slots=True)
class Stream:
    """An answer that goes on until ``pieces`` ends or the client goes. A client that does not take a piece within the
    server's patience is dropped; ``pieces`` is closed either way.
    """

    pieces: AsyncGenerator[bytes]
    content_type: str


@dataclass(frozen=True, slots=True)
class DynamicPage:
    """A page that depends on the request, such as on the formats that the client takes."""

    page: Callable[[Request], Response]


@dataclass(frozen=True, slots=True)
class AwaitedPage:
    """A page that waits for something, such as a disk, and leaves the loop to others meanwhile."""

    page: Callable[[Request], Awaitable[Response]]


@dataclass(frozen=True, slots=True)
class StreamedPage:
    """A page whose answer may go on for as long as the client stays."""

    page: Callable[[Request], Awaitable[Response | Stream]]


@dataclass(frozen=True, slots=True)
class PostedPage:
    """Takes a POST whose body has at most ``most`` bytes, and nothing else."""

    page: Callable[[Request], Awaitable[Response]]
    most: int = 4096


def local_only(page: Callable[[], Response]) -> DynamicPage:
    """A page that only clients on this machine, or in this pod, may see: it tells more than others should know."""
    refused = Response(403, "this page is for this machine alone; for a pod: kubectl port-forward, or kubectl exec\n")
    return DynamicPage(lambda request: page() if request.local else refused)


Page: TypeAlias = Callable[[], Response] | DynamicPage | AwaitedPage | StreamedPage | PostedPage
Routes: TypeAlias = Mapping[str, Page]


class AccessPolicy(Protocol):
    """Decides who is let in. Called for each connection."""

    def tls(self) -> SSLContext | None:
        """The connection's TLS context, None for plain HTTP."""
        ...

    async def refuse(self, request: Request) -> Response | None:
        """The response to a request that is refused, None to let it through."""
        ...

    def headers(self) -> Headers:
        """Headers of every answer."""
        ...


class OpenAccess:
    """Lets everybody in, in plain HTTP."""

    def tls(self) -> SSLContext | None:
        return None

    async def refuse(self, request: Request) -> Response | None:  # noqa: ARG002 - the port's
        return None

    def headers(self) -> Headers:
        return ()


@dataclass(frozen=True, slots=True)
class Address:
    """Where to listen; an IPv6 host is without brackets. Port 0 takes a free one."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def parse_address(text: str, *, flag: str = "--health-address") -> Address:
    """``127.0.0.1:8080``, ``[::1]:8080`` or ``:8080`` (every interface). Raises ConfigError, which names ``flag``."""
    host, colon, port = text.rpartition(":")
    bracketed = host.startswith("[") and host.endswith("]")
    if not colon or not port.isascii() or not port.isdigit() or int(port) > 65535 or (":" in host and not bracketed):
        raise ConfigError(
            f'"{text}" is not an address to listen on',
            "HOST:PORT, for example 127.0.0.1:8080",
            f"correct {flag}",
        )
    return Address(host.strip("[]"), int(port))


def parse(head: bytes) -> Request | Response:
    """The request in this head, or the response to a head that is no request. Malformed header lines are ignored."""
    first, *rest = head.split(b"\r\n")
    line = _REQUEST_LINE.fullmatch(first)
    if line is None:
        return Response(400, _NO_REQUEST)
    if line["version"] not in {b"HTTP/1.0", b"HTTP/1.1"}:
        return Response(505, "only HTTP/1.0 and HTTP/1.1\n")
    headers: dict[str, str] = {}
    for name, colon, value in (row.decode("latin-1").partition(":") for row in rest):
        if colon and name and name == name.strip():
            key = name.lower()
            headers[key] = (f"{headers[key]}, " if key in headers else "") + value.strip(" \t")
    path, _, query = line["path"].decode("ascii").partition("?")
    return Request(line["method"].decode("ascii"), path, headers, query=query)


def _methods(route: Page | None) -> tuple[str, ...]:
    return ("POST",) if isinstance(route, PostedPage) else ("GET",) if isinstance(route, StreamedPage) else _READING


_READING: Final = ("GET", "HEAD")


async def reply(request: Request, routes: Routes) -> Response | Stream:
    """The page that was asked for."""
    route = routes.get(request.path)
    if request.method not in (methods := _methods(route)):
        return Response(405, f"only {' and '.join(methods)}\n", headers=(("Allow", ", ".join(methods)),))
    if route is None:
        return Response(404, f"there is: {' '.join(routes)}\n")
    try:
        if isinstance(route, AwaitedPage | StreamedPage | PostedPage):
            return await route.page(request)
        return route.page(request) if isinstance(route, DynamicPage) else route()
    except Exception:
        log.exception("a page failed")
        return Response(500, "this page failed; see the log\n")


async def answer(head: bytes, routes: Routes) -> tuple[Response | Stream, bool]:
    """The answer to a request's head, and whether its body is to be sent (not for HEAD)."""
    request = parse(head)
    if isinstance(request, Response):
        return request, True
    return await reply(request, routes), request.method != "HEAD"


def encode(response: Response, *, with_body: bool, more: Iterable[tuple[str, str]] = ()) -> bytes:
    """The response's bytes; ``more`` are further headers."""
    body = response.body.encode() if isinstance(response.body, str) else response.body
    lines = "".join(f"{name}: {value}\r\n" for name, value in (*response.headers, *more))
    head = (
        f"HTTP/1.1 {response.status} {REASONS[response.status]}\r\n"
        f"Content-Type: {response.content_type}\r\nContent-Length: {len(body)}\r\n{lines}"
        "Cache-Control: no-store\r\nConnection: close\r\n\r\n"
    )
    return head.encode("latin-1", "replace") + (body if with_body else b"")


def encode_head(stream: Stream, more: Iterable[tuple[str, str]] = ()) -> bytes:
    """The head of an answer whose end is the connection's."""
    lines = "".join(f"{name}: {value}\r\n" for name, value in more)
    head = f"HTTP/1.1 200 OK\r\nContent-Type: {stream.content_type}\r\n{lines}"
    return f"{head}Cache-Control: no-store\r\nConnection: close\r\n\r\n".encode("latin-1", "replace")


class StatusServer:
    """Serves the routes until closed. A request has ``deadline`` seconds to arrive, its answer ``patience`` to go.

    ``room``: how many connections there may be, as in ``connection_limits``.
    """

    def __init__(
        self,
        routes: Routes,
        *,
        deadline: float = DEADLINE,
        patience: float = LINGER,
        access: AccessPolicy | None = None,
        room: tuple[int, int, int] = ROOM,
    ) -> None:
        self._routes = routes
        self._room = room
        self._deadline = deadline
        self._patience = patience
        self._access = access or OpenAccess()
        self._server: asyncio.Server | None = None
        self._open: dict[PeerConnection, asyncio.Task[None]] = {}
        self._refusals: set[asyncio.Task[None]] = set()
        self._node = node_addresses()

    async def start(self, address: Address) -> Address:
        """Listen; returns the address with the port that was taken. Raises HostError."""
        try:
            self._server = await asyncio.start_server(
                self._accept, address.host or None, address.port, limit=MAX_HEAD, backlog=BACKLOG
            )
        except OSError as error:
            raise HostError(
                f"can't listen on {address}: {error.strerror or error}",
                "a free address of this machine",
                "choose another address to listen on",
            ) from error
        return Address(address.host, self._server.sockets[0].getsockname()[1])

    async def start_on(self, listening: socket.socket) -> Address:
        """Listen on a socket that another process has opened; it is closed with the server."""
        self._server = await asyncio.start_server(self._accept, sock=listening, limit=MAX_HEAD, backlog=BACKLOG)
        name = listening.getsockname()
        return Address(str(name[0]), int(name[1])) if isinstance(name, tuple) else Address(str(name), 0)

    async def close(self) -> None:
        """Stop listening and drop what is open."""
        if self._server is not None:
            self._server.close()
        tasks = (*self._open.values(), *self._refusals)
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        peer, own = (_host(writer.get_extra_info(name)) for name in ("peername", "sockname"))
        new = connection_from(peer, own, self._node)
        stays, leaves = make_room(list(self._open), new, self._room)
        if leaves is not None:
            self._open.pop(leaves).cancel()
        elif not stays and len(self._refusals) >= REFUSED_AT_ONCE:
            writer.transport.abort()
            return
        context = self._access.tls()
        if context is not None:
            # Before the first byte is read: what has been read could not be given to the handshake any more.
            writer.transport.pause_reading()  # type: ignore[attr-defined]
        task = asyncio.create_task(self._serve(reader, writer, context, new, refuse=not stays))
        if stays:
            self._open[new] = task
            task.add_done_callback(lambda _: self._open.pop(new, None))
        else:
            self._refusals.add(task)
            task.add_done_callback(self._refusals.discard)

    async def _serve(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, context: SSLContext | None,
        client: PeerConnection, *, refuse: bool,
    ) -> None:  # fmt: skip
        response: Response | Stream = Response(503, "too many connections\n")
        with_body = True
        encrypted = context is None
        try:
            try:
                async with asyncio.timeout(self._deadline):
                    if context is not None:
                        await writer.start_tls(context)
                        encrypted = True
                    if not refuse:
                        response, with_body = await self._read(reader, writer, client)
            except TimeoutError:
                # Browsers open connections ahead. Where one is closed before it was used, they ask on another; a 408
                # they would take for the answer to what they ask next.
                if not encrypted or not client.begun:
                    return
                response = Response(408, "too slow\n")
            client.sending = True
            if isinstance(response, Stream):
                await self._stream(reader, writer, response)
                return
            await self._send(writer, encode(response, with_body=with_body, more=self._access.headers()))
            client.answered = True
            async with asyncio.timeout(LINGER):
                if writer.can_write_eof():
                    writer.write_eof()
                    # Closing on unread input would reset the connection and destroy the answer on its way.
                    while await reader.read(MAX_HEAD):
                        pass
                else:
                    writer.close()
                    await writer.wait_closed()
        except OSError:
            pass
        finally:
            writer.transport.abort()

    async def _stream(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, stream: Stream) -> None:
        """Send the pieces until they end, or the client does: it has nothing more to say than that."""
        sending = asyncio.create_task(self._send_pieces(writer, stream))
        leaving = asyncio.create_task(_read_away(reader))
        try:
            await asyncio.wait((sending, leaving), return_when=asyncio.FIRST_COMPLETED)
        finally:
            await end(sending, leaving)
            await stream.pieces.aclose()

    async def _send_pieces(self, writer: asyncio.StreamWriter, stream: Stream) -> None:
        await self._send(writer, encode_head(stream, self._access.headers()))
        async for piece in stream.pieces:
            await self._send(writer, piece)

    async def _send(self, writer: asyncio.StreamWriter, data: bytes) -> None:
        async with asyncio.timeout(self._patience):
            writer.transport.set_write_buffer_limits(high=0)
            writer.write(data)
            await writer.drain()

    async def _read(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, client: PeerConnection
    ) -> tuple[Response | Stream, bool]:
        try:
            first = await reader.readexactly(1)
            client.begun = True
            if not first.isalpha():
                return Response(400, _NO_REQUEST), True
            head = first + await reader.readuntil(b"\r\n\r\n")
        except asyncio.LimitOverrunError:
            return Response(431, f"a request's head has at most {MAX_HEAD} bytes\n"), True
        except asyncio.IncompleteReadError:
            return Response(400, "the request ended early\n"), True
        client.asked = True
        request = parse(head)
        if isinstance(request, Response):
            return request, True
        certificate = writer.get_extra_info("peercert") or None
        request = replace(request, certificate=certificate, local=client.local)
        refused = await self._access.refuse(request)
        route = self._routes.get(request.path)
        if refused is None and isinstance(route, PostedPage) and request.method == "POST":
            body = await _body(reader, request, route.most)
            if isinstance(body, Response):
                return body, True
            request = replace(request, body=body)
        return refused or await reply(request, self._routes), request.method != "HEAD"


async def _body(reader: asyncio.StreamReader, request: Request, most: int) -> bytes | Response:
    """The request's body, or why it is not taken."""
    length = request.headers.get("content-length", "")
    if not (length.isascii() and length.isdigit()) or "transfer-encoding" in request.headers:
        return Response(411, "a request with a body says by Content-Length how long that is\n")
    if len(length) > 9 or int(length) > most:
        return Response(413, f"a body has at most {most} bytes here\n")
    try:
        return await reader.readexactly(int(length))
    except asyncio.IncompleteReadError:
        return Response(400, "the request ended early\n")


async def _read_away(reader: asyncio.StreamReader) -> None:
    """Return when the other side has closed."""
    while await reader.read(MAX_HEAD):
        pass


def _host(name: Any) -> str:
    """The host of a socket's name; "" for a Unix socket's."""
    return str(name[0]) if isinstance(name, tuple) else ""
