"""A lean way to the API server for hosts of many nodes: the port's client with short calls over kept connections.

A thousand nodes renew a hundred leases a second; most of a general HTTP client's time per call is spent on what such
calls never need. Watches, and credentials that have to be fetched, stay with the general client. Proxies are not asked:
the lab's API server is on this machine.
"""

from __future__ import annotations

import asyncio
import json
import ssl
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, cast
from urllib.parse import urlencode, urlsplit

import httptools

from kgpu.kube import client
from kgpu.kube.port import KubeApi

if TYPE_CHECKING:
    import httpx2

LINES: Final = 16  # connections at the same moment


class WireError(OSError):
    """The connection broke, or what came over it is no HTTP."""


class _Line(asyncio.Protocol):
    """One connection; one request at a time."""

    def __init__(self) -> None:
        self.transport: asyncio.Transport | None = None
        self.usable = True
        self._answer: asyncio.Future[tuple[int, bytes]] | None = None
        self._body: list[bytes] = []
        self._parser: Any = None

    async def ask(self, request: bytes) -> tuple[int, bytes]:
        """Status and body. Raises WireError."""
        if self.transport is None or not self.usable:
            raise WireError("the connection was closed")
        self._answer = asyncio.get_running_loop().create_future()
        self._body = []
        self._parser = httptools.HttpResponseParser(self)
        self.transport.write(request)
        try:
            return await self._answer
        except asyncio.CancelledError:
            self.close()  # the answer may still come, and would be taken for the next one's
            raise

    def close(self) -> None:
        self.usable = False
        if self.transport is not None:
            self.transport.close()

    # --- what asyncio tells ---

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        if self._answer is None or self._answer.done():
            self.close()  # nobody asked
            return
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError as error:
            self._fail(f"no HTTP: {error}")

    def connection_lost(self, exc: Exception | None) -> None:
        self._fail(str(exc) if exc is not None else "the server closed the connection")

    def _fail(self, why: str) -> None:
        self.close()
        if self._answer is not None and not self._answer.done():
            self._answer.set_exception(WireError(why))

    # --- what the parser tells ---

    def on_body(self, body: bytes) -> None:
        self._body.append(body)

    def on_message_complete(self) -> None:
        status = self._parser.get_status_code()
        if not self._parser.should_keep_alive():
            self.close()
        if self._answer is not None and not self._answer.done() and status >= 200:
            self._answer.set_result((status, b"".join(self._body)))


class Wire:
    """Requests to one server over at most ``lines`` connections."""

    def __init__(
        self, server: str, context: ssl.SSLContext | None, headers: Mapping[str, str], *, lines: int = LINES
    ) -> None:
        """``server`` is an http or https URL; ``headers`` go with every request."""
        parts = urlsplit(server)
        self.server = server
        self._host = parts.hostname or ""
        self._port = parts.port or (443 if parts.scheme == "https" else 80)
        self._context = context if parts.scheme == "https" else None
        self._prefix = parts.path.rstrip("/")
        fixed = {"Host": parts.netloc, "Accept": "application/json", **headers}
        self._headers = "".join(f"{name}: {value}\r\n" for name, value in fixed.items())
        self._idle: list[_Line] = []
        self._room = asyncio.Semaphore(lines)

    async def request(self, method: str, target: str, body: bytes | None, content_type: str) -> tuple[int, bytes]:
        """Status and body of one call; ``target`` is path and query. Raises OSError, ssl.SSLError included."""
        about = "" if body is None else f"Content-Type: {content_type}\r\nContent-Length: {len(body)}\r\n"
        head = f"{method} {self._prefix}{target} HTTP/1.1\r\n{self._headers}{about}\r\n".encode()
        async with self._room:
            line = await self._line()
            try:
                return await line.ask(head + (body or b""))
            finally:
                if line.usable:
                    self._idle.append(line)

    async def _line(self) -> _Line:
        while self._idle:
            line = self._idle.pop()
            if line.usable:
                return line
        _, line = await asyncio.get_running_loop().create_connection(
            _Line, self._host, self._port, ssl=self._context,
            server_hostname=self._host if self._context is not None else None,
        )  # fmt: skip
        return line

    def close(self) -> None:
        """Hang up."""
        for line in self._idle:
            line.close()
        self._idle.clear()


@dataclass(frozen=True, slots=True)
class Answer:
    """What a caller of the general client looks at."""

    status_code: int
    content: bytes

    @property
    def text(self) -> str:
        """The body as text."""
        return self.content.decode(errors="replace")

    def json(self) -> Any:
        """The body as data. Raises ValueError."""
        return json.loads(self.content)


class LeanHttp:
    """Stands where the general HTTP client does: calls go over a ``Wire``, streams over the general one."""

    def __init__(self, general: httpx2.AsyncClient, wire: Wire) -> None:
        self._general = general
        self._wire = wire
        self.base_url = general.base_url
        self.stream = general.stream

    async def request(
        self, method: str, path: str, *, params: Mapping[str, str], content: bytes | None, headers: Mapping[str, str]
    ) -> Answer:
        """One call. Raises HTTPError as the general client does."""
        import httpx2

        target = f"{path}?{urlencode(params)}" if params else path
        try:
            return Answer(*await self._wire.request(method, target, content, headers.get("Content-Type", "")))
        except OSError as error:
            raise httpx2.ConnectError(str(error) or type(error).__name__) from error

    async def aclose(self) -> None:
        """Hang up."""
        self._wire.close()
        await self._general.aclose()


def connect(kubeconfig: Path) -> KubeApi:
    """A client for the kubeconfig's current context, lean where its credentials allow it. Raises KubeError."""
    usual = client.connect(str(kubeconfig))  # it says what is wrong with a bad file
    from lightkube.config.client_adapter import AsyncClient, ConnectionParams, verify_cluster
    from lightkube.config.kubeconfig import KubeConfig

    single = KubeConfig.from_file(str(kubeconfig)).get()
    user = None if single is None else single.user
    if single is None or user is None or user.exec or user.token_file or user.username or user.auth_provider:
        return usual
    context = None
    if single.cluster.server.startswith("https:"):
        context = verify_cluster(single.cluster, user, single.abs_file)
        context.set_alpn_protocols(["http/1.1"])
    headers = {"Authorization": f"Bearer {user.token}"} if user.token else {}
    lean = LeanHttp(AsyncClient(single, ConnectionParams()), Wire(single.cluster.server, context, headers))
    return client.Client(cast("httpx2.AsyncClient", lean))
