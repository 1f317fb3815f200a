"""Answers GET requests for a handful of fixed paths: enough for probes and for a person with curl.

A whole web server costs 6 MB of a process's memory; this costs nothing beyond asyncio. Promises: a request's head is at
most 8 KiB and must arrive within the deadline; at most ``MAX_CONNECTIONS`` are open; every connection carries one
request; nothing that a client sends reaches a log or a file.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final, TypeAlias

from kgpu.base.errors import ConfigError, HostError

log = logging.getLogger(__name__)

MAX_HEAD: Final = 8192
MAX_CONNECTIONS: Final = 32
DEADLINE: Final = 5.0  # seconds for a request to arrive
LINGER: Final = 1.0  # seconds for a client to take its answer and close

REASONS: Final = {
    200: "OK",
    400: "Bad Request",
    404: "Not Found",
    405: "Method Not Allowed",
    408: "Request Timeout",
    431: "Request Header Fields Too Large",
    500: "Internal Server Error",
    503: "Service Unavailable",
    505: "HTTP Version Not Supported",
}
_REQUEST_LINE: Final = re.compile(rb"(?P<method>[A-Z]{1,16}) (?P<path>/[\x21-\x7e]*) (?P<version>HTTP/\d\.\d)")


@dataclass(frozen=True, slots=True)
class Response:
    """What to answer."""

    status: int
    body: str
    content_type: str = "text/plain; charset=utf-8"


Routes: TypeAlias = Mapping[str, Callable[[], Response]]


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


def answer(head: bytes, routes: Routes) -> tuple[Response, bool]:
    """The answer to a request's head, and whether its body is to be sent (not for HEAD)."""
    line = _REQUEST_LINE.fullmatch(head.split(b"\r\n", 1)[0])
    if line is None:
        return Response(400, "this is not an HTTP request\n"), True
    if line["version"] not in {b"HTTP/1.0", b"HTTP/1.1"}:
        return Response(505, "only HTTP/1.0 and HTTP/1.1\n"), True
    if line["method"] not in {b"GET", b"HEAD"}:
        return Response(405, "only GET and HEAD\n"), True
    with_body = line["method"] == b"GET"
    route = routes.get(line["path"].decode("ascii").split("?", 1)[0])
    if route is None:
        return Response(404, f"there is: {' '.join(routes)}\n"), with_body
    try:
        return route(), with_body
    except Exception:
        log.exception("a status page failed")
        return Response(500, "this page failed; see the log\n"), with_body


def encode(response: Response, *, with_body: bool) -> bytes:
    """The response's bytes."""
    body = response.body.encode()
    allow = "Allow: GET, HEAD\r\n" if response.status == 405 else ""
    head = (
        f"HTTP/1.1 {response.status} {REASONS[response.status]}\r\n"
        f"Content-Type: {response.content_type}\r\nContent-Length: {len(body)}\r\n{allow}"
        "Cache-Control: no-store\r\nConnection: close\r\n\r\n"
    )
    return head.encode() + (body if with_body else b"")


class StatusServer:
    """Serves the routes until closed."""

    def __init__(self, routes: Routes, *, deadline: float = DEADLINE) -> None:
        self._routes = routes
        self._deadline = deadline
        self._server: asyncio.Server | None = None
        self._open: set[asyncio.Task[None]] = set()

    async def start(self, address: Address) -> Address:
        """Listen; returns the address with the port that was taken. Raises HostError."""
        try:
            self._server = await asyncio.start_server(
                self._accept, address.host or None, address.port, limit=MAX_HEAD, backlog=MAX_CONNECTIONS
            )
        except OSError as error:
            raise HostError(
                f"can't listen on {address}: {error.strerror or error}",
                "a free address of this machine",
                "choose another address to listen on",
            ) from error
        return Address(address.host, self._server.sockets[0].getsockname()[1])

    async def close(self) -> None:
        """Stop listening and drop what is open."""
        if self._server is not None:
            self._server.close()
        for task in tuple(self._open):
            task.cancel()
        if self._open:
            await asyncio.wait(tuple(self._open))

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if len(self._open) >= 2 * MAX_CONNECTIONS:
            writer.transport.abort()
            return
        task = asyncio.create_task(self._serve(reader, writer, refuse=len(self._open) >= MAX_CONNECTIONS))
        self._open.add(task)
        task.add_done_callback(self._open.discard)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, refuse: bool) -> None:
        response, with_body = Response(503, "too many connections\n"), True
        try:
            try:
                async with asyncio.timeout(self._deadline):
                    if not refuse:
                        response, with_body = await self._read(reader)
            except TimeoutError:
                response = Response(408, "too slow\n")
            async with asyncio.timeout(LINGER):
                writer.write(encode(response, with_body=with_body))
                writer.write_eof()
                # Closing on unread input would reset the connection and destroy the answer on its way.
                while await reader.read(MAX_HEAD):
                    pass
        except OSError:
            pass
        finally:
            writer.transport.abort()

    async def _read(self, reader: asyncio.StreamReader) -> tuple[Response, bool]:
        try:
            head = await reader.readuntil(b"\r\n\r\n")
        except asyncio.LimitOverrunError:
            return Response(431, f"a request's head has at most {MAX_HEAD} bytes\n"), True
        except asyncio.IncompleteReadError:
            return Response(400, "the request ended early\n"), True
        return answer(head, self._routes)
