"""The API server as an ASGI application: authentication, authorization, routing, and the answer on the wire.

Promises: every answer is the API's own (a Status for any failure), also to hostile input; a defect in a handler is
logged and answered with 500, and nothing else suffers.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
import time
import uuid
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any, Final, Protocol

from kgpu.lab.embedded.auth import ANONYMOUS, Auth, denial
from kgpu.lab.embedded.core.model import ApiUser
from kgpu.lab.embedded.http import answers, body, paths, resources
from kgpu.lab.embedded.http import request as requests
from kgpu.lab.embedded.http.answers import ApiAnswer, ConnectionTunnel
from kgpu.lab.embedded.http.impersonation import impersonated, rights
from kgpu.lab.embedded.http.metrics import Labels
from kgpu.lab.embedded.http.options import check_timeout
from kgpu.lab.embedded.http.request import ApiRequest
from kgpu.lab.embedded.http.resources import STREAMED, HandlerContext, ResourceRequest
from kgpu.lab.embedded.status import ApiError, forbidden

log = logging.getLogger(__name__)

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Any]]
Send = Callable[[Any], Awaitable[None]]

_METRIC_VERBS: Final = {"create": "POST", "update": "PUT", "patch": "PATCH", "deletecollection": "DELETECOLLECTION"}
ABORT: Final = "kgpu.abort"
"""The ASGI extension whose ``call`` drops the connection at once, and with it all that was not sent yet."""
KNOWN: Final = "kgpu.known"
"""The ASGI extension whose ``call`` marks the connection's client as one with valid credentials."""
TAKE_OVER: Final = "kgpu.take_over"
"""The ASGI extension whose ``call`` gives the connection away, as (reader, writer). Raises OSError if it has ended."""
LINGER_S: Final = 10.0  # for a client to read the rest of a stream that is over
_HEAD_OF_WARNING: Final = 2048  # characters of all warnings together; the real server leaves out the rest, too


class PathHandler(Protocol):
    """Answers paths that are no resources; ``paths.NonResourcePaths``."""

    async def answer(self, request: ApiRequest) -> ApiAnswer:
        """Raises ApiError."""
        ...


class App:
    """The ASGI application. ``close`` ends its calls to kubelets and pods."""

    def __init__(self, context: HandlerContext, auth: Auth, others: PathHandler) -> None:
        self._context = context
        self._auth = auth
        self._others = others
        self._ending = asyncio.Event()

    def end_streams(self) -> None:
        """End every watch, log and command, those to come too, because the server stops."""
        self._ending.set()

    async def close(self) -> None:
        """End the calls to kubelets and pods."""
        await self._context.kubelets.close()
        await self._context.programs.close()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        metrics = self._context.metrics
        begun, code = time.perf_counter(), 500
        labels: list[Labels] = []
        metrics.begin()
        try:
            code = await self._serve(scope, receive, send, labels)
        finally:
            seconds = time.perf_counter() - begun
            metrics.end(labels[0] if labels else ("OTHER", "", "", "", "", "", ""), code, seconds)

    async def _serve(self, scope: Scope, receive: Receive, send: Send, labels: list[Labels]) -> int:
        request: ApiRequest | None = None
        warnings: list[str] = []
        try:
            raw = scope.get("raw_path") or scope["path"].encode()
            path, query = raw.decode("latin-1").partition("?")[0], scope["query_string"].decode("latin-1")
            request = requests.parse(scope["method"], path, query, scope["headers"])
            labels.append(_labels(request))
            check_timeout(request)
            user = self._auth.authenticate(request.header("authorization"))
            if user is not ANONYMOUS:
                _call(scope, KNOWN)
            client = (scope.get("client") or ("",))[0]
            reply = await self._handle(user, request, receive, warnings, client)
        except ApiError as error:
            reply = answers.of_error(error, request)
        except Exception:
            log.exception("a request could not be answered: %s %s", scope["method"], scope["path"][:200])
            why = "the server has encountered an unexpected error; see its log"
            message = f"Internal error occurred: {why}"
            problem = ApiError(500, "InternalError", message, {"causes": [{"message": why}]})
            reply = answers.of_error(problem, request)
        if request is not None:
            reply = await answers.compressed(reply, request)
        if reply.tunnel is not None:
            await self._carry(reply.tunnel, scope)
            return reply.status
        abort = functools.partial(_call, scope, ABORT)
        await self._send(reply, warnings, request, receive, send, abort=abort)
        return reply.status

    async def _handle(
        self, user: ApiUser, request: ApiRequest, receive: Receive, warnings: list[str], client: str
    ) -> ApiAnswer:
        user = self._impersonated(user, request)
        attributes = request.attributes()
        allowed, reason = self._auth.allowed(user, attributes)
        if not allowed:
            raise denial(user, attributes, reason)
        if request.plural == "pods" and request.subresource in STREAMED and request.verb != "create":
            # A WebSocket begins with a GET, which is no right to run anything.
            allowed, reason = self._auth.allowed(user, attributes | {"verb": "create"})
            if not allowed:
                raise forbidden(request.group, request.plural, request.name, reason)
        if not request.resource or not any(kind.group == request.group for kind in self._context.kinds):
            return await self._others.answer(request)
        kind = resources.kind_of(self._context.kinds, request)
        read = functools.partial(body.read, receive, request.header("content-length"))
        resource_request = ResourceRequest(
            request=request, kind=kind, user=user, read=read, warnings=warnings, client=client
        )
        return await resources.answer(self._context, resource_request)

    def _impersonated(self, user: ApiUser, request: ApiRequest) -> ApiUser:
        """The user that ``kubectl --as`` names, else the caller. Raises ApiError 403 if the caller may not do that."""
        wanted = impersonated(request)
        if wanted is None:
            return user
        for attributes in rights(request):
            allowed, reason = self._auth.allowed(user, attributes)
            if not allowed:
                raise denial(user, attributes, reason)
        return wanted

    # --- the wire -------------------------------------------------------------------------------------------------

    async def _send(
        self, reply: ApiAnswer, warnings: list[str], request: ApiRequest | None, receive: Receive, send: Send, *,
        abort: Callable[[], None],
    ) -> None:  # fmt: skip
        headers = [
            (b"audit-id", str(uuid.uuid4()).encode()),
            (b"cache-control", b"no-cache, private"),
        ]
        if reply.media:
            headers.append((b"content-type", reply.media.encode("latin-1", "replace")))
        for name, value in reply.headers:
            headers.append((name.lower().encode(), value.encode("latin-1", "replace")))
        if any(name.lower() == "cache-control" for name, _ in reply.headers):
            del headers[1]
        headers += _warnings(warnings)
        if reply.stream is None:
            if reply.status != 204:
                headers.append((b"content-length", str(len(reply.body)).encode()))
            await send({"type": "http.response.start", "status": reply.status, "headers": headers})
            empty = request is not None and request.method == "HEAD"
            await send({"type": "http.response.body", "body": b"" if empty else reply.body})
            return
        await self._stream(reply, headers, request, receive, send, abort=abort)

    async def _carry(self, tunnel: ConnectionTunnel, scope: Scope) -> None:
        """Leave the client's connection to the tunnel until one of them, or this server, ends."""
        try:
            reader, writer = scope["extensions"][TAKE_OVER]["call"]()
        except OSError:
            return tunnel.close()
        carrying = asyncio.ensure_future(tunnel.carry(reader, writer))
        ending = asyncio.ensure_future(self._ending.wait())
        try:
            await asyncio.wait((carrying, ending), return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in (carrying, ending):
                task.cancel()
            await asyncio.gather(carrying, ending, return_exceptions=True)

    async def _stream(
        self, reply: ApiAnswer, headers: list[tuple[bytes, bytes]], request: ApiRequest | None, receive: Receive,
        send: Send, *, abort: Callable[[], None],
    ) -> None:  # fmt: skip
        assert reply.stream is not None
        metrics = self._context.metrics
        watched = (request.group, request.version, request.plural) if request is not None else ("", "", "")
        sending = asyncio.ensure_future(_pump(reply, headers, send))
        leaving = asyncio.ensure_future(_disconnected(receive))
        ending = asyncio.ensure_future(self._ending.wait())
        over = asyncio.ensure_future(reply.over.wait())
        stop = (sending, leaving, ending)
        metrics.watching(*watched, 1)
        try:
            await asyncio.wait((*stop, over), return_when=asyncio.FIRST_COMPLETED)
            if over.done() and not any(task.done() for task in stop):
                await asyncio.wait(stop, timeout=LINGER_S, return_when=asyncio.FIRST_COMPLETED)
                if not any(task.done() for task in stop):
                    abort()
            if sending.done():
                sending.result()
        finally:
            metrics.watching(*watched, -1)
            cut_off = self._ending.is_set() and not sending.done()
            for task in (*stop, over):
                task.cancel()
                with contextlib.suppress(asyncio.CancelledError, Exception):
                    await task
            if cut_off:
                await send({"type": "http.response.body", "body": b""})
            close = getattr(reply.stream, "aclose", None)
            if close is not None:
                await close()


def _call(scope: Scope, extension: str) -> None:
    """Call an extension, if the server has it."""
    call = scope.get("extensions", {}).get(extension, {}).get("call")
    if call is not None:
        call()


async def _pump(reply: ApiAnswer, headers: list[tuple[bytes, bytes]], send: Send) -> None:
    assert reply.stream is not None
    await send({"type": "http.response.start", "status": reply.status, "headers": headers})
    # A client that waits for a first change learns at once that its watch is open.
    await send({"type": "http.response.body", "body": b"", "more_body": True})
    async for chunk in reply.stream:
        await send({"type": "http.response.body", "body": chunk, "more_body": True})
    await send({"type": "http.response.body", "body": b""})


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


def _warnings(warnings: list[str]) -> list[tuple[bytes, bytes]]:
    headers, left = [], _HEAD_OF_WARNING
    for text in dict.fromkeys(warnings):
        left -= len(text)
        if left < 0:
            break
        clean = "".join(character if character.isprintable() else " " for character in text)
        quoted = clean.replace("\\", "\\\\").replace('"', '\\"')
        headers.append((b"warning", f'299 - "{quoted}"'.encode()))
    return headers


def _labels(request: ApiRequest) -> Labels:
    if not request.resource:
        top = "/" + request.path.split("/")[1] if request.path.count("/") else ""
        verb = request.method if top in paths.KNOWN else "OTHER"
        return (verb, "", "", "", top if top in paths.KNOWN else "", "", "")
    verb = _METRIC_VERBS.get(request.verb, request.verb.upper())
    if verb == "PATCH" and request.header("content-type").startswith("application/apply-patch"):
        verb = "APPLY"
    if request.subresource in ("log", "exec", "attach", "portforward", "proxy"):
        verb = "CONNECT"
    scope = "resource" if request.name else "namespace" if request.namespace else "cluster"
    dry_run = "All" if "dryRun" in request.query else ""
    return (verb, request.group, request.version, request.plural, request.subresource, scope, dry_run)
