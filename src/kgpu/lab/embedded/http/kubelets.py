"""How the API server reaches kubelets: over HTTPS with its client certificate, for a body or for a connection.

Promises: nothing is read without a bound, a kubelet that does not answer costs ``DIAL_S`` at most, and errors have the
real server's words.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import ssl
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Protocol
from urllib.parse import urlsplit

from kgpu.lab.embedded.status import ApiError, Object, bad_request

if TYPE_CHECKING:
    import httpx2

DIAL_S: Final = 30.0  # to reach a kubelet
BUFFER: Final = 64 * 1024  # bytes of an upgraded connection that are read ahead
_ERROR_BYTES: Final = 50_000  # of a kubelet's refusal that are read
_SWITCHED: Final = 101
_REASONS: Final = {
    401: "Unauthorized", 403: "Forbidden", 404: "NotFound", 405: "MethodNotAllowed", 409: "Conflict",
    503: "ServiceUnavailable",
}  # fmt: skip
_SENTENCES: Final = {
    401: "the server has asked for the client to provide credentials",
    404: "the server could not find the requested resource",
    503: "the server is currently unable to handle the request",
}


@dataclass(frozen=True, slots=True)
class UpgradedKubelet:
    """A connection that a kubelet has upgraded: the head of its answer, then whatever the new protocol says."""

    head: bytes
    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter


class UpgradeRefusedError(Exception):
    """A kubelet's answer to an upgrade that it does not make."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(text)
        self.status = status
        self.text = text


class Kubelets(Protocol):
    """How kubelets are reached."""

    async def open(self, url: str) -> tuple[int, AsyncIterator[bytes], Callable[[], Any]]:
        """(status, body, close) of a GET. Raises OSError if the kubelet does not answer."""
        ...

    async def upgrade(self, url: str, headers: Mapping[str, str]) -> UpgradedKubelet:
        """A GET that asks for another protocol. Raises OSError without an answer, UpgradeRefusedError."""
        ...

    async def close(self) -> None:
        """End every call."""
        ...


class HttpsKubelets:
    """Over HTTPS, with the API server's client certificate."""

    def __init__(self, context: Callable[[], ssl.SSLContext]) -> None:
        """``context`` is called at the first call to a kubelet."""
        self._make_context = context
        self._kept: ssl.SSLContext | None = None
        self._client: httpx2.AsyncClient | None = None

    def _context(self) -> ssl.SSLContext:
        if self._kept is None:
            self._kept = self._make_context()
        return self._kept

    async def open(self, url: str) -> tuple[int, AsyncIterator[bytes], Callable[[], Any]]:
        import httpx2

        if self._client is None:
            timeout = httpx2.Timeout(None, connect=DIAL_S)
            limits = httpx2.Limits(max_connections=None, max_keepalive_connections=20)
            self._client = httpx2.AsyncClient(
                verify=self._context(), timeout=timeout, limits=limits, trust_env=False, follow_redirects=False
            )
        try:
            # The beginning of the answer has a deadline; with ``follow`` its end may be far off.
            async with asyncio.timeout(DIAL_S):
                answer = await self._client.send(self._client.build_request("GET", url), stream=True)
        except (httpx2.HTTPError, TimeoutError) as error:
            raise OSError(f'Get "{url}": {str(error) or "context deadline exceeded"}') from error
        return answer.status_code, _whole(answer), answer.aclose

    async def upgrade(self, url: str, headers: Mapping[str, str]) -> UpgradedKubelet:
        place = urlsplit(url)
        lines = [f"GET {place.path}?{place.query} HTTP/1.1", f"Host: {place.netloc}"]
        lines += [f"{name}: {value}" for name, value in headers.items()]
        async with contextlib.AsyncExitStack() as undo:
            try:
                async with asyncio.timeout(DIAL_S):
                    reader, writer = await asyncio.open_connection(
                        place.hostname, place.port, ssl=self._context(), limit=BUFFER
                    )
                    undo.callback(writer.transport.abort)
                    writer.write("\r\n".join((*lines, "", "")).encode("latin-1"))
                    head = await reader.readuntil(b"\r\n\r\n")
                    status = _status_of(head)
                    if status != _SWITCHED:
                        raise UpgradeRefusedError(status, await _text_after(head, reader))
            except (OSError, EOFError, asyncio.LimitOverrunError) as error:
                raise OSError(f"error dialing backend: dial tcp {place.netloc}: {_why(error)}") from error
            undo.pop_all()
        return UpgradedKubelet(head, reader, writer)

    async def close(self) -> None:
        if self._client is not None:
            await self._client.aclose()


def _status_of(head: bytes) -> int:
    words = head.split(b" ", 2)
    return int(words[1]) if len(words) > 1 and words[1].isdigit() else 502


async def _text_after(head: bytes, reader: asyncio.StreamReader) -> str:
    """The body of a refusal as far as it is read."""
    lines = head.decode("latin-1").lower().split("\r\n")
    length = next((line.partition(":")[2].strip() for line in lines if line.startswith("content-length:")), "0")
    size = min(int(length) if length.isdigit() else 0, _ERROR_BYTES)
    return (await reader.readexactly(size)).decode("utf-8", "replace")


def _why(error: BaseException) -> str:
    """Go's words for what came in the way."""
    if isinstance(error, TimeoutError):
        return "i/o timeout"
    if isinstance(error, OSError) and error.errno:
        return f"connect: {os.strerror(error.errno).lower()}"
    return "EOF"


async def _whole(answer: httpx2.Response) -> AsyncIterator[bytes]:
    import httpx2

    try:
        async for chunk in answer.aiter_bytes():
            yield chunk
    except httpx2.HTTPError:
        return  # the kubelet went away: the log ends with what has come
    finally:
        await answer.aclose()


def kubelet_of(node: Object, preferred: Iterable[str] = ("InternalIP", "ExternalIP", "Hostname")) -> tuple[str, int]:
    """(host, port) of a node's kubelet. Raises ApiError 500."""
    status = node.get("status") or {}
    addresses = {address.get("type"): str(address.get("address")) for address in status.get("addresses") or ()}
    host = next((addresses[kind] for kind in preferred if addresses.get(kind)), "")
    if not host:
        raise internal(f"no preferred addresses found; known addresses: {sorted(map(str, addresses))}")
    port = ((status.get("daemonEndpoints") or {}).get("kubeletEndpoint") or {}).get("Port") or 10250
    return host, int(port)


def internal(why: str) -> ApiError:
    """500, worded as the real server does."""
    message = f"Internal error occurred: {why}"
    return ApiError(500, "InternalError", message, {"causes": [{"message": why}]})


def url_of_kubelet(node_name: str, find_node: Callable[[str], Object | None]) -> str:
    """``https://HOST:PORT`` of a node's kubelet. Raises ApiError 404 and 500."""
    node = find_node(node_name)
    if node is None:
        raise ApiError(404, "NotFound", f'nodes "{node_name}" not found', {"name": node_name, "kind": "nodes"})
    host, port = kubelet_of(node)
    return f"https://[{host}]:{port}" if ":" in host else f"https://{host}:{port}"


async def read_refusal(status: int, body: AsyncIterator[bytes], resource: str, name: str) -> ApiError:
    """The error of a kubelet's refusal that comes in pieces."""
    data = b""
    async for chunk in body:
        data += chunk
        if len(data) > _ERROR_BYTES:
            break
    return refusal(status, data[:_ERROR_BYTES].decode("utf-8", "replace"), resource, name)


def refusal(status: int, text: str, resource: str, name: str) -> ApiError:
    """The error of a kubelet's refusal; ``resource`` is what was asked for, such as ``pods/log``."""
    if status == 500:
        return internal(text)
    if status == 400:
        return bad_request(text)
    message = f"{_SENTENCES.get(status, text or 'unknown')} ( {resource} {name})"
    causes = [{"reason": "UnexpectedServerResponse", "message": text}]
    return ApiError(
        status, _REASONS.get(status, "Unknown"), message, {"name": name, "kind": resource, "causes": causes}
    )
