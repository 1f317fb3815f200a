"""HTTP/1.1 requests with whole answers, over kept connections: the part of a client that a fleet's labels wait for.

The client library spends about 1.6 ms of CPU on a request before and after the network, this 0.3 ms; with a thousand
Nodes to label that is the difference between seconds and the goal (docs/explanation/decisions.md). It knows only what
an API server sends to a write or a list: a status line, headers, a body by length, by chunks or up to the end, packed
with gzip where that was asked for. Everything else (watches, redirects, proxies, finding credentials) stays with the
library.
"""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import urlsplit

import msgspec

from kgpu.kube import guard

MOST_CONNECTIONS: Final = 32
_HEAD_LIMIT: Final = 64 * 1024
_BODY_LIMIT: Final = 64 * 1024 * 1024
_CLOSE_SECONDS: Final = 1.0
_FRESH: Final = 2.0
"""Seconds after an answer in which a POST takes the connection again: no server closes it so soon but to end itself."""
_NO_BODY: Final = frozenset({204, 304})


class WireError(Exception):
    """No usable answer; the message says what happened."""


class AnswerTooLongError(WireError):
    """There is more of it than the caller takes."""


class _TooLong(ValueError):  # noqa: N818 - never leaves this module
    """The same, within."""


@dataclass(frozen=True, slots=True)
class HttpAnswer:
    """A whole answer."""

    status_code: int
    content: bytes

    @property
    def text(self) -> str:
        """The body for a message."""
        return self.content.decode(errors="replace")

    def json(self) -> Any:
        """The decoded body; ValueError when it is no JSON."""
        try:
            return msgspec.json.decode(self.content)
        except (msgspec.DecodeError, RecursionError) as error:
            raise ValueError(str(error)) from error


class _Connection:
    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer
        self.used = False
        self.kept_at = 0.0

    def end(self) -> None:
        """At once: a TLS goodbye that the other side does not answer would take half a minute."""
        self.writer.transport.abort()

    @property
    def idle(self) -> bool:
        return not (self.writer.is_closing() or self.reader.at_eof())


class _Stale(Exception):  # noqa: N818 - never leaves this module
    """The server closed a kept connection before it answered a byte."""


class Wire:
    """Requests to one server. Safe to use from one asyncio loop; calls may overlap. Deadlines are the caller's."""

    def __init__(self, url: str, context: ssl.SSLContext) -> None:
        parts = urlsplit(url)
        secure = parts.scheme == "https"
        self._host = parts.hostname or "localhost"
        self._port = parts.port or (443 if secure else 80)
        self._context = context if secure else None
        self._host_header = parts.netloc.rpartition("@")[2]
        self._prefix = parts.path.rstrip("/")
        self._kept: deque[_Connection] = deque()
        self._room = asyncio.Semaphore(MOST_CONNECTIONS)
        self._closed = False

    async def request(
        self, method: str, target: str, headers: Mapping[str, str], body: bytes, *, limit: int = _BODY_LIMIT
    ) -> HttpAnswer:
        """Send and take the answer. Raises WireError. A PATCH or DELETE that met a dead kept connection is sent once
        more on a new one; a POST is not, since the server may have acted on it, and takes only a connection that was
        in use just now. ``limit`` is the answer's in bytes, also once it is unpacked. Who asks for gzip by
        ``Accept-Encoding`` gets what was packed.
        """
        lines = [f"{method} {self._prefix}{target} HTTP/1.1", f"Host: {self._host_header}"]
        lines += [f"{name}: {value}" for name, value in headers.items()]
        lines += [f"Content-Length: {len(body)}", "", ""]
        if any("\r" in line or "\n" in line for line in lines):
            raise WireError("a header or the path has a line break in it")
        message = "\r\n".join(lines).encode("latin-1", errors="replace") + body
        async with self._room:
            while True:
                connection = self._take(fresh=method == "POST")
                try:
                    return await self._exchange(connection or await self._open(), message, limit)
                except _Stale as stale:
                    if method == "POST":
                        raise WireError("the server closed the connection without an answer") from stale
                    continue  # the next one, at last a new one
                except _TooLong as error:
                    raise AnswerTooLongError(str(error)) from error
                except (OSError, EOFError, ValueError, asyncio.LimitOverrunError) as error:
                    raise WireError(f"{type(error).__name__}: {error}") from error

    async def close(self) -> None:
        """Close what is kept; what is still in use is closed when its answer has come."""
        self._closed = True
        kept = list(self._kept)
        self._kept.clear()
        for connection in kept:
            connection.end()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_CLOSE_SECONDS):
                await asyncio.gather(*(unused.writer.wait_closed() for unused in kept), return_exceptions=True)

    def _take(self, *, fresh: bool) -> _Connection | None:
        """The kept connection that was in use last; ``fresh``: only one that was so just now."""
        while self._kept:
            connection = self._kept.pop()
            if not connection.idle:
                connection.end()
            elif fresh and asyncio.get_running_loop().time() - connection.kept_at > _FRESH:
                self._kept.append(connection)
                return None
            else:
                return connection
        return None

    async def _open(self) -> _Connection:
        name = self._host if self._context is not None else None
        streams = await asyncio.open_connection(
            self._host, self._port, ssl=self._context, server_hostname=name, limit=_HEAD_LIMIT
        )
        return _Connection(*streams)

    async def _exchange(self, connection: _Connection, message: bytes, limit: int) -> HttpAnswer:
        try:
            answer, keep = await self._talk(connection, message, limit)
        except BaseException:
            connection.end()  # whatever is still to come belongs to nobody
            raise
        connection.used = True
        # A POST may have opened one more.
        if keep and connection.idle and len(self._kept) < MOST_CONNECTIONS and not self._closed:
            connection.kept_at = asyncio.get_running_loop().time()
            self._kept.append(connection)
        else:
            connection.end()
        return answer

    async def _talk(self, connection: _Connection, message: bytes, limit: int) -> tuple[HttpAnswer, bool]:
        reader = connection.reader
        if not message.startswith(b"GET "):
            guard.check()
        try:
            connection.writer.write(message)
            await connection.writer.drain()
            status, headers = await _head(reader)
        except (ConnectionError, asyncio.IncompleteReadError) as error:
            if connection.used and not getattr(error, "partial", b""):
                raise _Stale from error
            raise
        while 100 <= status < 200:
            status, headers = await _head(reader)
        keep = headers.get("connection", "").lower() != "close"
        if status in _NO_BODY:
            return HttpAnswer(status, b""), keep
        if headers.get("transfer-encoding", "").lower() == "chunked":
            body = await _chunks(reader, limit)
        elif "content-length" in headers:
            body = await reader.readexactly(_length(headers["content-length"], 10, limit))
        else:
            body, keep = await _rest(reader, limit), False
        return HttpAnswer(status, _unpacked(body, headers.get("content-encoding", ""), limit)), keep


async def _head(reader: asyncio.StreamReader) -> tuple[int, dict[str, str]]:
    lines = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
    version, _, rest = lines[0].partition(" ")
    code = rest[:3]
    if version not in {"HTTP/1.1", "HTTP/1.0"} or not (code.isascii() and code.isdigit()):
        raise ValueError(f"{lines[0][:60]!r} is no HTTP status line")
    headers = {}
    for line in lines[1:-2]:
        name, colon, value = line.partition(":")
        if colon:
            headers[name.strip().lower()] = value.strip()
    if version == "HTTP/1.0":
        headers.setdefault("connection", "close")
    return int(code), headers


async def _rest(reader: asyncio.StreamReader, limit: int) -> bytes:
    """Up to the end: a read gives what has come so far, and no more."""
    parts: list[bytes] = []
    total = 0
    while part := await reader.read(_HEAD_LIMIT):
        total += len(part)
        if total > limit:
            raise _TooLong(f"the answer has more than {limit} bytes")
        parts.append(part)
    return b"".join(parts)


async def _chunks(reader: asyncio.StreamReader, limit: int) -> bytes:
    parts: list[bytes] = []
    total = 0
    while True:
        size = _length((await reader.readuntil(b"\r\n")).split(b";")[0].strip().decode("latin-1"), 16, limit)
        if size == 0:
            while (await reader.readuntil(b"\r\n")) != b"\r\n":
                pass  # trailers
            return b"".join(parts)
        total += size
        if total > limit:
            raise _TooLong(f"the answer has more than {limit} bytes")
        parts.append(await reader.readexactly(size))
        await reader.readexactly(2)


def _unpacked(body: bytes, coding: str, limit: int) -> bytes:
    if coding.lower() in {"", "identity"}:
        return body
    if coding.lower() not in {"gzip", "x-gzip"}:
        raise ValueError(f"the answer is packed with {coding[:40]!r}")
    import zlib  # most who ask get no packed answer

    unpacking = zlib.decompressobj(wbits=zlib.MAX_WBITS | 16)
    try:
        whole = unpacking.decompress(body, limit + 1)
    except zlib.error as error:
        raise ValueError(str(error)) from error
    if len(whole) > limit:
        raise _TooLong(f"the answer has more than {limit} bytes")
    if not unpacking.eof:
        raise ValueError("the packed answer is not whole")
    return whole


def _length(text: str, base: int, limit: int) -> int:
    length = -1
    with contextlib.suppress(ValueError):
        length = int(text, base) if text.isascii() and text.isalnum() else -1
    if length < 0:
        raise ValueError(f"{text[:40]!r} is no length")
    if length > limit:
        raise _TooLong(f"the answer has more than {limit} bytes")
    return length
