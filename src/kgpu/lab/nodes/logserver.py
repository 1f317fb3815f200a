"""The kubelets' HTTPS end for the API server: logs of, commands in and use by containers of every node, on one port.

A caller shows a client certificate that the cluster's CA has signed, or the token that lies beside the key. Anything
else gets 401. HTTP/1.1 as far as the API server and a person with curl need it.
"""

from __future__ import annotations

import asyncio
import contextlib
import datetime as dt
import hmac
import ipaddress
import logging
import secrets
import ssl
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final
from urllib.parse import parse_qs, parse_qsl, unquote, urlsplit

from kgpu.base.files import write_atomic
from kgpu.lab.nodes import logs
from kgpu.lab.nodes.reachable import PodPlace
from kgpu.lab.nodes.runtime import Running

log = logging.getLogger(__name__)

HEAD_LIMIT: Final = 65536
IDLE_S: Final = 300.0
TOKEN_FILE: Final = "token"  # noqa: S105 - a file's name
_WORDS: Final = {
    200: "OK",
    400: "Bad Request",
    401: "Unauthorized",
    404: "Not Found",
    405: "Method Not Allowed",
    500: "Internal Server Error",
}


@dataclass(frozen=True, slots=True)
class ContainerLog:
    """A container's log file, and whether it will not grow any more."""

    path: Path
    ended: Callable[[], bool]


@dataclass(frozen=True, slots=True)
class LogRefusal:
    """Why there is no log, or no container to run a command in: the HTTP status and the kubelet's words."""

    code: int
    text: str


Finder = Callable[[str, str, str, bool], ContainerLog | LogRefusal]
"""(namespace, pod, container, previous) -> the log, or why there is none."""
RunningFinder = Callable[[str, str, str], Running | LogRefusal]
"""(namespace, pod, container) -> the container that runs, or why there is none."""

PlaceFinder = Callable[[str, str], PodPlace | LogRefusal]
"""(namespace, pod) -> where its ports are reached, or why they can't be."""

UsageReader = Callable[[], Awaitable[bytes]]
"""What all nodes and their containers use now; ``usage.document``."""


class LogServer:
    """Serves ``/containerLogs/NAMESPACE/POD/CONTAINER``, ``/exec/...``, ``/portForward/NAMESPACE/POD`` and ``/usage``
    on ``address``.

    Port 0 picks one. A kubelet has its own node's use at ``/metrics/resource``; here all nodes share a port.
    """

    def __init__(
        self, folder: Path, address: str, ca: bytes, *, find: Finder, find_running: RunningFinder,
        find_place: PlaceFinder, usage: UsageReader,
    ) -> None:  # fmt: skip
        self._folder = folder
        self._address = address
        self._ca = ca
        self._find = find
        self._find_running = find_running
        self._find_place = find_place
        self._usage = usage
        self._token = ""
        self._server: asyncio.Server | None = None
        self._calls: set[asyncio.Task[None]] = set()
        self.port = 0

    async def start(self, port: int = 0) -> None:
        """Listen. Raises OSError."""
        cert, key = make_certificate(self._folder, self._address)
        self._token = read_token(self._folder)
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        context.load_cert_chain(cert, key)
        if self._ca:
            context.load_verify_locations(cadata=self._ca.decode())
            context.verify_mode = ssl.CERT_OPTIONAL
        self._server = await asyncio.start_server(self._serve, self._address, port, ssl=context, limit=HEAD_LIMIT)
        self.port = self._server.sockets[0].getsockname()[1]

    async def close(self) -> None:
        """Stop listening and hang up."""
        if self._server is not None:
            self._server.close()
        for call in self._calls:
            call.cancel()
        await asyncio.gather(*self._calls, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        call = asyncio.current_task()
        assert call is not None
        self._calls.add(call)
        try:
            with contextlib.suppress(OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError, TimeoutError):
                while await self._one(reader, writer):
                    pass
        except asyncio.CancelledError:  # it closes; asyncio would take the task's end for a defect
            pass
        except Exception as error:
            log.warning("a request to a kubelet failed: %s: %s", type(error).__name__, error)
        finally:
            self._calls.discard(call)
            with contextlib.suppress(OSError, ssl.SSLError):
                writer.transport.abort() if call.cancelling() else writer.close()

    async def _one(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        async with asyncio.timeout(IDLE_S):
            head = await reader.readuntil(b"\r\n\r\n")
        first, *lines = head.decode("latin-1").split("\r\n")
        words = first.split(" ")
        headers = {name.strip().lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
        if len(words) != 3:
            return await _answer(writer, 400, "not an HTTP request")
        if not self._allowed(writer, headers):
            return await _answer(writer, 401, "Unauthorized")
        try:
            url = urlsplit(words[1])
        except ValueError as error:
            return await _answer(writer, 400, f"not a URL: {error}")
        parts = [unquote(part) for part in url.path.strip("/").split("/")]
        if words[0] in ("GET", "POST") and len(parts) == 4 and parts[0] == "exec":
            return await self._exec(reader, writer, headers, parse_qs(url.query), parts[1:])
        if words[0] in ("GET", "POST") and len(parts) == 3 and parts[0] == "portForward":
            return await self._forward(reader, writer, headers, parts[1:])
        if words[0] != "GET":
            return await _answer(writer, 405, f"method {words[0]} is not served here")
        if url.path == "/healthz":
            return await _answer(writer, 200, "ok")
        if url.path == "/usage":
            return await _answer(writer, 200, (await self._usage()).decode())
        if len(parts) != 4 or parts[0] != "containerLogs":
            return await _answer(writer, 404, f"there is no {url.path} here")
        try:
            options = logs.parse_options(dict(parse_qsl(url.query)), time.time())
        except ValueError as error:
            return await _answer(writer, 400, f"bad query: {error}")
        container_log = self._find(parts[1], parts[2], parts[3], options.previous)
        if isinstance(container_log, LogRefusal):
            return await _answer(writer, container_log.code, container_log.text)
        try:
            logs.open_log(container_log.path).close()
        except OSError as error:
            return await _answer(writer, 500, f"the log can't be read: {error.strerror}")
        return await _stream(writer, logs.read(container_log.path, options, container_log.ended))

    async def _exec(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, headers: Mapping[str, str],
        query: Mapping[str, Sequence[str]], place: Sequence[str],
    ) -> bool:  # fmt: skip
        from kgpu.lab.nodes import streaming

        running = self._find_running(*place)
        if isinstance(running, LogRefusal) and running.code != 500:
            return await _answer(writer, running.code, running.text)
        try:
            # Why a container can't be had is told on the error channel, where the real API server puts it.
            await streaming.serve(
                reader, writer, headers, query, running.text if isinstance(running, LogRefusal) else running
            )
        except streaming.StreamRefusedError as refused:
            await _answer(writer, refused.code, str(refused))
        return False

    async def _forward(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, headers: Mapping[str, str],
        pod: Sequence[str],
    ) -> bool:  # fmt: skip
        from kgpu.lab.nodes import port_forward, streaming

        place = self._find_place(*pod)
        if isinstance(place, LogRefusal):
            return await _answer(writer, place.code, place.text)
        try:
            await port_forward.serve(reader, writer, headers, place)
        except streaming.StreamRefusedError as refused:
            await _answer(writer, refused.code, str(refused))
        return False

    def _allowed(self, writer: asyncio.StreamWriter, headers: dict[str, str]) -> bool:
        # The handshake has verified a certificate against the cluster's CA, or there was none.
        if writer.get_extra_info("peercert"):
            return True
        scheme, _, token = headers.get("authorization", "").partition(" ")
        return scheme.lower() == "bearer" and hmac.compare_digest(token.strip().encode(), self._token.encode())


async def _answer(writer: asyncio.StreamWriter, code: int, text: str) -> bool:
    body = text.encode(errors="replace")
    stays = code in {200, 404}
    head = f"HTTP/1.1 {code} {_WORDS[code]}\r\nContent-Type: text/plain\r\nContent-Length: {len(body)}\r\n"
    # Unless it is told, who has asked sends its next request into a connection that is closing.
    closing = "" if stays else "Connection: close\r\n"
    writer.write(f"{head}{closing}\r\n".encode() + body)
    await writer.drain()
    return stays


async def _stream(writer: asyncio.StreamWriter, pieces: AsyncIterator[bytes]) -> bool:
    writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nTransfer-Encoding: chunked\r\n\r\n")
    await writer.drain()
    try:
        async for piece in pieces:
            if writer.is_closing():
                return False
            if piece:  # an empty one would end the answer
                writer.write(b"%x\r\n%s\r\n" % (len(piece), piece))
                await writer.drain()
    except OSError:
        return False
    writer.write(b"0\r\n\r\n")
    await writer.drain()
    return True


def read_token(folder: Path) -> str:
    """The token that a caller may show, made on first use; mode 0600."""
    path = folder / TOKEN_FILE
    if not path.exists():
        write_atomic(path, secrets.token_urlsafe(32), mode=0o600)
    return path.read_text().strip()


def make_certificate(folder: Path, address: str) -> tuple[Path, Path]:
    """A self-signed certificate for ``address`` as the kubelet makes itself one; kept in ``folder``."""
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.x509.oid import NameOID

    cert_path, key_path = folder / f"kubelet-{address}.crt", folder / f"kubelet-{address}.key"
    if cert_path.exists() and key_path.exists():
        return cert_path, key_path
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, f"simulated-nodes@{address}")])
    now = dt.datetime.now(dt.UTC)
    cert = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - dt.timedelta(hours=1))
        .not_valid_after(now + dt.timedelta(days=3650))
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address(address))]), critical=False)
        .sign(key, hashes.SHA256())
    )
    write_atomic(
        key_path,
        key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()),
        mode=0o600,
    )
    write_atomic(cert_path, cert.public_bytes(serialization.Encoding.PEM))
    return cert_path, key_path
