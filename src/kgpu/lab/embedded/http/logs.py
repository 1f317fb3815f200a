"""``pods/log``: the options are checked as the real server does, then the kubelet of the pod's node is asked."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator, Callable, Iterable
from typing import TYPE_CHECKING, Any, Final, Protocol
from urllib.parse import quote, urlencode

from kgpu.lab.embedded.http.answers import TEXT, ApiAnswer
from kgpu.lab.embedded.http.request import ApiRequest
from kgpu.lab.embedded.status import (
    ApiError,
    FieldError,
    Object,
    bad_request,
    bad_value,
    forbidden_field,
    invalid,
    unsupported,
)

if TYPE_CHECKING:
    import httpx2

DIAL_S: Final = 30.0  # to reach a kubelet
_ERROR_BYTES: Final = 50_000  # of a kubelet's refusal that are read
_NUMBERS: Final = ("sinceSeconds", "tailLines", "limitBytes")
_FLAGS: Final = ("follow", "previous", "timestamps")
_STREAMS: Final = ("All", "Stdout", "Stderr")
_REASONS: Final = {
    401: "Unauthorized", 403: "Forbidden", 404: "NotFound", 405: "MethodNotAllowed", 409: "Conflict",
    503: "ServiceUnavailable",
}  # fmt: skip
_SENTENCES: Final = {
    401: "the server has asked for the client to provide credentials",
    404: "the server could not find the requested resource",
    503: "the server is currently unable to handle the request",
}


class Kubelets(Protocol):
    """How kubelets are reached."""

    async def open(self, url: str) -> tuple[int, AsyncIterator[bytes], Callable[[], Any]]:
        """(status, body, close) of a GET. Raises OSError if the kubelet does not answer."""
        ...

    async def close(self) -> None:
        """End every call."""
        ...


class HttpsKubelets:
    """Over HTTPS, with the API server's client certificate."""

    def __init__(self, context: Callable[[], ssl.SSLContext]) -> None:
        """``context`` is called at the first call to a kubelet."""
        self._context = context
        self._client: httpx2.AsyncClient | None = None

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

    async def close(self) -> None:
        if self._client is not None:
            await self._client.aclose()


async def _whole(answer: httpx2.Response) -> AsyncIterator[bytes]:
    import httpx2

    try:
        async for chunk in answer.aiter_bytes():
            yield chunk
    except httpx2.HTTPError:
        return  # the kubelet went away: the log ends with what has come
    finally:
        await answer.aclose()


def kubelet_query(request: ApiRequest, name: str) -> list[tuple[str, str]]:
    """The query for the kubelet. Raises ApiError 400 and 422 for wrong log options."""
    query = request.query
    numbers = {key: query.number(key) for key in _NUMBERS}
    stream = query.text("stream") or "All"
    errors: list[FieldError] = []
    tail, limit, since = numbers["tailLines"], numbers["limitBytes"], numbers["sinceSeconds"]
    if tail is not None and tail < 0:
        errors.append(bad_value("tailLines", tail, "must be greater than or equal to 0"))
    if limit is not None and limit < 1:
        errors.append(bad_value("limitBytes", limit, "must be greater than 0"))
    if since is not None and query.text("sinceTime"):
        errors.append(forbidden_field("", "at most one of `sinceTime` or `sinceSeconds` may be specified"))
    elif since is not None and since < 1:
        errors.append(bad_value("sinceSeconds", since, "must be greater than 0"))
    if stream not in _STREAMS:
        errors.append(unsupported("stream", stream, _STREAMS))
    elif stream != "All" and tail is not None:
        errors.append(forbidden_field("", "`tailLines` and specific `stream` are mutually exclusive for now"))
    if errors:
        raise invalid("", "PodLogOptions", name, errors)
    pairs = [(flag, "true") for flag in _FLAGS if query.flag(flag)]
    pairs += [(key, str(value)) for key, value in numbers.items() if value is not None]
    if query.text("sinceTime"):
        pairs.append(("sinceTime", query.text("sinceTime")))
    return [*pairs, ("stream", stream)]


def container_of(pod: Object, wanted: str) -> str:
    """The name of the wanted container, or of the only one. Raises ApiError 400."""
    spec, name = pod.get("spec") or {}, pod["metadata"]["name"]
    plain = _names(spec.get("containers"))
    every = [*_names(spec.get("initContainers")), *plain, *_names(spec.get("ephemeralContainers"))]
    if wanted:
        if wanted in every:
            return wanted
        raise bad_request(f"container {wanted} is not valid for pod {name}")
    if len(plain) == 1:
        return plain[0]
    raise bad_request(f"a container name must be specified for pod {name}, choose one of: [{' '.join(every)}]")


def _names(containers: Any) -> list[str]:
    return [str(container.get("name")) for container in containers or ()]


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


async def answer(
    request: ApiRequest, pod: Object, find_node: Callable[[str], Object | None], kubelets: Kubelets
) -> ApiAnswer:
    """The log of a container. ``find_node`` looks up a Node by name. Raises ApiError."""
    metadata = pod["metadata"]
    name = metadata["name"]
    query = kubelet_query(request, name)
    container = container_of(pod, request.query.text("container"))
    node_name = str((pod.get("spec") or {}).get("nodeName") or "")
    if not node_name:
        return ApiAnswer(204, media=TEXT)
    node = find_node(node_name)
    if node is None:
        raise ApiError(404, "NotFound", f'nodes "{node_name}" not found', {"name": node_name, "kind": "nodes"})
    host, port = kubelet_of(node)
    authority = f"[{host}]" if ":" in host else host
    path = "/".join(quote(part, safe="") for part in (metadata["namespace"], name, container))
    url = f"https://{authority}:{port}/containerLogs/{path}?{urlencode(query)}"
    try:
        status, body, close = await kubelets.open(url)
    except OSError as error:
        raise internal(str(error)) from error
    if not 200 <= status <= 206:
        try:
            raise await _refusal(status, body, name)
        finally:
            await close()
    return ApiAnswer(200, media="text/plain", stream=body)


async def _refusal(status: int, body: AsyncIterator[bytes], name: str) -> ApiError:
    data = b""
    async for chunk in body:
        data += chunk
        if len(data) > _ERROR_BYTES:
            break
    text = data[:_ERROR_BYTES].decode("utf-8", "replace")
    if status == 500:
        return internal(text)
    if status == 400:
        return bad_request(text)
    message = f"{_SENTENCES.get(status, text or 'unknown')} ( pods/log {name})"
    causes = [{"reason": "UnexpectedServerResponse", "message": text}]
    return ApiError(
        status, _REASONS.get(status, "Unknown"), message, {"name": name, "kind": "pods/log", "causes": causes}
    )
