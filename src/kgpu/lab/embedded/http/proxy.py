"""``pods/proxy`` and ``services/proxy``: pass a request on to a pod's own program, and its answer back.

Works as in the real server, including the headers that are added and removed, within these bounds. Only the address of
this machine that stands for a pod's fake one is reached, never another host, and there only a program of that pod,
which is checked before anything is sent. A redirect is handed on, not followed. A request's body has the usual limit;
an answer is passed on piece by piece as the client takes it, and other requests get their turn between pieces.
"""

from __future__ import annotations

import asyncio
import ipaddress
import os
import posixpath
import ssl
from collections.abc import AsyncIterable, AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Protocol
from urllib.parse import SplitResult, quote, urlsplit

from kgpu.lab.embedded.http.answers import ApiAnswer
from kgpu.lab.embedded.http.request import ApiRequest, not_there
from kgpu.lab.embedded.kinds import ApiKind
from kgpu.lab.embedded.status import ApiError, Object, bad_request

if TYPE_CHECKING:
    import httpx2

BEGIN_S: Final = 30.0  # until a pod's answer must begin
KINDS: Final = frozenset({"pods", "services"})
VERBS: Final = frozenset({"GET", "HEAD", "OPTIONS", "POST", "PUT", "PATCH", "DELETE"})
_SCHEMES: Final = frozenset({"", "http", "https"})
_DEFAULT_PORTS: Final = {"http": 80, "https": 443}
_POD_NETWORK: Final = ipaddress.IPv4Network("10.0.0.0/8")
# Hop-by-hop headers: they concern one connection and are not passed on.
_HOP: Final = frozenset({
    "connection", "proxy-connection", "keep-alive", "proxy-authenticate", "proxy-authorization", "te", "trailer",
    "transfer-encoding", "upgrade",
})  # fmt: skip
_REPLACED: Final = frozenset({
    "authorization", "content-length", "x-forwarded-for", "x-forwarded-uri",
    # A trusted proxy names the user so, and a program may believe it.
    "x-remote-user", "x-remote-uid", "x-remote-group",
})  # fmt: skip
_IDENTITY_PREFIXES: Final = ("impersonate-", "x-remote-extra-")
# The HTTP client's steps before a connection is open.
_CONNECTING: Final = frozenset({"connection.connect_tcp.started", "connection.connect_tcp.failed"})
_BODILESS: Final = frozenset({204, 304})
_SAFE: Final = "/$&+,:;=@!'()*~"

Get = Callable[[str, str, str], Object]
"""(plural, namespace, name) -> the object. Raises ApiError 404."""
Headers = list[tuple[str, str]]


@dataclass(frozen=True, slots=True, kw_only=True)
class ProxyTarget:
    """The pod's address and port, and the path of this API that stands for the program's ``/`` (``prefix``)."""

    scheme: str
    address: str
    port: str
    prefix: str
    uid: str = ""
    node: str = ""


class PodPrograms(Protocol):
    """How pods' programs are reached."""

    async def send(
        self, method: str, target: ProxyTarget, path: str, headers: Headers, body: bytes
    ) -> tuple[int, Headers, AsyncIterable[bytes]]:
        """(status, headers, body as it comes). Raises OSError, worded as the real server words it."""
        ...

    async def close(self) -> None:
        """End every exchange."""
        ...


def is_proxy_request(kind: ApiKind, request: ApiRequest) -> bool:
    """Whether the request is one to a proxy subresource. Raises ApiError 404 for methods that it does not have."""
    if request.subresource != "proxy" or kind.group or kind.plural not in KINDS:
        return False
    if not request.namespace or request.method not in VERBS:
        raise not_there()
    return True


def name_of(request: ApiRequest) -> tuple[str, str, str]:
    """(scheme, name, port) of ``[SCHEME:]NAME[:PORT]``. Raises ApiError 400."""
    parts = request.name.split(":")
    scheme, name, port = ("", *parts, "")[:3] if len(parts) < 3 else (*parts, "")[:3]
    if len(parts) > 3 or not name or scheme not in _SCHEMES:
        raise bad_request(f'invalid {request.plural.removesuffix("s")} request "{request.name}"')
    return scheme, name, port


def target_of(request: ApiRequest, get: Get) -> ProxyTarget:
    """The target of the request. Raises ApiError 400, 404 and 503."""
    scheme, name, port = name_of(request)
    prefix = f"/api/v1/namespaces/{request.namespace}/{request.plural}/{request.name}/proxy"
    if request.plural == "services":
        pod, port = _pod_behind_service(request, name, port, get)
    else:
        pod = get("pods", request.namespace, name)
        port = port or _first_port(pod)
    return ProxyTarget(
        scheme=scheme or "http", address=_address(pod), port=port, prefix=prefix,
        uid=str(pod["metadata"].get("uid") or ""), node=str((pod.get("spec") or {}).get("nodeName") or ""),
    )  # fmt: skip


def _address(pod: Object) -> str:
    """The pod's own address. Raises ApiError 400 on the host's network, where the address leads to other programs."""
    address = str((pod.get("status") or {}).get("podIP") or "")
    try:
        if ipaddress.IPv4Address(address) in _POD_NETWORK:
            return address
    except ValueError:
        pass
    raise bad_request("address not allowed")


def _first_port(pod: Object) -> str:
    containers = (pod.get("spec") or {}).get("containers") or ()
    return next(
        (str(container["ports"][0].get("containerPort")) for container in containers if container.get("ports")), ""
    )


def _pod_behind_service(request: ApiRequest, name: str, port: str, get: Get) -> tuple[Object, str]:
    """A ready pod behind a Service, and its port."""
    service = get("services", request.namespace, name)
    if port.isascii() and port.isdecimal():
        rows = (service.get("spec") or {}).get("ports") or ()
        row = next((row for row in rows if str(row.get("port")) == port), None)
        if row is None:
            raise unavailable(f'no service port {port} found for service "{name}"')
        port = str(row.get("name") or "")
    try:
        subsets = get("endpoints", request.namespace, name).get("subsets") or ()
    except ApiError as error:
        if error.code != 404:
            raise
        raise ApiError(404, "NotFound", f'services "{name}" not found', {"name": name, "kind": "services"}) from None
    for subset in subsets:
        number = next((row["port"] for row in subset.get("ports") or () if str(row.get("name") or "") == port), None)
        for address in (subset.get("addresses") or ()) if number is not None else ():
            target = address.get("targetRef") or {}
            # An address without a pod was written by hand and may be of any host.
            if target.get("kind") == "Pod":
                return get("pods", request.namespace, str(target.get("name"))), str(number)
    raise unavailable(f'no endpoints available for service "{request.name if subsets else name}"')


def unavailable(message: str) -> ApiError:
    """503, worded as the real server does."""
    return ApiError(503, "ServiceUnavailable", message)


def path_of(request: ApiRequest, target: ProxyTarget) -> str:
    """The path for the program: the rest of the path without ``..`` and doubled slashes; "" if it has no slash."""
    rest = request.path[len(target.prefix) :]
    clean = posixpath.normpath("/" + rest.lstrip("/")) if rest else ""
    return clean + "/" if rest.endswith("/") and clean != "/" else clean


def headers_of(request: ApiRequest, path: str, target: ProxyTarget, client: str) -> Headers:
    """The headers for the program: without credentials, and with the client's address and the original path."""
    listed = {name.strip().lower() for name in request.header("connection").split(",")} - {"host"}
    left_out = _HOP | _REPLACED | listed
    headers = [
        (name, value)
        for name, value in request.headers.items()
        if name not in left_out and not name.startswith(_IDENTITY_PREFIXES)
    ]
    before = request.header("x-forwarded-for")
    headers.append(("x-forwarded-for", ", ".join(filter(None, (before, client)))))
    headers.append(("x-forwarded-uri", quote(target.prefix + path, safe=_SAFE)))
    return headers


def rewritten(location: str, target: ProxyTarget, hosts: frozenset[str]) -> str:
    """A redirect's target, with a path of the program put below the proxy's; other hosts and relative paths stay."""
    try:
        url = urlsplit(location)
    except ValueError:
        return location
    if (url.netloc and url.netloc not in hosts) or not url.path.startswith("/") or location.startswith(target.prefix):
        return location
    path = target.prefix + posixpath.normpath("/" + url.path.lstrip("/")).rstrip("/")
    path += "/" if url.path.endswith("/") else ""
    return SplitResult("", "", path, url.query, url.fragment).geturl()


def answer_headers(
    headers: Headers, target: ProxyTarget, hosts: frozenset[str], *, bodiless: bool = False
) -> tuple[str, Headers]:
    """(media type, the other headers) for the client, from the ``headers`` of the program's answer."""
    left_out = {
        listed.strip().lower() for name, value in headers if name == "connection" for listed in value.split(",")
    }
    if bodiless or any(name == "transfer-encoding" for name, _ in headers):
        left_out.add("content-length")  # of another answer, or of this one in another form
    media, kept = "", []
    for name, value in headers:
        if name in _HOP or name in left_out:
            continue
        if name == "content-type":
            media = value
        else:
            kept.append((name, rewritten(value, target, hosts) if name == "location" else value))
    return media, kept


async def answer(
    request: ApiRequest, client: str, get: Get, read: Callable[[], Awaitable[bytes]], programs: PodPrograms
) -> ApiAnswer:
    """The program's answer. Raises ApiError if there is none."""
    if "dryRun" in request.query:
        raise bad_request("dryRun is not supported")
    target = target_of(request, get)
    path = path_of(request, target)
    query = f"?{request.query.raw}" if request.query.raw else ""
    if not path:
        return ApiAnswer(301, media="", headers=[("Location", quote(request.path, safe=_SAFE) + "/" + query)])
    headers = headers_of(request, path, target, client)
    body = await read()
    try:
        status, reply_headers, pieces = await programs.send(
            request.method, target, quote(path, safe=_SAFE) + query, headers, body
        )
    except OSError as error:
        raise unavailable(f"error trying to reach service: {error}") from error
    hosts = frozenset({f"{target.address}:{target.port}", request.header("host")})
    media, kept = answer_headers(reply_headers, target, hosts, bodiless=status in _BODILESS)
    return ApiAnswer(status, media=media, headers=kept, stream=pieces)


class HttpPodPrograms:
    """Over HTTP, and HTTPS with whatever certificate the pod shows.

    ``reached`` gives the address on this machine that stands for a pod's. ``answers`` says whether a program of the pod
    listens on that address and port; it is called in a thread while a connection is open.
    """

    def __init__(self, reached: Callable[[str], str], answers: Callable[[ProxyTarget, str, int], bool]) -> None:
        self._reached = reached
        self._answers = answers
        self._client: httpx2.AsyncClient | None = None

    async def send(
        self, method: str, target: ProxyTarget, path: str, headers: Headers, body: bytes
    ) -> tuple[int, Headers, AsyncIterable[bytes]]:
        import httpx2

        port = target.port or str(_DEFAULT_PORTS[target.scheme])
        if not (port.isascii() and port.isdecimal() and int(port[:6]) < 1 << 16):
            raise OSError(f"dial tcp: address {port[:100]}: invalid port")
        local_address = self._reached(target.address)
        if not ipaddress.IPv4Address(local_address).is_loopback:
            raise OSError(f"dial tcp {target.address}:{port}: connect: network is unreachable")
        if self._client is None:
            # A pod's address may be another's by the time of the next request.
            limits = httpx2.Limits(max_connections=None, max_keepalive_connections=0)
            self._client = httpx2.AsyncClient(
                verify=_trusting(), timeout=httpx2.Timeout(None), limits=limits, trust_env=False, follow_redirects=False
            )
        url = httpx2.URL(scheme=target.scheme, host=local_address, port=int(port), raw_path=path.encode())
        check = ConnectionCheck(lambda: self._answers(target, local_address, int(port)), f"{target.address}:{port}")
        request = httpx2.Request(method, url, headers=headers, content=body or None, extensions={"trace": check.trace})
        try:
            async with asyncio.timeout(BEGIN_S):
                response = await self._client.send(request, stream=True)
        except (httpx2.HTTPError, TimeoutError) as error:
            raise OSError(_go_message(error, f"{target.address}:{port}")) from error
        if not 200 <= response.status_code < 600:
            await response.aclose()
            words = f'malformed HTTP status code "{response.status_code}"'
            raise OSError(f"net/http: HTTP/1.x transport connection broken: {words}")
        reply_headers = [
            (name.lower().decode("latin-1"), value.decode("latin-1")) for name, value in response.headers.raw
        ]
        return response.status_code, reply_headers, Pieces(response)

    async def close(self) -> None:
        if self._client is not None:
            await self._client.aclose()


class ConnectionCheck:
    """Checks a new connection before anything is sent, and ends it if another program than the pod's has accepted it.

    A check before the connection would leave time for another program to begin to listen. If the HTTP client reports no
    connection, its first step after it is refused.
    """

    def __init__(self, answers: Callable[[], bool], where: str) -> None:
        self._answers = answers
        self._where = where
        self.passed = False

    async def trace(self, event: str, info: Mapping[str, Any]) -> None:
        """The HTTP client's trace hook, called at each of its steps. Raises OSError."""
        if event == "connection.connect_tcp.complete":
            self.passed = await asyncio.to_thread(self._answers)
            if not self.passed:
                await info["return_value"].aclose()
        if not self.passed and event not in _CONNECTING:
            raise OSError(
                f"dial tcp {self._where}: connect: connection refused: the program of this machine that listens there "
                "is none of the pod's; expected: a program that a container of the pod has started; "
                "to do: end the other one, or have the pod listen on another port"
            )


def _trusting() -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    return context


class Pieces:
    """The body as it comes. Unlike a generator, it ends the connection even if reading has not begun."""

    def __init__(self, response: httpx2.Response) -> None:
        self._response = response

    async def __aiter__(self) -> AsyncIterator[bytes]:
        async for piece in self._response.aiter_raw():
            yield piece
            # Neither reading nor sending a thousand small pieces that have arrived waits for anything.
            await asyncio.sleep(0)

    async def aclose(self) -> None:
        await self._response.aclose()


def _go_message(error: BaseException, where: str) -> str:
    """Go's message for the error."""
    import httpx2

    if isinstance(error, TimeoutError):
        return f"dial tcp {where}: i/o timeout"
    if not isinstance(error, httpx2.ConnectError):
        return "EOF" if isinstance(error, httpx2.RemoteProtocolError) else str(error) or type(error).__name__
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, ssl.SSLError):
            return "tls: first record does not look like a TLS handshake"
        if isinstance(cause, OSError) and cause.errno:
            return f"dial tcp {where}: connect: {os.strerror(cause.errno).lower()}"
        cause = cause.__cause__ or cause.__context__
    return f"dial tcp {where}: connect: connection refused"
